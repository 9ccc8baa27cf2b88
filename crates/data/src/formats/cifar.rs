//! CIFAR-10 and CIFAR-100 in their binary form.

use std::path::{Path, PathBuf};

use omma_base::files::read_regular;

use super::records::{Records, Unpacked};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::{DataError, Result},
    picture::Picture,
};

/// A list of class names.
const LARGEST_LIST: u64 = 1 << 20;
const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CifarKind {
    /// Records of a label and pixels.
    Ten,
    /// Records of a coarse label, a fine label and pixels; the fine one is used.
    Hundred,
}

/// All images of a split. The labels are in memory, the images stay in their files.
#[derive(Debug)]
pub struct Cifar {
    kind: CifarKind,
    classes: Vec<String>,
    labels: Vec<u8>,
    /// Every file, with the number of its first image.
    files: Vec<(usize, Records)>,
}

impl Cifar {
    /// Opens files of records, gzip or not, one after the other.
    pub fn read(kind: CifarKind, files: &[PathBuf], classes: Vec<String>) -> Result<Self> {
        let size = kind.record();
        let mut labels = Vec::new();
        let mut opened = Vec::new();
        for path in files {
            let file = Unpacked::open(path)?.rest()?;
            let length = file.length;
            if length == 0 || length % size as u64 != 0 {
                let why = format!("{length} bytes are not a whole number of records of {size}");
                return Err(DataError::Format { path: path.clone(), why });
            }
            let (first, records) = (labels.len(), file.records(size));
            for index in 0..records.len() {
                labels.push(records.get(index)?[kind.label()]);
            }
            opened.push((first, records));
        }
        let most = labels.iter().max().map_or(1, |label| *label as usize + 1);
        let classes = match classes.len() {
            0 => (0..most.max(if kind == CifarKind::Ten { 10 } else { 100 }))
                .map(|i| i.to_string())
                .collect(),
            _ => classes,
        };
        let unknown = |label: &u8| *label as usize >= classes.len();
        if let Some(index) = labels.iter().position(unknown) {
            let file = opened.iter().rposition(|(first, _)| *first <= index).unwrap_or(0);
            let (record, label) = (index - opened[file].0, labels[index]);
            let why = format!("record {record} has label {label} of {} classes", classes.len());
            return Err(DataError::Format { path: files[file].clone(), why });
        }
        Ok(Self { kind, classes, labels, files: opened })
    }

    /// A split of the folder as it is published (`data_batch_1.bin`, or `train.bin`).
    pub fn folder(folder: &Path, split: Split) -> Result<Self> {
        let find = |name: String| {
            let plain = folder.join(&name);
            let packed = folder.join(format!("{name}.gz"));
            [plain, packed].into_iter().find(|file| file.is_file())
        };
        let batches =
            || (1..=5).filter_map(|i| find(format!("data_batch_{i}.bin"))).collect::<Vec<_>>();
        if folder.join("data_batch_1").exists() {
            let why = "these are CIFAR's Python files; get its binary version".to_owned();
            return Err(DataError::Format { path: folder.into(), why });
        }
        let ten = match split {
            Split::Train => batches(),
            Split::Test => find("test_batch.bin".to_owned()).into_iter().collect(),
        };
        if !ten.is_empty() {
            return Self::read(CifarKind::Ten, &ten, names(&folder.join("batches.meta.txt")));
        }
        let name = if split == Split::Train { "train.bin" } else { "test.bin" };
        match find(name.to_owned()) {
            Some(file) => {
                Self::read(CifarKind::Hundred, &[file], names(&folder.join("fine_label_names.txt")))
            }
            None => Err(DataError::EmptySplit { path: folder.into(), split: split.name() }),
        }
    }

    /// Whether a folder looks like CIFAR's.
    pub fn is_here(folder: &Path) -> bool {
        let names = ["data_batch_1.bin", "test_batch.bin", "train.bin", "test.bin", "data_batch_1"];
        names
            .iter()
            .any(|name| folder.join(name).is_file() || folder.join(format!("{name}.gz")).is_file())
    }
}

impl CifarKind {
    fn label(self) -> usize {
        match self {
            Self::Ten => 0,
            Self::Hundred => 1,
        }
    }

    fn record(self) -> usize {
        self.label() + 1 + 3 * PLANE
    }
}

fn names(file: &Path) -> Vec<String> {
    let text = read_regular(file, LARGEST_LIST).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

impl Dataset for Cifar {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn label(&self, index: usize) -> usize {
        self.labels[index] as usize
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let after = self.files.partition_point(|(first, _)| *first <= index);
        let (first, records) = &self.files[after - 1];
        let record = records.get(index - first)?;
        let planes = &record[self.kind.label() + 1..];
        let pixels = (0..PLANE).flat_map(|i| [planes[i], planes[PLANE + i], planes[2 * PLANE + i]]);
        let picture = Picture { width: SIDE, height: SIDE, pixels: pixels.collect() };
        Ok(Sample::new(picture, self.labels[index] as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn record(labels: &[u8], shade: u8) -> Vec<u8> {
        let planes = [shade, shade + 1, shade + 2].map(|value| vec![value; PLANE]).concat();
        [labels, &planes].concat()
    }

    fn write(folder: &Path, name: &str, records: &[Vec<u8>]) {
        std::fs::write(folder.join(name), records.concat()).unwrap();
    }

    #[test]
    fn ten_classes_in_several_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "data_batch_1.bin", &[record(&[3], 10), record(&[9], 20)]);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&record(&[0], 30)).unwrap();
        write(folder, "data_batch_2.bin.gz", &[packed.finish().unwrap()]);
        assert!(Cifar::is_here(folder));
        let train = Cifar::folder(folder, Split::Train).unwrap();
        assert_eq!((train.len(), train.classes().len()), (3, 10));
        let samples: Vec<_> = (0..3).map(|index| train.get(index).unwrap()).collect();
        assert_eq!(samples.iter().map(|s| s.label).collect::<Vec<_>>(), [3, 9, 0]);
        assert_eq!(samples[2].picture, Picture::filled(32, 32, [30, 31, 32]));
        let error = Cifar::folder(folder, Split::Test).unwrap_err();
        assert!(matches!(error, DataError::EmptySplit { .. }), "{error}");
        write(folder, "batches.meta.txt", &[b"a\nb\nc\n\n".to_vec()]);
        let error = Cifar::folder(folder, Split::Train).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("data_batch_1.bin: record 0 has label 3 of 3"), "{message}");
    }

    #[test]
    fn hundred_classes_use_the_fine_label() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "test.bin", &[record(&[3, 77], 10)]);
        let test = Cifar::folder(folder, Split::Test).unwrap();
        assert_eq!((test.get(0).unwrap().label, test.classes().len()), (77, 100));
    }

    #[test]
    fn files_that_end_early_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for bytes in [Vec::new(), record(&[3], 10)[..2000].to_vec(), b"\x1f\x8b\x08\0\0".to_vec()] {
            write(folder, "test_batch.bin", &[bytes]);
            let message = Cifar::folder(folder, Split::Test).unwrap_err().to_string();
            assert!(message.contains("test_batch.bin"), "{message}");
        }
    }

    #[test]
    fn python_files_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "data_batch_1", &[b"pickle".to_vec()]);
        assert!(Cifar::is_here(folder.path()));
        let message = Cifar::folder(folder.path(), Split::Train).unwrap_err().to_string();
        assert!(message.contains("binary version"), "{message}");
    }
}
