//! All samples in their order, once.

use std::sync::Arc;

use rayon::prelude::*;

use super::{BadFiles, Batch, Pixels};
use crate::{
    dataset::Shared,
    error::{DataError, Result},
    picture::Picture,
};

/// A change of every evaluation image, such as a corruption; it gets the sample's index too.
pub type Change = Arc<dyn Fn(usize, Picture) -> Picture + Send + Sync>;

/// Batches of all samples in their order, once. The last may be short, and none is empty.
pub struct EvalLoader {
    data: Shared,
    pixels: Pixels,
    batch: usize,
    change: Option<Change>,
    bad: BadFiles,
    next: usize,
}

impl EvalLoader {
    /// All samples, resized and cut in the middle; a hundredth of them may be unreadable.
    pub fn new(data: Shared, pixels: Pixels, batch: usize) -> Self {
        Self { data, pixels, batch: batch.max(1), change: None, bad: BadFiles::new(0.01), next: 0 }
    }

    /// With a change of every image before it is normalised.
    pub fn with_change(self, change: Change) -> Self {
        Self { change: Some(change), ..self }
    }

    /// With another share of files that may be unreadable.
    pub fn with_bad_share(self, share: f64) -> Self {
        Self { bad: BadFiles::new(share), ..self }
    }

    /// Samples in all.
    pub fn samples(&self) -> usize {
        self.data.len()
    }

    /// What could not be read so far.
    pub fn bad(&self) -> &BadFiles {
        &self.bad
    }

    fn image(&self, index: usize) -> Result<Option<(usize, Vec<f32>, usize)>> {
        let classes = self.data.classes().len();
        let Some(sample) = self.bad.read(&self.data, index)? else { return Ok(None) };
        if sample.label >= classes {
            return Err(DataError::Label { index, label: sample.label, classes });
        }
        let mut picture = sample.picture.centre_crop(self.pixels.side, 1.0);
        if let Some(change) = &self.change {
            picture = change(index, picture);
        }
        let mut pixels = Vec::with_capacity(self.pixels.side.pow(2) * 3);
        self.pixels.write(&picture, &mut pixels);
        Ok(Some((index, pixels, sample.label)))
    }
}

impl Iterator for EvalLoader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let (side, classes) = (self.pixels.side, self.data.classes().len());
        let mut batch = Batch { side, ..Batch::default() };
        while batch.is_empty() {
            let range = self.next..(self.next + self.batch).min(self.data.len());
            if range.is_empty() {
                return None;
            }
            self.next = range.end;
            let made: Result<Vec<_>> =
                range.into_par_iter().map(|index| self.image(index)).collect();
            let made = match made {
                Ok(made) => made,
                Err(error) => {
                    self.next = self.data.len();
                    return Some(Err(error));
                }
            };
            for (index, pixels, label) in made.into_iter().flatten() {
                batch.pixels.extend(pixels);
                let start = batch.targets.len();
                batch.targets.resize(start + classes, 0.0);
                batch.targets[start + label] = 1.0;
                batch.labels.push(label);
                batch.indices.push(index);
            }
        }
        Some(Ok(batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataset::{Dataset, Sample, Selection, Split},
        world::{Variant, World},
    };

    const PIXELS: Pixels = Pixels { side: 16, mean: [0.0; 3], deviation: [1.0; 3] };

    fn world(samples: usize) -> Shared {
        Arc::new(World::new(1, 16, samples, Split::Test, Variant::Usual))
    }

    #[test]
    fn every_sample_comes_once_and_in_order() {
        let data = world(21);
        let batches: Vec<Batch> =
            EvalLoader::new(data.clone(), PIXELS, 8).collect::<Result<_>>().unwrap();
        assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [8, 8, 5]);
        let labels: Vec<usize> = batches.iter().flat_map(|batch| batch.labels.clone()).collect();
        let expected: Vec<usize> = (0..21).map(|index| data.get(index).unwrap().label).collect();
        assert_eq!(labels, expected);
        for (target, label) in batches[2].targets.chunks_exact(10).zip(&batches[2].labels) {
            assert_eq!((target.iter().sum::<f32>(), target[*label]), (1.0, 1.0));
        }
    }

    #[test]
    fn a_change_reaches_the_pixels() {
        let black: Change = Arc::new(|index, picture: Picture| {
            Picture::filled(picture.width, picture.height, [index as u8 * 51; 3])
        });
        let batch =
            EvalLoader::new(world(2), PIXELS, 8).with_change(black).next().unwrap().unwrap();
        let (first, second) = batch.pixels.split_at(16 * 16 * 3);
        assert!(first.iter().all(|value| *value == 0.0));
        assert!(second.iter().all(|value| (value - 0.2).abs() < 1e-6));
    }

    struct Holes(Shared, usize);

    impl Dataset for Holes {
        fn classes(&self) -> &[String] {
            self.0.classes()
        }

        fn len(&self) -> usize {
            self.0.len()
        }

        fn label(&self, index: usize) -> usize {
            self.0.label(index)
        }

        fn get(&self, index: usize) -> Result<Sample> {
            match index < self.1 {
                true => Err(DataError::NotFound(format!("hole {index}"))),
                false => self.0.get(index),
            }
        }
    }

    #[test]
    fn unreadable_samples_are_left_out_up_to_a_share() {
        let mut loader = EvalLoader::new(Arc::new(Holes(world(9), 2)), PIXELS, 2);
        let batches: Vec<Batch> = loader.by_ref().collect::<Result<_>>().unwrap();
        assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [2, 2, 2, 1]);
        assert_eq!(loader.bad().count(), 2);
        let broken: Shared = Arc::new(Holes(world(9), 5));
        let result: Result<Vec<Batch>> = EvalLoader::new(broken.clone(), PIXELS, 2).collect();
        assert!(matches!(result, Err(DataError::TooManyBad { .. })));
        let tolerant = EvalLoader::new(broken, PIXELS, 2).with_bad_share(0.6);
        assert_eq!(tolerant.map(|batch| batch.unwrap().len()).sum::<usize>(), 4);
    }

    #[test]
    fn no_samples_are_no_batches() {
        let none: Shared = Arc::new(Selection::new(world(5), Vec::new()));
        assert!(EvalLoader::new(none, PIXELS, 4).next().is_none());
    }
}
