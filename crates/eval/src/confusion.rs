//! Which classes are taken for which.

use std::{cmp::Reverse, collections::BTreeMap};

use omma_report::HeatMap;
use serde::{Deserialize, Serialize};

/// A matrix of more classes cannot be read.
const MOST_CLASSES: usize = 50;
/// Pairs of classes that a record keeps.
const MOST_PAIRS: usize = 100;

/// What `eval.json` has of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfusionRecord {
    /// `[classes]` of `[classes]`: images by label, then by predicted class; nothing for more than 50 classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Vec<Vec<u64>>>,
    /// The pairs of classes that are confused most often, at most 100 of them.
    pub pairs: Vec<ConfusedPair>,
}

/// Images of one class that were taken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfusedPair {
    /// The class that they are of.
    pub label: usize,
    /// The class that they were taken for.
    pub predicted: usize,
    /// How many.
    pub images: u64,
    /// Test images of the class.
    pub of: u64,
}

/// How often an image of one class is taken for another. Only what has happened is kept, because a whole
/// matrix of 20,000 classes is larger than most models.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Confusion {
    /// By label, then by predicted class.
    counts: BTreeMap<(usize, usize), u64>,
}

impl Confusion {
    pub(crate) fn add(&mut self, label: usize, predicted: usize) {
        *self.counts.entry((label, predicted)).or_default() += 1;
    }

    /// Images of the class `label` that were taken for `predicted`.
    pub fn count(&self, label: usize, predicted: usize) -> u64 {
        self.counts.get(&(label, predicted)).copied().unwrap_or(0)
    }

    /// Label, predicted class and number of images, of all mistakes.
    pub(crate) fn mistakes(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        let wrong = self.counts.iter().filter(|((label, predicted), _)| label != predicted);
        wrong.map(|((label, predicted), count)| (*label, *predicted, *count))
    }

    /// `[classes]`: the error of every class; nothing for one without images.
    pub(crate) fn class_errors(&self, classes: usize) -> Vec<Option<f64>> {
        let mut seen = vec![(0, 0); classes];
        for ((label, predicted), count) in &self.counts {
            let (images, wrong) = &mut seen[*label];
            *images += count;
            *wrong += if label == predicted { 0 } else { *count };
        }
        let error =
            |(images, wrong): (u64, u64)| (images > 0).then(|| wrong as f64 / images as f64);
        seen.into_iter().map(error).collect()
    }

    /// For `eval.json`.
    pub(crate) fn record(&self, classes: usize) -> ConfusionRecord {
        let mut of = vec![0; classes];
        self.counts.iter().for_each(|((label, _), count)| of[*label] += count);
        let mistakes = self.counts.iter().filter(|((label, predicted), _)| label != predicted);
        let pair = |(&(label, predicted), &images): (&(usize, usize), &u64)| ConfusedPair {
            label,
            predicted,
            images,
            of: of[label],
        };
        let mut pairs: Vec<ConfusedPair> = mistakes.map(pair).collect();
        pairs.sort_by_key(|pair| (Reverse(pair.images), pair.label, pair.predicted));
        pairs.truncate(MOST_PAIRS);
        let row = |label| (0..classes).map(|predicted| self.count(label, predicted)).collect();
        let matrix = (classes <= MOST_CLASSES).then(|| (0..classes).map(row).collect());
        ConfusionRecord { matrix, pairs }
    }

    /// The matrix as an SVG document; of many classes, those that take part in most mistakes.
    ///
    /// - `classes`: the name of every class
    pub fn figure(&self, classes: &[String]) -> String {
        let mut shown: Vec<usize> = (0..classes.len()).collect();
        let mut title = "Confusion".to_owned();
        if classes.len() > MOST_CLASSES {
            let mut mistakes = vec![0; classes.len()];
            for ((label, predicted), count) in &self.counts {
                if label != predicted {
                    mistakes[*label] += count;
                    mistakes[*predicted] += count;
                }
            }
            shown.sort_by_key(|class| Reverse(mistakes[*class]));
            shown.truncate(MOST_CLASSES);
            shown.sort_unstable();
            title = format!("Confusion among the {MOST_CLASSES} classes with most mistakes");
        }
        let names: Vec<String> = shown.iter().map(|class| classes[*class].clone()).collect();
        let row = |label: &usize| {
            shown.iter().map(|predicted| self.count(*label, *predicted) as f64).collect()
        };
        heat_map(title, names, shown.iter().map(row).collect())
    }
}

impl ConfusionRecord {
    /// The matrix as an SVG document, where there is one.
    ///
    /// - `classes`: the name of every class
    pub(crate) fn figure(&self, classes: &[String]) -> Option<String> {
        let row = |row: &Vec<u64>| row.iter().map(|count| *count as f64).collect();
        let values = self.matrix.as_ref()?.iter().map(row).collect();
        Some(heat_map("Confusion".to_owned(), classes.to_vec(), values))
    }

    /// Whether it is of so many classes.
    pub(crate) fn is_of(&self, classes: usize) -> bool {
        let square = |matrix: &Vec<Vec<u64>>| {
            matrix.len() == classes && matrix.iter().all(|row| row.len() == classes)
        };
        self.matrix.as_ref().is_none_or(square)
            && self.pairs.iter().all(|pair| pair.label < classes && pair.predicted < classes)
    }

    /// A row for each of the pairs that are confused most often: what they are, what they are taken for, how
    /// many.
    pub fn rows(&self, classes: &[String], most: usize) -> Vec<[String; 3]> {
        let row = |pair: &ConfusedPair| {
            let images = format!("{} of {}", pair.images, pair.of);
            [classes[pair.label].clone(), classes[pair.predicted].clone(), images]
        };
        self.pairs.iter().take(most).map(row).collect()
    }
}

fn heat_map(title: String, names: Vec<String>, values: Vec<Vec<f64>>) -> String {
    HeatMap {
        title,
        row_label: "label".to_owned(),
        column_label: "prediction".to_owned(),
        rows: names.clone(),
        columns: names,
        values,
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_class_is_that_of_its_images() {
        let mut confusion = Confusion::default();
        for (label, predicted) in [(0, 0), (0, 1), (0, 2), (0, 0), (1, 0)] {
            confusion.add(label, predicted);
        }
        assert_eq!(
            (confusion.count(0, 0), confusion.count(0, 1), confusion.count(2, 0)),
            (2, 1, 0)
        );
        assert_eq!(confusion.class_errors(3), [Some(0.5), Some(1.0), None]);
    }

    #[test]
    fn a_record_has_the_matrix_and_what_is_confused_most() {
        let mut confusion = Confusion::default();
        for (label, predicted) in [(0, 0), (0, 1), (2, 1), (2, 1), (2, 2), (1, 0)] {
            confusion.add(label, predicted);
        }
        let record = confusion.record(3);
        assert_eq!(record.matrix.as_ref().unwrap(), &[[1, 1, 0], [1, 0, 0], [0, 2, 1]]);
        let pair = |label, predicted, images, of| ConfusedPair { label, predicted, images, of };
        assert_eq!(record.pairs, [pair(2, 1, 2, 3), pair(0, 1, 1, 2), pair(1, 0, 1, 1)]);
        assert!(record.is_of(3) && !record.is_of(2));
        let classes = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(record.rows(&classes, 1), [["c", "b", "2 of 3"]]);
        let many = confusion.record(51);
        assert!(many.matrix.is_none() && many.pairs.len() == 3);
    }

    #[test]
    fn the_figure_of_many_classes_has_those_with_most_mistakes() {
        let classes: Vec<String> = (0..21_841).map(|class| format!("class {class}")).collect();
        let mut confusion = Confusion::default();
        for class in 0..3_000 {
            confusion.counts.insert((class, class), 9);
        }
        confusion.counts.insert((20_000, 7), 5);
        let svg = confusion.figure(&classes);
        assert!(svg.len() < 1_000_000, "{} bytes", svg.len());
        assert!(svg.contains("class 20000") && svg.contains("class 7"));
    }
}
