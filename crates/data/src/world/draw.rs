//! From a scene to pixels: anti-aliased outlines, occlusion, light and noise.

use omma_base::Resolution;
use rand::RngExt;
use rand_distr::StandardNormal;

use super::{
    scene::{Object, Scene, Setting},
    shape::Shape,
};
use crate::picture::Picture;

/// What is painted on. Lengths are in units of the shorter side; places are shares of each side.
struct Canvas {
    resolution: Resolution,
    /// How long the shorter side is, in pixels.
    unit: f32,
    /// Width and height in that unit.
    extent: [f32; 2],
    /// `[H, W]`
    colours: Vec<[f32; 3]>,
    /// `[H, W]`
    mask: Vec<u8>,
}

impl Scene {
    /// The image, and for every pixel 0 for the background or the number of a shape, counted from 1. In an
    /// image that is not square, things are further apart along its longer side and have the same shapes.
    pub(super) fn draw(&self, resolution: Resolution) -> (Picture, Vec<u8>) {
        let mut canvas = Canvas::new(resolution);
        for place in 0..resolution.pixels() {
            canvas.colours[place] = self.setting.background(&canvas, canvas.middle(place));
        }
        for (ends, line) in &self.setting.lines {
            canvas.paint_line(ends, *line);
        }
        for object in &self.objects {
            canvas.paint(object);
        }
        let mut rng = self.seed.named("noise").rng();
        let mut pixels = Vec::with_capacity(resolution.pixels() * 3);
        for (place, colour) in canvas.colours.iter().enumerate() {
            let light = self.setting.light_at(canvas.share(canvas.middle(place)));
            for channel in colour {
                let noise: f32 = rng.sample(StandardNormal);
                let value = channel * light + noise * self.setting.noise;
                pixels.push((value * 255.0 + 0.5) as u8);
            }
        }
        let Resolution { height, width } = resolution;
        (Picture { width, height, pixels }, canvas.mask)
    }
}

impl Setting {
    fn background(&self, canvas: &Canvas, middle: [f32; 2]) -> [f32; 3] {
        let [corner, right, bottom] = self.background;
        let ([x, y], pixel) = (middle, 1.0 / canvas.unit);
        let blend = self.texture.blend(x, y, self.texture_scale, pixel) * self.texture_strength;
        let [x, y] = canvas.share(middle);
        std::array::from_fn(|c| {
            let plain = corner[c] + (right[c] - corner[c]) * x + (bottom[c] - corner[c]) * y;
            plain * (1.0 - blend)
        })
    }

    fn light_at(&self, [x, y]: [f32; 2]) -> f32 {
        let [lx, ly] = self.light;
        let along = ((x - 0.5) * lx + (y - 0.5) * ly).clamp(-0.7, 0.7);
        1.0 - self.shadow * (0.5 - along)
    }
}

impl Canvas {
    fn new(resolution: Resolution) -> Self {
        let unit = resolution.shortest() as f32;
        Self {
            resolution,
            unit,
            extent: [resolution.width as f32 / unit, resolution.height as f32 / unit],
            colours: vec![[0.0; 3]; resolution.pixels()],
            mask: vec![0; resolution.pixels()],
        }
    }

    /// The middle of a pixel, in units of the shorter side.
    fn middle(&self, place: usize) -> [f32; 2] {
        let pixel = 1.0 / self.unit;
        let middle = |place: usize| (place as f32 + 0.5) * pixel;
        [middle(place % self.resolution.width), middle(place / self.resolution.width)]
    }

    /// A place as a share of each side.
    fn share(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        [x / self.extent[0], y / self.extent[1]]
    }

    /// A line as wide as a pixel of 32, or as one pixel.
    fn paint_line(&mut self, ends: &[f32; 4], colour: [f32; 3]) {
        let (width, height) = (self.resolution.width, self.resolution.height);
        let [x0, x1] = [ends[0], ends[2]].map(|x| x * width as f32);
        let [y0, y1] = [ends[1], ends[3]].map(|y| y * height as f32);
        // Walks along the longer axis.
        let steep = (y1 - y0).abs() > (x1 - x0).abs();
        let (a0, b0, a1, b1) = if steep { (y0, x0, y1, x1) } else { (x0, y0, x1, y1) };
        let (a0, b0, a1, b1) = if a0 > a1 { (a1, b1, a0, b0) } else { (a0, b0, a1, b1) };
        let (along, across) = if steep { (height, width) } else { (width, height) };
        let slope = (b1 - b0) / (a1 - a0).max(1e-3);
        let half = (self.unit / 64.0).max(0.5) * (1.0 + slope * slope).sqrt();
        for a in a0 as usize..(a1.ceil() as usize).min(along) {
            let middle = b0 + slope * (a as f32 + 0.5 - a0);
            let from = (middle - half - 0.5).max(0.0) as usize;
            let to = ((middle + half + 0.5).max(0.0).ceil() as usize).min(across);
            for b in from..to {
                let cover = (half + 0.5 - (b as f32 + 0.5 - middle).abs()).clamp(0.0, 1.0);
                let pixel = &mut self.colours[if steep { a * width + b } else { b * width + a }];
                (0..3).for_each(|c| pixel[c] += (colour[c] - pixel[c]) * cover);
            }
        }
    }

    /// Covers what lies behind an object; a pixel on its outline gets a mixture.
    fn paint(&mut self, object: &Object) {
        let (unit, pixel) = (self.unit, 1.0 / self.unit);
        let centre = [object.centre[0] * self.extent[0], object.centre[1] * self.extent[1]];
        let reach = object.radius * 1.3 + pixel;
        let range = |centre: f32, side: usize| {
            let from = ((centre - reach) * unit).floor().clamp(0.0, side as f32) as usize;
            let to = ((centre + reach) * unit).ceil().clamp(0.0, side as f32) as usize;
            from..to
        };
        let (sin, cos) = object.turn.sin_cos();
        // No shape reaches beyond 1.15 of its radius.
        let farthest = (1.15 + 1.5 * pixel / object.radius).powi(2);
        let number = Shape::CLASSES.iter().chain(&Shape::STRANGE).position(|s| *s == object.shape);
        let number = number.map_or(0, |number| number as u8 + 1);
        let (first, second) = (object.colour.rgb(), object.second.rgb());
        for row in range(centre[1], self.resolution.height) {
            for column in range(centre[0], self.resolution.width) {
                let dx = (column as f32 + 0.5) * pixel - centre[0];
                let dy = (row as f32 + 0.5) * pixel - centre[1];
                let x = (dx * cos + dy * sin) / object.radius / object.stretch;
                let y = (dy * cos - dx * sin) / object.radius * object.stretch;
                if x * x + y * y > farthest {
                    continue;
                }
                let distance = object.shape.distance(x, y) * object.radius;
                let cover = (0.5 - distance / pixel).clamp(0.0, 1.0);
                if cover == 0.0 {
                    continue;
                }
                let blend = 0.5 * object.texture.blend(x, y, object.scale, pixel / object.radius);
                let place = row * self.resolution.width + column;
                for c in 0..3 {
                    let own = first[c] + (second[c] - first[c]) * blend;
                    self.colours[place][c] += (own - self.colours[place][c]) * cover;
                }
                if cover > 0.5 {
                    self.mask[place] = number;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_smooth_and_stay_inside() {
        for resolution in [Resolution::square(20), Resolution::new(10, 30), Resolution::new(30, 9)]
        {
            for ends in
                [[0.0, 0.0, 1.0, 1.0], [0.9, 0.1, 0.2, 0.95], [0.5, 0.0, 0.5, 1.0], [0.3; 4]]
            {
                let mut canvas = Canvas::new(resolution);
                canvas.paint_line(&ends, [1.0; 3]);
                assert!(canvas.colours.iter().flatten().all(|value| (0.0..=1.0).contains(value)));
            }
        }
        let mut canvas = Canvas::new(Resolution::square(20));
        canvas.paint_line(&[0.1, 0.1, 0.9, 0.5], [1.0; 3]);
        assert!(canvas.colours.iter().any(|colour| colour[0] > 0.1 && colour[0] < 0.9));
        assert!(canvas.colours.iter().any(|colour| colour[0] > 0.75));
    }

    #[test]
    fn no_shape_reaches_beyond_where_it_is_drawn() {
        for shape in Shape::CLASSES.iter().chain(&Shape::STRANGE) {
            for step in 0..720 {
                let (sin, cos) = (step as f32 * 0.5).to_radians().sin_cos();
                assert!(shape.distance(1.15 * cos, 1.15 * sin) > 0.0, "{shape:?}");
            }
        }
    }
}
