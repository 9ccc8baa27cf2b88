//! Turning, shearing and moving an image.

use omma_base::Resolution;

use super::colour::level;
use crate::{mask::Mask, picture::Picture};

/// What lies outside an image.
const OUTSIDE: [u8; 3] = [128; 3];

/// Every pixel from where `[a b c; d e f]` takes it, around the middle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine(pub(super) [f32; 6]);

impl Affine {
    pub(super) fn turn(radians: f32) -> Self {
        let (sin, cos) = radians.sin_cos();
        Self([cos, -sin, 0.0, sin, cos, 0.0])
    }

    /// Between pixels, with grey outside.
    pub(super) fn picture(self, picture: &Picture) -> Picture {
        let mut pixels = Vec::with_capacity(picture.pixels.len());
        for y in 0..picture.height {
            for x in 0..picture.width {
                let (x, y) = self.from(picture.resolution(), x, y);
                pixels.extend(bilinear(picture, x, y));
            }
        }
        Picture { pixels, ..*picture }
    }

    /// The nearest pixel, with grey outside.
    pub(super) fn nearest_picture(self, picture: &Picture) -> Picture {
        let image = picture.resolution();
        let places = (0..image.height).flat_map(|y| (0..image.width).map(move |x| (x, y)));
        let colour = |(x, y)| self.nearest(image, x, y).map_or(OUTSIDE, |(x, y)| picture.at(x, y));
        Picture { pixels: places.flat_map(colour).collect(), ..*picture }
    }

    /// The nearest pixel; those from outside are ignored.
    pub(super) fn mask(self, mask: &Mask) -> Mask {
        mask.moved(mask.resolution, |x, y| self.nearest(mask.resolution, x, y))
    }

    /// The pixel next to where one comes from, if that is inside.
    fn nearest(self, image: Resolution, x: usize, y: usize) -> Option<(usize, usize)> {
        let (x, y) = self.from(image, x, y);
        let (x, y) = (x.round(), y.round());
        let inside = x >= 0.0 && y >= 0.0 && x < image.width as f32 && y < image.height as f32;
        inside.then_some((x as usize, y as usize))
    }

    fn from(self, image: Resolution, x: usize, y: usize) -> (f32, f32) {
        let Self([a, b, c, d, e, f]) = self;
        let (mx, my) = ((image.width as f32 - 1.0) / 2.0, (image.height as f32 - 1.0) / 2.0);
        let (dx, dy) = (x as f32 - mx, y as f32 - my);
        (a * dx + b * dy + c + mx, d * dx + e * dy + f + my)
    }
}

fn bilinear(picture: &Picture, x: f32, y: f32) -> [u8; 3] {
    let (left, top) = (x.floor(), y.floor());
    let (fx, fy) = (x - left, y - top);
    let at = |dx: f32, dy: f32| {
        let (px, py) = (left + dx, top + dy);
        let inside =
            px >= 0.0 && py >= 0.0 && px < picture.width as f32 && py < picture.height as f32;
        let colour = if inside { picture.at(px as usize, py as usize) } else { OUTSIDE };
        colour.map(f32::from)
    };
    let [nw, ne, sw, se] = [at(0.0, 0.0), at(1.0, 0.0), at(0.0, 1.0), at(1.0, 1.0)];
    std::array::from_fn(|i| {
        let upper = nw[i] + (ne[i] - nw[i]) * fx;
        let lower = sw[i] + (se[i] - sw[i]) * fx;
        level(upper + (lower - upper) * fy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::IGNORED;

    #[test]
    fn a_quarter_of_a_turn_and_what_comes_from_outside() {
        let mask = Mask { resolution: Resolution::new(2, 4), pixels: (0..8).collect() };
        let turned = Affine::turn(std::f32::consts::FRAC_PI_2).mask(&mask);
        assert_eq!(turned.pixels, [IGNORED, 2, 6, IGNORED, IGNORED, 1, 5, IGNORED]);
        let moved = Affine([1.0, 0.0, 1.2, 0.0, 1.0, 0.0]).mask(&mask);
        assert_eq!(moved.pixels, [1, 2, 3, IGNORED, 5, 6, 7, IGNORED]);
    }

    #[test]
    fn between_pixels_or_the_nearest_one() {
        let row = Picture::from_grey(4, 1, &[0, 40, 80, 200]);
        let moved = Affine([1.0, 0.0, 1.25, 0.0, 1.0, 0.0]);
        // A quarter of the way to the next; outside is 128.
        assert_eq!(moved.picture(&row), Picture::from_grey(4, 1, &[50, 110, 182, 128]));
        assert_eq!(moved.nearest_picture(&row), Picture::from_grey(4, 1, &[40, 80, 200, 128]));
    }
}
