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
            *colour = self.setting.background(middle(i % size), middle(i / size));
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
                pixels.push((value * 255.0).clamp(0.0, 255.0) as u8);
            }
        }
        (Picture { width: size, height: size, pixels }, mask)
    }
}

impl Setting {
    fn background(&self, x: f32, y: f32) -> [f32; 3] {
        let [corner, right, bottom] = self.background;
        let blend = self.texture.blend(x, y, self.texture_scale) * self.texture_strength;
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

fn paint_line(colours: &mut [[f32; 3]], size: usize, ends: &[f32; 4], colour: [f32; 3]) {
    let [x0, y0, x1, y1] = ends.map(|v| v * size as f32);
    let steps = ((x1 - x0).abs().max((y1 - y0).abs()).ceil() as usize).max(1);
    for step in 0..=steps {
        let t = step as f32 / steps as f32;
        let (x, y) = ((x0 + (x1 - x0) * t) as usize, (y0 + (y1 - y0) * t) as usize);
        if x < size && y < size {
            colours[y * size + x] = colour;
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
        let number = Shape::CLASSES.iter().chain(&Shape::STRANGE).position(|s| *s == self.shape);
        let number = number.map_or(0, |number| number as u8 + 1);
        let (first, second) = (self.colour.rgb(), self.second.rgb());
        for row in range(self.centre[1]) {
            for column in range(self.centre[0]) {
                let dx = (column as f32 + 0.5) * pixel - self.centre[0];
                let dy = (row as f32 + 0.5) * pixel - self.centre[1];
                let x = (dx * cos + dy * sin) / self.radius / self.stretch;
                let y = (dy * cos - dx * sin) / self.radius * self.stretch;
                let distance = self.shape.distance(x, y) * self.radius;
                let cover = (0.5 - distance / pixel).clamp(0.0, 1.0);
                if cover == 0.0 {
                    continue;
                }
                let blend = 0.75 * self.texture.blend(x, y, self.scale);
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
