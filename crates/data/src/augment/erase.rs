//! Random erasing and cutout.

use omma_base::Resolution;
use rand::{Rng, RngExt};

use crate::picture::Picture;

/// A rectangle that covers what was there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Patch {
    left: usize,
    top: usize,
    width: usize,
    /// `[height, width, 3]`
    pixels: Vec<u8>,
}

impl Patch {
    /// Noise somewhere, over 2 % to a third of the area.
    pub(super) fn random(image: Resolution, rng: &mut impl Rng) -> Self {
        let area = image.pixels() as f64 * rng.random_range(0.02..0.33);
        let aspect = rng.random_range((0.3f64).ln()..(3.3f64).ln()).exp();
        let width = ((area * aspect).sqrt() as usize).clamp(1, image.width);
        let height = ((area / aspect).sqrt() as usize).clamp(1, image.height);
        let left = rng.random_range(0..=image.width - width);
        let top = rng.random_range(0..=image.height - height);
        let pixels = (0..height * width * 3).map(|_| rng.random()).collect();
        Self { left, top, width, pixels }
    }

    /// Grey within so many pixels of a random one, as far as the image goes (DeVries and Taylor 2017); none
    /// where the reach is 0.
    pub(super) fn cutout(image: Resolution, reach: usize, rng: &mut impl Rng) -> Option<Self> {
        let mut side = |size: usize| {
            let centre = rng.random_range(0..size);
            (centre.saturating_sub(reach), centre.saturating_add(reach).min(size))
        };
        let ((top, bottom), (left, right)) = (side(image.height), side(image.width));
        let (height, width) = (bottom - top, right - left);
        let pixels = vec![128; height * width * 3];
        (reach > 0).then_some(Self { left, top, width, pixels })
    }

    pub(super) fn cover(&self, mut picture: Picture) -> Picture {
        for (row, pixels) in self.pixels.chunks_exact(self.width * 3).enumerate() {
            let start = ((self.top + row) * picture.width + self.left) * 3;
            picture.pixels[start..start + pixels.len()].copy_from_slice(pixels);
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
        assert_eq!(dot.cover(Picture::filled(1, 1, [0; 3])).pixels, dot.pixels);
    }

    #[test]
    fn a_cutout_is_a_square_of_grey_around_any_pixel_cut_off_at_the_edges() {
        let image = Resolution::new(4, 5);
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let patch = Patch::cutout(image, 2, &mut Seed::new(seed).rng()).unwrap();
            let covered = patch.cover(Picture::filled(5, 4, [0; 3]));
            seen.insert(covered.pixels);
        }
        // Every pixel as the centre: rows from c - 2 up to, not with, c + 2.
        let expected = (0..4_usize).flat_map(|y| (0..5_usize).map(move |x| (x, y)));
        let within = |place: usize, centre: usize| place + 2 >= centre && place < centre + 2;
        let expected = expected.map(|(cx, cy)| {
            let grey = |i: usize| within(i % 5, cx) && within(i / 5, cy);
            (0..20).flat_map(|i| [if grey(i) { 128 } else { 0 }; 3]).collect::<Vec<u8>>()
        });
        assert_eq!(seen, expected.collect());
        assert_eq!(Patch::cutout(image, 0, &mut Seed::new(1).rng()), None);
    }
}
