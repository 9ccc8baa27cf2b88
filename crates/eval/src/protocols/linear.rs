//! A linear classifier on pixels: what any model should beat.

use burn::tensor::Device;
use omma_data::{Pixels, Selection};

use crate::{
    error::{EvalError, Result},
    probe::{Probe, Support, middle_best},
    stream::{Images, Watcher},
};

/// Larger sides are made smaller.
const LARGEST_SIDE: usize = 32;
/// A classifier of more weights sees smaller images: with tens of thousands of classes it would be larger
/// than the model that it is compared with.
const MOST_WEIGHTS: usize = 8_000_000;
/// Pixels that are read for the fit, 160 MB of them.
const MOST_VALUES: usize = 40_000_000;
/// Multiply-adds of the fit, rows · columns²: a few seconds of two cores.
const MOST_PRODUCTS: usize = 120_000_000_000;
/// Of the images that are read, this share chooses among the regularisers.
const CHOOSING: f64 = 0.1;
/// Regularisers per row, since what is regularised grows with the rows.
const L2: [f64; 5] = [1e-4, 1e-3, 1e-2, 1e-1, 1.0];
const BATCH: usize = 256;

/// `[N, features]` and `[N]`.
#[derive(Default)]
struct Table {
    rows: Vec<f32>,
    labels: Vec<usize>,
}

impl Table {
    fn read(images: &Images, pixels: Pixels, watcher: &mut dyn Watcher) -> Result<Self> {
        let mut table = Self::default();
        images.batches(pixels, BATCH, watcher, |batch| {
            table.rows.append(&mut batch.pixels);
            table.labels.append(&mut batch.labels.clone());
            Ok(())
        })?;
        Ok(table)
    }
}

/// The side of the images that the classifier sees.
fn side(whole: usize, classes: usize) -> usize {
    let fits = |side: &usize| columns(*side).saturating_mul(classes) <= MOST_WEIGHTS;
    (1..=whole.min(LARGEST_SIDE)).rev().find(fits).unwrap_or(1)
}

/// Pixel values of an image, and a constant.
fn columns(side: usize) -> usize {
    side * side * 3 + 1
}

/// Test accuracy of a linear classifier on normalised pixels, fitted in closed form on as many training
/// images, evenly spread, as take a few seconds.
pub fn linear_baseline(
    train: &Images,
    test: &Images,
    pixels: Pixels,
    device: &Device,
    watcher: &mut dyn Watcher,
) -> Result<f64> {
    let classes = train.data.classes().len();
    let pixels = Pixels { side: side(pixels.side, classes), ..pixels };
    let columns = columns(pixels.side);
    let rows = (MOST_VALUES / columns).min(MOST_PRODUCTS / (columns * columns));
    // A folder is sorted by class, so neither part may be cut off at an end.
    let (fitting, choosing) = Selection::hold_out(&Selection::spread(&train.data, rows), CHOOSING);
    let mut read = |what: &str, data| {
        let images = Images { data, ..train.clone() };
        watcher.begins(what, images.data.len());
        Table::read(&images, pixels, watcher)
    };
    let fitting = read("training images, for a linear classifier", fitting)?;
    let choosing = read("images that choose its regularisation", choosing)?;
    let stopped = || watcher.stopped();
    let support = Support::unless(&fitting.rows, &fitting.labels, classes, device, stopped)?;
    let rows = fitting.labels.len() as f64;
    drop(fitting);
    let mut probes: Vec<Probe> = Vec::new();
    let mut accuracies = Vec::new();
    for l2 in L2 {
        if watcher.stopped() {
            return Err(EvalError::Interrupted);
        }
        let probe = support.solve(l2 * rows)?;
        accuracies.push(probe.accuracy(&choosing.rows, &choosing.labels));
        probes.push(probe);
    }
    let probe = &probes[middle_best(&accuracies)];
    watcher.begins("test images, for the linear classifier", test.data.len());
    let (mut right, mut seen) = (0, 0);
    test.batches(pixels, BATCH, watcher, |batch| {
        right += probe.right(&batch.pixels, &batch.labels);
        seen += batch.len();
        Ok(())
    })?;
    Ok(right as f64 / seen.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_classes_see_smaller_images() {
        assert_eq!([side(28, 10), side(224, 1000), side(224, 21_841)], [28, 32, 11]);
        assert_eq!(side(32, 100_000_000), 1);
    }
}
