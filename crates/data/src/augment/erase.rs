//! Random erasing.

use omma_base::Resolution;
use rand::{Rng, RngExt};

use crate::picture::Picture;

/// A rectangle of noise.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Patch {
    left: usize,
    top: usize,
    width: usize,
    /// `[height, width, 3]`
    noise: Vec<u8>,
}

impl Patch {
    /// Somewhere, over 2 % to a third of the area.
    pub(super) fn random(image: Resolution, rng: &mut impl Rng) -> Self {
        let area = image.pixels() as f64 * rng.random_range(0.02..0.33);
        let aspect = rng.random_range((0.3f64).ln()..(3.3f64).ln()).exp();
        let width = ((area * aspect).sqrt() as usize).clamp(1, image.width);
        let height = ((area / aspect).sqrt() as usize).clamp(1, image.height);
        let left = rng.random_range(0..=image.width - width);
        let top = rng.random_range(0..=image.height - height);
        let noise = (0..height * width * 3).map(|_| rng.random()).collect();
        Self { left, top, width, noise }
    }

    pub(super) fn cover(&self, mut picture: Picture) -> Picture {
        for (row, noise) in self.noise.chunks_exact(self.width * 3).enumerate() {
            let start = ((self.top + row) * picture.width + self.left) * 3;
            picture.pixels[start..start + noise.len()].copy_from_slice(noise);
        }
        picture
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;

    #[test]
    fn a_rectangle_of_a_bounded_area_is_erased() {
        for seed in 0..100 {
            let picture = Picture::filled(20, 30, [0; 3]);
            let patch = Patch::random(picture.resolution(), &mut Seed::new(seed).rng());
            let covered = patch.cover(picture);
            let changed =
                covered.pixels.chunks_exact(3).filter(|p| p.iter().any(|v| *v > 0)).count();
            assert!((1..=198).contains(&changed), "{changed} of 600");
        }
        let dot = Patch::random(Resolution::square(1), &mut Seed::new(1).rng());
        assert_eq!(dot.cover(Picture::filled(1, 1, [0; 3])).pixels, dot.noise);
    }
}
