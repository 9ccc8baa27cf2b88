//! Data sets on disk.

mod cifar;
mod classes;
mod csv;
mod folder;
mod idx;
mod open;
mod webdataset;

pub use self::{
    cifar::{Cifar, CifarKind},
    csv::CsvFile,
    folder::ImageFolder,
    idx::Idx,
    open::{DataSpec, open},
    webdataset::{WebDataset, expand_braces},
};

use std::{fs::File, io::Read, path::Path};

use crate::error::{DataError, Result};

/// The bytes of a file, unpacked if they are gzip's.
fn read_maybe_gz(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(DataError::io(path))?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut unpacked = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes.as_slice())
        .read_to_end(&mut unpacked)
        .map_err(DataError::io(path))?;
    Ok(unpacked)
}

/// Whether a file's name ends like an image's.
fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ["jpg", "jpeg", "png", "webp", "bmp"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}
