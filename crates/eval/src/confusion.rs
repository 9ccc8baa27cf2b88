//! Which classes are taken for which.

use std::{cmp::Reverse, collections::BTreeMap};

use omma_report::HeatMap;

/// A matrix of more classes cannot be read.
const MOST_CLASSES: usize = 50;

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
        HeatMap {
            title,
            row_label: "label".to_owned(),
            column_label: "prediction".to_owned(),
            rows: names.clone(),
            columns: names,
            values: shown.iter().map(row).collect(),
        }
        .svg()
    }
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
