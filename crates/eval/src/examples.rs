//! Single predictions, to be shown.

use omma_base::Resolution;
use omma_data::Dataset;
use omma_report::{PictureCard, png};

use crate::error::Result;

/// Examples of each kind that are kept.
const KEPT: usize = 12;
/// Larger images are made smaller for a page.
const LARGEST_PICTURE: usize = 128;

/// One prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Example {
    /// Which sample of the data.
    pub index: usize,
    /// Its class.
    pub label: usize,
    /// The likeliest class.
    pub predicted: usize,
    /// How likely that class is held to be.
    pub confidence: f64,
}

impl Example {
    /// Whether the prediction is right.
    pub fn is_right(&self) -> bool {
        self.label == self.predicted
    }
}

/// A few right and a few wrong predictions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Examples {
    /// The first ones.
    pub right: Vec<Example>,
    /// Those of the highest confidence, the highest first.
    pub wrong: Vec<Example>,
}

impl Examples {
    pub(crate) fn add(&mut self, example: Example) {
        if example.is_right() {
            if self.right.len() < KEPT {
                self.right.push(example);
            }
            return;
        }
        let place = self.wrong.partition_point(|other| other.confidence >= example.confidence);
        if place < KEPT {
            self.wrong.insert(place, example);
            self.wrong.truncate(KEPT);
        }
    }

    /// Cards for a page: right predictions, then wrong ones.
    ///
    /// - `data`: what the predictions are about
    pub fn cards(&self, data: &dyn Dataset) -> Result<Vec<PictureCard>> {
        let name = |class: usize| data.classes().get(class).cloned().unwrap_or_default();
        let card = |example: &Example| {
            let picture = data.get(example.index)?.picture;
            let picture = match picture.width.max(picture.height) > LARGEST_PICTURE {
                true => picture.centre_crop(Resolution::square(LARGEST_PICTURE), 1.0),
                false => picture,
            };
            let label = match example.is_right() {
                true => String::new(),
                false => format!("it is {}, ", name(example.label)),
            };
            Ok(PictureCard {
                png: png(&picture.pixels, picture.width as u32, picture.height as u32),
                caption: name(example.predicted),
                good: Some(example.is_right()),
                detail: format!("{label}confidence {:.0} %", 100.0 * example.confidence),
            })
        };
        self.right.iter().chain(&self.wrong).map(card).collect()
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
    fn the_first_right_and_the_most_confident_wrong_ones_are_kept() {
        let mut examples = Examples::default();
        for index in 0..40 {
            // Right ones come first; the confidence of wrong ones rises and falls.
            let confidence = f64::from(20 - (index as i32 - 30).abs()) / 20.0;
            examples.add(Example { index, label: 0, predicted: index / 20, confidence });
        }
        let indices = |kept: &[Example]| kept.iter().map(|e| e.index).collect::<Vec<_>>();
        assert_eq!(indices(&examples.right), (0..12).collect::<Vec<_>>());
        assert_eq!(indices(&examples.wrong)[..5], [30, 29, 31, 28, 32], "the highest first");
        assert_eq!(examples.wrong.len(), 12);
        assert!(examples.wrong.iter().all(|example| example.confidence >= 0.7));
    }

    #[test]
    fn cards_name_both_classes_of_a_mistake() {
        let world = World::new(3, Resolution::square(200), 4, Split::Test, Variant::Usual);
        let mut examples = Examples::default();
        examples.add(Example { index: 1, label: 2, predicted: 0, confidence: 0.97 });
        examples.add(Example { index: 3, label: 0, predicted: 0, confidence: 0.5 });
        let cards = examples.cards(&world).unwrap();
        let [right, wrong] = cards.as_slice() else { panic!("two cards, not {}", cards.len()) };
        assert_eq!((right.good, right.detail.as_str()), (Some(true), "confidence 50 %"));
        let [circle, _, triangle] = &world.classes()[..3] else { panic!("three classes") };
        assert_eq!((wrong.good, &wrong.caption), (Some(false), circle));
        assert_eq!(wrong.detail, format!("it is {triangle}, confidence 97 %"));
        // 128 pixels a side are as wide as a card of 200 may be: bytes 16 to 20 of a PNG.
        assert_eq!(wrong.png[16..20], 128_u32.to_be_bytes());
    }
}
