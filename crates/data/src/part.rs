//! Where in an image.

use omma_base::Resolution;

/// A rectangle in an image, in pixels, fractions allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Part {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Part {
    pub(crate) fn whole(image: Resolution) -> Self {
        let (width, height) = (image.width as f64, image.height as f64);
        Self { left: 0.0, top: 0.0, width, height }
    }

    /// The largest part of the aspect of `shape` in the middle of an image, its sides times `share`. An
    /// image of that very shape is left whole.
    pub(crate) fn centre(image: Resolution, shape: Resolution, share: f64) -> Self {
        let whole = Self::whole(image);
        if image == shape {
            return whole;
        }
        let (across, down) = (shape.width.max(1) as f64, shape.height.max(1) as f64);
        let width = whole.width.min(whole.height * (across / down)) * share;
        let height = whole.height.min(whole.width * (down / across)) * share;
        Self {
            left: (whole.width - width) / 2.0,
            top: (whole.height - height) / 2.0,
            width,
            height,
        }
    }

    /// Moved and shortened until it lies in the image, rounding included.
    pub(crate) fn inside(self, image: Resolution) -> Self {
        let (left, width) = inside(self.left, self.width, image.width);
        let (top, height) = inside(self.top, self.height, image.height);
        Self { left, top, width, height }
    }
}

fn inside(start: f64, length: f64, size: usize) -> (f64, f64) {
    let size = size as f64;
    let start = start.clamp(0.0, size - 1e-3);
    let mut length = length.clamp(1e-3, size - start);
    while start + length > size {
        length = length.next_down();
    }
    (start, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_has_the_aspect_that_is_asked_for() {
        let centre = |image: (usize, usize), shape: (usize, usize), share| {
            let part = Part::centre(
                Resolution::new(image.0, image.1),
                Resolution::new(shape.0, shape.1),
                share,
            );
            (part.left, part.top, part.width, part.height)
        };
        assert_eq!(centre((30, 40), (5, 5), 1.0), (5.0, 0.0, 30.0, 30.0));
        assert_eq!(centre((30, 40), (5, 10), 1.0), (0.0, 5.0, 40.0, 20.0));
        assert_eq!(centre((30, 40), (30, 15), 0.5), (16.25, 7.5, 7.5, 15.0));
        assert_eq!(centre((3, 7), (3, 7), 0.5), (0.0, 0.0, 7.0, 3.0));
    }
}
