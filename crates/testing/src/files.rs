//! Folders as values.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Copies a folder with everything below it.
///
/// # Panics
///
/// Panics if a file cannot be copied.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the target folder can be created");
    for entry in fs::read_dir(from).expect("the folder can be read").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a file can be copied");
        }
    }
}

/// Reads every file below a folder, except lock files.
///
/// # Panics
///
/// Panics if a file cannot be read.
pub fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the folder can be read").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if entry.file_name() != ".lock" {
            let bytes = fs::read(&path).expect("a file can be read");
            files.insert(path, bytes);
        }
    }
    files
}
