//! Classes and experts as colours.

use omma_data::{IGNORED, Picture};

/// What is known of nothing.
const NOTHING: [u8; 3] = [128; 3];
/// Turns of the colour wheel between one colour and the next: no two of the first few hundred are alike.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// The colour of a class, or of an expert: hues far from each other, in three brightnesses.
pub fn colour(number: usize) -> [u8; 3] {
    let hue = (0.58 + number as f64 * GOLDEN).fract() * 6.0;
    let (saturation, value) = [(0.72, 0.92), (0.55, 0.68), (0.85, 0.50)][number % 3];
    let channel = |turn: f64| {
        let distance = (hue + turn).rem_euclid(6.0);
        let share = distance.min(4.0 - distance).clamp(0.0, 1.0);
        ((value - value * saturation * share) * 255.0).round() as u8
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

/// A mask in the colours of its classes; what is ignored is grey.
///
/// - `mask`: `[H, W]` of a picture of this width
pub fn painted(mask: &[u8], width: usize) -> Picture {
    let class = |class: &u8| if *class == IGNORED { NOTHING } else { colour(usize::from(*class)) };
    let height = mask.len() / width.max(1);
    Picture { width, height, pixels: mask.iter().flat_map(class).collect() }
}

/// A picture under half-transparent colours; nothing leaves a pixel as it is, but darker.
pub fn overlaid(picture: &Picture, colours: impl Iterator<Item = Option<[u8; 3]>>) -> Picture {
    let pixels = picture.pixels.chunks_exact(3).zip(colours).flat_map(|(own, over)| {
        let over = over.unwrap_or([0; 3]);
        let mixed = |channel: usize| (u16::from(own[channel]) + u16::from(over[channel])) / 2;
        [mixed(0) as u8, mixed(1) as u8, mixed(2) as u8]
    });
    Picture { pixels: pixels.collect(), ..*picture }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_colours_that_can_be_told_apart() {
        for number in 0..40 {
            for other in 0..number {
                let (a, b) = (colour(number), colour(other));
                let apart: i32 = (0..3).map(|c| (i32::from(a[c]) - i32::from(b[c])).abs()).sum();
                assert!(apart > 8, "{number} is {a:?}, {other} is {b:?}");
            }
        }
        assert_eq!(painted(&[0, IGNORED], 2).pixels[3..], NOTHING);
    }
}
