//! What big_vision's RandAugment does to colours, cut off to whole levels, as its casts to bytes do.

use super::colour::by_channel;
use crate::picture::Picture;

/// A change of colours that leaves everything in its place. With a factor, a picture is blended with a dull
/// one: 0 is the dull one, 1 the picture itself, and above 1 it goes on, away from the dull one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Truncated {
    /// Stretches every channel to all levels.
    AutoContrast,
    /// From its grey form.
    Colour(f32),
    /// From one level of grey: the number of pixels over 256, at most 255. That is the mean of a histogram's
    /// counts, where the mean of the levels was meant; above 255 × 256 pixels it is white.
    Contrast(f32),
    /// From black.
    Brightness(f32),
    /// From its smoothed form, which has the picture's own edge.
    Sharpness(f32),
}

impl Truncated {
    pub(super) fn apply(self, picture: Picture) -> Picture {
        match self {
            Self::AutoContrast => by_channel(picture, stretched),
            Self::Colour(factor) => from_grey(picture, factor),
            Self::Contrast(factor) => {
                let pixels = picture.width * picture.height;
                from_level(picture, cut(pixels as f32 / 256.0), factor)
            }
            Self::Brightness(factor) => from_level(picture, 0, factor),
            Self::Sharpness(factor) => from_smooth(&picture, factor),
        }
    }
}

/// A value as a level of 0 to 255, without what is behind the point.
fn cut(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

fn blend(dull: u8, own: u8, factor: f32) -> u8 {
    let (dull, own) = (f32::from(dull), f32::from(own));
    cut(dull + factor * (own - dull))
}

fn from_level(mut picture: Picture, level: u8, factor: f32) -> Picture {
    let table: [u8; 256] = std::array::from_fn(|own| blend(level, own as u8, factor));
    picture.pixels.iter_mut().for_each(|pixel| *pixel = table[*pixel as usize]);
    picture
}

/// Grey with the weights and the conversions of `tf.image.rgb_to_grayscale`.
fn from_grey(mut picture: Picture, factor: f32) -> Picture {
    for pixel in picture.pixels.chunks_exact_mut(3) {
        let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(|own| f32::from(own) / 255.0);
        let grey = cut((0.2989 * red + 0.587 * green + 0.114 * blue) * 255.5);
        pixel.iter_mut().for_each(|own| *own = blend(grey, *own, factor));
    }
    picture
}

fn from_smooth(picture: &Picture, factor: f32) -> Picture {
    let mut result = picture.clone();
    for y in 1..picture.height.saturating_sub(1) {
        for x in 1..picture.width.saturating_sub(1) {
            for channel in 0..3 {
                let place = |x: usize, y: usize| (y * picture.width + x) * 3 + channel;
                let at = |x, y| u32::from(picture.pixels[place(x, y)]);
                let around: u32 = (0..9).map(|i| at(x + i % 3 - 1, y + i / 3 - 1)).sum();
                let smooth = ((around + 4 * at(x, y)) / 13) as u8;
                result.pixels[place(x, y)] = blend(smooth, at(x, y) as u8, factor);
            }
        }
    }
    result
}

/// The table that stretches the levels of a channel to all of them.
fn stretched(values: &[u8]) -> [u8; 256] {
    let (low, high) = (*values.iter().min().unwrap_or(&0), *values.iter().max().unwrap_or(&0));
    if high <= low {
        return std::array::from_fn(|own| own as u8);
    }
    let scale = 255.0 / f32::from(high - low);
    std::array::from_fn(|own| cut(own as f32 * scale - f32::from(low) * scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(values: &[u8]) -> Picture {
        Picture::from_grey(values.len(), 1, values)
    }

    #[test]
    fn levels_are_stretched_and_cut_off() {
        // 255 / 150 = 1.7: (11 - 10) · 1.7 = 1.7 and (59 - 10) · 1.7 = 83.3.
        let stretched = Truncated::AutoContrast.apply(grey(&[10, 11, 59, 160]));
        assert_eq!(stretched, grey(&[0, 1, 83, 255]));
        let flat = Picture::filled(3, 2, [40, 50, 60]);
        assert_eq!(Truncated::AutoContrast.apply(flat.clone()), flat);
    }

    #[test]
    fn brightness_is_a_multiple_cut_off() {
        // 2.8 · 7 = 19.6; 2.8 · 92 = 257.6.
        let row = grey(&[0, 7, 91, 92]);
        assert_eq!(Truncated::Brightness(2.8).apply(row.clone()), grey(&[0, 19, 254, 255]));
        assert_eq!(Truncated::Brightness(0.1).apply(row), grey(&[0, 0, 9, 9]));
    }

    #[test]
    fn contrast_is_away_from_the_number_of_pixels_over_256() {
        // 32 × 24 pixels are a level of 3: 3 + 2.8 · (10 - 3) = 22.6.
        let picture = |level| Picture::filled(32, 24, [level; 3]);
        assert_eq!(Truncated::Contrast(2.8).apply(picture(10)), picture(22));
        assert_eq!(Truncated::Contrast(2.8).apply(picture(1)), picture(0));
        assert_eq!(Truncated::Contrast(0.5).apply(picture(200)), picture(101));
        // 224 × 224 pixels are one of 196, and more than 65,280 of 255.
        let large = Truncated::Contrast(0.1).apply(Picture::filled(224, 224, [96; 3]));
        assert_eq!(large.at(0, 0), [186; 3]);
        let larger = Truncated::Contrast(0.1).apply(Picture::filled(300, 300, [55; 3]));
        assert_eq!(larger.at(0, 0), [235; 3]);
    }

    #[test]
    fn colour_is_away_from_grey() {
        // 0.2989 · 100 + 0.587 · 50 + 0.114 · 200 = 82.04, times 255.5 / 255 is 82.2; 82 + 2.8 · (100 - 82)
        // = 132.4, 82 - 2.8 · 32 < 0, 82 + 2.8 · 118 > 255.
        let picture = Picture::filled(1, 1, [100, 50, 200]);
        let vivid = Truncated::Colour(2.8).apply(picture.clone());
        assert_eq!(vivid.at(0, 0), [132, 0, 255]);
        // 82 + 0.1 · 18 = 83.8, 82 - 3.2 = 78.8, 82 + 11.8 = 93.8.
        assert_eq!(Truncated::Colour(0.1).apply(picture).at(0, 0), [83, 78, 93]);
        let white = Truncated::Colour(2.8).apply(Picture::filled(1, 1, [255; 3]));
        assert_eq!(white.at(0, 0), [255; 3]);
    }

    #[test]
    fn sharpness_is_away_from_the_smoothed_inside() {
        let mut values = [10; 9];
        values[4] = 100;
        let picture = Picture::from_grey(3, 3, &values);
        // (8 · 10 + 5 · 100) / 13 = 44.6, cut off 44; 44 + 0.5 · 56 = 72, 44 + 2.8 · 56 = 200.8.
        for (factor, middle) in [(0.5, 72), (1.0, 100), (2.8, 200)] {
            values[4] = middle;
            let expected = Picture::from_grey(3, 3, &values);
            assert_eq!(Truncated::Sharpness(factor).apply(picture.clone()), expected);
        }
        let narrow = Picture::from_grey(1, 3, &[1, 2, 3]);
        assert_eq!(Truncated::Sharpness(2.8).apply(narrow.clone()), narrow);
    }
}
