//! An image in memory.

use std::path::Path;

use fast_image_resize::{
    FilterType, ResizeAlg, ResizeOptions, Resizer,
    images::{TypedImage, TypedImageRef},
    pixels::U8x3,
};
use image::{DynamicImage, ImageDecoder, ImageReader, metadata::Orientation};
use omma_base::{Limits, Resolution, files::read_regular};

use crate::{
    error::{DataError, Result},
    part::Part,
};

/// The most bytes that a pixel takes: four channels of 16 bits.
const LARGEST_PIXEL: u64 = 8;
/// Headers, palettes, previews and colour profiles.
const AROUND: u64 = 64 << 20;

/// An RGB image, 8 bits per channel, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// `[H, W, 3]`
    pub pixels: Vec<u8>,
}

impl Picture {
    /// A picture of one colour.
    pub fn filled(width: usize, height: usize, colour: [u8; 3]) -> Self {
        let pixels = std::iter::repeat_n(colour, width * height).flatten().collect();
        Self { width, height, pixels }
    }

    /// Every channel is the same plane, `[H, W]`.
    pub(crate) fn from_grey(width: usize, height: usize, grey: &[u8]) -> Self {
        let pixels = grey.iter().flat_map(|value| [*value; 3]).collect();
        Self { width, height, pixels }
    }

    /// Decodes JPEG, PNG, WebP or BMP, turned as its EXIF note says, which is how viewers show it; `name`
    /// is for messages. A file with too many pixels is refused before memory is asked for.
    pub fn decode(bytes: &[u8], name: &Path) -> Result<Self> {
        let fault = |why: String| DataError::NotAnImage { path: name.into(), why };
        let image_fault = |error: image::ImageError| fault(error.to_string());
        let allowed = Limits::current();
        let mut limits = image::Limits::no_limits();
        limits.max_alloc =
            Some(allowed.pixels.saturating_mul(LARGEST_PIXEL).saturating_add(AROUND));
        let mut reader = ImageReader::new(std::io::Cursor::new(bytes));
        reader.limits(limits);
        let reader = reader.with_guessed_format().map_err(|error| fault(error.to_string()))?;
        let mut decoder = reader.into_decoder().map_err(image_fault)?;
        let (width, height) = decoder.dimensions();
        allowed
            .check_pixels(width.into(), height.into())
            .map_err(|why| DataError::TooManyPixels { path: name.into(), why })?;
        // A note that cannot be read turns nothing.
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut decoded = DynamicImage::from_decoder(decoder).map_err(image_fault)?;
        decoded.apply_orientation(orientation);
        let decoded = decoded.into_rgb8();
        if ends_early(bytes) {
            return Err(fault("it ends before the image does".to_owned()));
        }
        let (width, height) = decoded.dimensions();
        if width == 0 || height == 0 {
            return Err(fault("it has no pixels".to_owned()));
        }
        Ok(Self { width: width as usize, height: height as usize, pixels: decoded.into_raw() })
    }

    /// Reads a file, unless it is larger than any image that would be decoded.
    pub fn open(path: &Path) -> Result<Self> {
        let most = Limits::current().pixels.saturating_mul(LARGEST_PIXEL).saturating_add(AROUND);
        let bytes = read_regular(path, most).map_err(DataError::io(path))?;
        Self::decode(&bytes, path)
    }

    /// Loses nothing, unlike JPEG.
    pub fn save_png(&self, path: &Path) -> Result<()> {
        let fault = |error: image::ImageError| DataError::Format {
            path: path.into(),
            why: error.to_string(),
        };
        let bytes = self.png().map_err(fault)?;
        std::fs::write(path, bytes).map_err(DataError::io(path))
    }

    /// The bytes of a PNG file; fails for a picture without pixels.
    pub fn png(&self) -> image::ImageResult<Vec<u8>> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::write_buffer_with_format(
            &mut bytes,
            &self.pixels,
            self.width as u32,
            self.height as u32,
            image::ColorType::Rgb8,
            image::ImageFormat::Png,
        )?;
        Ok(bytes.into_inner())
    }

    /// Red, green and blue at a place.
    pub fn at(&self, x: usize, y: usize) -> [u8; 3] {
        let start = (y * self.width + x) * 3;
        [self.pixels[start], self.pixels[start + 1], self.pixels[start + 2]]
    }

    /// Its sides as loaders speak of them.
    pub fn resolution(&self) -> Resolution {
        Resolution::new(self.height, self.width)
    }

    /// A part of the picture at another size, by bicubic interpolation that averages when it shrinks
    /// (as PIL does).
    pub(crate) fn resized_part(&self, part: Part, to: Resolution) -> Self {
        let (width, height) = (to.width.max(1), to.height.max(1));
        if part == Part::whole(self.resolution()) && (width, height) == (self.width, self.height) {
            return self.clone();
        }
        let part = part.inside(self.resolution());
        // The typed form compiles one kind of pixel instead of all.
        let source =
            TypedImageRef::<U8x3>::from_buffer(self.width as u32, self.height as u32, &self.pixels)
                .expect("a picture has three bytes per pixel");
        let mut pixels = vec![0; width * height * 3];
        let mut target = TypedImage::<U8x3>::from_buffer(width as u32, height as u32, &mut pixels)
            .expect("so has its copy");
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
            .crop(part.left, part.top, part.width, part.height);
        Resizer::new()
            .resize_typed(&source, &mut target, &options)
            .expect("the part lies inside the picture");
        Self { width, height, pixels }
    }

    /// The whole picture at another size, whatever its aspect.
    pub fn resized(&self, to: Resolution) -> Self {
        self.resized_part(Part::whole(self.resolution()), to)
    }

    /// A part of the picture as it is, which lies inside it.
    pub fn cut(&self, left: usize, top: usize, size: Resolution) -> Self {
        let rows = (top..top + size.height).flat_map(|y| {
            let start = (y * self.width + left) * 3;
            &self.pixels[start..start + size.width * 3]
        });
        Self { width: size.width, height: size.height, pixels: rows.copied().collect() }
    }

    /// For evaluation: the largest part of the resolution's aspect in the middle, its sides times `share`,
    /// resized. A picture of the right size already stays as it is.
    pub fn centre_crop(&self, to: Resolution, share: f64) -> Self {
        self.resized_part(Part::centre(self.resolution(), to, share), to)
    }

    /// A picture of the same size whose every pixel comes from the place `(x, y)` that is given for its own.
    pub(crate) fn moved(&self, from: impl Fn(usize, usize) -> (usize, usize)) -> Self {
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for y in 0..self.height {
            for x in 0..self.width {
                let (x, y) = from(x, y);
                pixels.extend(self.at(x, y));
            }
        }
        Self { pixels, ..*self }
    }

    /// The mean absolute difference to a picture of the same size, in levels of 0 to 255.
    #[cfg(test)]
    pub(crate) fn difference(&self, other: &Self) -> f64 {
        let pairs = self.pixels.iter().zip(&other.pixels);
        let sum: u64 = pairs.map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        sum as f64 / self.pixels.len() as f64
    }
}

/// Whether these are a JPEG's bytes without its end: decoders fill what is missing with grey. In the image's
/// data no marker can appear by chance, so that the last end marker must follow the last scan's start.
fn ends_early(bytes: &[u8]) -> bool {
    let last = |marker: u8| bytes.windows(2).rposition(|pair| pair == [0xff, marker]);
    bytes.starts_with(&[0xff, 0xd8]) && last(0xd9) < last(0xda)
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use image::ImageFormat;
    use rand::RngExt;

    use super::*;

    #[test]
    fn crops_keep_the_middle() {
        let mut picture = Picture::filled(40, 20, [0; 3]);
        for y in 0..20 {
            for x in 10..30 {
                picture.pixels[(y * 40 + x) * 3..][..3].fill(200);
            }
        }
        let cropped = picture.centre_crop(Resolution::square(10), 1.0);
        assert_eq!(cropped.resolution(), Resolution::square(10));
        assert!(cropped.pixels.iter().all(|value| *value > 150));
        let tall = picture.centre_crop(Resolution::new(10, 5), 1.0);
        assert_eq!(tall, Picture::filled(5, 10, [200; 3]));
        let wide = picture.centre_crop(Resolution::new(10, 20), 1.0);
        assert_eq!(wide, picture.resized(Resolution::new(10, 20)));
    }

    fn encoded(image: image::DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    fn decoded(bytes: &[u8]) -> Result<Picture> {
        Picture::decode(bytes, Path::new("x.jpg"))
    }

    fn photograph(width: u32, height: u32) -> image::DynamicImage {
        let pixel = |x: u32, y: u32| image::Rgb([(x * 7) as u8, (y * 5) as u8, (x * y) as u8]);
        image::RgbImage::from_fn(width, height, pixel).into()
    }

    #[test]
    fn every_kind_of_image_becomes_rgb() {
        let photograph = photograph(20, 10);
        let rgb = photograph.to_rgb8().into_raw();
        let grey: Vec<u8> = photograph.to_luma8().into_raw().iter().flat_map(|v| [*v; 3]).collect();
        let cases = [
            (photograph.clone(), &rgb),
            (photograph.to_rgba8().into(), &rgb),
            (photograph.to_rgb16().into(), &rgb),
            (photograph.to_rgba16().into(), &rgb),
            (photograph.to_luma8().into(), &grey),
            (photograph.to_luma_alpha8().into(), &grey),
            (photograph.to_luma16().into(), &grey),
        ];
        for (image, expected) in cases {
            let colour = image.color();
            let picture = decoded(&encoded(image, ImageFormat::Png)).unwrap();
            assert_eq!((picture.width, picture.height), (20, 10), "{colour:?}");
            let worst = picture.pixels.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(worst <= Some(1), "{colour:?} is off by {worst:?}");
        }
        for format in [ImageFormat::Jpeg, ImageFormat::Bmp, ImageFormat::WebP] {
            let picture = decoded(&encoded(photograph.clone(), format)).unwrap();
            assert_eq!((picture.width, picture.height), (20, 10), "{format:?}");
        }
        let grey = decoded(&encoded(photograph.to_luma8().into(), ImageFormat::Jpeg)).unwrap();
        assert!(grey.pixels.chunks_exact(3).all(|p| p[0] == p[1] && p[1] == p[2]));
    }

    fn chunk(to: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
        to.extend((data.len() as u32).to_be_bytes());
        let body = [kind.as_slice(), data].concat();
        let mut crc = flate2::Crc::new();
        crc.update(&body);
        to.extend(body);
        to.extend(crc.sum().to_be_bytes());
    }

    /// A PNG file of the given header, palette and packed rows.
    fn png(width: u32, height: u32, depth: u8, kind: u8, palette: &[u8], rows: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
        let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
        header.extend([depth, kind, 0, 0, 0]);
        chunk(&mut bytes, b"IHDR", &header);
        if !palette.is_empty() {
            chunk(&mut bytes, b"PLTE", palette);
        }
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(rows).unwrap();
        chunk(&mut bytes, b"IDAT", &packed.finish().unwrap());
        chunk(&mut bytes, b"IEND", &[]);
        bytes
    }

    #[test]
    fn palettes_are_looked_up() {
        let picture = decoded(&png(2, 1, 8, 3, &[1, 2, 3, 250, 0, 9], &[0, 1, 0])).unwrap();
        assert_eq!(picture.pixels, [250, 0, 9, 1, 2, 3]);
        let picture = decoded(&png(3, 1, 1, 0, &[], &[0, 0b0100_0000])).unwrap();
        assert_eq!(picture.pixels, [0, 0, 0, 255, 255, 255, 0, 0, 0]);
    }

    /// One block of 8 × 8 pixels whose four components are flat; their values are 128 plus an eighth of
    /// what is given, as Adobe writes CMYK: inverted.
    fn cmyk_jpeg(values: [i16; 4]) -> Vec<u8> {
        let mut bytes = vec![0xff, 0xd8];
        let mut segment = |marker: u8, body: &[u8]| {
            bytes.extend([0xff, marker]);
            bytes.extend((body.len() as u16 + 2).to_be_bytes());
            bytes.extend(body);
        };
        segment(0xee, b"Adobe\x00\x64\x00\x00\x00\x00\x00");
        segment(0xdb, &[&[0][..], &[1; 64]].concat());
        let parts: Vec<u8> = (1..=4).flat_map(|part| [part, 0x11, 0]).collect();
        segment(0xc0, &[&[8, 0, 8, 0, 8, 4][..], &parts].concat());
        // The only code of DC is ten bits that follow, the only one of AC the end of the block.
        let one_code = |class: u8, symbol: u8| [&[class, 1][..], &[0; 15], &[symbol]].concat();
        segment(0xc4, &one_code(0x00, 10));
        segment(0xc4, &one_code(0x10, 0));
        let parts: Vec<u8> = (1..=4).flat_map(|part| [part, 0]).collect();
        segment(0xda, &[&[4][..], &parts, &[0, 63, 0]].concat());
        let mut bits = String::new();
        for value in values {
            let coded = if value < 0 { value + 1023 } else { value };
            bits += &format!("0{coded:010b}0");
        }
        for byte in bits.as_bytes().chunks(8) {
            let byte = u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap();
            bytes.push(byte);
            if byte == 0xff {
                bytes.push(0);
            }
        }
        bytes.extend([0xff, 0xd9]);
        bytes
    }

    #[test]
    fn four_inks_become_three_lights() {
        // No cyan, no black, all of magenta and yellow: red.
        let picture = decoded(&cmyk_jpeg([1000, -1000, -1000, 1000])).unwrap();
        assert_eq!((picture.width, picture.height), (8, 8));
        let [red, green, blue] = picture.at(4, 4);
        assert!(red > 200 && green < 60 && blue < 60, "{:?}", picture.at(4, 4));
    }

    #[test]
    fn cmyk_black_ink_darkens_all_colors() {
        // The stored values are 253 for no ink, 3 for all of it, and 64 for three quarters.
        let (none, full, most) = (1000, -1000, -512);
        for (inks, expected) in [
            ([none, none, none, none], [251, 251, 251]),
            ([none, none, none, most], [63, 63, 63]),
            ([none, none, none, full], [3, 3, 3]),
            ([full, none, most, none], [3, 251, 63]),
            ([full, none, most, full], [0, 3, 1]),
            ([full, full, full, none], [3, 3, 3]),
        ] {
            let picture = decoded(&cmyk_jpeg(inks)).unwrap();
            let found = picture.at(3, 5);
            let off = (0..3).map(|c| found[c].abs_diff(expected[c])).max();
            assert!(off <= Some(1), "{inks:?}: {found:?}, expected {expected:?}");
            assert_eq!(picture, Picture::filled(8, 8, found));
        }
    }

    #[test]
    fn what_is_no_image_says_so() {
        for bytes in [&b""[..], b"hello, I am text", &[0xff, 0xd8, 0xff, 0xe0, 1, 2, 3]] {
            let message = decoded(bytes).unwrap_err().to_string();
            assert!(message.contains("x.jpg"), "{message}");
        }
    }

    #[test]
    fn what_ends_early_is_refused() {
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
            let bytes = encoded(photograph(64, 48), format);
            assert!(decoded(&bytes).is_ok(), "{format:?}");
            for eighths in 1..8 {
                let part = &bytes[..bytes.len() * eighths / 8];
                assert!(decoded(part).is_err(), "{eighths}/8 of {format:?}");
            }
        }
        let mut trailing = encoded(photograph(64, 48), ImageFormat::Jpeg);
        trailing.extend(b"and something else");
        assert!(decoded(&trailing).is_ok());
    }

    #[test]
    fn what_would_fill_the_memory_is_refused() {
        assert!(decoded(&png(60_000, 60_000, 8, 2, &[], &[0; 1000])).is_err());
        // Within the sides that are allowed, but 4 × 16,000 × 16,000 × 2 bytes.
        assert!(decoded(&png(16_000, 16_000, 16, 6, &[], &[0; 1000])).is_err());
        let mut bomb = b"BM".to_vec();
        bomb.extend([0; 8]);
        bomb.extend(54u32.to_le_bytes());
        bomb.extend(40u32.to_le_bytes());
        bomb.extend(100_000i32.to_le_bytes());
        bomb.extend(100_000i32.to_le_bytes());
        bomb.extend(1u16.to_le_bytes());
        bomb.extend(24u16.to_le_bytes());
        bomb.extend([0; 24]);
        assert!(decoded(&bomb).is_err());
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let mut rng = omma_base::Seed::new(1).rng();
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
            let bytes = encoded(photograph(24, 17), format);
            for _ in 0..150 {
                let mut damaged = bytes.clone();
                for _ in 0..rng.random_range(1..6) {
                    let place = rng.random_range(0..damaged.len());
                    damaged[place] = rng.random();
                }
                if let Ok(picture) = decoded(&damaged) {
                    assert_eq!(picture.pixels.len(), picture.width * picture.height * 3);
                }
            }
        }
    }

    #[test]
    fn any_part_of_any_size_can_be_taken() {
        let mut rng = omma_base::Seed::new(2).rng();
        for (width, height) in [(1, 1), (1, 9), (7, 3), (33, 32)] {
            let picture = Picture::filled(width, height, [10, 20, 30]);
            for _ in 0..300 {
                let across = rng.random_range(0.0..=width as f64);
                let down = rng.random_range(0.0..=height as f64);
                let left = rng.random_range(0.0..=width as f64 - across);
                let top = rng.random_range(0.0..=height as f64 - down);
                let part = Part { left, top, width: across, height: down };
                let part = picture.resized_part(part, Resolution::new(4, 5));
                assert_eq!(part, Picture::filled(5, 4, [10, 20, 30]));
            }
            for to in [Resolution::square(8), Resolution::new(3, 11), Resolution::new(0, 1)] {
                let crop = picture.centre_crop(to, 0.875);
                let expected = Picture::filled(to.width, to.height.max(1), [10, 20, 30]);
                assert_eq!(crop, expected);
            }
        }
    }

    #[test]
    fn what_is_saved_can_be_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let picture = Picture { width: 3, height: 2, pixels: (0..18).collect() };
        picture.save_png(&path).unwrap();
        assert_eq!(Picture::open(&path).unwrap(), picture);
        assert!(picture.save_png(&folder.path().join("no/such/folder.png")).is_err());
        assert!(Picture::open(folder.path()).is_err());
    }
}
