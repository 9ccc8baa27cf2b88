//! Turning, shearing and moving an image.

use omma_base::Resolution;

use super::colour::level;
use crate::{mask::Mask, picture::Picture};

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

    /// The nearest pixel; those from outside are ignored.
    pub(super) fn mask(self, mask: &Mask) -> Mask {
        let Resolution { height, width } = mask.resolution;
        mask.moved(mask.resolution, |x, y| {
            let (x, y) = self.from(mask.resolution, x, y);
            let (x, y) = (x.round(), y.round());
            let inside = x >= 0.0 && y >= 0.0 && x < width as f32 && y < height as f32;
            inside.then_some((x as usize, y as usize))
        })
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
        if inside { picture.at(px as usize, py as usize).map(f32::from) } else { [128.0; 3] }
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
}
