//! Classes of pixels.

use omma_base::Seed;

use super::bootstrap::{Interval, draw, intervals, resamples};

/// One confusion matrix for all maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segmentation {
    classes: usize,
    /// `[classes, classes]`: by label, then by predicted class.
    pub confusion: Vec<u64>,
    /// Per map and class: pixels that are of it and taken for it, and pixels that are either.
    overlaps: Vec<Vec<(u32, u32)>>,
    ignored: u64,
}

impl Segmentation {
    /// Nothing yet.
    pub fn new(classes: usize) -> Self {
        let confusion = vec![0; classes * classes];
        Self { classes, confusion, overlaps: Vec::new(), ignored: 0 }
    }

    /// Adds the pixels of a map; those of labels beyond the classes do not count.
    pub fn add(&mut self, labels: &[u8], predicted: &[u8]) {
        let mut overlaps = vec![(0, 0); self.classes];
        for (label, predicted) in labels.iter().zip(predicted) {
            let (label, predicted) = (usize::from(*label), usize::from(*predicted));
            if label >= self.classes || predicted >= self.classes {
                self.ignored += 1;
                continue;
            }
            self.confusion[label * self.classes + predicted] += 1;
            overlaps[label].1 += 1;
            match label == predicted {
                true => overlaps[label].0 += 1,
                false => overlaps[predicted].1 += 1,
            }
        }
        self.overlaps.push(overlaps);
    }

    /// Intersection over union of a class; nothing for one that was neither there nor predicted.
    pub fn iou(&self, class: usize) -> Option<f64> {
        let at = |row: usize, column: usize| self.confusion[row * self.classes + column];
        let row: u64 = (0..self.classes).map(|other| at(class, other)).sum();
        let column: u64 = (0..self.classes).map(|other| at(other, class)).sum();
        let union = row + column - at(class, class);
        (union > 0).then(|| at(class, class) as f64 / union as f64)
    }

    /// Mean intersection over union of the classes that occur.
    pub fn mean_iou(&self) -> f64 {
        mean((0..self.classes).filter_map(|class| self.iou(class)))
    }

    /// How far that may be off: the bootstrap over maps; nothing for less than two.
    pub fn mean_iou_interval(&self) -> Option<Interval> {
        let maps = self.overlaps.len();
        let of = |seed: Seed| {
            let mut sums = vec![(0_u64, 0_u64); self.classes];
            for map in draw(seed, maps) {
                for (sum, own) in sums.iter_mut().zip(&self.overlaps[map]) {
                    *sum = (sum.0 + u64::from(own.0), sum.1 + u64::from(own.1));
                }
            }
            let there = sums.into_iter().filter(|(_, either)| *either > 0);
            [mean(there.map(|(both, either)| both as f64 / either as f64))]
        };
        (maps > 1).then(|| intervals(resamples(maps), of)[0])
    }

    /// Share of the pixels that are right.
    pub fn pixel_accuracy(&self) -> f64 {
        let right: u64 = (0..self.classes).map(|c| self.confusion[c * self.classes + c]).sum();
        right as f64 / self.pixels().max(1) as f64
    }

    /// Share of the pixels of a class that are right; nothing for one that was not there.
    pub fn class_accuracy(&self, class: usize) -> Option<f64> {
        let row = &self.confusion[class * self.classes..(class + 1) * self.classes];
        let all: u64 = row.iter().sum();
        (all > 0).then(|| row[class] as f64 / all as f64)
    }

    /// The mean of that over the classes that were there.
    pub fn mean_accuracy(&self) -> f64 {
        mean((0..self.classes).filter_map(|class| self.class_accuracy(class)))
    }

    /// Pixels that count.
    pub fn pixels(&self) -> u64 {
        self.confusion.iter().sum()
    }

    /// Pixels that do not.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Maps that were added.
    pub fn maps(&self) -> usize {
        self.overlaps.len()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_usize), |(sum, count), value| (sum + value, count + 1));
    sum / count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_are_nowhere_do_not_count_and_neither_do_ignored_pixels() {
        let mut found = Segmentation::new(4);
        found.add(&[0, 0, 1, 255], &[0, 1, 1, 2]);
        found.add(&[0, 1], &[0, 0]);
        // Class 0: both in 2 places, either in 4; class 1: in 1 and 3.
        assert_eq!((found.iou(0), found.iou(1), found.iou(2)), (Some(0.5), Some(1.0 / 3.0), None));
        assert!((found.mean_iou() - 5.0 / 12.0).abs() < 1e-12);
        assert!((found.pixel_accuracy() - 0.6).abs() < 1e-12);
        assert!((found.mean_accuracy() - (2.0 / 3.0 + 0.5) / 2.0).abs() < 1e-12);
        assert_eq!((found.pixels(), found.ignored(), found.maps()), (5, 1, 2));
    }

    #[test]
    fn the_interval_is_of_maps_drawn_with_replacement() {
        let mut found = Segmentation::new(2);
        (0..40)
            .for_each(|n| found.add(&[0, 1, 1], if n % 4 == 0 { &[0, 0, 0] } else { &[0, 1, 1] }));
        let interval = found.mean_iou_interval().unwrap();
        assert!(interval.contains(found.mean_iou()) && interval.width() > 0.05, "{interval:?}");
        let mut same = Segmentation::new(2);
        (0..9).for_each(|_| same.add(&[0, 1], &[0, 0]));
        let interval = same.mean_iou_interval().unwrap();
        assert!(interval.width() < 1e-12, "all maps are alike");
        assert_eq!(Segmentation::new(2).mean_iou_interval(), None);
    }
}
