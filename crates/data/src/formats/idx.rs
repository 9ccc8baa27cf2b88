//! IDX files: MNIST and its family.

use std::path::{Path, PathBuf};

use super::records::{Records, Unpacked};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::{DataError, Result},
    picture::Picture,
};

/// Grey images with labels. The labels are in memory, the images stay in their file.
#[derive(Debug)]
pub struct Idx {
    rows: usize,
    columns: usize,
    /// One per image, `[rows, columns]`.
    images: Records,
    labels: Vec<u8>,
    classes: Vec<String>,
}

/// Names of Fashion-MNIST's classes.
const FASHION: [&str; 10] = [
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
];

impl Idx {
    /// Opens a file of images and one of labels, gzip or not.
    pub fn read(images: &Path, labels: &Path) -> Result<Self> {
        let fault = |path: &Path, why: String| DataError::Format { path: path.into(), why };
        let (sizes, pixels) = parse(images)?;
        let [count, rows, columns] = sizes.as_slice() else {
            return Err(fault(images, format!("images have three axes, these {}", sizes.len())));
        };
        if *rows == 0 || *columns == 0 {
            return Err(fault(images, format!("images of {rows} × {columns} pixels")));
        }
        let (label_sizes, values) = parse(labels)?;
        if label_sizes != [*count] {
            return Err(fault(labels, format!("{label_sizes:?} labels for {count} images")));
        }
        if *count == 0 {
            return Err(fault(images, "it has no images".to_owned()));
        }
        let bytes = count.checked_mul(*rows).and_then(|bytes| bytes.checked_mul(*columns));
        let bytes =
            bytes.ok_or_else(|| fault(images, format!("{sizes:?} bytes cannot be there")))?;
        let labels = values.exactly(*count)?.bytes()?;
        let pixels = pixels.exactly(bytes)?;
        let fashion = images.to_string_lossy().contains("fashion");
        let most = labels.iter().max().map_or(0, |label| *label as usize + 1);
        let classes = match fashion && most <= 10 {
            true => FASHION.map(str::to_owned).to_vec(),
            false => (0..most.max(10)).map(|i| i.to_string()).collect(),
        };
        let (rows, columns) = (*rows as usize, *columns as usize);
        let images = pixels.records(rows * columns);
        Ok(Self { rows, columns, images, labels, classes })
    }

    /// Whether a file is called like one of the family.
    pub(super) fn is_named(path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.contains("idx") || name.ends_with("ubyte") || name.ends_with("ubyte.gz")
    }

    /// A single file of images, with its file of labels beside it: of the same name but for `labels` and
    /// `idx1`, gzipped or not.
    pub fn file(images: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: images.into(), why };
        let name = images.file_name().unwrap_or_default().to_string_lossy();
        if !name.contains("images") {
            let why = match name.contains("labels") {
                true => "these are labels; give the file of images (…-images-idx3-ubyte)",
                false => {
                    "labels of an IDX file are beside it by name, so that it has to have `images` in its \
                     name, as in x-images-idx3-ubyte, with x-labels-idx1-ubyte beside it"
                }
            };
            return Err(fault(why.to_owned()));
        }
        let labels = name.replacen("images", "labels", 1).replacen("idx3", "idx1", 1);
        let plain = labels.strip_suffix(".gz").unwrap_or(&labels);
        let names = [labels.clone(), plain.to_owned(), format!("{plain}.gz")];
        let beside = names.iter().map(|name| images.with_file_name(name));
        match beside.into_iter().find(|labels| labels.is_file()) {
            Some(labels) => Self::read(images, &labels),
            None => Err(fault(format!("its labels should be beside it, in {labels}"))),
        }
    }

    /// The files of a split in a folder, by the names that the family uses.
    pub fn files(folder: &Path, split: Split) -> Option<(PathBuf, PathBuf)> {
        let words: &[&str] = match split {
            Split::Train => &["train"],
            Split::Test => &["t10k", "test"],
        };
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        names.sort();
        let find = |kind: &str| {
            names.iter().find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let fits = words.iter().any(|word| name.contains(word)) && name.contains(kind);
                fits && name.contains("idx") && path.is_file()
            })
        };
        Some((find("images")?.clone(), find("labels")?.clone()))
    }
}

/// Sizes of a file of unsigned bytes, and the file, read up to its data.
fn parse(path: &Path) -> Result<(Vec<u64>, Unpacked)> {
    let fault = |why: String| DataError::Format { path: path.into(), why };
    let mut file = Unpacked::open(path)?;
    let [0, 0, 8, axes] = file.read(4)?[..] else {
        return Err(fault("it does not begin like an IDX file of bytes".to_owned()));
    };
    let header = file.read(4 * u64::from(axes))?;
    if header.len() < 4 * axes as usize {
        return Err(fault("it ends inside its header".to_owned()));
    }
    let sizes = header.chunks_exact(4);
    let sizes = sizes.map(|size| u32::from_be_bytes(size.try_into().expect("four bytes")).into());
    Ok((sizes.collect(), file))
}

impl Dataset for Idx {
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
        let picture = Picture::from_grey(self.columns, self.rows, &self.images.get(index)?);
        Ok(Sample::new(picture, self.labels[index] as usize))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, sizes.len() as u8];
        sizes.iter().for_each(|size| bytes.extend(size.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn read(images: &[u8], labels: &[u8]) -> Result<Idx> {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["i", "l"].map(|name| folder.path().join(name));
        std::fs::write(&a, images).unwrap();
        std::fs::write(&b, labels).unwrap();
        Idx::read(&a, &b)
    }

    #[test]
    fn grey_images_and_labels_belong_together() {
        let pixels: Vec<u8> = (0..12).collect();
        let data = read(&idx(&[2, 2, 3], &pixels), &idx(&[2], &[4, 11])).unwrap();
        assert_eq!((data.len(), data.classes().len()), (2, 12));
        let sample = data.get(1).unwrap();
        assert_eq!(sample.label, 11);
        assert_eq!((sample.picture.width, sample.picture.height), (3, 2));
        assert_eq!(sample.picture.at(0, 1), [9; 3]);
    }

    #[test]
    fn files_are_found_packed_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&idx(&[1, 1, 1], &[5])).unwrap();
        std::fs::write(folder.join("t10k-images-idx3-ubyte.gz"), packed.finish().unwrap()).unwrap();
        std::fs::write(folder.join("t10k-labels-idx1-ubyte"), idx(&[1], &[7])).unwrap();
        std::fs::create_dir(folder.join("train-images")).unwrap();
        std::fs::create_dir(folder.join("train-labels")).unwrap();
        let (images, labels) = Idx::files(folder, Split::Test).unwrap();
        assert_eq!(Idx::read(&images, &labels).unwrap().get(0).unwrap().label, 7);
        assert!(Idx::files(folder, Split::Train).is_none());
    }

    #[test]
    fn a_single_file_finds_its_labels() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let images = path("mine-images-idx3-ubyte");
        std::fs::write(&images, idx(&[1, 1, 1], &[5])).unwrap();
        let message = Idx::file(&images).unwrap_err().to_string();
        assert!(message.contains("beside it, in mine-labels-idx1-ubyte"), "{message}");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&idx(&[1], &[7])).unwrap();
        std::fs::write(path("mine-labels-idx1-ubyte.gz"), packed.finish().unwrap()).unwrap();
        let data = Idx::file(&images).unwrap();
        assert_eq!((data.get(0).unwrap().label, data.classes()[7].as_str()), (7, "7"));
        let message = Idx::file(&path("mine-labels-idx1-ubyte.gz")).unwrap_err().to_string();
        assert!(message.contains("these are labels"), "{message}");
        assert!(Idx::file(&path("other.idx")).unwrap_err().to_string().contains("x-images-idx3"));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (images, labels) = (idx(&[2, 2, 3], &[0; 12]), idx(&[2], &[0, 1]));
        let huge = idx(&[u32::MAX, u32::MAX, u32::MAX], &[0; 12]);
        for (images, labels, why) in [
            (&images[..20], &labels[..], "are there"),
            (&images[..6], &labels, "header"),
            (b"", &labels, "does not begin"),
            (&images, &labels[..9], "are there"),
            (&images, &idx(&[3], &[0; 3]), "for 2 images"),
            (&labels, &labels, "three axes"),
            (&huge, &labels, "labels for"),
            (&huge, &idx(&[u32::MAX], &[0; 12]), "cannot be there"),
            (&idx(&[2, 2, 4], &[0; 12]), &labels, "12 are there"),
            (&idx(&[2, 0, 3], &[]), &labels, "0 × 3"),
            (&idx(&[0, 2, 3], &[]), &idx(&[0], &[]), "no images"),
        ] {
            let message = read(images, labels).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
