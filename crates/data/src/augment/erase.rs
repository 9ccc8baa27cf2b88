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
        picture.pixels[start..start + across * 3]
            .iter_mut()
            .for_each(|value| *value = rng.random());
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;

    #[test]
    fn a_rectangle_of_a_bounded_area_is_erased() {
        for seed in 0..100 {
            let mut picture = Picture::filled(20, 30, [0; 3]);
            random_erasing(&mut picture, &mut Seed::new(seed).rng());
            let changed =
                picture.pixels.chunks_exact(3).filter(|p| p.iter().any(|v| *v > 0)).count();
            assert!((1..=198).contains(&changed), "{changed} of 600");
        }
        let mut dot = Picture::filled(1, 1, [0; 3]);
        random_erasing(&mut dot, &mut Seed::new(1).rng());
    }
}
