//! Labelled images as pairs.

use std::sync::Arc;

use crate::{
    dataset::{Dataset, Sample, Share, Shared},
    error::Result,
};

/// Where the name of a class goes in a template.
const PLACE: &str = "{}";

/// Labelled images whose captions are the names of their classes (paper 002 App. A.3).
pub struct Captioned {
    of: Shared,
    /// One per class.
    texts: Vec<String>,
}

impl Captioned {
    /// Every image with one caption: the template with the name of its class for `{}`, such as `a photo of a {}`.
    /// An empty template is the name alone; one without `{}` is followed by it. Underscores and hyphens in
    /// names are spaces. Captions that the data has are not used.
    pub fn by_classes(data: Shared, template: &str) -> Shared {
        let text = |name: &String| {
            let name = words(name);
            match template.trim() {
                "" => name,
                template if template.contains(PLACE) => template.replace(PLACE, &name),
                template => format!("{template} {name}"),
            }
        };
        let texts = data.classes().iter().map(text).collect();
        Arc::new(Self { of: data, texts })
    }
}

/// The name of a class as one would say it.
fn words(name: &str) -> String {
    let words = name.split(|letter: char| letter.is_whitespace() || "_-".contains(letter));
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

impl Dataset for Captioned {
    fn classes(&self) -> &[String] {
        self.of.classes()
    }

    fn len(&self) -> usize {
        self.of.len()
    }

    fn label(&self, index: usize) -> usize {
        self.of.label(index)
    }

    fn get(&self, index: usize) -> Result<Sample> {
        Ok(Sample { captions: self.captions(index)?, ..self.of.get(index)? })
    }

    fn name(&self, index: usize) -> String {
        self.of.name(index)
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(self.texts.get(self.label(index)).cloned().into_iter().collect())
    }

    fn has_captions(&self) -> bool {
        !self.texts.is_empty()
    }

    fn pixel_classes(&self) -> Option<&[String]> {
        self.of.pixel_classes()
    }

    fn shares(&self) -> Option<Vec<Share>> {
        self.of.shares()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GeneratedDataset, picture::Picture};

    /// Four samples of two classes.
    fn four(classes: &[&str]) -> Shared {
        let classes: Vec<String> = classes.iter().map(|&name| name.to_owned()).collect();
        Arc::new(GeneratedDataset::new(&classes, 4, |index| {
            let captions = vec!["another".to_owned()];
            Ok(Sample { captions, ..Sample::new(Picture::filled(1, 1, [0; 3]), index % 2) })
        }))
    }

    #[test]
    fn the_name_of_its_class_is_what_an_image_shows() {
        let data = four(&["polar_bear", "t-shirt__red "]);
        assert!(!data.has_captions());
        let texts = |template| {
            let pairs = Captioned::by_classes(data.clone(), template);
            assert!(pairs.has_captions() && pairs.classes() == data.classes());
            assert_eq!(pairs.get(3).unwrap().captions, pairs.captions(1).unwrap());
            assert_eq!(pairs.get(3).unwrap().label, 1);
            [0, 1].map(|index| pairs.captions(index).unwrap().concat())
        };
        assert_eq!(texts("{}"), ["polar bear", "t shirt red"]);
        assert_eq!(texts(""), texts("{}"));
        assert_eq!(
            texts("a photo of a {}."),
            ["a photo of a polar bear.", "a photo of a t shirt red."]
        );
        assert_eq!(texts("a"), ["a polar bear", "a t shirt red"]);
    }

    #[test]
    fn without_classes_there_are_no_captions() {
        let pairs = Captioned::by_classes(four(&[]), "{}");
        assert!(!pairs.has_captions() && pairs.captions(0).unwrap().is_empty());
    }
}
