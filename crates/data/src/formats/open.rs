//! Which data set a word or a path means.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use omma_base::Resolution;

#[cfg(feature = "parquet")]
use super::parquet::open_split as open_parquet_files;
use super::{Cifar, CsvFile, Idx, ImageFolder, WebDataset, expand_braces};
use crate::{
    dataset::{Dataset, Joined, Selection, Shared, Split},
    error::{DataError, Result},
    world::{Variant, World},
};

/// What the user asked for, and how large the built-in world is.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSpec {
    /// `world`, `world-near-ood`, `world-far-ood`, `fashion-mnist`, or a path.
    pub name: String,
    /// Of the built-in world's images.
    pub resolution: Resolution,
    /// Training scenes of the built-in world.
    pub train_samples: usize,
    /// Test scenes of the built-in world.
    pub test_samples: usize,
    /// Seed of the built-in world.
    pub seed: u64,
}

impl DataSpec {
    /// A data set by its name, with a world of 32 × 32 pixels.
    pub fn named(name: &str) -> Self {
        let name = name.to_owned();
        let resolution = Resolution::square(32);
        Self { name, resolution, train_samples: 100_000, test_samples: 2_000, seed: 0 }
    }
}

/// Where Debian's package `dataset-fashion-mnist` puts it.
const FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";

/// A name that means the same data from every working folder: paths whole, the world as it is.
pub fn whole_name(name: &str) -> String {
    let path = std::fs::canonicalize(name).ok().filter(|_| !name.starts_with("world"));
    path.map_or_else(|| name.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Opens a split of a data set. Where it has no splits of its own, every tenth sample is for testing.
pub fn open(spec: &DataSpec, split: Split) -> Result<Shared> {
    let data = find(spec, split)?;
    match data.is_empty() {
        true => Err(empty(Path::new(&spec.name), split)),
        false => Ok(data),
    }
}

/// Opens a data set as a whole: its training images, then its test images, or what there is of both. A set
/// that is all for testing often has no splits (ImageNet-A, ImageNet-V2).
pub fn open_whole(spec: &DataSpec) -> Result<Shared> {
    match (open(spec, Split::Train), open(spec, Split::Test)) {
        (Ok(train), Ok(test)) if train.classes() == test.classes() => {
            Ok(Arc::new(Joined(train, test)))
        }
        (Ok(train), Ok(test)) => Err(DataError::Format {
            path: spec.name.clone().into(),
            why: format!(
                "its training images are of {} classes and its test images of others ({})",
                train.classes().len(),
                test.classes().len()
            ),
        }),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(error), Err(_)) => Err(error),
    }
}

/// The path that a data set is read from; nothing for the built-in world.
pub(super) fn place(spec: &DataSpec) -> Option<PathBuf> {
    match spec.name.as_str() {
        "world" | "world-near-ood" | "world-far-ood" => None,
        "fashion-mnist" if !Path::new("fashion-mnist").exists() => Some(FASHION_MNIST.into()),
        path => Some(path.into()),
    }
}

fn find(spec: &DataSpec, split: Split) -> Result<Shared> {
    match spec.name.as_str() {
        "world" => return world(spec, split, Variant::Usual),
        "world-near-ood" => return world(spec, split, Variant::NearOod),
        "world-far-ood" => return world(spec, split, Variant::FarOod),
        "fashion-mnist" if !Path::new("fashion-mnist").exists() => {
            let folder = Path::new(FASHION_MNIST);
            if !folder.exists() {
                return Err(DataError::NotFound(format!(
                    "Fashion-MNIST is not at {FASHION_MNIST}; install it with `apt-get install \
                     dataset-fashion-mnist`, or give the folder with its four IDX files"
                )));
            }
            return open_path(folder, split);
        }
        _ => {}
    }
    let path = Path::new(&spec.name);
    if path.exists() {
        return open_path(path, split);
    }
    if spec.name.contains('{') {
        let shards: Vec<PathBuf> =
            expand_braces(&spec.name).into_iter().map(PathBuf::from).collect();
        return Ok(tenth(Arc::new(WebDataset::read(&shards)?), split));
    }
    Err(DataError::NotFound(format!(
        "there is no data at {}; write world, fashion-mnist, or the path of a folder of classes, of \
         CIFAR or IDX files, of a .csv file, of .tar shards, or of .parquet files",
        spec.name
    )))
}

/// Sides that the world can be drawn in.
const SIZES: std::ops::RangeInclusive<usize> = 8..=2048;

fn world(spec: &DataSpec, split: Split, variant: Variant) -> Result<Shared> {
    if ![spec.resolution.height, spec.resolution.width].iter().all(|side| SIZES.contains(side)) {
        let (least, most) = (SIZES.start(), SIZES.end());
        let why =
            format!("sides of the world are {least} to {most} pixels, not {}", spec.resolution);
        return Err(DataError::Options(why));
    }
    let samples = match split {
        Split::Train => spec.train_samples,
        Split::Test => spec.test_samples,
    };
    Ok(Arc::new(World::new(spec.seed, spec.resolution, samples, split, variant)))
}

fn open_path(path: &Path, split: Split) -> Result<Shared> {
    let is = |ending: &str| path.extension().is_some_and(|end| end.eq_ignore_ascii_case(ending));
    if is("csv") || is("tsv") {
        return Ok(tenth(Arc::new(CsvFile::read(path)?), split));
    }
    if is("tar") {
        return Ok(tenth(Arc::new(WebDataset::read(&[path.to_owned()])?), split));
    }
    if is("parquet") && path.is_file() {
        return open_parquet_files(path, vec![path.to_owned()], split);
    }
    if path.is_file() {
        let why = "a single file is a .csv, a .tsv, a .tar or a .parquet".to_owned();
        return Err(DataError::Format { path: path.into(), why });
    }
    let inner = ["cifar-10-batches-bin", "cifar-100-binary"].map(|name| path.join(name));
    let folder = inner.into_iter().find(|folder| folder.is_dir()).unwrap_or(path.to_owned());
    if Cifar::is_here(&folder) {
        return Ok(Arc::new(Cifar::folder(&folder, split)?));
    }
    let idx = |split| Idx::files(path, split);
    if idx(Split::Train).is_some() || idx(Split::Test).is_some() {
        let (images, labels) = idx(split).ok_or_else(|| empty(path, split))?;
        return Ok(Arc::new(Idx::read(&images, &labels)?));
    }
    if let Some(data) = open_tables(path, split)? {
        return Ok(data);
    }
    if let Some(data) = open_shards(path, split)? {
        return Ok(data);
    }
    if let Some(data) = open_parquet(path, split)? {
        return Ok(data);
    }
    let folder = |split| ImageFolder::split(path, split);
    match (folder(Split::Train), folder(Split::Test)) {
        (None, None) => Ok(tenth(Arc::new(ImageFolder::read(path)?), split)),
        (Some(train), _) if split == Split::Train => Ok(Arc::new(ImageFolder::read(&train)?)),
        (train, Some(test)) if split == Split::Test => {
            let known = train.map(|train| ImageFolder::class_names(&train)).transpose()?;
            Ok(Arc::new(ImageFolder::read_as(&test, known)?))
        }
        _ => Err(empty(path, split)),
    }
}

/// `train.csv` and `test.csv` or `val.csv`; the labels of one table mean the same in the other.
fn open_tables(path: &Path, split: Split) -> Result<Option<Shared>> {
    let table =
        |names: &[&str]| names.iter().map(|name| path.join(name)).find(|table| table.is_file());
    let train = table(&["train.csv", "train.tsv"]);
    let test = table(&["test.csv", "test.tsv", "val.csv", "val.tsv"]);
    let own = if split == Split::Train { &train } else { &test };
    match (&train, own) {
        (_, None) if train.is_some() || test.is_some() => Err(empty(path, split)),
        (_, None) => Ok(None),
        (Some(train), Some(own)) if split == Split::Test => {
            let train = CsvFile::read(train)?;
            Ok(Some(Arc::new(CsvFile::read_as(own, Some(train.classes()))?)))
        }
        (_, Some(own)) => Ok(Some(Arc::new(CsvFile::read(own)?))),
    }
}

/// All archives of a folder; with `test` or `val` in its name, an archive is for testing.
fn open_shards(path: &Path, split: Split) -> Result<Option<Shared>> {
    let shards = files(path, "tar")?;
    let for_testing = |shard: &PathBuf| {
        let name = shard.file_name().unwrap_or_default().to_string_lossy();
        name.contains("test") || name.contains("val")
    };
    let (test, train): (Vec<_>, Vec<_>) = shards.into_iter().partition(for_testing);
    match (train.is_empty(), test.is_empty(), split) {
        (true, true, _) => Ok(None),
        (false, true, _) => Ok(Some(tenth(Arc::new(WebDataset::read(&train)?), split))),
        (true, false, Split::Train) => Err(empty(path, split)),
        (true, false, Split::Test) => Ok(Some(Arc::new(WebDataset::read(&test)?))),
        (false, false, Split::Train) => Ok(Some(Arc::new(WebDataset::read(&train)?))),
        (false, false, Split::Test) => {
            let known = WebDataset::read(&train)?;
            Ok(Some(Arc::new(WebDataset::read_as(&test, Some(known.classes()))?)))
        }
    }
}

/// The parquet files of a folder, or of its folder `data`.
fn open_parquet(path: &Path, split: Split) -> Result<Option<Shared>> {
    let mut found = files(path, "parquet")?;
    let inner = path.join("data");
    if found.is_empty() && inner.is_dir() {
        found = files(&inner, "parquet")?;
    }
    if found.is_empty() { Ok(None) } else { open_parquet_files(path, found, split).map(Some) }
}

#[cfg(not(feature = "parquet"))]
fn open_parquet_files(path: &Path, _: Vec<PathBuf>, _: Split) -> Result<Shared> {
    let why = "this program was built without parquet; build it with `--features parquet`";
    Err(DataError::Format { path: path.into(), why: why.to_owned() })
}

/// Files of a folder whose names end like this, in order.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DataError::io(folder))? {
        let file = entry.map_err(DataError::io(folder))?.path();
        if file.extension().is_some_and(|end| end.eq_ignore_ascii_case(ending)) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Most of a data set without splits, or the tenth that is for testing.
pub(super) fn tenth(data: Shared, split: Split) -> Shared {
    let (most, tenth) = Selection::hold_out(&data, 0.1);
    if split == Split::Train { most } else { tenth }
}

/// That a split has nothing in it.
pub(super) fn empty(path: &Path, split: Split) -> DataError {
    DataError::EmptySplit { path: path.into(), split: split.name() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::picture::Picture;

    fn image(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Picture::filled(4, 4, [1; 3]).save_png(path).unwrap();
    }

    fn opened(path: &Path, split: Split) -> Result<Shared> {
        open(&DataSpec::named(path.to_str().unwrap()), split)
    }

    fn labels(data: &Shared) -> Vec<usize> {
        (0..data.len()).map(|index| data.get(index).unwrap().label).collect()
    }

    #[test]
    fn the_world_comes_in_both_splits_and_three_variants() {
        for name in ["world", "world-near-ood", "world-far-ood"] {
            let spec = DataSpec {
                resolution: Resolution::new(40, 50),
                train_samples: 7,
                ..DataSpec::named(name)
            };
            let train = open(&spec, Split::Train).unwrap();
            let picture = train.get(0).unwrap().picture;
            assert_eq!((train.len(), picture.resolution()), (7, spec.resolution));
            assert_eq!(open(&spec, Split::Test).unwrap().len(), 2000);
        }
        for spec in [
            DataSpec { resolution: Resolution::new(40, 0), ..DataSpec::named("world") },
            DataSpec { resolution: Resolution::new(1 << 40, 40), ..DataSpec::named("world") },
            DataSpec { train_samples: 0, ..DataSpec::named("world") },
        ] {
            assert!(open(&spec, Split::Train).is_err());
        }
    }

    #[test]
    fn what_is_not_there_is_named_with_what_could_be() {
        let message = opened(Path::new("no/such/thing"), Split::Train).err().unwrap().to_string();
        assert!(
            message.contains("no/such/thing") && message.contains("fashion-mnist"),
            "{message}"
        );
        let message = opened(Path::new("no-{0..1}.tar"), Split::Train).err().unwrap().to_string();
        assert!(message.contains("no-0.tar"), "{message}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(opened(file.path(), Split::Train).is_err());
    }

    #[test]
    fn classes_mean_the_same_in_both_splits() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        image(&root.join("train/ant/0.png"));
        image(&root.join("train/bee/0.png"));
        assert!(matches!(opened(root, Split::Test), Err(DataError::EmptySplit { .. })));
        image(&root.join("val/bee/0.png"));
        assert_eq!(labels(&opened(root, Split::Train).unwrap()), [0, 1]);
        let test = opened(root, Split::Test).unwrap();
        assert_eq!((labels(&test), test.classes().len()), (vec![1], 2));
        image(&root.join("val/cow/0.png"));
        let message = opened(root, Split::Test).err().unwrap().to_string();
        assert!(message.contains("cow"), "{message}");

        fs::write(root.join("train.csv"), "path,label\nval/bee/0.png,a\nval/bee/0.png,b\n")
            .unwrap();
        assert!(matches!(opened(root, Split::Test), Err(DataError::EmptySplit { .. })));
        fs::write(root.join("test.csv"), "path,label\nval/bee/0.png,b\n").unwrap();
        assert_eq!(labels(&opened(root, Split::Test).unwrap()), [1]);
        fs::write(root.join("test.csv"), "path,label\nval/bee/0.png,c\n").unwrap();
        assert!(opened(root, Split::Test).is_err());
    }

    #[test]
    fn without_splits_a_tenth_is_for_testing() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut text = "path,label\n".to_owned();
        for i in 0..20 {
            image(&root.join(format!("data/{}/{i}.png", ["x", "y"][i % 2])));
            text += &format!("data/{}/{i}.png,{}\n", ["x", "y"][i % 2], i % 2);
        }
        fs::write(root.join("all.csv"), text).unwrap();
        let mut builder = tar::Builder::new(fs::File::create(root.join("all.tar")).unwrap());
        for i in 0..20 {
            let file = root.join(format!("data/{}/{i}.png", ["x", "y"][i % 2]));
            builder.append_path_with_name(file, format!("{i}.png")).unwrap();
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            builder.append_data(&mut header, format!("{i}.cls"), &b"1"[..]).unwrap();
        }
        drop(builder);
        let braces = root.join("al{l,l}.tar");
        for (path, count) in [
            (root.join("data"), 20),
            (root.join("all.csv"), 20),
            (root.join("all.tar"), 20),
            (braces, 40),
            // The folder itself: its archive counts, its table has no split's name.
            (root.to_owned(), 20),
        ] {
            let [train, test] =
                [Split::Train, Split::Test].map(|split| opened(&path, split).unwrap());
            assert_eq!((train.len(), test.len()), (count * 9 / 10, count / 10), "{path:?}");
            assert!(test.get(0).is_ok());
            let whole = open_whole(&DataSpec::named(&path.to_string_lossy())).unwrap();
            assert_eq!((whole.len(), whole.classes()), (count, train.classes()), "{path:?}");
            let [last, after] = [train.len() - 1, train.len()];
            assert_eq!(whole.get(last).unwrap(), train.get(last).unwrap());
            assert_eq!(whole.get(after).unwrap(), test.get(0).unwrap());
            assert_eq!(whole.label(after), test.label(0));
        }
        fs::rename(root.join("all.tar"), root.join("train-0.tar")).unwrap();
        fs::copy(root.join("train-0.tar"), root.join("val-0.tar")).unwrap();
        assert_eq!(opened(root, Split::Train).unwrap().len(), 20);
        assert_eq!(opened(root, Split::Test).unwrap().len(), 20);
        // A set with test images alone, and one with nothing.
        fs::create_dir(root.join("only")).unwrap();
        fs::rename(root.join("data"), root.join("only/test")).unwrap();
        let only = DataSpec::named(&root.join("only").to_string_lossy());
        assert_eq!(open_whole(&only).unwrap().len(), 20);
        assert!(open_whole(&DataSpec::named("nowhere")).is_err());
    }

    #[cfg(not(feature = "parquet"))]
    #[test]
    fn parquet_files_name_the_feature_that_reads_them() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("data/train-00000-of-00001.parquet");
        fs::create_dir(root.path().join("data")).unwrap();
        fs::write(&file, "PAR1").unwrap();
        for path in [root.path(), &file] {
            let message = opened(path, Split::Train).err().unwrap().to_string();
            assert!(message.contains("--features parquet"), "{message}");
        }
    }

    #[test]
    fn cifar_and_idx_are_recognised() {
        let root = tempfile::tempdir().unwrap();
        let cifar = root.path().join("cifar");
        fs::create_dir_all(cifar.join("cifar-10-batches-bin")).unwrap();
        fs::write(cifar.join("cifar-10-batches-bin/test_batch.bin"), vec![1; 3073 * 2]).unwrap();
        assert_eq!(opened(&cifar, Split::Test).unwrap().len(), 2);
        assert!(matches!(opened(&cifar, Split::Train), Err(DataError::EmptySplit { .. })));
        let idx = root.path().join("idx");
        fs::create_dir(&idx).unwrap();
        let images = [0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 5];
        fs::write(idx.join("train-images-idx3-ubyte"), images).unwrap();
        fs::write(idx.join("train-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 3]).unwrap();
        assert_eq!(labels(&opened(&idx, Split::Train).unwrap()), [3]);
        assert!(matches!(opened(&idx, Split::Test), Err(DataError::EmptySplit { .. })));
    }
}
