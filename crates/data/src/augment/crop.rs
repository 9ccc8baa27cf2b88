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
    for _ in 0..10 {
        let area = width * height * rng.random_range(smallest.clamp(0.01, 1.0)..=1.0);
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
            pixels.extend(picture.at(mirror(x + dx, picture.width), mirror(y + dy, picture.height)));
        }
    }
    Picture { pixels, ..*picture }
}
