//! A linear classifier of a pixel and its neighbours: what any model that labels pixels should beat.

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{IGNORED, MaskedPicture, MaskedPictures, Picture, Selection};
use rand::RngExt;

use crate::{
    error::{EvalError, Result},
    metrics::{Segmentation, largest},
    probe::Support,
    stream::{Images, Watcher},
};

/// Pixels on every side of the one that is classified.
const REACH: isize = 2;
/// Training pictures that pixels are drawn from, and pixels of each.
const PICTURES: usize = 1000;
const PIXELS: usize = 48;
/// Test pictures that it is judged by, evenly spread.
const JUDGED: usize = 200;
/// Pictures that are read at a time.
const BATCH: usize = 16;
/// Per row; what is whitened needs little.
const L2: f64 = 1e-3;

/// Mean intersection over union of a linear classifier that sees the 5 × 5 pixels around the one it classifies,
/// fitted in closed form on some training pixels.
pub fn nearby_baseline(
    train: &Images,
    test: &Images,
    device: &Device,
    watcher: &mut dyn Watcher,
) -> Result<f64> {
    let classes = train.data.pixel_classes().map_or(0, <[String]>::len);
    let (mut rows, mut labels) = (Vec::new(), Vec::new());
    let some = Selection::spread(&train.data, PICTURES);
    watcher.begins("training pixels", some.len());
    for batch in MaskedPictures::new(some, BATCH) {
        if watcher.stopped() {
            return Err(EvalError::Interrupted);
        }
        for MaskedPicture { index, picture, mask } in batch? {
            let mut rng = Seed::new(0).named("pixels").numbered(index as u64).rng();
            for _ in 0..PIXELS {
                let place = rng.random_range(0..mask.len());
                if mask[place] != IGNORED {
                    let (x, y) = (place % picture.width, place / picture.width);
                    around(&picture, x, y, &mut rows);
                    labels.push(usize::from(mask[place]));
                }
            }
            watcher.done(1);
        }
    }
    let support = Support::new(&rows, &labels, classes, device)?;
    let head = support.solve(L2 * labels.len() as f64)?.folded();
    let mut found = Segmentation::new(classes);
    let some = Selection::spread(&test.data, JUDGED);
    watcher.begins("pixels by a linear classifier", some.len());
    for batch in MaskedPictures::new(some, BATCH) {
        if watcher.stopped() {
            return Err(EvalError::Interrupted);
        }
        for MaskedPicture { picture, mask, .. } in batch? {
            let Resolution { height, width } = picture.resolution();
            for y in 0..height {
                rows.clear();
                (0..width).for_each(|x| around(&picture, x, y, &mut rows));
                let logits = head.logits(&rows);
                let predicted: Vec<u8> =
                    logits.chunks_exact(classes).map(|row| largest(row) as u8).collect();
                found.add(&mask[y * width..(y + 1) * width], &predicted);
            }
            watcher.done(1);
        }
    }
    Ok(found.mean_iou())
}

/// The pixels around a place, those at the edge repeated outside.
fn around(picture: &Picture, x: usize, y: usize, to: &mut Vec<f32>) {
    let inside = |place: usize, by: isize, size: usize| {
        (place as isize + by).clamp(0, size as isize - 1) as usize
    };
    for down in -REACH..=REACH {
        for across in -REACH..=REACH {
            let (x, y) = (inside(x, across, picture.width), inside(y, down, picture.height));
            to.extend(picture.at(x, y).map(|value| f32::from(value) / 255.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omma_data::{
        Split,
        world::{Variant, World},
    };

    use super::*;

    #[test]
    fn colours_alone_tell_little_of_the_world() {
        let images = |split| {
            let world = World::new(1, Resolution::square(24), 60, split, Variant::Usual);
            Images::new("world", Arc::new(world))
        };
        let (train, test) = (images(Split::Train), images(Split::Test));
        let found = nearby_baseline(&train, &test, &Device::flex(), &mut ()).unwrap();
        // Everything background is right about one class of eleven.
        assert!((0.04..0.3).contains(&found), "{found}");
    }
}
