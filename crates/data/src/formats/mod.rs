//! Data sets on disk.

mod assumed;
mod cifar;
mod classes;
mod coco;
mod columns;
mod corrupted;
mod csv;
mod folder;
mod idx;
mod json_lines;
mod json_words;
mod mask_file;
mod masks;
mod open;
#[cfg(feature = "parquet")]
mod parquet;
mod recognise;
mod records;
mod stamp;
mod structure;
mod table;
mod webdataset;
mod zip;

#[cfg(feature = "parquet")]
pub use self::parquet::Parquet;
pub use self::{
    cifar::{Cifar, CifarKind},
    columns::Columns,
    corrupted::CorruptedSet,
    idx::Idx,
    mask_file::{mask_png, write_mask},
    open::{
        DataSpec, check_several_classes, open, open_splits, open_unsplit, open_whole, whole_name,
    },
    stamp::stamp,
    table::ImageTable,
    webdataset::WebDataset,
    zip::ZipFolder,
};

use self::{folder::ImageFolder, webdataset::expand_braces};
use std::path::Path;

/// Whether a file's name ends like an image's.
pub fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    ["jpg", "jpeg", "png", "webp", "bmp"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}
