//! Single predictions, to be shown. Indices are kept alone; pictures are read again for the page.

use std::collections::BTreeMap;

/// The surest mistakes and the least sure predictions that are kept.
const KEPT: usize = 12;
/// Images of every class.
const OF_CLASS: usize = 8;
/// Images of every pair of classes that are taken for each other.
const OF_PAIR: usize = 4;
/// Pairs that examples are kept of. Those that happen often come early.
const MOST_PAIRS: usize = 10_000;

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

/// A few predictions of every kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Examples {
    /// Mistakes of the highest confidence, the highest first.
    pub wrong: Vec<Example>,
    /// Predictions of the lowest confidence, right and wrong, the lowest first.
    pub unsure: Vec<Example>,
    /// By class, its first images.
    pub by_class: BTreeMap<usize, Vec<Example>>,
    /// By label and predicted class, the mistakes of the highest confidence, the highest first.
    pub confused: BTreeMap<(usize, usize), Vec<Example>>,
}

impl Examples {
    pub(crate) fn add(&mut self, example: Example) {
        let surer = |other: &Example| other.confidence >= example.confidence;
        keep(&mut self.unsure, example, KEPT, |other| other.confidence <= example.confidence);
        let of_class = self.by_class.entry(example.label).or_default();
        if of_class.len() < OF_CLASS {
            of_class.push(example);
        }
        if example.is_right() {
            return;
        }
        keep(&mut self.wrong, example, KEPT, surer);
        let (pair, pairs) = ((example.label, example.predicted), self.confused.len());
        if pairs < MOST_PAIRS || self.confused.contains_key(&pair) {
            keep(self.confused.entry(pair).or_default(), example, OF_PAIR, surer);
        }
    }
}

/// Puts an example behind those that come before it, if it is among the first `most`.
fn keep(
    kept: &mut Vec<Example>,
    example: Example,
    most: usize,
    comes_before: impl Fn(&Example) -> bool,
) {
    let place = kept.partition_point(comes_before);
    if place < most {
        kept.insert(place, example);
        kept.truncate(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(kept: &[Example]) -> Vec<usize> {
        kept.iter().map(|example| example.index).collect()
    }

    #[test]
    fn the_surest_mistakes_and_the_least_sure_predictions_are_kept() {
        let mut examples = Examples::default();
        for index in 0..40 {
            // Right ones come first; the confidence of wrong ones rises and falls.
            let confidence = f64::from(20 - (index as i32 - 30).abs()) / 20.0;
            examples.add(Example { index, label: 0, predicted: index / 20, confidence });
        }
        assert_eq!(indices(&examples.wrong)[..5], [30, 29, 31, 28, 32], "the highest first");
        assert_eq!(examples.wrong.len(), 12);
        assert!(examples.wrong.iter().all(|example| example.confidence >= 0.7));
        assert_eq!(indices(&examples.unsure)[..3], [0, 1, 2], "the lowest first, right ones too");
        assert_eq!(examples.unsure.len(), 12);
    }

    #[test]
    fn every_class_and_every_pair_has_a_few() {
        let mut examples = Examples::default();
        for index in 0..30 {
            let (label, predicted) = (index % 2, usize::from(index % 3 == 0));
            let confidence = index as f64 / 30.0;
            examples.add(Example { index, label, predicted, confidence });
        }
        assert_eq!(indices(&examples.by_class[&1]), [1, 3, 5, 7, 9, 11, 13, 15], "the first ones");
        assert_eq!(indices(&examples.confused[&(0, 1)]), [24, 18, 12, 6], "the surest ones");
        assert!(examples.confused.keys().all(|(label, predicted)| label != predicted));
    }

    #[test]
    fn memory_does_not_grow_with_the_pairs() {
        let mut examples = Examples::default();
        for index in 0..12_000 {
            examples.add(Example { index, label: index, predicted: 12_000, confidence: 0.5 });
        }
        examples.add(Example { index: 12_000, label: 3, predicted: 12_000, confidence: 0.9 });
        assert_eq!(examples.confused.len(), MOST_PAIRS);
        assert_eq!(indices(&examples.confused[&(3, 12_000)]), [12_000, 3]);
    }
}
