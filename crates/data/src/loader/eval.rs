//! All samples in their order, once.

use std::sync::Arc;

use omma_base::{Resolution, Seed};
use rayon::prelude::*;

use super::{BAD_SHARE, Batch, Pixels, bad_files::BadFiles};
use crate::{
    augment::{Augmentation, Transform},
    dataset::Shared,
    error::Result,
    picture::Picture,
    targets::{Target, TargetKind, checked_mask},
};

/// A change of every evaluation image, such as a corruption; it gets the sample's index too.
pub type Change = Arc<dyn Fn(usize, Picture) -> Picture + Send + Sync>;

/// Batches of all samples in their order, once. The last may be short, and none is empty.
pub struct EvalLoader {
    data: Shared,
    pixels: Pixels,
    batch: usize,
    targets: TargetKind,
    change: Option<Change>,
    augmentation: Option<(Augmentation, Seed)>,
    bad: BadFiles,
    next: usize,
}

impl EvalLoader {
    /// All samples with their classes, resized and cut in the middle; a hundredth of them may be unreadable.
    pub fn new(data: Shared, pixels: Pixels, batch: usize) -> Self {
        Self {
            data,
            pixels,
            batch: batch.max(1),
            targets: TargetKind::default(),
            change: None,
            augmentation: None,
            bad: BadFiles::new(BAD_SHARE),
            next: 0,
        }
    }

    /// With other targets than classes.
    pub fn with_targets(self, targets: TargetKind) -> Self {
        Self { targets, ..self }
    }

    /// With a change of every image before it is normalised. It must leave everything in its place where
    /// the targets are masks.
    pub fn with_change(self, change: Change) -> Self {
        Self { change: Some(change), ..self }
    }

    /// With an augmentation of every image, drawn from a seed and the sample's index, instead of its middle.
    pub fn with_augmentation(self, augmentation: Augmentation, seed: Seed) -> Self {
        Self { augmentation: Some((augmentation, seed)), ..self }
    }

    /// - returns: the sample's index, its pixels `[H, W, 3]`, and its target
    fn image(&self, index: usize) -> Result<Option<(usize, Vec<f32>, Target)>> {
        let Some(mut sample) = self.bad.read(&self.data, index)? else { return Ok(None) };
        let (image, resolution) = (sample.picture.resolution(), self.pixels.resolution);
        let transform = transform(index, image, resolution, self.augmentation);
        let target = self.targets.of(&self.data, (index, &mut sample), &transform, None)?;
        let mut picture = transform.picture(&sample.picture);
        if let Some(change) = &self.change {
            picture = change(index, picture);
        }
        let mut pixels = Vec::with_capacity(self.pixels.resolution.pixels() * 3);
        self.pixels.write(&picture, &mut pixels);
        Ok(Some((index, pixels, target)))
    }
}

/// What is done to a sample: an augmentation that is drawn from a seed and its index, or its middle.
fn transform(
    index: usize,
    image: Resolution,
    resolution: Resolution,
    augmentation: Option<(Augmentation, Seed)>,
) -> Transform {
    match augmentation {
        None => Transform::centre(image, resolution),
        Some((augmentation, seed)) => {
            augmentation.draw(image, resolution, &mut seed.numbered(index as u64).rng())
        }
    }
}

/// `[H, W]`: the mask of a sample as an [`EvalLoader`] with this augmentation moves it.
pub fn transformed_mask(
    data: &Shared,
    index: usize,
    resolution: Resolution,
    augmentation: Option<(Augmentation, Seed)>,
) -> Result<Vec<u8>> {
    let mut sample = data.get(index)?;
    let transform = transform(index, sample.picture.resolution(), resolution, augmentation);
    Ok(transform.mask(&checked_mask(data, index, &mut sample)?).pixels)
}

impl Iterator for EvalLoader {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut pixels, mut targets, mut indices) = (Vec::new(), Vec::new(), Vec::new());
        while indices.is_empty() {
            let range = self.next..(self.next + self.batch).min(self.data.len());
            if range.is_empty() {
                return None;
            }
            self.next = range.end;
            let made: Vec<Result<_>> =
                range.into_par_iter().map(|index| self.image(index)).collect();
            // Of several errors that of the first image, whichever was found first.
            let made = match made.into_iter().collect::<Result<Vec<_>>>() {
                Ok(made) => made,
                Err(error) => {
                    self.next = self.data.len();
                    return Some(Err(error));
                }
            };
            for (index, image, target) in made.into_iter().flatten() {
                pixels.extend(image);
                targets.push(target);
                indices.push(index);
            }
        }
        let targets = self.targets.gather(targets, self.data.classes().len());
        Some(Ok(Batch { pixels, targets, indices, resolution: self.pixels.resolution }))
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Resolution;

    use super::*;
    use crate::{
        GeneratedDataset,
        dataset::{Sample, Selection, Split},
        error::DataError,
        targets::Targets,
        world::{Variant, World},
    };

    const SQUARE: Resolution = Resolution::square(16);
    const PIXELS: Pixels = Pixels { resolution: SQUARE, mean: [0.0; 3], deviation: [1.0; 3] };

    fn world(samples: usize) -> Shared {
        Arc::new(World::new(1, SQUARE, samples, Split::Test, Variant::Usual))
    }

    #[test]
    fn every_sample_comes_once_and_in_order() {
        let data = world(21);
        let batches: Vec<Batch> =
            EvalLoader::new(data.clone(), PIXELS, 8).collect::<Result<_>>().unwrap();
        assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [8, 8, 5]);
        let labels: Vec<usize> = batches.iter().flat_map(|batch| batch.labels().to_vec()).collect();
        let expected: Vec<usize> = (0..21).map(|index| data.get(index).unwrap().label).collect();
        assert_eq!(labels, expected);
        let Targets::Classes { labels, distribution, classes: 10 } = &batches[2].targets else {
            panic!("{:?}", batches[2].targets);
        };
        for (target, label) in distribution.chunks_exact(10).zip(labels) {
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

    /// The world's samples, of which the first cannot be read.
    fn with_holes(samples: usize, holes: usize) -> Shared {
        let world = world(samples);
        let classes = world.classes().to_vec();
        Arc::new(GeneratedDataset::new(&classes, samples, move |index| match index < holes {
            true => Err(DataError::NotFound(format!("hole {index}"))),
            false => world.get(index),
        }))
    }

    #[test]
    fn unreadable_samples_are_left_out_up_to_a_share() {
        let mut loader = EvalLoader::new(with_holes(9, 2), PIXELS, 2);
        let batches: Vec<Batch> = loader.by_ref().collect::<Result<_>>().unwrap();
        assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [2, 2, 2, 1]);
        assert_eq!(loader.bad.count(), 2);
        let broken = with_holes(9, 5);
        let result: Result<Vec<Batch>> = EvalLoader::new(broken.clone(), PIXELS, 2).collect();
        assert!(matches!(result, Err(DataError::TooManyBad { .. })));
        let tolerant = EvalLoader { bad: BadFiles::new(0.6), ..EvalLoader::new(broken, PIXELS, 2) };
        assert_eq!(tolerant.map(|batch| batch.unwrap().len()).sum::<usize>(), 4);
    }

    #[test]
    fn masks_are_cut_as_their_images_are_and_captions_are_as_they_were() {
        let (small, large) = (Resolution::new(12, 24), Resolution::new(24, 48));
        let data: Shared = Arc::new(World::new(1, large, 5, Split::Test, Variant::Usual));
        let pixels = Pixels { resolution: small, ..PIXELS };
        let load = |kind| EvalLoader::new(data.clone(), pixels, 5).with_targets(kind).next();
        let masks = load(TargetKind::Masks).unwrap().unwrap();
        assert_eq!((masks.len(), masks.resolution, masks.labels().len()), (5, small, 0));
        let Targets::Masks { pixels } = masks.targets else { panic!("{:?}", masks.targets) };
        let expected = (0..5).flat_map(|index| {
            let whole = data.get(index).unwrap().mask.unwrap();
            let pixel = move |place: usize| whole[(place / 24 * 2 + 1) * 48 + place % 24 * 2 + 1];
            (0..12 * 24).map(pixel)
        });
        assert_eq!(pixels, expected.collect::<Vec<u8>>());
        let texts = load(TargetKind::Texts).unwrap().unwrap();
        let expected = (0..5).map(|index| data.get(index).unwrap().captions.remove(0));
        assert_eq!(texts.targets, Targets::Texts(expected.collect()));
    }

    /// Samples without a caption whose masks are of a size of their own.
    fn bare(mask: Option<usize>) -> Shared {
        Arc::new(GeneratedDataset::new(&[], 3, move |_| {
            let mask = mask.map(|pixels| vec![0; pixels]);
            Ok(Sample { mask, ..Sample::new(Picture::filled(16, 16, [0; 3]), 0) })
        }))
    }

    #[test]
    fn what_a_task_needs_and_a_sample_lacks_is_named() {
        let error = |pixels, kind| {
            EvalLoader::new(bare(pixels), PIXELS, 2).with_targets(kind).next().unwrap().unwrap_err()
        };
        assert!(error(None, TargetKind::Masks).to_string().contains("sample 0 has no mask"));
        assert!(error(None, TargetKind::Texts).to_string().contains("sample 0 has no caption"));
        let size = error(Some(7), TargetKind::Masks);
        let expected = matches!(size, DataError::MaskSize { found: 7, resolution: SQUARE, .. });
        assert!(expected, "{size}");
        let classes = error(None, TargetKind::default());
        assert!(matches!(classes, DataError::Label { classes: 0, .. }), "{classes}");
    }

    #[test]
    fn no_samples_are_no_batches() {
        let none: Shared = Arc::new(Selection::new(world(5), Vec::new()));
        assert!(EvalLoader::new(none, PIXELS, 4).next().is_none());
    }
}
