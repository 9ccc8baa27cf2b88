//! Which parquet files are for what.

use std::path::{Path, PathBuf};

use super::Parquet;
use crate::{
    dataset::Split,
    error::Result,
    formats::recognise::{Found, empty},
};

/// Opens a split of the files at `path`: those with the split's word in their name. Where no name has
/// `train` in it, files without any such word are for training; a single file has no splits.
pub(in crate::formats) fn open_split(
    path: &Path,
    files: Vec<PathBuf>,
    split: Split,
) -> Result<Found> {
    let with = |words: &[&str]| -> Vec<PathBuf> {
        let fits = |file: &&PathBuf| {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            name.split(|letter: char| !letter.is_alphabetic()).any(|word| words.contains(&word))
        };
        files.iter().filter(fits).cloned().collect()
    };
    let mut train = with(&["train", "training"]);
    let (test, validation) = (with(&["test"]), with(&["validation", "valid", "val"]));
    if train.is_empty() {
        let other = |file: &&PathBuf| !test.contains(file) && !validation.contains(file);
        train = files.iter().filter(other).cloned().collect();
    }
    if path.is_file() || (test.is_empty() && validation.is_empty()) {
        let all = if path.is_file() { files } else { train };
        return Ok(Found::whole(Parquet::read(&all)?));
    }
    match split {
        Split::Train if train.is_empty() => Err(empty(path, split)),
        Split::Train => Ok(Found::split(Parquet::read(&train)?)),
        Split::Test => {
            let of_no_use = test.is_empty() || Parquet::is_withheld(&test)?;
            let test = if of_no_use && !validation.is_empty() { validation } else { test };
            let known = match train.is_empty() {
                true => None,
                false => Some(Parquet::class_names(&train)?),
            };
            Ok(Found::split(Parquet::read_as(&test, known.as_deref())?))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{super::tests::published, *};
    use crate::{
        dataset::Shared,
        error::DataError,
        formats::{DataSpec, open},
    };

    fn opened(path: &Path, split: Split) -> Result<Shared> {
        open(&DataSpec::named(path.to_str().unwrap()), split)
    }

    fn labels(path: &Path, split: Split) -> Vec<usize> {
        let data = opened(path, split).unwrap();
        (0..data.len()).map(|index| data.get(index).unwrap().label).collect()
    }

    #[test]
    fn names_say_what_files_are_for() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let data = root.join("data");
        fs::create_dir(&data).unwrap();
        published(&data.join("part-0.parquet"), &[1; 20], &[]);
        assert_eq!(labels(root, Split::Train).len(), 18);
        assert_eq!(labels(&data, Split::Test).len(), 2);

        published(&data.join("train-00000-of-00002.parquet"), &[0, 1], &[]);
        published(&data.join("train-00001-of-00002.parquet"), &[2], &[]);
        published(&data.join("validation-00000-of-00001.parquet"), &[2], &[]);
        for folder in [root, &data] {
            assert_eq!(labels(folder, Split::Train), [0, 1, 2]);
            assert_eq!(labels(folder, Split::Test), [2]);
            assert_eq!(opened(folder, Split::Test).unwrap().classes().len(), 3);
        }
        assert_eq!(labels(&data.join("train-00000-of-00002.parquet"), Split::Test), [1]);

        let test = data.join("test-00000-of-00001.parquet");
        published(&test, &[0, 0], &[]);
        assert_eq!(labels(root, Split::Test), [0, 0]);
        published(&test, &[3], &[]);
        let message = opened(root, Split::Test).err().unwrap().to_string();
        assert!(message.contains("test-00000") && message.contains("label 3"), "{message}");
    }

    #[test]
    fn secret_labels_and_missing_splits() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        published(&root.join("test.parquet"), &[-1, -1], &["a", "b"]);
        assert!(matches!(opened(root, Split::Train), Err(DataError::EmptySplit { .. })));
        let message = opened(root, Split::Test).err().unwrap().to_string();
        assert!(message.contains("row 1 has label -1"), "{message}");
        published(&root.join("val.parquet"), &[1], &["a", "b"]);
        assert_eq!(labels(root, Split::Test), [1]);
    }
}
