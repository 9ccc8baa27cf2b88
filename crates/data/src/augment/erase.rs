//! Random erasing.

use rand::{Rng, RngExt};

use crate::picture::Picture;

/// Fills a random rectangle of 2 % to a third of the area with noise.
pub fn random_erasing(picture: &mut Picture, rng: &mut impl Rng) {
    let area = (picture.width * picture.height) as f64 * rng.random_range(0.02..0.33);
    let aspect = rng.random_range((0.3f64).ln()..(3.3f64).ln()).exp();
    let across = ((area * aspect).sqrt() as usize).clamp(1, picture.width);
    let down = ((area / aspect).sqrt() as usize).clamp(1, picture.height);
    let left = rng.random_range(0..=picture.width - across);
    let top = rng.random_range(0..=picture.height - down);
    for y in top..top + down {
        let start = (y * picture.width + left) * 3;
        picture.pixels[start..start + across * 3].iter_mut().for_each(|value| *value = rng.random());
    }
}
