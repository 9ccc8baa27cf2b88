//! Small pictures, encoded for a page.

use image::{
    ExtendedColorType, ImageEncoder,
    codecs::{
        jpeg::JpegEncoder,
        png::{CompressionType, FilterType, PngEncoder},
    },
};

/// A PNG of so many bytes stays one; a larger picture may become a JPEG.
const SMALL_PNG: usize = 2048;
/// The quality of a JPEG, of 100.
const QUALITY: u8 = 80;
/// A picture with no longer side is enlarged without smoothing: its pixels are to be seen.
const COARSE: u32 = 48;

/// A picture as a page holds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Thumbnail {
    encoded: Vec<u8>,
    media_type: &'static str,
    width: u32,
    height: u32,
}

impl Thumbnail {
    /// Encodes 8-bit RGB pixels, row by row from the top left: as PNG, which loses nothing, or as JPEG where
    /// that is much to hold, as of photographs.
    ///
    /// # Panics
    /// If a side is zero or `rgb` does not hold `3 * width * height` bytes.
    pub fn new(rgb: &[u8], width: u32, height: u32) -> Self {
        assert!(width > 0 && height > 0, "an image of {width} by {height} pixels has none to show");
        assert_eq!(
            rgb.len() as u64,
            3 * u64::from(width) * u64::from(height),
            "bytes of RGB pixels"
        );
        let png = png(rgb, width, height);
        if png.len() > SMALL_PNG {
            let jpeg = jpeg(rgb, width, height);
            if jpeg.len() < png.len() {
                return Self { encoded: jpeg, media_type: "image/jpeg", width, height };
            }
        }
        Self { encoded: png, media_type: "image/png", width, height }
    }

    /// The file that it is.
    pub fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// `image/png` or `image/jpeg`.
    pub(crate) fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Whether its pixels are to be seen as they are.
    pub(crate) fn is_coarse(&self) -> bool {
        self.width.max(self.height) <= COARSE
    }
}

fn png(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    PngEncoder::new_with_quality(&mut bytes, CompressionType::Default, FilterType::Adaptive)
        .write_image(rgb, width, height, ExtendedColorType::Rgb8)
        .expect("the sizes agree and memory takes every write");
    bytes
}

fn jpeg(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    JpegEncoder::new_with_quality(&mut bytes, QUALITY)
        .write_image(rgb, width, height, ExtendedColorType::Rgb8)
        .expect("the sizes agree and memory takes every write");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pixels_of_small_pictures_survive() {
        let pixels: Vec<u8> = (0..3 * 5 * 4).collect();
        let thumbnail = Thumbnail::new(&pixels, 5, 4);
        assert_eq!((thumbnail.media_type(), thumbnail.size()), ("image/png", (5, 4)));
        let image = image::load_from_memory(thumbnail.encoded()).unwrap().into_rgb8();
        assert_eq!((image.dimensions(), image.into_raw()), ((5, 4), pixels));
    }

    #[test]
    fn a_photograph_is_a_jpeg_and_a_drawing_is_not() {
        let side = 96;
        let grain = |x: u32, y: u32, _: u32| {
            let mixed = x.wrapping_mul(0x9e37_79b1) ^ y.wrapping_mul(0x85eb_ca77);
            ((mixed.wrapping_mul(0xc2b2_ae3d) >> 27) + x + y / 2) as u8
        };
        let each = |pixel: &dyn Fn(u32, u32, u32) -> u8| -> Vec<u8> {
            let places = (0..side).flat_map(|y| (0..side).map(move |x| (x, y)));
            places.flat_map(|(x, y)| [0, 1, 2].map(|c| pixel(x, y, c))).collect()
        };
        let photograph = Thumbnail::new(&each(&grain), side, side);
        assert_eq!(photograph.media_type(), "image/jpeg");
        let seen = image::load_from_memory(photograph.encoded()).unwrap();
        assert_eq!((seen.width(), seen.height()), (side, side));
        let drawing = each(&|x, y, _| if x > y { 200 } else { 10 });
        assert_eq!(Thumbnail::new(&drawing, side, side).media_type(), "image/png");
    }

    #[test]
    #[should_panic(expected = "bytes of RGB pixels")]
    fn sizes_must_agree() {
        Thumbnail::new(&[0; 10], 2, 2);
    }
}
