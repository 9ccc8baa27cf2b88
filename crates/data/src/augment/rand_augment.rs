//! RandAugment: a few random operations of one magnitude (Cubuk et al. 2020).

use rand::{Rng, RngExt, seq::IndexedRandom};

use crate::picture::Picture;

#[derive(Debug, Clone, Copy)]
enum Operation {
    Identity,
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    Colour,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

const OPERATIONS: [Operation; 15] = [
    Operation::Identity,
    Operation::AutoContrast,
    Operation::Equalize,
    Operation::Invert,
    Operation::Rotate,
    Operation::Posterize,
    Operation::Solarize,
    Operation::Colour,
    Operation::Contrast,
    Operation::Brightness,
    Operation::Sharpness,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
];

/// `operations` random operations of `magnitude` 0 to 10.
pub fn rand_augment(
    picture: Picture,
    operations: usize,
    magnitude: f64,
    rng: &mut impl Rng,
) -> Picture {
    let level = (magnitude / 10.0).clamp(0.0, 1.0) as f32;
    (0..operations).fold(picture, |picture, _| {
        let operation = *OPERATIONS.choose(rng).expect("there are operations");
        let sign = if rng.random_bool(0.5) { 1.0 } else { -1.0 };
        apply(picture, operation, level, sign)
    })
}

fn apply(picture: Picture, operation: Operation, level: f32, sign: f32) -> Picture {
    let signed = level * sign;
    match operation {
        Operation::Identity => picture,
        Operation::AutoContrast => by_channel(picture, |values| {
            let (low, high) =
                (*values.iter().min().unwrap_or(&0), *values.iter().max().unwrap_or(&0));
            if high <= low {
                return table(|v| v);
            }
            let range = f32::from(high - low);
            table(|v| (v - f32::from(low)) * 255.0 / range)
        }),
        Operation::Equalize => by_channel(picture, equalised),
        Operation::Invert => by_value(picture, |v| 255.0 - v),
        Operation::Posterize => {
            let step = 2f32.powf((level * 4.0).round());
            by_value(picture, |v| (v / step).floor() * step)
        }
        Operation::Solarize => {
            let threshold = 256.0 * (1.0 - level);
            by_value(picture, |v| if v >= threshold { 255.0 - v } else { v })
        }
        Operation::Brightness => by_value(picture, |v| v * (1.0 + 0.9 * signed)),
        Operation::Contrast => {
            let mean = mean_grey(&picture);
            by_value(picture, |v| mean + (v - mean) * (1.0 + 0.9 * signed))
        }
        Operation::Colour => by_pixel(picture, |[r, g, b]| {
            let grey = 0.299 * r + 0.587 * g + 0.114 * b;
            [r, g, b].map(|v| grey + (v - grey) * (1.0 + 0.9 * signed))
        }),
        Operation::Sharpness => sharpened(&picture, 1.0 + 0.9 * signed),
        Operation::Rotate => {
            let (sin, cos) = (signed * 30f32.to_radians()).sin_cos();
            affine(&picture, [cos, -sin, 0.0, sin, cos, 0.0])
        }
        Operation::ShearX => affine(&picture, [1.0, 0.3 * signed, 0.0, 0.0, 1.0, 0.0]),
        Operation::ShearY => affine(&picture, [1.0, 0.0, 0.0, 0.3 * signed, 1.0, 0.0]),
        Operation::TranslateX => {
            let shift = 0.3 * signed * picture.width as f32;
            affine(&picture, [1.0, 0.0, shift, 0.0, 1.0, 0.0])
        }
        Operation::TranslateY => {
            let shift = 0.3 * signed * picture.height as f32;
            affine(&picture, [1.0, 0.0, 0.0, 0.0, 1.0, shift])
        }
    }
}

fn level(value: f32) -> u8 {
    value.round().clamp(0.0, 255.0) as u8
}

fn table(value: impl Fn(f32) -> f32) -> [u8; 256] {
    std::array::from_fn(|i| level(value(i as f32)))
}

fn by_value(mut picture: Picture, value: impl Fn(f32) -> f32) -> Picture {
    let table = table(value);
    picture.pixels.iter_mut().for_each(|pixel| *pixel = table[*pixel as usize]);
    picture
}

fn by_channel(mut picture: Picture, make: impl Fn(&[u8]) -> [u8; 256]) -> Picture {
    for channel in 0..3 {
        let values: Vec<u8> = picture.pixels.iter().skip(channel).step_by(3).copied().collect();
        let table = make(&values);
        let own = picture.pixels.iter_mut().skip(channel).step_by(3);
        own.for_each(|pixel| *pixel = table[*pixel as usize]);
    }
    picture
}

fn by_pixel(mut picture: Picture, change: impl Fn([f32; 3]) -> [f32; 3]) -> Picture {
    for pixel in picture.pixels.chunks_exact_mut(3) {
        let changed = change([pixel[0], pixel[1], pixel[2]].map(f32::from));
        pixel.copy_from_slice(&changed.map(level));
    }
    picture
}

/// The table that makes all levels about equally frequent.
fn equalised(values: &[u8]) -> [u8; 256] {
    let mut counts = [0usize; 256];
    values.iter().for_each(|value| counts[*value as usize] += 1);
    let last = counts.iter().rev().find(|count| **count > 0).copied().unwrap_or(0);
    let step = (values.len() - last) / 255;
    if step == 0 {
        return table(|v| v);
    }
    let mut before = step / 2;
    std::array::from_fn(|i| {
        let value = (before / step).min(255) as u8;
        before += counts[i];
        value
    })
}

fn mean_grey(picture: &Picture) -> f32 {
    let sum: f64 = picture
        .pixels
        .chunks_exact(3)
        .map(|p| 0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2]))
        .sum();
    (sum / (picture.width * picture.height) as f64) as f32
}

/// Away from (above 1) or towards (below 1) the picture's smoothed form.
fn sharpened(picture: &Picture, factor: f32) -> Picture {
    let mut result = picture.clone();
    for y in 1..picture.height.saturating_sub(1) {
        for x in 1..picture.width.saturating_sub(1) {
            for c in 0..3 {
                let at = |dx: usize, dy: usize| {
                    f32::from(picture.pixels[((y + dy - 1) * picture.width + x + dx - 1) * 3 + c])
                };
                let around: f32 = (0..9).map(|i| at(i % 3, i / 3)).sum();
                let smooth = (around + 4.0 * at(1, 1)) / 13.0;
                let value = smooth + (at(1, 1) - smooth) * factor;
                result.pixels[(y * picture.width + x) * 3 + c] = level(value);
            }
        }
    }
    result
}

/// Every pixel from where `[a b c; d e f]` takes it, around the middle; grey outside.
fn affine(picture: &Picture, [a, b, c, d, e, f]: [f32; 6]) -> Picture {
    let (mx, my) = ((picture.width as f32 - 1.0) / 2.0, (picture.height as f32 - 1.0) / 2.0);
    let mut pixels = Vec::with_capacity(picture.pixels.len());
    for y in 0..picture.height {
        for x in 0..picture.width {
            let (dx, dy) = (x as f32 - mx, y as f32 - my);
            pixels.extend(bilinear(picture, a * dx + b * dy + c + mx, d * dx + e * dy + f + my));
        }
    }
    Picture { pixels, ..*picture }
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
    use omma_base::Seed;

    use super::*;
    use crate::{
        dataset::{Dataset, Split},
        world::{Variant, World},
    };

    #[test]
    fn every_operation_keeps_the_size_and_changes_more_with_its_level() {
        let world = World::new(1, 40, 10, Split::Train, Variant::Usual);
        let picture = world.get(0).unwrap().picture;
        for operation in OPERATIONS {
            let [weak, strong] =
                [0.2, 0.9].map(|level| apply(picture.clone(), operation, level, 1.0));
            assert_eq!((strong.width, strong.height), (40, 40));
            let [weak, strong] = [weak, strong].map(|changed| picture.difference(&changed));
            assert!(strong >= weak, "{operation:?}: {weak} {strong}");
            let idle = matches!(operation, Operation::Identity);
            assert_eq!(strong == 0.0, idle, "{operation:?}");
            let dot = Picture::filled(1, 1, [9, 99, 200]);
            for sign in [-1.0, 1.0] {
                let small = apply(dot.clone(), operation, 0.9, sign);
                assert_eq!((small.width, small.pixels.len()), (1, 3));
            }
        }
        for operation in [Operation::AutoContrast, Operation::Equalize] {
            let flat = Picture::filled(5, 5, [40, 50, 60]);
            assert_eq!(apply(flat.clone(), operation, 0.9, 1.0), flat);
        }
        let a = rand_augment(picture.clone(), 2, 9.0, &mut Seed::new(1).rng());
        assert_eq!(a, rand_augment(picture, 2, 9.0, &mut Seed::new(1).rng()));
    }
}
