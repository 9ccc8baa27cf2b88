//! Mixup and CutMix: batches whose images and labels are mixtures of two.

use omma_base::Resolution;
use rand::{Rng, RngExt, seq::SliceRandom};
use rand_distr::{Beta, Distribution};
use serde::{Deserialize, Serialize};

/// How images of a batch are mixed. With both, every batch takes one of them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mixing {
    /// α of mixup; 0 for none.
    pub mixup: f64,
    /// α of CutMix; 0 for none.
    pub cutmix: f64,
}

/// Mixes a batch in place.
///
/// - `pixels`: `[B, H, W, 3]`; `targets`: `[B, classes]`
pub(crate) fn mix(
    mixing: &Mixing,
    pixels: &mut [f32],
    targets: &mut [f32],
    (resolution, classes): (Resolution, usize),
    rng: &mut impl Rng,
) {
    let cut = match (mixing.mixup > 0.0, mixing.cutmix > 0.0) {
        (false, false) => return,
        (true, true) => rng.random_bool(0.5),
        (_, cut) => cut,
    };
    let size = resolution.pixels() * 3;
    let batch = pixels.len() / size;
    let mut partner: Vec<usize> = (0..batch).collect();
    partner.shuffle(rng);
    let alpha = if cut { mixing.cutmix } else { mixing.mixup };
    // Within these, the distribution has a sound sampler.
    let alpha = alpha.clamp(1e-3, 1e3);
    let share = Beta::new(alpha, alpha).map_or(0.5, |beta| beta.sample(rng)) as f32;
    let (originals, labels) = (pixels.to_vec(), targets.to_vec());
    let kept = match cut {
        true => cut_rectangle(pixels, &originals, &partner, resolution, share, rng),
        false => {
            for (image, other) in partner.iter().enumerate() {
                let others = &originals[other * size..(other + 1) * size];
                let own = &mut pixels[image * size..(image + 1) * size];
                own.iter_mut().zip(others).for_each(|(a, b)| *a = share * *a + (1.0 - share) * b);
            }
            share
        }
    };
    for (image, other) in partner.iter().enumerate() {
        let others = &labels[other * classes..(other + 1) * classes];
        let own = &mut targets[image * classes..(image + 1) * classes];
        own.iter_mut().zip(others).for_each(|(a, b)| *a = kept * *a + (1.0 - kept) * b);
    }
}

/// Puts a rectangle of the partner's image in; returns the share of the image that is its own.
fn cut_rectangle(
    pixels: &mut [f32],
    originals: &[f32],
    partner: &[usize],
    resolution: Resolution,
    share: f32,
    rng: &mut impl Rng,
) -> f32 {
    let Resolution { height, width } = resolution;
    let (x, y) = (rng.random_range(0..width), rng.random_range(0..height));
    let span = |middle: usize, side: usize| {
        let edge = ((side as f32 * (1.0 - share).sqrt()) as usize).min(side);
        middle.saturating_sub(edge / 2)..(middle + edge.div_ceil(2)).min(side)
    };
    let (columns, rows) = (span(x, width), span(y, height));
    let size = resolution.pixels() * 3;
    for (image, other) in partner.iter().enumerate() {
        for row in rows.clone() {
            let line = (row * width + columns.start) * 3..(row * width + columns.end) * 3;
            let from = &originals[other * size..][line.clone()];
            pixels[image * size..][line].copy_from_slice(from);
        }
    }
    1.0 - (columns.len() * rows.len()) as f32 / resolution.pixels() as f32
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;

    #[test]
    fn labels_are_mixed_like_pixels() {
        let infinite = f64::INFINITY;
        for (mixup, cutmix) in [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0), (1e-300, 0.0), (infinite, 0.0)]
        {
            let mixing = Mixing { mixup, cutmix };
            for seed in 0..20 {
                let resolution = Resolution::new(6, 10);
                // Images of one colour, which is their label.
                let mut pixels: Vec<f32> =
                    [0.0, 1.0].iter().flat_map(|c| vec![*c; 6 * 10 * 3]).collect();
                let mut targets = vec![1.0, 0.0, 0.0, 1.0];
                mix(
                    &mixing,
                    &mut pixels,
                    &mut targets,
                    (resolution, 2),
                    &mut Seed::new(seed).rng(),
                );
                for image in 0..2 {
                    let mean = pixels[image * 180..(image + 1) * 180].iter().sum::<f32>() / 180.0;
                    assert!((mean - targets[image * 2 + 1]).abs() < 1e-5);
                    let sum: f32 = targets[image * 2..image * 2 + 2].iter().sum();
                    assert!((sum - 1.0).abs() < 1e-6);
                }
            }
        }
    }
}
