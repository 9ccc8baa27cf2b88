//! A linear classifier on pixels: what any model should beat.

use burn::tensor::Device;
use omma_base::Resolution;
use omma_data::{Pixels, Selection};

use crate::{
    error::{EvalError, Result},
    probe::{Probe, Support},
    stream::{Images, Watcher},
};

/// Larger sides are made smaller. From as many images, a classifier of 16 pixels a side is no worse than
/// one of 32, which is sixteen times the work; so it can see more of them.
const LARGEST_SIDE: usize = 16;
/// A classifier of more weights sees still smaller images: with tens of thousands of classes it would be
/// larger than the model that it is compared with.
const MOST_WEIGHTS: usize = 2_000_000;
/// Training images that are read. Of the built-in world, 30,000 give 54.6 % in five seconds and 125 MB, and
/// 12,000 give 53.6 %; 12,000 of 32 pixels a side give 53.5 % in 27 seconds.
const MOST_IMAGES: usize = 30_000;
/// Of these, the share that chooses among the regularisers.
const CHOOSING: f64 = 0.1;
/// Regularisers per row, since what is regularised grows with the rows; the strongest first.
const L2: [f64; 6] = [10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4];
const BATCH: usize = 256;

/// `[N, features]` and `[N]`.
struct Table {
    rows: Vec<f32>,
    labels: Vec<usize>,
}

impl Table {
    fn read(images: &Images, pixels: Pixels, watcher: &mut dyn Watcher) -> Result<Self> {
        let values = images.data.len() * pixels.resolution.pixels() * 3;
        let mut table = Self { rows: Vec::with_capacity(values), labels: Vec::new() };
        images.batches(pixels, BATCH, watcher, |batch| {
            table.rows.append(&mut batch.pixels);
            table.labels.extend_from_slice(batch.labels());
            Ok(())
        })?;
        Ok(table)
    }
}

/// The side of the images that the classifier sees.
fn side(whole: usize, classes: usize) -> usize {
    let fits = |side: &usize| (side * side * 3 + 1).saturating_mul(classes) <= MOST_WEIGHTS;
    (1..=whole.min(LARGEST_SIDE)).rev().find(fits).unwrap_or(1)
}

/// Test accuracy of a linear classifier on normalised pixels, fitted in closed form. Of many training
/// images it sees some, evenly spread, so that it takes a few seconds.
///
/// - `pixels`: what the model that it is compared with expects; a large side is made smaller
pub fn linear_baseline(
    train: &Images,
    test: &Images,
    pixels: Pixels,
    device: &Device,
    watcher: &mut dyn Watcher,
) -> Result<f64> {
    let classes = train.data.classes().len();
    let pixels = Pixels {
        resolution: Resolution::square(side(pixels.resolution.shortest(), classes)),
        ..pixels
    };
    let data = Selection::spread(&train.data, MOST_IMAGES);
    let (fitting, choosing) = Selection::hold_out(&data, CHOOSING);
    let mut read = |what: &str, data| {
        let images = Images { data, ..train.clone() };
        watcher.begins(what, images.data.len());
        Table::read(&images, pixels, watcher)
    };
    let fitting = read("training images, for a linear classifier", fitting)?;
    // Of a single image, none is held out.
    let choosing = match choosing.is_empty() {
        true => Table { rows: fitting.rows.clone(), labels: fitting.labels.clone() },
        false => read("images that choose its regularisation", choosing)?,
    };
    watcher.begins("fitting a linear classifier", 0);
    let stopped = || watcher.stopped();
    let support = Support::unless(&fitting.rows, &fitting.labels, classes, device, stopped)?;
    let rows = fitting.labels.len();
    drop(fitting);
    let best = best(&support, rows, &choosing, watcher)?;
    watcher.begins("test images, for the linear classifier", test.data.len());
    let (mut right, mut seen) = (0, 0);
    test.batches(pixels, BATCH, watcher, |batch| {
        right += best.right(&batch.pixels, batch.labels());
        seen += batch.len();
        Ok(())
    })?;
    Ok(right as f64 / seen.max(1) as f64)
}

/// The probe of the regulariser that gets most of the choosing images right; of equals, the stronger.
fn best<'a>(
    support: &'a Support,
    rows: usize,
    choosing: &Table,
    watcher: &dyn Watcher,
) -> Result<Probe<'a>> {
    let mut best: Option<(usize, Probe)> = None;
    for l2 in L2 {
        if watcher.stopped() {
            return Err(EvalError::Interrupted);
        }
        let probe = support.solve(l2 * rows as f64)?;
        let right = probe.right(&choosing.rows, &choosing.labels);
        if best.as_ref().is_none_or(|(most, _)| right > *most) {
            best = Some((right, probe));
        }
    }
    Ok(best.expect("there is a regulariser").1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omma_data::{
        Split,
        world::{Variant, World},
    };

    use super::*;

    fn world(samples: usize, split: Split) -> Images {
        let world = World::new(7, Resolution::square(32), samples, split, Variant::Usual);
        Images::new("world", Arc::new(world))
    }

    const PIXELS: Pixels =
        Pixels { resolution: Resolution::square(32), mean: [0.5; 3], deviation: [0.25; 3] };

    #[test]
    fn pixels_tell_shapes_apart_far_above_chance() {
        let (train, test) = (world(2_000, Split::Train), world(400, Split::Test));
        let accuracy = linear_baseline(&train, &test, PIXELS, &Device::flex(), &mut ()).unwrap();
        assert!((0.3..0.7).contains(&accuracy), "{accuracy} where chance is 0.1");
    }

    #[test]
    fn a_stop_is_heard_before_the_fit() {
        struct Stopped;
        impl Watcher for Stopped {
            fn begins(&mut self, _: &str, _: usize) {}
            fn done(&mut self, _: usize) {}
            fn stopped(&self) -> bool {
                true
            }
        }
        let images = world(50, Split::Train);
        let stopped = linear_baseline(&images, &images, PIXELS, &Device::flex(), &mut Stopped);
        assert!(matches!(stopped, Err(EvalError::Interrupted)), "{stopped:?}");
        let pixels: Vec<f32> = (0..90).map(|i| (i as f32).sin()).collect();
        let labels: Vec<usize> = (0..30).map(|i| i % 2).collect();
        let fit = Support::unless(&pixels, &labels, 2, &Device::flex(), || true).err();
        assert!(matches!(fit.map(EvalError::from), Some(EvalError::Interrupted)));
    }

    #[test]
    fn many_classes_see_smaller_images() {
        assert_eq!([side(8, 10), side(224, 1000), side(224, 21_841)], [8, 16, 5]);
        assert_eq!(side(32, 100_000_000), 1);
    }
}
