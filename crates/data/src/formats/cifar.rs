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
const TEN_NAMES: &str = "batches.meta.txt";
const HUNDRED_NAMES: &str = "fine_label_names.txt";
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
            return Self::read(CifarKind::Ten, &ten, names(&folder.join(TEN_NAMES)));
        }
        let name = if split == Split::Train { "train.bin" } else { "test.bin" };
        match find(name.to_owned()) {
            Some(file) => {
                Self::read(CifarKind::Hundred, &[file], names(&folder.join(HUNDRED_NAMES)))
            }
            None => Err(DataError::EmptySplit { path: folder.into(), split: split.name() }),
        }
    }

    /// A single file of such records, by whatever name. Which kind they are is told by the file's size and,
    /// where both would fit, by the labels; names of classes may be beside it.
    pub fn file(path: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let length = Unpacked::open(path)?.rest()?.length;
        let fits = |kind: &CifarKind| length > 0 && length % kind.record() as u64 == 0;
        let fitting: Vec<CifarKind> =
            [CifarKind::Ten, CifarKind::Hundred].into_iter().filter(fits).collect();
        let [ten, hundred] = [CifarKind::Ten.record(), CifarKind::Hundred.record()];
        let kind = match fitting.as_slice() {
            [] => {
                return Err(fault(format!(
                    "{length} bytes are records of neither {ten} bytes (a label and 32 × 32 pixels, as \
                     CIFAR-10) nor {hundred} (two labels and the pixels, as CIFAR-100)"
                )));
            }
            [only] => *only,
            _ => {
                let plausible =
                    fitting.into_iter().map(|kind| Ok((kind, kind.is_plausible(path)?)));
                let plausible: Vec<_> = plausible.collect::<Result<_>>()?;
                match plausible.as_slice() {
                    [(kind, true), (_, false)] | [(_, false), (kind, true)] => *kind,
                    _ => {
                        return Err(fault(format!(
                            "{length} bytes may be records of {ten} bytes (as CIFAR-10) or of {hundred} (as \
                             CIFAR-100), and the labels do not tell which; put it into a folder of its own \
                             as test_batch.bin or as test.bin"
                        )));
                    }
                }
            }
        };
        let list = match kind {
            CifarKind::Ten => TEN_NAMES,
            CifarKind::Hundred => HUNDRED_NAMES,
        };
        Self::read(kind, &[path.to_owned()], names(&path.with_file_name(list)))
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

    /// Whether all labels of a file are below those of the published sets: 10, or 20 and 100.
    fn is_plausible(self, path: &Path) -> Result<bool> {
        let below: &[u8] = match self {
            Self::Ten => &[10],
            Self::Hundred => &[20, 100],
        };
        let records = Unpacked::open(path)?.rest()?.records(self.record());
        for index in 0..records.len() {
            if records.get(index)?.iter().zip(below).any(|(label, below)| label >= below) {
                return Ok(false);
            }
        }
        Ok(true)
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
    fn a_single_file_is_told_by_its_size_and_its_labels() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let path = folder.join("x.bin");
        let file = |records: &[Vec<u8>]| {
            write(folder, "x.bin", records);
            Cifar::file(&path)
        };
        let ten = file(&[record(&[3], 10), record(&[11], 20)]).unwrap();
        assert_eq!((ten.len(), ten.classes().len(), ten.get(1).unwrap().label), (2, 12, 11));
        let hundred = file(&[record(&[3, 77], 10)]).unwrap();
        assert_eq!((hundred.get(0).unwrap().label, hundred.classes()[77].as_str()), (77, "77"));
        write(
            folder,
            "fine_label_names.txt",
            &[(0..100).flat_map(|i| format!("n{i}\n").into_bytes()).collect()],
        );
        assert_eq!(file(&[record(&[3, 77], 10)]).unwrap().classes()[77], "n77");
        let message = file(&[record(&[3], 10)[..2000].to_vec()]).unwrap_err().to_string();
        assert!(message.contains("x.bin: 2000 bytes are records of neither 3073"), "{message}");

        // As many of the one as fill so many of the other.
        let tens: Vec<Vec<u8>> = (0..3074).map(|i| record(&[(i % 10) as u8], 200)).collect();
        let ten = file(&tens).unwrap();
        assert_eq!((ten.len(), ten.kind), (3074, CifarKind::Ten));
        let hundreds: Vec<Vec<u8>> =
            (0..3073).map(|i| record(&[(i % 20) as u8, 99], 200)).collect();
        assert_eq!(file(&hundreds).unwrap().kind, CifarKind::Hundred);
        for shade in [0, 200] {
            let message = file(&vec![record(&[shade], shade); 3074]).unwrap_err().to_string();
            assert!(
                message.contains("may be records of 3073") && message.contains("test_batch.bin")
            );
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
