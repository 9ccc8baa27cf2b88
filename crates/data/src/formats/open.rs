//! Which data set a word or a path means.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use omma_base::Resolution;

use super::{
    Columns, WebDataset, expand_braces,
    recognise::{Found, empty, explained_one_class, find_at, not_a_table},
};
use crate::{
    dataset::{Joined, Shared, Split},
    error::{DataError, Result},
    holding_out::HoldingOut,
    world::{Variant, World},
};

/// What the user asked for, and how large the built-in world is.
#[derive(Debug, Clone, PartialEq)]
pub struct DataSpec {
    /// `world`, `world-near-ood`, `world-far-ood`, `world-seen`, `world-unseen`, `fashion-mnist`, or a path.
    pub name: String,
    /// What the columns of a table are, where their names do not say it.
    pub columns: Option<Columns>,
    /// How a tenth is held out for testing, where data has no splits.
    pub holding_out: HoldingOut,
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
        Self {
            name: name.to_owned(),
            columns: None,
            holding_out: HoldingOut::default(),
            resolution: Resolution::square(32),
            train_samples: 100_000,
            test_samples: 2_000,
            seed: 0,
        }
    }
}

/// Where Debian's package `dataset-fashion-mnist` puts it.
const FASHION_MNIST: &str = "/usr/share/datasets/fashion-mnist";

/// A name that means the same data from every working folder: paths whole, the world as it is.
pub fn whole_name(name: &str) -> String {
    let path = std::fs::canonicalize(name).ok().filter(|_| !name.starts_with("world"));
    path.map_or_else(|| name.to_owned(), |path| path.to_string_lossy().into_owned())
}

/// Opens a split of a data set. Where it has no splits of its own, a tenth of it is for testing.
pub fn open(spec: &DataSpec, split: Split) -> Result<Shared> {
    let data = match find(spec, split)? {
        Found::Split(data) => data,
        Found::Whole(data) => {
            let (most, tenth) = spec.holding_out.for_testing(&data);
            if split == Split::Train { most } else { tenth }
        }
    };
    not_empty(spec, data, split)
}

/// Opens both splits of a data set, to learn from and to judge by.
pub fn open_splits(spec: &DataSpec) -> Result<(Shared, Shared)> {
    let (train, test) = match find(spec, Split::Train)? {
        Found::Split(train) => (train, open(spec, Split::Test)?),
        Found::Whole(data) => spec.holding_out.for_testing(&data),
    };
    Ok((not_empty(spec, train, Split::Train)?, not_empty(spec, test, Split::Test)?))
}

/// All of a data set that has no splits of its own, as one that is all for testing often has none
/// (ImageNet-A, ImageNet-V2); nothing where it has some.
pub fn open_unsplit(spec: &DataSpec) -> Result<Option<Shared>> {
    // A data set may have test images alone.
    let found = find(spec, Split::Train).or_else(|error| match error {
        DataError::EmptySplit { .. } => find(spec, Split::Test),
        other => Err(other),
    });
    match found? {
        Found::Split(_) => Ok(None),
        Found::Whole(data) => not_empty(spec, data, Split::Test).map(Some),
    }
}

/// Opens a data set as a whole: all of one without splits; else its training images, then its test images, or
/// what there is of both.
pub fn open_whole(spec: &DataSpec) -> Result<Shared> {
    if let Some(data) = open_unsplit(spec)? {
        return Ok(data);
    }
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
        name if world_variant(name).is_some() => None,
        "fashion-mnist" if !Path::new("fashion-mnist").exists() => Some(FASHION_MNIST.into()),
        path => Some(path.into()),
    }
}

/// The part of the built-in world that a name means.
fn world_variant(name: &str) -> Option<Variant> {
    match name {
        "world" => Some(Variant::Usual),
        "world-near-ood" => Some(Variant::NearOod),
        "world-far-ood" => Some(Variant::FarOod),
        "world-seen" => Some(Variant::Seen),
        "world-unseen" => Some(Variant::Unseen),
        _ => None,
    }
}

/// Refuses images of a single class, which tell nothing about a classifier, with what was found and what is
/// probably meant.
///
/// - `images`: of these data; whether others of their classes have images does not count
pub fn check_several_classes(spec: &DataSpec, images: &Shared) -> Result<()> {
    let mut labels = (0..images.len()).map(|index| images.label(index));
    let first = labels.next().unwrap_or_default();
    if images.classes().len() > 1 && labels.any(|label| label != first) {
        return Ok(());
    }
    if images.classes().is_empty() && images.has_captions() {
        return Err(DataError::Format {
            path: spec.name.clone().into(),
            why: "its images have captions and no labels, and a classifier needs labels; a contrastive model \
                  learns from captions, and --columns label=NAME names a table's column of labels"
                .to_owned(),
        });
    }
    if images.classes().is_empty() && images.pixel_classes().is_some() {
        return Err(DataError::Format {
            path: spec.name.clone().into(),
            why: "its images have masks and no labels, and a classifier needs labels; task = \"segmentation\" \
                  (`omma train segment`) learns from masks"
                .to_owned(),
        });
    }
    let class = images.classes().get(first).map_or("", String::as_str);
    let fix = explained_one_class(Path::new(&spec.name));
    Err(DataError::Format {
        path: spec.name.clone().into(),
        why: format!(
            "all images are of one class, {class:?}, and a classifier tells two or more apart{}",
            fix.map_or(String::new(), |fix| format!("; {fix}"))
        ),
    })
}

fn not_empty(spec: &DataSpec, data: Shared, split: Split) -> Result<Shared> {
    match data.is_empty() {
        true => Err(empty(Path::new(&spec.name), split)),
        false => Ok(data),
    }
}

fn find(spec: &DataSpec, split: Split) -> Result<Found> {
    let path = Path::new(&spec.name);
    if let Some(variant) = world_variant(&spec.name) {
        return match spec.columns {
            None => world(spec, split, variant),
            Some(_) => Err(not_a_table(path)),
        };
    }
    if spec.name == "fashion-mnist" && !path.exists() {
        let folder = Path::new(FASHION_MNIST);
        if !folder.exists() {
            return Err(DataError::NotFound(format!(
                "Fashion-MNIST is not at {FASHION_MNIST}; install it with `apt-get install \
                 dataset-fashion-mnist`, or give the folder with its four IDX files"
            )));
        }
        return find_at(folder, split, spec.columns.as_ref());
    }
    if path.exists() {
        return find_at(path, split, spec.columns.as_ref());
    }
    if spec.name.contains('{') {
        let shards: Vec<PathBuf> =
            expand_braces(&spec.name).into_iter().map(PathBuf::from).collect();
        return Ok(Found::whole(WebDataset::read(&shards)?));
    }
    Err(DataError::NotFound(format!(
        "there is no data at {}; write world, fashion-mnist, or the path of a folder of classes, of \
         CIFAR or IDX files, of a .csv, .tsv or .jsonl table, of COCO's captions, of a .zip archive, of .tar \
         shards, or of .parquet files",
        spec.name
    )))
}

/// Sides that the world can be drawn in.
const SIZES: std::ops::RangeInclusive<usize> = 8..=2048;

fn world(spec: &DataSpec, split: Split, variant: Variant) -> Result<Found> {
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
    let world = World::new(spec.seed, spec.resolution, samples, split, variant);
    Ok(Found::Split(Arc::new(world)))
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
    fn the_world_comes_in_both_splits_and_five_variants() {
        for name in ["world", "world-near-ood", "world-far-ood", "world-seen", "world-unseen"] {
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
    fn captions_come_with_the_splits_that_their_folders_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut text = String::new();
        for (folder, i) in [("train", 0), ("train", 1), ("test", 2), ("val", 3)] {
            image(&root.join(format!("{folder}/{i}.png")));
            text +=
                &format!("{folder}/{i}.png\t0\ta dog , {i}\n{folder}/{i}.png\t1\ta cat , {i}\n");
        }
        let path = root.join("captions.tsv");
        fs::write(&path, &text).unwrap();
        let (train, test) = open_splits(&DataSpec::named(path.to_str().unwrap())).unwrap();
        assert_eq!((train.len(), test.len()), (2, 1));
        assert_eq!(test.captions(0).unwrap(), ["a dog , 2", "a cat , 2"]);
        // Labels keep the rule of before, whatever their paths.
        let labelled = text.replace("\ta dog , ", "\t").replace("\ta cat , ", "\t");
        fs::write(&path, format!("image\tnumber\tlabel\n{labelled}")).unwrap();
        assert_eq!(opened(&path, Split::Train).unwrap().len(), 7);
        // COCO's files and lines of JSON by their names.
        let coco = |id: usize, file: &str| {
            format!(
                r#"{{"images": [{{"id": {id}, "file_name": "{file}"}}], "annotations": [{{"image_id": {id}, "caption": "c"}}]}}"#
            )
        };
        fs::create_dir(root.join("annotations")).unwrap();
        fs::write(root.join("annotations/captions_train2017.json"), coco(1, "0.png")).unwrap();
        assert!(matches!(opened(root, Split::Test), Err(DataError::EmptySplit { .. })));
        fs::write(root.join("annotations/captions_val2017.json"), coco(2, "3.png")).unwrap();
        for (split, name) in [(Split::Train, "train/0.png"), (Split::Test, "val/3.png")] {
            let data = opened(root, split).unwrap();
            assert!(data.name(0).ends_with(name) && data.get(0).is_ok(), "{}", data.name(0));
        }
        for name in ["train", "val"] {
            fs::write(
                root.join(format!("{name}.jsonl")),
                format!(r#"{{"image": "{name}/3.png", "text": "by {name}"}}"#),
            )
            .unwrap();
        }
        assert_eq!(opened(root, Split::Test).unwrap().captions(0).unwrap(), ["by val"]);
        let message =
            check_several_classes(&DataSpec::named("x"), &opened(root, Split::Train).unwrap())
                .unwrap_err()
                .to_string();
        assert!(message.contains("captions and no labels"), "{message}");
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
            let unsplit = open_unsplit(&DataSpec::named(&path.to_string_lossy())).unwrap();
            assert_eq!(unsplit.map(|data| data.len()), Some(count), "{path:?}");
        }
        fs::rename(root.join("all.tar"), root.join("train-0.tar")).unwrap();
        fs::copy(root.join("train-0.tar"), root.join("val-0.tar")).unwrap();
        assert_eq!(opened(root, Split::Train).unwrap().len(), 20);
        assert_eq!(opened(root, Split::Test).unwrap().len(), 20);
        let both = DataSpec::named(&root.to_string_lossy());
        assert!(open_unsplit(&both).unwrap().is_none());
        let whole = open_whole(&both).unwrap();
        assert_eq!((whole.len(), whole.get(20).unwrap().label), (40, 1));
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
