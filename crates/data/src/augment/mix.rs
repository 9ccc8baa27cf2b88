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

    const HEIGHT: usize = 6;
    const WIDTH: usize = 10;

    /// Mixes a black image of class 0 with a white one of class 1. Returns the black one's pixels
    /// and its share of white, or `None` if nothing changed, as if every image is its own partner.
    fn black_with_white(mixing: Mixing, seed: u64) -> Option<(Vec<f32>, f32)> {
        let size = HEIGHT * WIDTH * 3;
        let mut pixels = [vec![0.0; size], vec![1.0; size]].concat();
        let mut targets = vec![1.0, 0.0, 0.0, 1.0];
        let shape = (Resolution::new(HEIGHT, WIDTH), 2);
        mix(&mixing, &mut pixels, &mut targets, shape, &mut Seed::new(seed).rng());
        let (black, white) = pixels.split_at(size);
        if targets == [1.0, 0.0, 0.0, 1.0] {
            assert!(black.iter().all(|v| *v == 0.0) && white.iter().all(|v| *v == 1.0));
            return None;
        }
        // Both images are mixed alike, and every target is a distribution.
        assert!(black.iter().zip(white).all(|(a, b)| (a + b - 1.0).abs() < 1e-6));
        let [own, share, other, kept] = targets[..] else { panic!("{targets:?}") };
        assert!((own + share - 1.0).abs() < 1e-6 && (other - share).abs() < 1e-6);
        assert!((kept - own).abs() < 1e-6);
        Some((black.to_vec(), share))
    }

    fn all_mixed(mixing: Mixing, seeds: u64) -> Vec<(Vec<f32>, f32)> {
        (0..seeds).filter_map(|seed| black_with_white(mixing, seed)).collect()
    }

    /// The rectangle of white pixels, as columns and rows.
    fn white_rectangle(pixels: &[f32]) -> Option<[std::ops::RangeInclusive<usize>; 2]> {
        let places = || (0..HEIGHT * WIDTH).filter(|place| pixels[3 * place] == 1.0);
        let columns = places().map(|p| p % WIDTH).min()?..=places().map(|p| p % WIDTH).max()?;
        let rows = places().min()? / WIDTH..=places().max()? / WIDTH;
        Some([columns, rows])
    }

    #[test]
    fn mixup_blends_all_pixels_by_a_beta_weight() {
        let mixed = all_mixed(Mixing { mixup: 0.8, cutmix: 0.0 }, 800);
        assert!((350..450).contains(&mixed.len()), "two images are partners in half the batches");
        for (pixels, share) in &mixed {
            assert!(pixels.iter().all(|value| (value - share).abs() < 1e-6));
        }
        let count = mixed.len() as f32;
        let mean = mixed.iter().map(|(_, share)| share).sum::<f32>() / count;
        let squares = mixed.iter().map(|(_, share)| (share - mean).powi(2)).sum::<f32>();
        // Beta(α, α) has the variance 1 / (4 (2 α + 1)).
        assert!((mean - 0.5).abs() < 0.05, "{mean}");
        assert!((squares / count - 1.0 / 10.4).abs() < 0.015, "{}", squares / count);
    }

    #[test]
    fn mixup_of_extreme_alpha_keeps_one_image_or_halves_both() {
        for (_, share) in all_mixed(Mixing { mixup: 1e-300, cutmix: 0.0 }, 200) {
            assert!(share.min(1.0 - share) < 1e-3, "{share}");
        }
        for (_, share) in all_mixed(Mixing { mixup: f64::INFINITY, cutmix: 0.0 }, 100) {
            assert!((share - 0.5).abs() < 0.1, "{share}");
        }
    }

    #[test]
    fn cutmix_pastes_a_rectangle_and_labels_by_its_area() {
        let mixed = all_mixed(Mixing { mixup: 0.0, cutmix: 1.0 }, 200);
        for (pixels, share) in &mixed {
            let [columns, rows] = white_rectangle(pixels).expect("the target was mixed");
            for (place, pixel) in pixels.chunks_exact(3).enumerate() {
                let inside = columns.contains(&(place % WIDTH)) && rows.contains(&(place / WIDTH));
                assert_eq!(pixel, [f32::from(u8::from(inside)); 3]);
            }
            let area = columns.count() * rows.count();
            assert!((share - area as f32 / (HEIGHT * WIDTH) as f32).abs() < 1e-6);
        }
        let share_of = |test: fn(f32) -> bool| mixed.iter().filter(|(_, s)| test(*s)).count();
        assert!(share_of(|share| share < 0.1) > 5 && share_of(|share| share > 0.4) > 5);
    }

    #[test]
    fn mixup_and_cutmix_together_alternate() {
        let mixed = all_mixed(Mixing { mixup: 0.8, cutmix: 1.0 }, 200);
        let cut = mixed.iter().filter(|(pixels, _)| pixels.iter().all(|v| v.fract() == 0.0));
        let cut = cut.count() as f64 / mixed.len() as f64;
        assert!((cut - 0.5).abs() < 0.15, "{cut} of all batches are cut");
    }
}
