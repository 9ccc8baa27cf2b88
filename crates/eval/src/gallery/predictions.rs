//! Single predictions with their pictures.

use omma_base::Resolution;
use omma_data::Dataset;
use omma_report::{PictureCard, PictureRow};

use super::thumbnails::thumbnail;
use crate::{confusion::Confusion, examples::Example, protocols::test::Test};

/// Classes that have a row; of more, those with the largest error.
const CLASSES: usize = 12;
/// Pairs of classes that have a row.
const PAIRS: usize = 8;
/// Images of the class that others are taken for, beside these.
const RIGHT_ONES: usize = 2;

/// What a system makes of single test images.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct PredictionPictures {
    pub(crate) mistakes: Vec<PictureCard>,
    pub(crate) unsure: Vec<PictureCard>,
    pub(crate) classes: Vec<PictureRow>,
    /// Whether these are only the hardest of all.
    pub(crate) hardest_only: bool,
    pub(crate) confusions: Vec<PictureRow>,
}

impl PredictionPictures {
    /// - `data`: what the predictions are about
    /// - `resolution`: what the models see of it
    pub(super) fn of(test: &Test, data: &dyn Dataset, resolution: Resolution) -> Self {
        let show = Show { data, resolution };
        let examples = &test.examples;
        let hardest_only = examples.by_class.len() > CLASSES;
        let classes = shown_classes(test).into_iter().map(|(class, error)| PictureRow {
            title: show.name(class),
            detail: error.map(|error| format!("{:.0} % wrong", 100.0 * error)).unwrap_or_default(),
            cards: show.cards(examples.by_class.get(&class).into_iter().flatten(), false),
        });
        let pairs = most_confused(&test.confusion);
        let confusions = pairs.into_iter().filter_map(|(label, predicted, count)| {
            let mut cards = show.cards(examples.confused.get(&(label, predicted))?, true);
            let right = examples.by_class.get(&predicted).into_iter().flatten();
            let right = right.filter(|example| example.is_right()).take(RIGHT_ONES);
            cards.extend(right.filter_map(|example| show.as_it_is(example)));
            Some(PictureRow {
                title: format!("{} → {}", show.name(label), show.name(predicted)),
                detail: match count {
                    1 => "1 image".to_owned(),
                    _ => format!("{count} images"),
                },
                cards,
            })
        });
        Self {
            mistakes: show.cards(&examples.wrong, true),
            unsure: show.cards(&examples.unsure, true),
            classes: classes.collect(),
            hardest_only,
            confusions: confusions.collect(),
        }
    }
}

/// Classes with images, in their order; of many, the hardest, the hardest first.
fn shown_classes(test: &Test) -> Vec<(usize, Option<f64>)> {
    let error = |class: usize| test.record.class_errors.get(class).copied().flatten();
    let mut classes: Vec<(usize, Option<f64>)> =
        test.examples.by_class.keys().map(|class| (*class, error(*class))).collect();
    if classes.len() > CLASSES {
        let size = |error: Option<f64>| error.unwrap_or(0.0);
        classes.sort_by(|a, b| size(b.1).total_cmp(&size(a.1)));
        classes.truncate(CLASSES);
    }
    classes
}

/// Label, predicted class and number of images, the largest number first.
fn most_confused(confusion: &Confusion) -> Vec<(usize, usize, u64)> {
    let mut pairs: Vec<_> = confusion.mistakes().collect();
    pairs.sort_by_key(|(label, predicted, count)| (std::cmp::Reverse(*count), *label, *predicted));
    pairs.truncate(PAIRS);
    pairs
}

/// A confidence in few words, as there is little room below a picture.
pub(super) fn sure(confidence: f64) -> String {
    format!("{:.0}\u{a0}% sure", 100.0 * confidence)
}

/// Who makes cards.
struct Show<'a> {
    data: &'a dyn Dataset,
    resolution: Resolution,
}

impl Show<'_> {
    fn name(&self, class: usize) -> String {
        self.data.classes().get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// What is predicted of images, and how sure that is. An image that cannot be read any more is left out.
    ///
    /// - `labelled`: whether a mistake says what the image is, which a row by class does for all
    fn cards<'a>(
        &self,
        examples: impl IntoIterator<Item = &'a Example>,
        labelled: bool,
    ) -> Vec<PictureCard> {
        let card = |example: &Example| {
            let (label, predicted) = (self.name(example.label), self.name(example.predicted));
            let confidence = sure(example.confidence);
            let detail = match labelled && !example.is_right() {
                true => format!("it is {label}\n{confidence}"),
                false => confidence,
            };
            let alt = match example.is_right() {
                true => format!("test image of {label}, recognised"),
                false => format!("test image of {label}, taken for {predicted}"),
            };
            Some(PictureCard {
                good: Some(example.is_right()),
                caption: predicted,
                detail,
                ..self.picture(example, alt)?
            })
        };
        examples.into_iter().filter_map(card).collect()
    }

    /// An image of a class, without a prediction.
    fn as_it_is(&self, example: &Example) -> Option<PictureCard> {
        let label = self.name(example.label);
        let alt = format!("test image of {label}, for comparison");
        let detail = "is one, for comparison".to_owned();
        Some(PictureCard { caption: label, detail, ..self.picture(example, alt)? })
    }

    fn picture(&self, example: &Example, alt: String) -> Option<PictureCard> {
        let picture = self.data.get(example.index).ok()?.picture;
        let picture = thumbnail(&picture, self.resolution);
        Some(PictureCard { picture, alt, ..PictureCard::default() })
    }
}

#[cfg(test)]
mod tests {
    use omma_data::{
        Split,
        world::{Variant, World},
    };

    use super::*;

    #[test]
    fn cards_name_both_classes_of_a_mistake() {
        let resolution = Resolution::square(200);
        let world = World::new(3, resolution, 4, Split::Test, Variant::Usual);
        let show = Show { data: &world, resolution };
        let wrong = Example { index: 1, label: 2, predicted: 0, confidence: 0.97 };
        let right = Example { index: 3, label: 0, predicted: 0, confidence: 0.5 };
        let cards = show.cards(&[right, wrong], true);
        let [right, wrong] = cards.as_slice() else { panic!("two cards, not {}", cards.len()) };
        assert_eq!((right.good, right.detail.as_str()), (Some(true), "50\u{a0}% sure"));
        let [circle, _, triangle] = &world.classes()[..3] else { panic!("three classes") };
        assert_eq!((wrong.good, &wrong.caption), (Some(false), circle));
        assert_eq!(wrong.detail, format!("it is {triangle}\n97\u{a0}% sure"));
        assert_eq!(wrong.alt, format!("test image of {triangle}, taken for {circle}"));
        assert!(wrong.picture.size().0 <= 96);
    }
}
