//! Crops.

use rand::{Rng, RngExt};

use crate::picture::Picture;

/// A random part of between `smallest` and all of the area and of an aspect between 3:4 and 4:3
/// (Inception), resized.
pub fn random_resized_crop(
    picture: &Picture,
    size: usize,
    smallest: f64,
    rng: &mut impl Rng,
) -> Picture {
    let (width, height) = (picture.width as f64, picture.height as f64);
    let smallest = if smallest.is_nan() { 1.0 } else { smallest.clamp(0.01, 1.0) };
    for _ in 0..10 {
        let area = width * height * rng.random_range(smallest..=1.0);
        let aspect = rng.random_range((0.75f64).ln()..=(4.0f64 / 3.0).ln()).exp();
        let (across, down) = ((area * aspect).sqrt(), (area / aspect).sqrt());
        if across <= width && down <= height {
            let left = rng.random_range(0.0..=width - across);
            let top = rng.random_range(0.0..=height - down);
            return picture.resized_part((left, top, across, down), size, size);
        }
    }
    picture.centre_crop(size, 1.0)
}

/// The picture shifted by up to `margin` pixels, with its edges mirrored into the gap.
pub fn padded_crop(picture: &Picture, margin: usize, rng: &mut impl Rng) -> Picture {
    let shift = |rng: &mut dyn Rng| rng.random_range(0..=2 * margin) as isize - margin as isize;
    let (dx, dy) = (shift(rng), shift(rng));
    let mirror = |place: isize, size: usize| {
        let size = size as isize;
        let place = if place < 0 { -place - 1 } else { place };
        let place = if place >= size { 2 * size - 1 - place } else { place };
        place.clamp(0, size - 1) as usize
    };
    let mut pixels = Vec::with_capacity(picture.pixels.len());
    for y in 0..picture.height as isize {
        for x in 0..picture.width as isize {
            pixels
                .extend(picture.at(mirror(x + dx, picture.width), mirror(y + dy, picture.height)));
        }
    }
    Picture { pixels, ..*picture }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;

    #[test]
    fn crops_have_the_size_asked_for() {
        let mut rng = Seed::new(1).rng();
        for (width, height) in [(1, 1), (5, 90), (64, 48)] {
            let picture = Picture::filled(width, height, [3, 4, 5]);
            for smallest in [0.0, 0.3, 1.0, 7.0, f64::NAN] {
                for _ in 0..50 {
                    let crop = random_resized_crop(&picture, 9, smallest, &mut rng);
                    assert_eq!(crop, Picture::filled(9, 9, [3, 4, 5]));
                }
            }
        }
    }

    #[test]
    fn a_shift_moves_pixels_and_mirrors_the_edge() {
        let row: Vec<u8> = (0..6).flat_map(|x| [x; 3]).collect();
        let picture = Picture { width: 6, height: 1, pixels: row };
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..60 {
            let moved = padded_crop(&picture, 2, &mut Seed::new(seed).rng());
            let values: Vec<u8> = (0..6).map(|x| moved.at(x, 0)[0]).collect();
            seen.insert(values);
        }
        let expected: [[u8; 6]; 5] = [
            [0, 1, 2, 3, 4, 5],
            [0, 0, 1, 2, 3, 4],
            [1, 0, 0, 1, 2, 3],
            [1, 2, 3, 4, 5, 5],
            [2, 3, 4, 5, 5, 4],
        ];
        assert_eq!(seen, expected.map(|values| values.to_vec()).into());
        let dot = Picture::filled(1, 1, [7; 3]);
        assert_eq!(padded_crop(&dot, 5, &mut Seed::new(1).rng()), dot);
    }
}
