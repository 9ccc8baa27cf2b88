//! A folder of classes in a zip archive, which is read where it is: nothing is unpacked to the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use omma_base::{Limits, files::open_regular};
use zip::{
    CompressionMethod, ZipArchive, ZipReadOptions,
    read::{ZipArchiveMetadata, ZipFileEntry},
};

use super::{
    assumed::say_assumed,
    classes::check_classes,
    is_image,
    structure::{Structure, is_split, split_names},
};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::{DataError, Result},
    picture::Picture,
};

/// What programs for the Mac put beside every file.
const MAC: &str = "__MACOSX";

/// The images of an archive, listed: `class/*.jpg`, or `split/class/*.jpg`, perhaps in a folder around all.
#[derive(Debug)]
pub(super) struct ZipListing {
    path: PathBuf,
    metadata: Arc<ZipArchiveMetadata>,
    /// The parts of an image's path without the folders around all, and its place in the archive; sorted as
    /// paths are.
    images: Vec<(Vec<String>, usize)>,
    /// Everything that is not hidden, for messages.
    structure: Structure,
}

impl ZipListing {
    /// Reads the archive's list of files. Names that lead out of it, and images that are encrypted, packed in
    /// an unusual way or far larger than packed, are refused at once; links are left out.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let file = open_regular(path).map_err(DataError::io(path))?;
        let archive = ZipArchive::new(BufReader::new(file)).map_err(|error| {
            fault(format!("it is no whole zip archive ({error}); copy it again, or give a folder"))
        })?;
        let metadata = archive.metadata();
        let (mut images, mut structure, mut links) = (Vec::new(), Structure::default(), 0);
        for place in 0..metadata.len() {
            let entry = metadata.entry(place).map_err(|error| fault(error.to_string()))?;
            let name = name(&entry);
            let about = |why: String| fault(format!("its entry {name:?} {why}"));
            let Some(parts) = parts(&name).map_err(about)? else { continue };
            if entry.is_dir() {
                continue;
            }
            structure.add(&parts);
            if !is_image(name.as_ref()) {
                continue;
            }
            if entry.is_symlink() {
                links += 1;
                continue;
            }
            check(&entry).map_err(about)?;
            images.push((parts, place));
        }
        if links > 0 {
            tracing::warn!("left out: {links} links of {}", path.display());
        }
        images.sort();
        let mut listing = Self { path: path.into(), metadata, images, structure };
        listing.unwrap();
        Ok(listing)
    }

    /// Takes away folders that all images are in, as long as no image is directly in one and it is no split.
    fn unwrap(&mut self) {
        let mut around = PathBuf::new();
        while let Some(([first, _, _, ..], _)) =
            self.images.first().map(|(parts, place)| (parts.as_slice(), place))
        {
            let first = first.clone();
            let inside = |parts: &[String]| parts.len() > 2 && parts[0] == first;
            if is_split(&first) || !self.images.iter().all(|(parts, _)| inside(parts)) {
                break;
            }
            self.images.iter_mut().for_each(|(parts, _)| _ = parts.remove(0));
            around.push(first);
        }
        if !around.as_os_str().is_empty() {
            let around = around.display();
            tracing::info!(
                "{}: its classes are taken from its folder {around}",
                self.path.display()
            );
        }
    }

    /// The folder of a split, under any of its usual names.
    pub(super) fn split(&self, split: Split) -> Option<String> {
        let folders: BTreeSet<&String> = self.folders(None).collect();
        let named = |name: &str| folders.iter().find(|own| own.eq_ignore_ascii_case(name));
        split_names(split).iter().find_map(|name| named(name).map(|own| (*own).clone()))
    }

    /// The folders with images at the top, or in a split.
    fn folders<'a>(&'a self, split: Option<&'a str>) -> impl Iterator<Item = &'a String> {
        self.below(split).filter_map(|(parts, _)| parts.split_last()?.1.first())
    }

    /// The images at the top or in a split, with the parts of their paths from there on.
    fn below<'a>(&'a self, split: Option<&'a str>) -> impl Iterator<Item = (&'a [String], usize)> {
        self.images.iter().filter_map(move |(parts, place)| match split {
            None => Some((parts.as_slice(), *place)),
            Some(split) => {
                let (first, rest) = parts.split_first()?;
                (first == split).then_some((rest, *place))
            }
        })
    }

    /// The classes that a split has.
    pub(super) fn class_names(&self, split: &str) -> Vec<String> {
        let names: BTreeSet<&String> = self.folders(Some(split)).collect();
        names.into_iter().cloned().collect()
    }

    /// The images of a split, or all of them; perhaps of classes that another split has named.
    pub(super) fn images(
        &self,
        split: Option<&str>,
        known: Option<Vec<String>>,
    ) -> Result<ZipFolder> {
        let fault = |why: String| DataError::Format { path: self.path.clone(), why };
        let classes = known.unwrap_or_else(|| {
            let names: BTreeSet<&String> = self.folders(split).collect();
            names.into_iter().cloned().collect()
        });
        check_classes(&self.path, classes.len())?;
        let places: BTreeMap<&String, usize> = classes.iter().zip(0..).collect();
        let (mut images, mut outside) = (Vec::new(), 0);
        for (parts, place) in self.below(split) {
            let [class, _, ..] = parts else {
                outside += 1;
                continue;
            };
            let label = *places
                .get(class)
                .ok_or_else(|| fault(format!("the training images have no class {class:?}")))?;
            images.push((place, label));
        }
        if images.is_empty() {
            return Err(fault(self.explained()));
        }
        if outside > 0 {
            let what = format!("{outside} images in no folder of a class are left out");
            say_assumed(&self.path, &what);
        }
        let (path, metadata) = (self.path.clone(), self.metadata.clone());
        Ok(ZipFolder { path, metadata, classes, images })
    }

    /// Why this is no archive of classes.
    pub(super) fn explained(&self) -> String {
        self.structure.explained(&self.path)
    }
}

/// The name of an entry. One without a code that is known is written with the signs that are not in it marked.
fn name(entry: &ZipFileEntry) -> String {
    let name = match entry.name() {
        Ok(name) => name.into_owned(),
        Err(_) => String::from_utf8_lossy(entry.name_raw()).into_owned(),
    };
    // Some programs on Windows write paths as they are written there.
    if name.contains('/') { name } else { name.replace('\\', "/") }
}

/// The parts of a name; nothing for what is hidden.
fn parts(name: &str) -> Result<Option<Vec<String>>, String> {
    let parts: Vec<String> = name
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .map(str::to_owned)
        .collect();
    let is_drive = parts.first().is_some_and(|part| part.ends_with(':'));
    if name.starts_with('/') || is_drive || parts.iter().any(|part| part == "..") {
        return Err("leads out of the archive, as no honest one does".to_owned());
    }
    let is_hidden = parts.iter().any(|part| part.starts_with('.') || part == MAC);
    Ok(Some(parts).filter(|parts| !is_hidden && !parts.is_empty()))
}

/// Refuses an image that cannot or should not be unpacked.
fn check(entry: &ZipFileEntry) -> Result<(), String> {
    if entry.encrypted() {
        return Err(
            "is encrypted; unpack the archive with its password, and give the folder".to_owned()
        );
    }
    match entry.compression() {
        CompressionMethod::Stored | CompressionMethod::Deflated => {}
        other => {
            return Err(format!(
                "is packed by {other}, which is not read; pack it by deflate, as is usual, or give a folder"
            ));
        }
    }
    let unpacking = Limits::current().check_unpacking(entry.compressed_size(), entry.size());
    unpacking.map_err(|why| format!("is refused: {why}"))
}

/// Images of a zip archive, one folder per class. The archive is listed once and read where it is.
#[derive(Debug)]
pub struct ZipFolder {
    path: PathBuf,
    metadata: Arc<ZipArchiveMetadata>,
    classes: Vec<String>,
    /// The place of an image in the archive, and its label.
    images: Vec<(usize, usize)>,
}

impl ZipFolder {
    /// All images of an archive without splits.
    pub fn read(path: &Path) -> Result<Self> {
        ZipListing::read(path)?.images(None, None)
    }
}

/// The bytes of an entry, as many as its archive promises and no more.
fn unpacked(entry: ZipFileEntry, file: &mut BufReader<File>) -> Result<Vec<u8>, String> {
    let size = entry.size();
    let text = |error: std::io::Error| error.to_string();
    let reader = entry.with_reader(file, ZipReadOptions::new());
    let mut reader = reader.map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    // One more than there should be: the checksum is looked at where the entry ends.
    reader.by_ref().take(size.saturating_add(1)).read_to_end(&mut bytes).map_err(text)?;
    match bytes.len() as u64 == size {
        true => Ok(bytes),
        false => Err(format!("{size} bytes are promised, and not as many are there")),
    }
}

impl Dataset for ZipFolder {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn label(&self, index: usize) -> usize {
        self.images[index].1
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (place, label) = self.images[index];
        let fault = |why: String| DataError::Format { path: self.path.clone(), why };
        let entry = self.metadata.entry(place).map_err(|error| fault(error.to_string()))?;
        let path = self.path.join(name(&entry));
        let mut file = BufReader::new(open_regular(&self.path).map_err(DataError::io(&self.path))?);
        let bytes = unpacked(entry, &mut file)
            .map_err(|why| DataError::NotAnImage { path: path.clone(), why })?;
        Ok(Sample::new(Picture::decode(&bytes, &path)?, label))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use rayon::prelude::*;
    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn png(shade: u8) -> Vec<u8> {
        let file = tempfile::NamedTempFile::new().unwrap();
        Picture::filled(3, 3, [shade; 3]).save_png(file.path()).unwrap();
        std::fs::read(file.path()).unwrap()
    }

    fn packed(files: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in files {
            let options = SimpleFileOptions::default().compression_method(method);
            match name.strip_suffix('/') {
                Some(folder) => writer.add_directory(folder, options).unwrap(),
                None => {
                    writer.start_file(*name, options).unwrap();
                    writer.write_all(bytes).unwrap();
                }
            }
        }
        writer.finish().unwrap().into_inner()
    }

    fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("photos.zip");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn archive(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, PathBuf) {
        written(&packed(files, CompressionMethod::Deflated))
    }

    /// Labels and shades of all images.
    fn found(data: &dyn Dataset) -> Vec<(usize, u8)> {
        let sample = |index| data.get(index).unwrap();
        (0..data.len()).map(|index| (data.label(index), sample(index).picture.pixels[0])).collect()
    }

    #[test]
    fn folders_are_classes_whatever_is_around_and_beside_them() {
        let files = [
            ("photos/dog/b.PNG", png(1)),
            ("photos/", Vec::new()),
            ("photos/dog/deep/er/a.png", png(2)),
            ("photos/cat/a.png", png(3)),
            ("__MACOSX/photos/cat/._a.png", b"x".to_vec()),
            ("photos/.DS_Store", b"x".to_vec()),
            ("photos/cat/.thumb.png", png(5)),
            ("README.txt", b"x".to_vec()),
        ];
        let (_folder, path) = archive(&files);
        let data = ZipFolder::read(&path).unwrap();
        assert_eq!(data.classes(), ["cat", "dog"]);
        assert_eq!(found(&data), [(0, 3), (1, 1), (1, 2)]);
        let indices: Vec<usize> = (0..300).collect();
        indices
            .par_iter()
            .for_each(|i| assert_eq!(data.get(i % 3).unwrap().label, [0, 1, 1][i % 3]));

        // Without a folder around, written as on Windows, and with one image in no class.
        let files = [("cat\\1.png", png(1)), ("dog\\2.png", png(2)), ("top.png", png(3))];
        let (_folder, path) = archive(&files);
        let data = ZipFolder::read(&path).unwrap();
        assert_eq!((data.classes().len(), found(&data)), (2, vec![(0, 1), (1, 2)]));
    }

    #[test]
    fn splits_are_found_below_the_folder_around_them() {
        let files = [
            ("x/Train/ant/1.png", png(1)),
            ("x/Train/bee/2.png", png(2)),
            ("x/val/bee/3.png", png(3)),
        ];
        let (_folder, path) = archive(&files);
        let listing = ZipListing::read(&path).unwrap();
        let [train, test] = [Split::Train, Split::Test].map(|split| listing.split(split).unwrap());
        assert_eq!((train.as_str(), test.as_str()), ("Train", "val"));
        let known = listing.class_names(&train);
        let test = listing.images(Some(&test), Some(known)).unwrap();
        assert_eq!(
            (test.classes(), found(&test)),
            (&["ant".to_owned(), "bee".into()][..], vec![(1, 3)])
        );
        let message =
            listing.images(Some("val"), Some(vec!["ant".into()])).unwrap_err().to_string();
        assert!(message.contains("no class \"bee\""), "{message}");
        // A split alone is a split, not a folder around classes.
        let (_folder, path) = archive(&files[2..]);
        let listing = ZipListing::read(&path).unwrap();
        assert_eq!(
            (listing.split(Split::Train), listing.split(Split::Test)),
            (None, Some("val".into()))
        );
    }

    #[test]
    fn an_archive_that_cannot_be_used_says_why() {
        let refused = |bytes: &[u8]| {
            let (_folder, path) = written(bytes);
            let message = ZipFolder::read(&path).unwrap_err().to_string();
            assert!(message.contains("photos.zip"), "{message}");
            message
        };
        let one =
            |name: &str, bytes: Vec<u8>| packed(&[(name, bytes)], CompressionMethod::Deflated);
        let whole = one("cat/1.png", png(1));
        assert!(refused(&whole[..whole.len() - 30]).contains("no whole zip archive"));
        assert!(refused(b"nothing").contains("no whole zip archive"));
        for name in ["../cat/1.png", "/cat/1.png", "a/../../cat/1.png", "C:\\cat\\1.png"] {
            assert!(refused(&one(name, png(1))).contains("leads out of the archive"), "{name}");
        }
        let flat = packed(&[("1.png", png(1)), ("2.png", png(1))], CompressionMethod::Stored);
        assert!(refused(&flat).contains("found 2 images"));
        assert!(refused(&one("notes.txt", b"x".to_vec())).contains("1 other file (notes.txt)"));
        // 300 megabytes of zeros.
        assert!(refused(&one("cat/1.bmp", vec![0; 300 << 20])).contains("--max-unpacked"));
        // The flag of an encrypted entry, in its own header and in the archive's list.
        let mut encrypted = whole.clone();
        let listed = encrypted.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
        encrypted[6] |= 1;
        encrypted[listed + 8] |= 1;
        assert!(refused(&encrypted).contains("\"cat/1.png\" is encrypted"));
        let mut odd = whole.clone();
        (odd[8], odd[listed + 10]) = (12, 12);
        assert!(refused(&odd).contains("which is not read"), "{}", refused(&odd));
    }

    #[test]
    fn a_damaged_entry_is_an_error_of_its_own() {
        let files = [("cat/1.png", png(1)), ("dog/2.png", png(2))];
        let mut bytes = packed(&files, CompressionMethod::Stored);
        let first = bytes.windows(4).position(|four| four == b"IDAT").unwrap();
        bytes[first + 6] ^= 1;
        let (_folder, path) = written(&bytes);
        let data = ZipFolder::read(&path).unwrap();
        let message = data.get(0).unwrap_err().to_string();
        assert!(message.contains("photos.zip/cat/1.png"), "{message}");
        assert_eq!(data.get(1).unwrap().label, 1);
    }
}
