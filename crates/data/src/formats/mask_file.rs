//! A mask in a file: a value per pixel, as it was written.

use std::{io::Cursor, path::Path};

use omma_base::{Limits, Resolution, files::read_regular};
use png::{BitDepth, ColorType, Decoder, Encoder, Transformations};

use crate::{
    error::{DataError, Result},
    mask::Mask,
    picture::Picture,
};

/// Headers and palettes beside the pixels.
const AROUND: u64 = 1 << 20;

/// Writes a mask as [`mask_png`] has it.
///
/// - `pixels`: `[H, W]`
/// - `colour`: of a class
pub fn write_mask(
    path: &Path,
    pixels: &[u8],
    resolution: Resolution,
    colour: impl Fn(u8) -> [u8; 3],
) -> Result<()> {
    std::fs::write(path, mask_png(pixels, resolution, colour)).map_err(DataError::io(path))
}

/// A mask as a PNG whose palette shows every class in a colour of its own, and whose values are the classes.
///
/// - `pixels`: `[H, W]`, at least one
/// - `colour`: of a class
pub fn mask_png(pixels: &[u8], resolution: Resolution, colour: impl Fn(u8) -> [u8; 3]) -> Vec<u8> {
    let Resolution { height, width } = resolution;
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette((0..=u8::MAX).flat_map(colour).collect::<Vec<u8>>());
    let mut writer = encoder.write_header().expect("a mask has pixels");
    writer.write_image_data(pixels).expect("a mask has a class for every pixel");
    writer.finish().expect("memory can be written");
    file
}

/// Reads the values of a mask. Those of a PNG with a palette are places in it, whatever their colours.
pub(super) fn read_mask(path: &Path) -> Result<Mask> {
    let most = Limits::current().pixels.saturating_mul(8).saturating_add(AROUND);
    let bytes = read_regular(path, most).map_err(DataError::io(path))?;
    decode_mask(&bytes, path)
}

/// The same of a file in memory; `name` is for messages.
pub(super) fn decode_mask(bytes: &[u8], name: &Path) -> Result<Mask> {
    match bytes.starts_with(b"\x89PNG") {
        true => decode_png(bytes, name),
        false => {
            let Picture { width, height, pixels } = Picture::decode(bytes, name)?;
            let values = pixels.chunks_exact(3).map(|pixel| grey(pixel, name));
            let pixels = values.collect::<Result<_>>()?;
            Ok(Mask { resolution: Resolution::new(height, width), pixels })
        }
    }
}

fn fault(name: &Path, why: impl ToString) -> DataError {
    DataError::NotAnImage { path: name.into(), why: why.to_string() }
}

/// The value of a pixel whose colours are all the same.
fn grey(pixel: &[u8], name: &Path) -> Result<u8> {
    match pixel {
        [red, green, blue, ..] if red == green && green == blue => Ok(*red),
        _ => Err(fault(
            name,
            "it is coloured, and a mask has the number of a class at every pixel: write it in grey, or as a \
             PNG with a palette",
        )),
    }
}

fn decode_png(bytes: &[u8], name: &Path) -> Result<Mask> {
    let mut decoder = Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(|error| fault(name, error))?;
    let (width, height) = reader.info().size();
    Limits::current().check_pixels(width.into(), height.into()).map_err(|why| fault(name, why))?;
    let size = reader.output_buffer_size().ok_or_else(|| fault(name, "it is too large"))?;
    let mut buffer = vec![0; size];
    let frame = reader.next_frame(&mut buffer).map_err(|error| fault(name, error))?;
    let (width, height) = (width as usize, height as usize);
    let rows = buffer.chunks_exact(frame.line_size.max(1)).take(height);
    let mut pixels = Vec::with_capacity(width * height);
    for row in rows {
        match (frame.color_type, frame.bit_depth) {
            (ColorType::Grayscale | ColorType::Indexed, BitDepth::Sixteen) => {
                for value in row.chunks_exact(2) {
                    pixels.push(small(value[0], value[1], name)?);
                }
            }
            (ColorType::Grayscale | ColorType::Indexed, depth) => {
                pixels.extend(unpacked(row, depth as usize).take(width));
            }
            (_, BitDepth::Sixteen) => {
                let channels = frame.color_type.samples();
                for pixel in row.chunks_exact(2 * channels) {
                    let values: Result<Vec<u8>> = pixel
                        .chunks_exact(2)
                        .map(|value| small(value[0], value[1], name))
                        .collect();
                    pixels.push(first_or_grey(&values?, frame.color_type, name)?);
                }
            }
            (colour, _) => {
                for pixel in row.chunks_exact(colour.samples()) {
                    pixels.push(first_or_grey(pixel, colour, name)?);
                }
            }
        }
    }
    match pixels.len() == width * height && width * height > 0 {
        true => Ok(Mask { resolution: Resolution::new(height, width), pixels }),
        false => Err(fault(name, "it ends before the image does")),
    }
}

/// Grey with transparency has its value first; colours are to be grey.
fn first_or_grey(pixel: &[u8], colour: ColorType, name: &Path) -> Result<u8> {
    match colour {
        ColorType::GrayscaleAlpha => Ok(pixel[0]),
        _ => grey(pixel, name),
    }
}

/// A value of 16 bits, which is that of a class.
fn small(high: u8, low: u8, name: &Path) -> Result<u8> {
    match high {
        0 => Ok(low),
        _ => {
            let value = u16::from_be_bytes([high, low]);
            Err(fault(name, format!("it has the value {value}, and classes are below 255")))
        }
    }
}

/// Values of so many bits, the highest of a byte first.
fn unpacked(row: &[u8], bits: usize) -> impl Iterator<Item = u8> {
    let values = 8 / bits;
    let most = u8::MAX >> (8 - bits);
    row.iter().flat_map(move |byte| {
        (0..values).map(move |place| (byte >> (8 - bits * (place + 1))) & most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(width: u32, colour: ColorType, depth: BitDepth, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, width, 2);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == ColorType::Indexed {
            encoder.set_palette((0..48).map(|value| value * 5).collect::<Vec<u8>>());
        }
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        bytes
    }

    fn values(bytes: &[u8]) -> Result<Vec<u8>> {
        decode_mask(bytes, Path::new("mask.png")).map(|mask| mask.pixels)
    }

    #[test]
    fn values_are_those_that_were_written() {
        let grey = written(3, ColorType::Grayscale, BitDepth::Eight, &[0, 5, 255, 1, 2, 3]);
        assert_eq!(values(&grey).unwrap(), [0, 5, 255, 1, 2, 3]);
        let wide = written(1, ColorType::Grayscale, BitDepth::Sixteen, &[0, 9, 0, 255]);
        assert_eq!(values(&wide).unwrap(), [9, 255]);
        let palette = written(3, ColorType::Indexed, BitDepth::Eight, &[0, 7, 2, 9, 1, 0]);
        assert_eq!(values(&palette).unwrap(), [0, 7, 2, 9, 1, 0], "not the palette's colours");
        let packed = written(3, ColorType::Indexed, BitDepth::Four, &[0x1a, 0x30, 0x0f, 0x20]);
        assert_eq!(values(&packed).unwrap(), [1, 10, 3, 0, 15, 2]);
        let bits = written(10, ColorType::Grayscale, BitDepth::One, &[0xa0, 0x40, 0x01, 0x80]);
        let expected = [1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0];
        assert_eq!(values(&bits).unwrap(), expected);
        let same = [[4, 4, 4], [5, 5, 5]].concat();
        assert_eq!(values(&written(1, ColorType::Rgb, BitDepth::Eight, &same)).unwrap(), [4, 5]);
    }

    #[test]
    fn a_mask_that_was_written_is_read_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        let (pixels, size) = ([0, 7, 255, 3, 3, 1], Resolution::new(2, 3));
        write_mask(&path, &pixels, size, |class| [class, 255 - class, 7]).unwrap();
        assert_eq!(read_mask(&path).unwrap(), Mask { resolution: size, pixels: pixels.to_vec() });
        let shown = Picture::open(&path).unwrap();
        assert_eq!(shown.at(1, 0), [7, 248, 7], "a viewer shows the colours");
        assert!(write_mask(&folder.path().join("no/mask.png"), &pixels, size, |_| [0; 3]).is_err());
    }

    #[test]
    fn what_has_no_class_per_pixel_is_refused() {
        let coloured = written(1, ColorType::Rgb, BitDepth::Eight, &[4, 5, 4, 1, 1, 1]);
        assert!(values(&coloured).unwrap_err().to_string().contains("palette"));
        let large = written(1, ColorType::Grayscale, BitDepth::Sixteen, &[1, 4, 0, 0]);
        assert!(values(&large).unwrap_err().to_string().contains("260"));
        let whole = written(3, ColorType::Grayscale, BitDepth::Eight, &[1; 6]);
        for length in 0..whole.len() - 12 {
            assert!(values(&whole[..length]).is_err(), "{length} of {} bytes", whole.len());
        }
    }
}
