//! From the bytes of a file to what a model takes.

use std::path::Path;

use axum::body::Bytes;
use omma_data::{Batch, Picture, Pixels};

use crate::{
    error::{Result, ServeError},
    model::Facts,
    predictor::Ask,
};

/// Pixels of a request times classes and members at most: 256 MiB of probabilities, of which twice as much is held on
/// the way.
const MOST_PROBABILITIES: usize = 64 << 20;

/// Decodes an image, unless it has too many pixels, which its head says.
///
/// - `place`: which of the request's images it is, from 0
pub(crate) fn decoded(bytes: &Bytes, place: usize) -> Result<Picture> {
    let name = format!("image {}", place + 1);
    if !is_image(bytes) {
        return Err(ServeError::MediaType(format!("{name} is no JPEG, PNG, WebP or BMP file")));
    }
    Ok(Picture::decode(bytes, Path::new(&name))?)
}

/// `[H, W, 3]`: an image cut in the middle and normalised, as a model takes it.
pub(crate) fn values(picture: &Picture, pixels: &Pixels) -> Vec<f32> {
    Batch::unlabelled(std::slice::from_ref(picture), 0, pixels).pixels
}

/// A picture whose pixels are to be labelled, unless that takes too much memory.
pub(crate) fn to_segment(picture: Picture, facts: &Facts) -> Result<Ask> {
    let ask = Ask::Pixels(picture);
    check_room(std::slice::from_ref(&ask), facts)?;
    Ok(ask)
}

/// Whether all pixels that one request wants labelled fit into memory.
pub(crate) fn check_room(asks: &[Ask], facts: &Facts) -> Result<()> {
    let pixels = asks.iter().map(|ask| match ask {
        Ask::Pixels(picture) => picture.resolution().pixels(),
        _ => 0,
    });
    let pixels = pixels.fold(0, usize::saturating_add);
    let (classes, members) = (facts.classes.len().max(1), facts.members.max(1));
    match pixels.saturating_mul(classes).saturating_mul(members) > MOST_PROBABILITIES {
        true => Err(ServeError::TooLarge(format!(
            "{pixels} pixels of {classes} classes are more than can be labelled at once"
        ))),
        false => Ok(()),
    }
}

/// Whether a file begins as one of the images that are read.
fn is_image(bytes: &[u8]) -> bool {
    let part =
        |from: usize, expected: &[u8]| bytes.get(from..).is_some_and(|b| b.starts_with(expected));
    part(0, b"\xff\xd8\xff")
        || part(0, b"\x89PNG\r\n\x1a\n")
        || (part(0, b"RIFF") && part(8, b"WEBP"))
        || part(0, b"BM")
}
