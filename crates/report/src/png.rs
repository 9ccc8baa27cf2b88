//! Pixels as PNG.

use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};

/// Encodes 8-bit RGB pixels, row by row from the top left.
///
/// # Panics
/// If a side is zero or `rgb` does not hold `3 * width * height` bytes.
pub fn png(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    assert!(width > 0 && height > 0, "an image of {width} by {height} pixels has none to show");
    assert_eq!(rgb.len() as u64, 3 * u64::from(width) * u64::from(height), "bytes of RGB pixels");
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes)
        .write_image(rgb, width, height, ExtendedColorType::Rgb8)
        .expect("the sizes agree and memory takes every write");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_survive() {
        let pixels: Vec<u8> = (0..3 * 5 * 4).collect();
        let image = image::load_from_memory(&png(&pixels, 5, 4)).unwrap().into_rgb8();
        assert_eq!((image.dimensions(), image.into_raw()), ((5, 4), pixels));
    }

    #[test]
    #[should_panic(expected = "bytes of RGB pixels")]
    fn sizes_must_agree() {
        png(&[0; 10], 2, 2);
    }
}
