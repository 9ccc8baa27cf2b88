//! Images by their paths, as tables of any form list them.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use super::{
    classes::{check_classes, classes, places},
    structure::split_names,
};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::{DataError, Result},
    picture::Picture,
};

/// Images that a table names, with their labels, their captions or both. Without labels there are no classes.
#[derive(Debug)]
pub struct ImageTable {
    classes: Vec<String>,
    images: Vec<Image>,
}

#[derive(Debug)]
struct Image {
    file: PathBuf,
    label: usize,
    captions: Vec<String>,
}

/// What a table says of an image in one place.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) file: PathBuf,
    pub(super) label: Option<String>,
    /// Empty ones are no captions.
    pub(super) captions: Vec<String>,
}

impl ImageTable {
    /// What the rows of a table say, perhaps of a split whose classes another split has named. Where there are
    /// captions, rows of the same image and label are one sample; without labels, an image without any caption
    /// is left out.
    pub(super) fn of(path: &Path, rows: Vec<Row>, known: Option<&[String]>) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        if rows.is_empty() {
            return Err(fault("it has no rows".to_owned()));
        }
        let has_labels = rows.iter().any(|row| row.label.is_some());
        if let Some(row) = rows.iter().position(|row| has_labels && row.label.is_none()) {
            return Err(fault(format!("row {} has no label", row + 1)));
        }
        if !has_labels && known.is_some_and(|known| !known.is_empty()) {
            return Err(fault("it has no labels, and the training images have".to_owned()));
        }
        let rows = joined(path, rows);
        if rows.is_empty() {
            return Err(fault("none of its images has a caption".to_owned()));
        }
        let classes = match known {
            Some(known) => known.to_vec(),
            None => classes(rows.iter().filter_map(|row| row.label.as_deref())),
        };
        check_classes(path, classes.len())?;
        let places = places(&classes);
        let place = |label: &str| {
            let place = places.get(label).copied();
            place.ok_or_else(|| fault(format!("the training images have no class {label:?}")))
        };
        let images = rows.into_iter().map(|Row { file, label, captions }| {
            Ok(Image { file, label: label.as_deref().map_or(Ok(0), place)?, captions })
        });
        let images = images.collect::<Result<_>>()?;
        Ok(Self { classes, images })
    }
}

impl ImageTable {
    /// The images in the folder of a split, under the first of its usual names that has some.
    pub(super) fn below(&self, folder: &Path, split: Split) -> Vec<usize> {
        let is_below = |image: &Image, name: &str| {
            let path = image.file.strip_prefix(folder).ok();
            let first = path.and_then(|path| path.components().next());
            first.is_some_and(|first| first.as_os_str().eq_ignore_ascii_case(name))
        };
        let of = |name: &&str| -> Vec<usize> {
            (0..self.images.len()).filter(|index| is_below(&self.images[*index], name)).collect()
        };
        split_names(split).iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
    }
}

/// Rows of one image as one where there are captions; what is left of a table without labels has some.
fn joined(path: &Path, rows: Vec<Row>) -> Vec<Row> {
    let has_labels = rows.iter().any(|row| row.label.is_some());
    let has_captions = rows.iter().any(|row| !row.captions.is_empty());
    if has_labels && !has_captions {
        return rows;
    }
    let mut found: HashMap<(PathBuf, Option<String>), usize> = HashMap::new();
    let (mut images, mut empty): (Vec<Row>, usize) = (Vec::new(), 0);
    for row in rows {
        let Row { file, label, captions } = row;
        let before = captions.len();
        let captions: Vec<String> = captions
            .into_iter()
            .map(|caption| caption.trim().to_owned())
            .filter(|caption| !caption.is_empty())
            .collect();
        empty += before - captions.len();
        let place = *found.entry((file.clone(), label.clone())).or_insert(images.len());
        match images.get_mut(place) {
            Some(image) => image.captions.extend(captions),
            None => images.push(Row { file, label, captions }),
        }
    }
    if empty > 0 {
        tracing::warn!("left out: {empty} empty captions of {}", path.display());
    }
    if !has_labels {
        let all = images.len();
        images.retain(|image| !image.captions.is_empty());
        if images.len() < all {
            let bare = all - images.len();
            tracing::warn!("left out: {bare} images of {} without a caption", path.display());
        }
    }
    images
}

impl Dataset for ImageTable {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn label(&self, index: usize) -> usize {
        self.images[index].label
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let Image { file, label, captions } = &self.images[index];
        Ok(Sample { captions: captions.clone(), ..Sample::new(Picture::open(file)?, *label) })
    }

    fn name(&self, index: usize) -> String {
        self.images[index].file.to_string_lossy().into_owned()
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(self.images[index].captions.clone())
    }

    fn has_captions(&self) -> bool {
        self.images.iter().any(|image| !image.captions.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(file: &str, label: &str, captions: &[&str]) -> Row {
        let label = Some(label.to_owned()).filter(|label| !label.is_empty());
        Row { file: file.into(), label, captions: captions.iter().map(|c| (*c).into()).collect() }
    }

    fn table(rows: Vec<Row>) -> Result<ImageTable> {
        ImageTable::of(Path::new("t.csv"), rows, None)
    }

    #[test]
    fn rows_of_one_image_are_its_captions() {
        let rows = vec![
            row("a.png", "", &["one"]),
            row("b.png", "", &[" two ", ""]),
            row("a.png", "", &["three"]),
            row("c.png", "", &["  "]),
        ];
        let data = table(rows).unwrap();
        assert!(data.has_captions() && data.classes().is_empty());
        let found: Vec<_> = (0..data.len()).map(|i| data.captions(i).unwrap()).collect();
        assert_eq!(found, [vec!["one", "three"], vec!["two"]]);
        assert_eq!((data.name(0), data.label(1)), ("a.png".to_owned(), 0));
    }

    #[test]
    fn labels_tell_samples_apart_and_keep_those_without_words() {
        let rows = vec![
            row("a.png", "x", &["one"]),
            row("a.png", "y", &["two"]),
            row("b.png", "y", &[""]),
        ];
        let data = table(rows).unwrap();
        assert_eq!((data.len(), data.classes().len()), (3, 2));
        assert!(data.captions(2).unwrap().is_empty());
        // Without captions, nothing is joined.
        let data = table(vec![row("a.png", "x", &[]), row("a.png", "x", &[])]).unwrap();
        assert!(data.len() == 2 && !data.has_captions());
    }

    #[test]
    fn what_says_nothing_is_refused() {
        for (rows, why) in [
            (Vec::new(), "no rows"),
            (vec![row("a.png", "", &["  "])], "none of its images has a caption"),
            (vec![row("a.png", "x", &["one"]), row("b.png", "", &["two"])], "row 2 has no label"),
        ] {
            let message = table(rows).unwrap_err().to_string();
            assert!(message.contains(why) && message.contains("t.csv"), "{message}");
        }
    }
}
