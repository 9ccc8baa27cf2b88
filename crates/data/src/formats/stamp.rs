//! What tells the files of a data set from what they were.

use std::{
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use omma_base::{checksum, files::files_below};

use super::{DataSpec, coco::ANNOTATIONS, expand_braces, open::place};
use crate::error::{DataError, Result};

/// A checksum of the names, sizes and times of all files of a data set, without reading any; of the
/// built-in world, of what it is drawn from. Of a table, those of the files beside and below it, or where it is in
/// COCO's folder `annotations`, beside that.
pub fn stamp(spec: &DataSpec) -> Result<String> {
    let Some(path) = place(spec) else {
        return Ok(checksum(format!("{spec:?}")));
    };
    let files = match path {
        _ if !path.exists() => {
            expand_braces(&path.to_string_lossy()).into_iter().map(PathBuf::from).collect()
        }
        _ if path.is_dir() => below(&path)?,
        _ => below(&around(&path))?,
    };
    let mut text = String::new();
    for file in files {
        let about = std::fs::metadata(&file).map_err(DataError::io(&file))?;
        let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let changed = changed.map_or(0, |since| since.as_nanos());
        text += &format!("{} {} {changed}\n", file.display(), about.len());
    }
    Ok(checksum(text))
}

/// The folder that holds what a file speaks of.
fn around(file: &Path) -> PathBuf {
    let folder = file.parent().unwrap_or(Path::new(""));
    let folder = match folder.file_name() {
        Some(name) if name == ANNOTATIONS => folder.parent().unwrap_or(Path::new("")),
        _ => folder,
    };
    if folder == Path::new("") { ".".into() } else { folder.to_owned() }
}

fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    files_below(folder, |_| true).map_err(|(path, error)| DataError::io(path)(error))
}
