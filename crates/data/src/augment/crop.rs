//! Where a training image is cut out.

use omma_base::Resolution;
use rand::{Rng, RngExt};

use crate::part::Part;

/// A random part of between `smallest` and all of an image's area, of an aspect between 3:4 and 4:3
/// (Inception) of that of `shape`.
pub(super) fn random_part(
    image: Resolution,
    shape: Resolution,
    smallest: f64,
    rng: &mut impl Rng,
) -> Part {
    let (width, height) = (image.width as f64, image.height as f64);
    let smallest = if smallest.is_nan() { 1.0 } else { smallest.clamp(0.01, 1.0) };
    let usual = shape.width.max(1) as f64 / shape.height.max(1) as f64;
    for _ in 0..10 {
        let area = width * height * rng.random_range(smallest..=1.0);
        let aspect = usual * rng.random_range((0.75f64).ln()..=(4.0f64 / 3.0).ln()).exp();
        let (across, down) = ((area * aspect).sqrt(), (area / aspect).sqrt());
        if across <= width && down <= height {
            let left = rng.random_range(0.0..=width - across);
            let top = rng.random_range(0.0..=height - down);
            return Part { left, top, width: across, height: down };
        }
    }
    Part::centre(image, shape, 1.0)
}

/// A move of an image, with its edges mirrored into the gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shift {
    across: isize,
    down: isize,
}

impl Shift {
    /// Up to an eighth of each side, and a pixel at least.
    pub(super) fn random(image: Resolution, rng: &mut impl Rng) -> Self {
        let mut shift = |side: usize| {
            let margin = (side / 8).max(1);
            rng.random_range(0..=2 * margin) as isize - margin as isize
        };
        Self { across: shift(image.width), down: shift(image.height) }
    }

    /// Where the pixel at a place comes from.
    pub(super) fn from(self, image: Resolution, x: usize, y: usize) -> (usize, usize) {
        let mirror = |place: isize, size: usize| {
            let size = size as isize;
            let place = if place < 0 { -place - 1 } else { place };
            let place = if place >= size { 2 * size - 1 - place } else { place };
            place.clamp(0, size - 1) as usize
        };
        let (x, y) = (x as isize + self.across, y as isize + self.down);
        (mirror(x, image.width), mirror(y, image.height))
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;

    #[test]
    fn parts_lie_inside_and_are_about_as_wide_as_asked_for() {
        let mut rng = Seed::new(1).rng();
        for image in [(1, 1), (90, 5), (48, 64)].map(|(h, w)| Resolution::new(h, w)) {
            for shape in [(9, 9), (4, 12)].map(|(h, w)| Resolution::new(h, w)) {
                for smallest in [0.0, 0.3, 1.0, 7.0, f64::NAN] {
                    for _ in 0..50 {
                        let part = random_part(image, shape, smallest, &mut rng);
                        let inside = part.inside(image);
                        assert!((part.left - inside.left).abs() < 1e-9, "{part:?}");
                        assert!((part.width - inside.width).abs() < 1e-9, "{part:?}");
                        assert!((part.height - inside.height).abs() < 1e-9, "{part:?}");
                        let usual = shape.width as f64 / shape.height as f64;
                        let aspect = part.width / part.height / usual;
                        assert!((0.749..1.334).contains(&aspect), "{aspect}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_shift_moves_pixels_and_mirrors_the_edge() {
        let row = Resolution::new(1, 6);
        let moved =
            |across| [0, 1, 2, 3, 4, 5].map(|x| Shift { across, down: 0 }.from(row, x, 0).0);
        assert_eq!(moved(0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(moved(-1), [0, 0, 1, 2, 3, 4]);
        assert_eq!(moved(-2), [1, 0, 0, 1, 2, 3]);
        assert_eq!(moved(1), [1, 2, 3, 4, 5, 5]);
        assert_eq!(moved(2), [2, 3, 4, 5, 5, 4]);
        let dot = Resolution::square(1);
        assert_eq!(Shift { across: 5, down: -5 }.from(dot, 0, 0), (0, 0));
        let shifts =
            (0..200).map(|seed| Shift::random(Resolution::new(4, 16), &mut Seed::new(seed).rng()));
        let shifts: std::collections::BTreeSet<_> = shifts.map(|s| (s.across, s.down)).collect();
        assert_eq!(shifts, (-2..=2).flat_map(|x| (-1..=1).map(move |y| (x, y))).collect());
    }
}
