//! What data is at a path: found out by looking.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

#[cfg(feature = "parquet")]
use super::parquet::open_split as open_parquet_files;
use super::{
    Cifar, Columns, Idx, ImageFolder, ImageTable, WebDataset, assumed::say_assumed,
    coco::captions_of, masks::MaskFolder, structure::Structure, zip::ZipListing,
};
use crate::{
    dataset::{Dataset, Selection, Shared, Split},
    error::{DataError, Result},
};

/// What was found.
pub(super) enum Found {
    /// The images of the split that was asked for, which the data set has itself.
    Split(Shared),
    /// All images of a data set without splits.
    Whole(Shared),
}

impl Found {
    pub(super) fn split(data: impl Dataset + 'static) -> Self {
        Self::Split(Arc::new(data))
    }

    pub(super) fn whole(data: impl Dataset + 'static) -> Self {
        Self::Whole(Arc::new(data))
    }
}

/// That a split has nothing in it.
pub(super) fn empty(path: &Path, split: Split) -> DataError {
    DataError::EmptySplit { path: path.into(), split: split.name() }
}

/// What is at a path that exists. The user may say something of a table's columns, and of nothing else's.
pub(super) fn find_at(path: &Path, split: Split, columns: Option<&Columns>) -> Result<Found> {
    if columns.is_some() && !has_table(path) {
        return Err(not_a_table(path));
    }
    let said = columns.cloned().unwrap_or_default();
    match path.is_dir() {
        true => find_folder(path, split, &said),
        false => find_file(path, split, &said),
    }
}

/// Tables by the names of splits, in this order.
const TRAIN_TABLES: &[&str] = &["train.csv", "train.tsv", "train.jsonl"];
const TEST_TABLES: &[&str] =
    &["test.csv", "test.tsv", "test.jsonl", "val.csv", "val.tsv", "val.jsonl"];

/// The first of these names that a folder has a file of.
fn first_file(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    names.iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

/// Whether a path is that of a table, or of a folder with tables.
fn has_table(path: &Path) -> bool {
    match path.is_dir() {
        true => first_file(path, &[TRAIN_TABLES, TEST_TABLES].concat()).is_some(),
        false => ["csv", "tsv", "jsonl"].iter().any(|ending| ends(path, ending)),
    }
}

/// That there are no columns to speak of.
pub(super) fn not_a_table(path: &Path) -> DataError {
    DataError::Options(format!(
        "{} is no table, so that --columns (data.columns) has no meaning; tables end in .csv, .tsv or .jsonl",
        path.display()
    ))
}

fn ends(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case(ending))
}

/// A single file is told by its name.
fn find_file(path: &Path, split: Split, said: &Columns) -> Result<Found> {
    let is = |ending: &str| ends(path, ending);
    let unpacked = if is("gz") { path.with_extension("") } else { path.to_owned() };
    match () {
        _ if has_table(path) => find_in_table(path, split, said),
        _ if is("json") => Ok(Found::whole(ImageTable::coco(path)?)),
        _ if is("tar") => Ok(Found::whole(WebDataset::read(&[path.to_owned()])?)),
        _ if is("zip") => find_zip(path, split),
        _ if is("parquet") => open_parquet_files(path, vec![path.to_owned()], split),
        _ if ends(&unpacked, "bin") => Ok(Found::whole(Cifar::file(path)?)),
        _ if Idx::is_named(path) => Ok(Found::whole(Idx::file(path)?)),
        _ => Err(DataError::Format {
            path: path.into(),
            why: "a single file is a .csv, .tsv or .jsonl table, a .json of COCO's captions, a .zip or .tar \
                  archive, a .parquet, a .bin of CIFAR's records or an IDX file of images (…-images-idx3-ubyte); the last two may be \
                  gzipped (.gz)"
                .to_owned(),
        }),
    }
}

fn find_folder(path: &Path, split: Split, said: &Columns) -> Result<Found> {
    let inner = ["cifar-10-batches-bin", "cifar-100-binary"].map(|name| path.join(name));
    let folder = inner.into_iter().find(|folder| folder.is_dir()).unwrap_or(path.to_owned());
    if Cifar::is_here(&folder) {
        return Ok(Found::split(Cifar::folder(&folder, split)?));
    }
    let idx = |split| Idx::files(path, split);
    if idx(Split::Train).is_some() || idx(Split::Test).is_some() {
        let (images, labels) = idx(split).ok_or_else(|| empty(path, split))?;
        return Ok(Found::split(Idx::read(&images, &labels)?));
    }
    if let Some(data) = find_tables(path, split, said)? {
        return Ok(data);
    }
    let captions = |split| captions_of(path, split);
    if captions(Split::Train).is_some() || captions(Split::Test).is_some() {
        let file = captions(split).ok_or_else(|| empty(path, split))?;
        return Ok(Found::split(ImageTable::coco(&file)?));
    }
    if let Some(data) = MaskFolder::split(path, split)? {
        return Ok(Found::split(data));
    }
    if let Some(data) = MaskFolder::whole(path)? {
        return Ok(Found::whole(data));
    }
    if let Some(data) = find_shards(path, split)? {
        return Ok(data);
    }
    if let Some(data) = find_parquet(path, split)? {
        return Ok(data);
    }
    let folder = |split| ImageFolder::split(path, split);
    match (folder(Split::Train), folder(Split::Test)) {
        (None, None) => Ok(Found::whole(ImageFolder::read(path)?)),
        (Some(train), _) if split == Split::Train => Ok(Found::split(ImageFolder::read(&train)?)),
        (train, Some(test)) if split == Split::Test => {
            let known = train.map(|train| ImageFolder::class_names(&train)).transpose()?;
            Ok(Found::split(ImageFolder::read_as(&test, known)?))
        }
        _ => Err(empty(path, split)),
    }
}

/// A folder of classes in an archive, by the same rules.
fn find_zip(path: &Path, split: Split) -> Result<Found> {
    let archive = ZipListing::read(path)?;
    match (archive.split(Split::Train), archive.split(Split::Test)) {
        (None, None) => Ok(Found::whole(archive.images(None, None)?)),
        (Some(train), _) if split == Split::Train => {
            Ok(Found::split(archive.images(Some(&train), None)?))
        }
        (train, Some(test)) if split == Split::Test => {
            let known = train.map(|train| archive.class_names(&train));
            Ok(Found::split(archive.images(Some(&test), known)?))
        }
        _ => Err(empty(path, split)),
    }
}

/// `train.csv` and `test.csv` or `val.csv`; the labels of one table mean the same in the other.
fn find_tables(path: &Path, split: Split, said: &Columns) -> Result<Option<Found>> {
    let (train, test) = (first_file(path, TRAIN_TABLES), first_file(path, TEST_TABLES));
    let own = if split == Split::Train { &train } else { &test };
    match (&train, own) {
        (_, None) if train.is_some() || test.is_some() => Err(empty(path, split)),
        (_, None) => Ok(None),
        (Some(train), Some(own)) if split == Split::Test => {
            let train = read_table(train, said, None)?;
            Ok(Some(Found::split(read_table(own, said, Some(train.classes()))?)))
        }
        (_, Some(own)) => Ok(Some(Found::split(read_table(own, said, None)?))),
    }
}

/// A table by itself. Where it has captions alone and its images lie in folders of splits, these are its splits.
fn find_in_table(path: &Path, split: Split, said: &Columns) -> Result<Found> {
    let table = read_table(path, said, None)?;
    if !table.classes().is_empty() {
        return Ok(Found::whole(table));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let [train, test] = [Split::Train, Split::Test].map(|split| table.below(folder, split));
    if train.is_empty() || test.is_empty() {
        return Ok(Found::whole(table));
    }
    say_assumed(
        path,
        &format!(
            "by the folders of its images, {} are for training and {} for testing",
            train.len(),
            test.len()
        ),
    );
    let indices = if split == Split::Train { train } else { test };
    Ok(Found::split(Selection::new(Arc::new(table), indices)))
}

/// A table by the ending of its name.
fn read_table(path: &Path, said: &Columns, known: Option<&[String]>) -> Result<ImageTable> {
    match ends(path, "jsonl") {
        true => ImageTable::json_lines_as(path, said, known),
        false => ImageTable::csv_as(path, said, known),
    }
}

/// All archives of a folder; with `test` or `val` in its name, an archive is for testing.
fn find_shards(path: &Path, split: Split) -> Result<Option<Found>> {
    let shards = files(path, "tar")?;
    let for_testing = |shard: &PathBuf| {
        let name = shard.file_name().unwrap_or_default().to_string_lossy();
        name.contains("test") || name.contains("val")
    };
    let (test, train): (Vec<_>, Vec<_>) = shards.into_iter().partition(for_testing);
    match (train.is_empty(), test.is_empty(), split) {
        (true, true, _) => Ok(None),
        (false, true, _) => Ok(Some(Found::whole(WebDataset::read(&train)?))),
        (true, false, Split::Train) => Err(empty(path, split)),
        (true, false, Split::Test) => Ok(Some(Found::split(WebDataset::read(&test)?))),
        (false, false, Split::Train) => Ok(Some(Found::split(WebDataset::read(&train)?))),
        (false, false, Split::Test) => {
            let known = WebDataset::read(&train)?;
            Ok(Some(Found::split(WebDataset::read_as(&test, Some(known.classes()))?)))
        }
    }
}

/// The parquet files of a folder, or of its folder `data`.
fn find_parquet(path: &Path, split: Split) -> Result<Option<Found>> {
    let mut found = files(path, "parquet")?;
    let inner = path.join("data");
    if found.is_empty() && inner.is_dir() {
        found = files(&inner, "parquet")?;
    }
    if found.is_empty() { Ok(None) } else { open_parquet_files(path, found, split).map(Some) }
}

#[cfg(not(feature = "parquet"))]
fn open_parquet_files(path: &Path, _: Vec<PathBuf>, _: Split) -> Result<Found> {
    let why = "this program was built without parquet; build it with `--features parquet`";
    Err(DataError::Format { path: path.into(), why: why.to_owned() })
}

/// Files of a folder whose names end like this, in order.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io(folder))? {
        let file = entry.map_err(DataError::io(folder))?.path();
        if ends(&file, ending) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// What is probably wrong with data of a single class, as far as its files tell.
pub(super) fn explained_one_class(path: &Path) -> Option<String> {
    let root = ImageFolder::split(path, Split::Train).unwrap_or(path.to_owned());
    match () {
        _ if has_table(path) => {
            let fix = "is its column of labels the right one? --columns label=NAME takes another";
            Some(fix.to_owned())
        }
        _ if ends(path, "zip") => Some(ZipListing::read(path).ok()?.explained()),
        _ if root.is_dir() && ImageFolder::read(&root).is_ok() => {
            Some(Structure::of(&root).explained(&root))
        }
        _ => None,
    }
}
