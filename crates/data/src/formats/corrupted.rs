//! Corrupted test images as CIFAR-10-C publishes them (Hendrycks and Dietterich 2019): an array of images per
//! corruption, with the five severities one after the other, and one array of labels.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use omma_base::{Limits, files::NpyHead, nearest};

use super::records::{Records, Unpacked};
use crate::{
    corrupt::{Corruption, SEVERITIES},
    dataset::{Dataset, Sample, Shared},
    error::{DataError, Result},
    picture::Picture,
};

/// The labels of every corruption's images.
const LABELS: &str = "labels.npy";

/// A folder of `labels.npy` and one `NAME.npy` per corruption. The labels are in memory, the images stay in
/// their files.
///
/// - `NAME.npy`: `[5 · n, H, W, 3]` of bytes, row by row; severity `s` is rows `(s - 1) · n .. s · n`
/// - `labels.npy`: `[5 · n]`, or `[n]` for every severity, of `u8` or `i64`
#[derive(Debug)]
pub struct CorruptedSet {
    folder: PathBuf,
    /// The ones that count, in the benchmark's order, and then the others by their names.
    names: Vec<String>,
    counted: usize,
    /// One per name.
    arrays: Vec<Arc<Images>>,
    /// One per row, or one per image of a severity.
    labels: Arc<[usize]>,
    classes: Arc<[String]>,
}

/// The images of one corruption.
#[derive(Debug)]
struct Images {
    /// `[5 · n, H, W, 3]`
    shape: [usize; 4],
    /// One per image, `[H, W, 3]`.
    records: Records,
}

impl CorruptedSet {
    /// Opens a folder. Its labels are places in `classes`, which are those of the clean images.
    pub fn open(folder: &Path, classes: &[String]) -> Result<Self> {
        let files = arrays_in(folder)?;
        let counts = |(name, _): &(String, PathBuf)| benchmark_place(name).is_some();
        let counted = files.iter().filter(|file| counts(file)).count();
        let mut arrays: Vec<Arc<Images>> = Vec::new();
        for (_, path) in &files {
            let images = Images::open(path)?;
            if let Some(first) = arrays.first().filter(|first| first.shape != images.shape) {
                let (of, name) = (first.shape, &files[0].0);
                let why = format!("its shape is {:?}, but that of {name}.npy {of:?}", images.shape);
                return Err(DataError::Format { path: path.clone(), why });
            }
            arrays.push(Arc::new(images));
        }
        let Some(first) = arrays.first() else {
            let why = format!("it has no corruption: no NAME.npy beside {LABELS}");
            return Err(DataError::Format { path: folder.into(), why });
        };
        let labels = labels(&folder.join(LABELS), first.shape[0], classes.len())?;
        let names = files.into_iter().map(|(name, _)| name).collect();
        let (labels, classes) = (labels.into(), classes.into());
        Ok(Self { folder: folder.into(), names, counted, arrays, labels, classes })
    }

    /// All corruptions in the folder: those that count, then the others.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Those of the benchmark's fifteen, over which means are taken (paper 000 App. A.6), in its order.
    pub fn counted(&self) -> &[String] {
        &self.names[..self.counted]
    }

    /// Those beside the fifteen: the benchmark's `speckle_noise`, `gaussian_blur`, `spatter` and `saturate`,
    /// which it keeps for choosing settings by, and any other.
    pub fn extra(&self) -> &[String] {
        &self.names[self.counted..]
    }

    /// The images of a corruption in a severity of 1 to 5, read from disk one by one.
    pub fn images(&self, name: &str, severity: usize) -> Result<Shared> {
        let Some(place) = self.names.iter().position(|known| known == name) else {
            let hint = nearest(name, self.names.iter().map(String::as_str));
            let folder = self.folder.display();
            return Err(DataError::NotFound(format!("{folder} has no {name}.npy{hint}")));
        };
        if !(1..=SEVERITIES).contains(&severity) {
            let why = format!("severities are 1 to {SEVERITIES}, not {severity}");
            return Err(DataError::Options(why));
        }
        let images = self.arrays[place].clone();
        let count = images.shape[0] / SEVERITIES;
        Ok(Arc::new(OneSeverity {
            images,
            first: (severity - 1) * count,
            count,
            labels: self.labels.clone(),
            classes: self.classes.clone(),
        }))
    }
}

/// Names and files of a folder's arrays of images, those of the benchmark first.
fn arrays_in(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut arrays = Vec::new();
    for entry in fs::read_dir(folder).map_err(DataError::io(folder))? {
        let path = entry.map_err(DataError::io(folder))?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let name = file.strip_suffix(".npy").filter(|_| file != LABELS && !file.starts_with('.'));
        if let Some(name) = name.map(str::to_owned) {
            arrays.push((name, path));
        }
    }
    let place = |name: &str| benchmark_place(name).unwrap_or(Corruption::ALL.len());
    arrays.sort_by_cached_key(|(name, _)| (place(name), name.clone()));
    Ok(arrays)
}

/// The place of a name in the benchmark's fifteen.
fn benchmark_place(name: &str) -> Option<usize> {
    Corruption::ALL.iter().position(|corruption| corruption.name() == name)
}

impl Images {
    fn open(path: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let (head, file) = row_by_row(path)?;
        if head.dtype != "|u1" {
            return Err(fault(format!("images are bytes (|u1), these numbers are {}", head.dtype)));
        }
        let [rows, height, width, 3] = head.shape[..] else {
            return Err(fault(format!("images are [rows, H, W, 3], these {:?}", head.shape)));
        };
        if rows == 0 || height == 0 || width == 0 {
            return Err(fault(format!("its shape {:?} has no images", head.shape)));
        }
        if rows % SEVERITIES != 0 {
            return Err(fault(format!("{rows} images are not {SEVERITIES} equal severities")));
        }
        Limits::current().check_pixels(width as u64, height as u64).map_err(fault)?;
        let size = height * width * 3;
        let bytes = (rows as u64).checked_mul(size as u64);
        let bytes = bytes.ok_or_else(|| fault(format!("{:?} cannot be there", head.shape)))?;
        let records = file.exactly(bytes)?.records(size);
        Ok(Self { shape: [rows, height, width, 3], records })
    }
}

/// As many labels as there are images of all severities, or of one.
fn labels(path: &Path, rows: usize, classes: usize) -> Result<Vec<usize>> {
    let fault = |why: String| DataError::Format { path: path.into(), why };
    let (head, file) = row_by_row(path)?;
    let one = rows / SEVERITIES;
    let count = match head.shape[..] {
        [count] if count == rows || count == one => count,
        _ => {
            let why =
                format!("labels are [{rows}] or [{one}], as images are, not {:?}", head.shape);
            return Err(fault(why));
        }
    };
    let labels: Vec<i64> = match head.dtype.as_str() {
        "|u1" => file.exactly(count as u64)?.bytes()?.into_iter().map(i64::from).collect(),
        "<i8" => {
            let bytes = file.exactly(count as u64 * 8)?.bytes()?;
            let numbers = bytes.chunks_exact(8);
            numbers.map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
        }
        other => return Err(fault(format!("labels are |u1 or <i8, these numbers are {other}"))),
    };
    let known = |(row, label): (usize, i64)| {
        let place = usize::try_from(label).ok().filter(|label| *label < classes);
        place.ok_or_else(|| fault(format!("row {row} has label {label} of {classes} classes")))
    };
    labels.into_iter().enumerate().map(known).collect()
}

/// The head of an array, and the file, read up to its values. They may not lie column by column, where an
/// image would be all over the file.
fn row_by_row(path: &Path) -> Result<(NpyHead, Unpacked)> {
    let mut file = Unpacked::open(path)?;
    let head = NpyHead::read(file.reader()).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            DataError::Format { path: path.into(), why: error.to_string() }
        }
        _ => DataError::io(path)(error),
    })?;
    match head.by_columns {
        false => Ok((head, file)),
        true => {
            let why = "arrays are read row by row (C order), this one lies column by column \
                       (fortran_order)";
            Err(DataError::Format { path: path.into(), why: why.to_owned() })
        }
    }
}

/// One corruption in one severity.
struct OneSeverity {
    images: Arc<Images>,
    /// The row of its first image.
    first: usize,
    count: usize,
    labels: Arc<[usize]>,
    classes: Arc<[String]>,
}

impl Dataset for OneSeverity {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.count
    }

    /// Labels of one severity begin again with every other.
    fn label(&self, index: usize) -> usize {
        self.labels[(self.first + index) % self.labels.len()]
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let [_, height, width, _] = self.images.shape;
        let pixels = self.images.records.get(self.first + index)?;
        Ok(Sample::new(Picture { width, height, pixels }, self.label(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of CIFAR-10-C as they are published, beside `labels.npy`.
    const PUBLISHED: [&str; 19] = [
        "brightness",
        "contrast",
        "defocus_blur",
        "elastic_transform",
        "fog",
        "frost",
        "gaussian_blur",
        "gaussian_noise",
        "glass_blur",
        "impulse_noise",
        "jpeg_compression",
        "motion_blur",
        "pixelate",
        "saturate",
        "shot_noise",
        "snow",
        "spatter",
        "speckle_noise",
        "zoom_blur",
    ];

    fn array(dtype: &str, shape: &str, by_columns: &str, values: &[u8]) -> Vec<u8> {
        let text = format!(
            "{{'descr': '{dtype}', 'fortran_order': {by_columns}, 'shape': {shape}, }}          \n"
        );
        let length = (text.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\0", &length[..], text.as_bytes(), values].concat()
    }

    /// Two images of 2 × 1 pixels per severity; every byte is its own place.
    fn images() -> Vec<u8> {
        array("|u1", "(10, 1, 2, 3)", "False", &(0..60).collect::<Vec<u8>>())
    }

    fn bytes(labels: &[u8]) -> Vec<u8> {
        array("|u1", &format!("({},)", labels.len()), "False", labels)
    }

    fn classes() -> Vec<String> {
        ["cat", "dog", "frog"].map(str::to_owned).to_vec()
    }

    fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
        folder
    }

    fn refused(files: &[(&str, Vec<u8>)]) -> String {
        let folder = folder(files);
        let error = CorruptedSet::open(folder.path(), &classes()).unwrap_err();
        assert!(matches!(error, DataError::Format { .. }), "{error:?}");
        error.to_string()
    }

    #[test]
    fn a_severity_is_a_fifth_of_the_rows_with_their_labels() {
        let every = bytes(&[0, 1, 1, 1, 2, 1, 0, 0, 0, 2]);
        let numbers: Vec<u8> = [2i64, 0].iter().flat_map(|label| label.to_le_bytes()).collect();
        let once = array("<i8", "(2,)", "False", &numbers);
        for (labels, expected) in [(every, [[0, 1], [2, 1], [0, 2]]), (once, [[2, 0]; 3])] {
            let folder = folder(&[("fog.npy", images()), ("labels.npy", labels)]);
            let set = CorruptedSet::open(folder.path(), &classes()).unwrap();
            for (severity, labels) in [1, 3, 5].into_iter().zip(expected) {
                let data = set.images("fog", severity).unwrap();
                assert_eq!((data.len(), data.classes()), (2, &classes()[..]));
                for (index, label) in labels.into_iter().enumerate() {
                    let first = ((severity - 1) * 2 + index) as u8 * 6;
                    let pixels = (first..first + 6).collect();
                    let picture = Picture { width: 2, height: 1, pixels };
                    assert_eq!(data.get(index).unwrap(), Sample::new(picture, label));
                    assert_eq!(data.label(index), label);
                }
            }
        }
    }

    #[test]
    fn the_published_files_are_the_fifteen_and_four_extra() {
        let mut files: Vec<(String, Vec<u8>)> =
            PUBLISHED.iter().map(|name| (format!("{name}.npy"), images())).collect();
        files.extend([
            ("labels.npy".to_owned(), bytes(&[0; 10])),
            ("README.txt".to_owned(), b"notes".to_vec()),
            ("._fog.npy".to_owned(), b"of a Mac".to_vec()),
        ]);
        let files: Vec<(&str, Vec<u8>)> =
            files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        let folder = folder(&files);
        let set = CorruptedSet::open(folder.path(), &classes()).unwrap();
        assert_eq!(set.counted(), Corruption::ALL.map(Corruption::name));
        assert_eq!(set.extra(), ["gaussian_blur", "saturate", "spatter", "speckle_noise"]);
        assert_eq!(set.names(), [set.counted(), set.extra()].concat());
        assert_eq!(set.images("spatter", 5).unwrap().len(), 2);
        let message = set.images("motion-blur", 1).err().unwrap().to_string();
        let expected = "has no motion-blur.npy; did you mean \"motion_blur\"?";
        assert!(message.ends_with(expected), "{message}");
        for severity in [0, 6] {
            let message = set.images("fog", severity).err().unwrap().to_string();
            assert_eq!(message, format!("severities are 1 to 5, not {severity}"));
        }
    }

    #[test]
    fn images_stay_on_disk() {
        let folder = folder(&[("fog.npy", images()), ("labels.npy", bytes(&[0, 1]))]);
        let set = CorruptedSet::open(folder.path(), &classes()).unwrap();
        let data = set.images("fog", 5).unwrap();
        let mut changed = images();
        changed.iter_mut().rev().take(6).for_each(|value| *value = 9);
        fs::write(folder.path().join("fog.npy"), changed).unwrap();
        assert_eq!(data.get(1).unwrap().picture, Picture::filled(2, 1, [9; 3]));
        fs::write(folder.path().join("fog.npy"), []).unwrap();
        assert!(data.get(1).unwrap_err().to_string().contains("fog.npy"));
    }

    #[test]
    fn wrong_images_are_refused_with_both_sides() {
        let pixels: Vec<u8> = (0..60).collect();
        let whole = |dtype: &str, shape: &str| array(dtype, shape, "False", &pixels);
        let long = "(3074457345618258605, 1, 2, 3)";
        for (fog, expected) in [
            (whole("<f4", "(10, 1, 2, 3)"), "images are bytes (|u1), these numbers are <f4"),
            (whole("|u1", "(10, 3, 2)"), "images are [rows, H, W, 3], these [10, 3, 2]"),
            (whole("|u1", "(10, 3, 1, 2)"), "images are [rows, H, W, 3], these [10, 3, 1, 2]"),
            (whole("|u1", "(0, 1, 2, 3)"), "its shape [0, 1, 2, 3] has no images"),
            (whole("|u1", "(10, 0, 2, 3)"), "its shape [10, 0, 2, 3] has no images"),
            (whole("|u1", "(4, 5, 1, 3)"), "4 images are not 5 equal severities"),
            (whole("|u1", "(5, 99999999, 9, 3)"), "more than 67108864 need --max-pixels"),
            (whole("|u1", long), "[3074457345618258605, 1, 2, 3] cannot be there"),
            (whole("|u1", "(15, 1, 2, 3)"), "90 bytes are promised, 60 are there"),
            (whole("|u1", "(5, 1, 2, 3)"), "30 bytes are promised, more are there"),
            (array("|u1", "(10, 1, 2, 3)", "True", &pixels), "column by column"),
            (images()[..40].to_vec(), "it ends inside its head"),
            (b"not an array".to_vec(), "it does not begin like an array of NumPy"),
            (Vec::new(), "it ends inside its head"),
        ] {
            let message = refused(&[("fog.npy", fog), ("labels.npy", bytes(&[0, 1]))]);
            assert!(message.contains("fog.npy: "), "{message}");
            assert!(message.contains(expected), "{message} is not {expected}");
        }
        let other = whole("|u1", "(5, 2, 2, 3)");
        let files = [("fog.npy", images()), ("snow.npy", other), ("labels.npy", bytes(&[0, 1]))];
        let message = refused(&files);
        let expected = "fog.npy: its shape is [10, 1, 2, 3], but that of snow.npy [5, 2, 2, 3]";
        assert!(message.ends_with(expected), "{message}");
    }

    #[test]
    fn wrong_labels_are_refused_with_both_sides() {
        let negative = array("<i8", "(2,)", "False", &[(-1i64).to_le_bytes(), [0; 8]].concat());
        for (labels, expected) in [
            (bytes(&[0; 9]), "labels are [10] or [2], as images are, not [9]"),
            (array("|u1", "(2, 1)", "False", &[0; 2]), "labels are [10] or [2], as images are"),
            (array("<i4", "(2,)", "False", &[0; 8]), "labels are |u1 or <i8"),
            (array("<i8", "(2,)", "False", &[0; 8]), "16 bytes are promised, 8 are there"),
            (array("|u1", "(2,)", "True", &[0; 2]), "column by column"),
            (bytes(&[0, 3]), "row 1 has label 3 of 3 classes"),
            (negative, "row 0 has label -1 of 3 classes"),
        ] {
            let message = refused(&[("fog.npy", images()), ("labels.npy", labels)]);
            assert!(message.contains("labels.npy: "), "{message}");
            assert!(message.contains(expected), "{message} is not {expected}");
        }
    }

    #[test]
    fn a_folder_without_corruptions_or_labels_is_refused() {
        let message = refused(&[("labels.npy", bytes(&[0, 1]))]);
        assert!(message.ends_with("it has no corruption: no NAME.npy beside labels.npy"));
        let folder = folder(&[("fog.npy", images())]);
        let error = CorruptedSet::open(folder.path(), &classes()).unwrap_err();
        assert!(matches!(error, DataError::Io { .. }), "{error:?}");
        assert!(error.to_string().contains("labels.npy"), "{error}");
        let missing = CorruptedSet::open(&folder.path().join("none"), &classes()).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
