//! What RandAugment does to colours, rounded to whole levels.

use crate::picture::Picture;

/// A change of colours that leaves everything in its place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Recolour {
    /// Stretches every channel to all levels.
    AutoContrast,
    /// Makes all levels of a channel about equally frequent.
    Equalise,
    Invert,
    /// Keeps multiples of a step.
    Posterise(f32),
    /// Inverts from a threshold on.
    Solarise(f32),
    /// Makes what is below the middle brighter by so much.
    SolariseAdd(f32),
    /// Away from (above 1) or towards (below 1) grey.
    Saturation(f32),
    /// Away from or towards the mean.
    Contrast(f32),
    Brightness(f32),
    /// Away from or towards the picture's smoothed form.
    Sharpness(f32),
}

impl Recolour {
    pub(super) fn apply(self, picture: Picture) -> Picture {
        match self {
            Self::AutoContrast => by_channel(picture, |values| {
                let (low, high) =
                    (*values.iter().min().unwrap_or(&0), *values.iter().max().unwrap_or(&0));
                if high <= low {
                    return table(|v| v);
                }
                let range = f32::from(high - low);
                table(|v| (v - f32::from(low)) * 255.0 / range)
            }),
            Self::Equalise => by_channel(picture, equalised),
            Self::Invert => by_value(picture, |v| 255.0 - v),
            Self::Posterise(step) => by_value(picture, |v| (v / step).floor() * step),
            Self::Solarise(threshold) => {
                by_value(picture, |v| if v >= threshold { 255.0 - v } else { v })
            }
            Self::SolariseAdd(amount) => {
                by_value(picture, |v| if v < 128.0 { v + amount } else { v })
            }
            Self::Brightness(factor) => by_value(picture, |v| v * factor),
            Self::Contrast(factor) => {
                let mean = mean_grey(&picture);
                by_value(picture, |v| mean + (v - mean) * factor)
            }
            Self::Saturation(factor) => by_pixel(picture, |[r, g, b]| {
                let grey = 0.299 * r + 0.587 * g + 0.114 * b;
                [r, g, b].map(|v| grey + (v - grey) * factor)
            }),
            Self::Sharpness(factor) => sharpened(&picture, factor),
        }
    }
}

/// A value as a level of 0 to 255.
pub(super) fn level(value: f32) -> u8 {
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

pub(super) fn by_channel(mut picture: Picture, make: impl Fn(&[u8]) -> [u8; 256]) -> Picture {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_picture_has_no_contrast_to_stretch() {
        for recolour in [Recolour::AutoContrast, Recolour::Equalise] {
            let flat = Picture::filled(5, 5, [40, 50, 60]);
            assert_eq!(recolour.apply(flat.clone()), flat);
        }
    }

    #[test]
    fn only_what_is_dark_is_added_to() {
        let row = Picture::from_grey(4, 1, &[0, 100, 127, 128]);
        let added = Recolour::SolariseAdd(100.0).apply(row);
        assert_eq!(added, Picture::from_grey(4, 1, &[100, 200, 227, 128]));
    }
}
