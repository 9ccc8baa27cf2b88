//! Classes of pixels.

/// One confusion matrix for all maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segmentation {
    classes: usize,
    /// `[classes, classes]`: by label, then by predicted class.
    pub confusion: Vec<u64>,
}

/// Pixels of this label are not counted.
const IGNORED: usize = 255;

impl Segmentation {
    /// Nothing yet.
    pub fn new(classes: usize) -> Self {
        Self { classes, confusion: vec![0; classes * classes] }
    }

    /// Adds pixels; labels beyond the classes are left out.
    pub fn add(&mut self, labels: &[usize], predicted: &[usize]) {
        for (label, predicted) in labels.iter().zip(predicted) {
            if *label != IGNORED && *label < self.classes && *predicted < self.classes {
                self.confusion[label * self.classes + predicted] += 1;
            }
        }
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
        let all: Vec<f64> = (0..self.classes).filter_map(|class| self.iou(class)).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    /// Share of the pixels that are right.
    pub fn pixel_accuracy(&self) -> f64 {
        let right: u64 = (0..self.classes).map(|c| self.confusion[c * self.classes + c]).sum();
        right as f64 / self.confusion.iter().sum::<u64>().max(1) as f64
    }
}
