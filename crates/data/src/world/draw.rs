//! From a scene to pixels: anti-aliased outlines, occlusion, light and noise.

use rand::RngExt;
use rand_distr::StandardNormal;

use super::{
    scene::{Object, Scene, Setting},
    shape::Shape,
};
use crate::picture::Picture;

impl Scene {
    /// The image, `size` × `size`, and for every pixel 0 for the background or the number of a shape,
    /// counted from 1.
    pub fn draw(&self, size: usize) -> (Picture, Vec<u8>) {
        let mut colours = vec![[0f32; 3]; size * size];
        let mut mask = vec![0u8; size * size];
        let pixel = 1.0 / size as f32;
        let middle = |place: usize| (place as f32 + 0.5) * pixel;
        for (i, colour) in colours.iter_mut().enumerate() {
            *colour = self.setting.background(middle(i % size), middle(i / size), pixel);
        }
        for (ends, line) in &self.setting.lines {
            paint_line(&mut colours, size, ends, *line);
        }
        for object in &self.objects {
            object.paint(&mut colours, &mut mask, size);
        }
        let mut rng = self.seed.named("noise").rng();
        let mut pixels = Vec::with_capacity(size * size * 3);
        for (i, colour) in colours.iter().enumerate() {
            let light = self.setting.light_at(middle(i % size), middle(i / size));
            for channel in colour {
                let noise: f32 = rng.sample(StandardNormal);
                let value = channel * light + noise * self.setting.noise;
                pixels.push((value * 255.0 + 0.5) as u8);
            }
        }
        (Picture { width: size, height: size, pixels }, mask)
    }
}

impl Setting {
    fn background(&self, x: f32, y: f32, pixel: f32) -> [f32; 3] {
        let [corner, right, bottom] = self.background;
        let blend = self.texture.blend(x, y, self.texture_scale, pixel) * self.texture_strength;
        std::array::from_fn(|c| {
            let plain = corner[c] + (right[c] - corner[c]) * x + (bottom[c] - corner[c]) * y;
            plain * (1.0 - blend)
        })
    }

    fn light_at(&self, x: f32, y: f32) -> f32 {
        let [lx, ly] = self.light;
        let along = ((x - 0.5) * lx + (y - 0.5) * ly).clamp(-0.7, 0.7);
        1.0 - self.shadow * (0.5 - along)
    }
}

/// A line as wide as a pixel of 32, or as one pixel.
fn paint_line(colours: &mut [[f32; 3]], size: usize, ends: &[f32; 4], colour: [f32; 3]) {
    let [x0, y0, x1, y1] = ends.map(|v| v * size as f32);
    // Walks along the longer axis.
    let steep = (y1 - y0).abs() > (x1 - x0).abs();
    let (a0, b0, a1, b1) = if steep { (y0, x0, y1, x1) } else { (x0, y0, x1, y1) };
    let (a0, b0, a1, b1) = if a0 > a1 { (a1, b1, a0, b0) } else { (a0, b0, a1, b1) };
    let slope = (b1 - b0) / (a1 - a0).max(1e-3);
    let half = (size as f32 / 64.0).max(0.5) * (1.0 + slope * slope).sqrt();
    for a in a0 as usize..(a1.ceil() as usize).min(size) {
        let middle = b0 + slope * (a as f32 + 0.5 - a0);
        let from = (middle - half - 0.5).max(0.0) as usize;
        let to = ((middle + half + 0.5).max(0.0).ceil() as usize).min(size);
        for b in from..to {
            let cover = (half + 0.5 - (b as f32 + 0.5 - middle).abs()).clamp(0.0, 1.0);
            let pixel = &mut colours[if steep { a * size + b } else { b * size + a }];
            (0..3).for_each(|c| pixel[c] += (colour[c] - pixel[c]) * cover);
        }
    }
}

impl Object {
    /// Covers what lies behind; a pixel on the outline gets a mixture.
    fn paint(&self, colours: &mut [[f32; 3]], mask: &mut [u8], size: usize) {
        let pixel = 1.0 / size as f32;
        let reach = self.radius * 1.3 + pixel;
        let range = |centre: f32| {
            let from = ((centre - reach) * size as f32).floor().clamp(0.0, size as f32) as usize;
            let to = ((centre + reach) * size as f32).ceil().clamp(0.0, size as f32) as usize;
            from..to
        };
        let (sin, cos) = self.turn.sin_cos();
        // No shape reaches beyond 1.15 of its radius.
        let farthest = (1.15 + 1.5 * pixel / self.radius).powi(2);
        let number = Shape::CLASSES.iter().chain(&Shape::STRANGE).position(|s| *s == self.shape);
        let number = number.map_or(0, |number| number as u8 + 1);
        let (first, second) = (self.colour.rgb(), self.second.rgb());
        for row in range(self.centre[1]) {
            for column in range(self.centre[0]) {
                let dx = (column as f32 + 0.5) * pixel - self.centre[0];
                let dy = (row as f32 + 0.5) * pixel - self.centre[1];
                let x = (dx * cos + dy * sin) / self.radius / self.stretch;
                let y = (dy * cos - dx * sin) / self.radius * self.stretch;
                if x * x + y * y > farthest {
                    continue;
                }
                let distance = self.shape.distance(x, y) * self.radius;
                let cover = (0.5 - distance / pixel).clamp(0.0, 1.0);
                if cover == 0.0 {
                    continue;
                }
                let blend = 0.5 * self.texture.blend(x, y, self.scale, pixel / self.radius);
                let place = row * size + column;
                for c in 0..3 {
                    let own = first[c] + (second[c] - first[c]) * blend;
                    colours[place][c] += (own - colours[place][c]) * cover;
                }
                if cover > 0.5 {
                    mask[place] = number;
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
        for ends in [[0.0, 0.0, 1.0, 1.0], [0.9, 0.1, 0.2, 0.95], [0.5, 0.0, 0.5, 1.0], [0.3; 4]] {
            let mut colours = vec![[0.0; 3]; 20 * 20];
            paint_line(&mut colours, 20, &ends, [1.0; 3]);
            assert!(colours.iter().flatten().all(|value| (0.0..=1.0).contains(value)));
        }
        let mut colours = vec![[0.0; 3]; 20 * 20];
        paint_line(&mut colours, 20, &[0.1, 0.1, 0.9, 0.5], [1.0; 3]);
        assert!(colours.iter().any(|colour| colour[0] > 0.1 && colour[0] < 0.9));
        assert!(colours.iter().any(|colour| colour[0] > 0.75));
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
