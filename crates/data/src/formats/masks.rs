//! Folders of images and masks, paired by their names: `CamVid`'s, ADE20K's, and others like them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use omma_base::files::{files_below, read_regular};
use rayon::prelude::*;

use super::{
    assumed::say_assumed, is_image, mask_file::read_mask, recognise::empty, structure::split_names,
};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::{DataError, Result},
    mask::IGNORED,
    picture::Picture,
};

/// Images, each with a mask of the same name.
#[derive(Debug)]
pub(super) struct MaskFolder {
    classes: PixelClasses,
    /// Image and mask.
    files: Vec<(PathBuf, PathBuf)>,
}

/// A folder of images and one of their masks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pair {
    images: PathBuf,
    masks: PathBuf,
}

/// What a folder of masks is called beside one of images.
const MASKS: [&str; 4] = ["masks", "annotations", "labels", "annot"];
/// What is behind the name of a split in the name of the folder of its masks: `trainannot`, `train_masks`.
const ENDINGS: [&str; 5] = ["annot", "_annot", "_masks", "_labels", "_annotations"];

impl Pair {
    /// Those that are there and have a name in common.
    fn found(images: PathBuf, masks: PathBuf) -> Option<Self> {
        let pair = Self { images, masks };
        let is_there = pair.images.is_dir() && pair.masks.is_dir();
        (is_there && pair.files().is_ok_and(|(files, _)| !files.is_empty())).then_some(pair)
    }

    /// Of a split: `train/` and `trainannot/`, `images/training/` and `annotations/training/`, or
    /// `train/images/` and `train/masks/`.
    fn of_split(root: &Path, split: Split) -> Option<Self> {
        let named = |name: &&str| {
            let beside =
                ENDINGS.map(|ending| (root.join(name), root.join(format!("{name}{ending}"))));
            let above =
                MASKS.map(|masks| (root.join("images").join(name), root.join(masks).join(name)));
            let below = MASKS.map(|masks| {
                let folder = root.join(name);
                (folder.join("images"), folder.join(masks))
            });
            let all = beside.into_iter().chain(above).chain(below);
            all.into_iter().find_map(|(images, masks)| Self::found(images, masks))
        };
        split_names(split).iter().find_map(named)
    }

    /// Of all: `images/` and `masks/`.
    fn of_whole(root: &Path) -> Option<Self> {
        MASKS.iter().find_map(|masks| Self::found(root.join("images"), root.join(masks)))
    }

    /// Images with their masks, and how many have none.
    fn files(&self) -> Result<(Vec<(PathBuf, PathBuf)>, usize)> {
        let listed = |folder: &Path| {
            let files = files_below(folder, is_image);
            let files = files.map_err(|(path, error)| DataError::io(path)(error))?;
            let stem = |file: PathBuf| {
                let stem = file.strip_prefix(folder).unwrap_or(&file).with_extension("");
                (stem, file)
            };
            Ok::<BTreeMap<PathBuf, PathBuf>, DataError>(files.into_iter().map(stem).collect())
        };
        let (images, mut masks) = (listed(&self.images)?, listed(&self.masks)?);
        let all = images.len();
        let files: Vec<(PathBuf, PathBuf)> = images
            .into_iter()
            .filter_map(|(stem, image)| masks.remove(&stem).map(|mask| (image, mask)))
            .collect();
        let lonely = all - files.len();
        Ok((files, lonely))
    }
}

/// What the values of masks mean.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PixelClasses {
    names: Vec<String>,
    /// By value: a place among the names, or that it is ignored; nothing for one that has no meaning.
    places: Vec<Option<u8>>,
}

impl PixelClasses {
    /// From a list, a line for every value, in their order or with their numbers in front. One that is called
    /// void, unlabelled or ignored counts for nothing, as 255 does.
    fn parse(text: &str, path: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let mut found = Self { names: Vec::new(), places: vec![None; 256] };
        found.places[usize::from(IGNORED)] = Some(IGNORED);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for (place, line) in lines.enumerate() {
            let numbered = line.split_once(|letter: char| letter.is_whitespace() || letter == ':');
            let numbered =
                numbered.and_then(|(number, name)| Some((number.parse().ok()?, name.trim())));
            let (value, name): (usize, &str) = numbered.unwrap_or((place, line));
            let own = found.places.get_mut(value).filter(|_| value < usize::from(IGNORED));
            let own = own.ok_or_else(|| {
                fault(format!("{name:?} is class {value}, and classes are below 255"))
            })?;
            if own.is_some() {
                return Err(fault(format!("two lines are about class {value}")));
            }
            *own = Some(if is_void(name) { IGNORED } else { found.names.len() as u8 });
            if !is_void(name) {
                found.names.push(name.to_owned());
            }
        }
        match found.names.len() {
            0 | 1 => Err(fault(
                "a list of the classes of pixels has two or more, one per line".to_owned(),
            )),
            _ => Ok(found),
        }
    }

    /// Without a list: the values that masks have, up to the largest.
    fn of_values(values: &BTreeSet<u8>) -> Self {
        let largest = values.iter().copied().filter(|value| *value != IGNORED).max().unwrap_or(0);
        let mut places = vec![None; 256];
        places[usize::from(IGNORED)] = Some(IGNORED);
        for value in 0..=largest {
            places[usize::from(value)] = Some(value);
        }
        Self { names: (0..=largest).map(|value| value.to_string()).collect(), places }
    }
}

fn is_void(name: &str) -> bool {
    let name = name.to_lowercase();
    let words = name.split(|letter: char| !letter.is_alphanumeric());
    let void = ["void", "unlabelled", "unlabeled", "ignore", "ignored"];
    words.into_iter().any(|word| void.contains(&word))
}

/// The file that lists the classes.
fn list_in(root: &Path) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().find(|file| {
        file.is_file()
            && file.file_name().is_some_and(|name| name.eq_ignore_ascii_case("classes.txt"))
    })
}

/// A list has a few words for each of 255 classes.
const LARGEST_LIST: u64 = 1 << 20;

impl MaskFolder {
    /// The images of a split, if a folder is one of images and masks with splits.
    pub(super) fn split(root: &Path, split: Split) -> Result<Option<Self>> {
        let pair = |split| Pair::of_split(root, split);
        match (pair(Split::Train), pair(Split::Test)) {
            (None, None) => Ok(None),
            (train, test) => {
                let own = if split == Split::Train { train.clone() } else { test.clone() };
                let own = own.ok_or_else(|| empty(root, split))?;
                let known = train.or(test).expect("one of both is there");
                Self::read(root, &own, &known).map(Some)
            }
        }
    }

    /// All images, if a folder is one of images and masks without splits.
    pub(super) fn whole(root: &Path) -> Result<Option<Self>> {
        Pair::of_whole(root).map(|pair| Self::read(root, &pair, &pair)).transpose()
    }

    /// - `known`: whose masks tell the classes, where no list does
    fn read(root: &Path, own: &Pair, known: &Pair) -> Result<Self> {
        let (files, lonely) = own.files()?;
        if lonely > 0 {
            say_assumed(&own.images, &format!("{lonely} images without a mask are left out"));
        }
        let classes = match list_in(root) {
            Some(list) => {
                let bytes = read_regular(&list, LARGEST_LIST).map_err(DataError::io(&list))?;
                PixelClasses::parse(&String::from_utf8_lossy(&bytes), &list)?
            }
            None => {
                let what = "classes.txt would name the classes of pixels; they are the numbers in the masks";
                say_assumed(root, what);
                PixelClasses::of_values(&values(&known.files()?.0)?)
            }
        };
        Ok(Self { classes, files })
    }
}

/// All values that masks have.
fn values(files: &[(PathBuf, PathBuf)]) -> Result<BTreeSet<u8>> {
    let found: Result<Vec<BTreeSet<u8>>> = files
        .par_iter()
        .map(|(_, mask)| {
            let mut seen = [false; 256];
            read_mask(mask)?.pixels.iter().for_each(|value| seen[usize::from(*value)] = true);
            Ok((0..=255).filter(|value| seen[usize::from(*value)]).collect())
        })
        .collect();
    Ok(found?.into_iter().flatten().collect())
}

impl Dataset for MaskFolder {
    /// None: what an image shows is said pixel by pixel.
    fn classes(&self) -> &[String] {
        &[]
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (image, mask) = &self.files[index];
        let picture = Picture::open(image)?;
        let found = read_mask(mask)?;
        let fault = |why: String| DataError::NotAnImage { path: mask.clone(), why };
        if found.resolution != picture.resolution() {
            let (own, other) = (found.resolution, picture.resolution());
            return Err(fault(format!("it is {own} and its image {other}")));
        }
        let class = |value: &u8| {
            let known = self.classes.places[usize::from(*value)];
            known.ok_or_else(|| fault(format!("its value {value} is that of no class")))
        };
        let pixels = found.pixels.iter().map(class).collect::<Result<Vec<u8>>>()?;
        Ok(Sample { mask: Some(pixels), ..Sample::new(picture, 0) })
    }

    fn name(&self, index: usize) -> String {
        self.files[index].0.to_string_lossy().into_owned()
    }

    fn pixel_classes(&self) -> Option<&[String]> {
        Some(&self.classes.names)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn image(path: PathBuf) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Picture::filled(2, 1, [9; 3]).save_png(&path).unwrap();
    }

    fn mask(path: PathBuf, values: [u8; 2]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let pixels = values.iter().flat_map(|value| [*value; 3]).collect();
        Picture { width: 2, height: 1, pixels }.save_png(&path).unwrap();
    }

    fn masks(data: &MaskFolder) -> Vec<Vec<u8>> {
        (0..data.len()).map(|index| data.get(index).unwrap().mask.unwrap()).collect()
    }

    #[test]
    fn layouts_of_other_projects_are_known() {
        for (images, annotations, test_images, test_annotations) in [
            ("train", "trainannot", "test", "testannot"),
            (
                "images/training",
                "annotations/training",
                "images/validation",
                "annotations/validation",
            ),
            ("train/images", "train/masks", "val/images", "val/masks"),
            ("train", "train_labels", "val", "val_labels"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let root = root.path();
            image(root.join(images).join("a.png"));
            mask(root.join(annotations).join("a.png"), [0, 2]);
            image(root.join(images).join("without.png"));
            image(root.join(test_images).join("b.png"));
            mask(root.join(test_annotations).join("b.png"), [1, 255]);
            let [train, test] = [Split::Train, Split::Test]
                .map(|split| MaskFolder::split(root, split).unwrap().unwrap());
            assert_eq!(masks(&train), [[0, 2]], "{images}");
            assert_eq!(masks(&test), [[1, IGNORED]], "{images}");
            assert_eq!(
                test.pixel_classes().unwrap(),
                ["0", "1", "2"],
                "those of the training masks"
            );
        }
    }

    #[test]
    fn folders_of_classes_are_not_taken_for_masks() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        image(root.join("images/a.png"));
        image(root.join("masks/b.png"));
        assert!(MaskFolder::whole(root).unwrap().is_none());
        mask(root.join("masks/a.png"), [0, 1]);
        assert_eq!(MaskFolder::whole(root).unwrap().unwrap().len(), 1);
    }

    #[test]
    fn a_list_names_the_values_and_void_counts_for_nothing() {
        let parsed = |text: &str| PixelClasses::parse(text, Path::new("classes.txt"));
        // CamVid's, and ADE20K's, whose 0 is nothing.
        let camvid = parsed("0 Sky\n1 Road\n2 Unlabelled (void)\n").unwrap();
        assert_eq!(camvid.names, ["Sky", "Road"]);
        assert_eq!(camvid.places[..4], [Some(0), Some(1), Some(IGNORED), None]);
        let ade = parsed("void\nwall\nbuilding").unwrap();
        assert_eq!((ade.names.len(), ade.places[1], ade.places[2]), (2, Some(0), Some(1)));
        assert_eq!((ade.places[0], ade.places[255]), (Some(IGNORED), Some(IGNORED)));
        for wrong in ["", "one", "0 a\n0 b", "0 a\n255 b", "0 a\n300 b"] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_mask_that_does_not_fit_is_named() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::write(root.join("Classes.txt"), "a\nb\n").unwrap();
        image(root.join("images/a.png"));
        mask(root.join("masks/a.png"), [0, 7]);
        image(root.join("images/b.png"));
        Picture::filled(1, 1, [0; 3]).save_png(&root.join("masks/b.png")).unwrap();
        let data = MaskFolder::whole(root).unwrap().unwrap();
        let message = |index| data.get(index).unwrap_err().to_string();
        assert!(message(0).contains("masks/a.png") && message(0).contains('7'), "{}", message(0));
        assert!(message(1).contains("1 × 1"), "{}", message(1));
    }
}
