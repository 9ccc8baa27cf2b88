//! What every pixel of an image belongs to.

use omma_base::Resolution;

use crate::part::Part;

/// The class of pixels that count for nothing, such as those that a rotation brings in from outside the
/// image.
pub const IGNORED: u8 = 255;

/// A class per pixel. It is moved as its picture is, but nothing is ever mixed: every pixel is one of those
/// that were there, or [`IGNORED`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mask {
    pub(crate) resolution: Resolution,
    /// `[H, W]`
    pub(crate) pixels: Vec<u8>,
}

impl Mask {
    /// A mask of `resolution` whose every pixel comes from the place `(x, y)` that is given for its own.
    pub(crate) fn moved(
        &self,
        resolution: Resolution,
        from: impl Fn(usize, usize) -> Option<(usize, usize)>,
    ) -> Self {
        let places =
            (0..resolution.height).flat_map(|y| (0..resolution.width).map(move |x| (x, y)));
        let class = |(x, y)| from(x, y).map_or(IGNORED, |(x, y)| self.at(x, y));
        Self { resolution, pixels: places.map(class).collect() }
    }

    pub(crate) fn at(&self, x: usize, y: usize) -> u8 {
        self.pixels[y * self.resolution.width + x]
    }

    /// A part of the mask at another size: every pixel is that on which its middle falls.
    pub(crate) fn resized_part(&self, part: Part, resolution: Resolution) -> Self {
        let part = part.inside(self.resolution);
        let place = |start: f64, length: f64, place: usize, of: usize, size: usize| {
            ((start + (place as f64 + 0.5) * length / of as f64) as usize).min(size - 1)
        };
        let columns = |x| place(part.left, part.width, x, resolution.width, self.resolution.width);
        let rows = |y| place(part.top, part.height, y, resolution.height, self.resolution.height);
        self.moved(resolution, |x, y| Some((columns(x), rows(y))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_mask_has_the_pixels_in_the_middle_of_its_own() {
        let mask = Mask { resolution: Resolution::new(3, 6), pixels: (0..18).collect() };
        let whole = Part::whole(mask.resolution);
        assert_eq!(mask.resized_part(whole, mask.resolution), mask);
        assert_eq!(mask.resized_part(whole, Resolution::new(1, 2)).pixels, [7, 10]);
        let right = Part { left: 4.0, top: 0.0, width: 2.0, height: 3.0 };
        assert_eq!(mask.resized_part(right, Resolution::new(3, 1)).pixels, [5, 11, 17]);
        assert_eq!(mask.resized_part(right, Resolution::new(1, 4)).pixels, [10, 10, 11, 11]);
    }
}
