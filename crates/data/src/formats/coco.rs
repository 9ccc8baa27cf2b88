//! COCO's captions: one JSON file with images and what people said of them.

use std::{
    collections::HashMap,
    io::BufReader,
    path::{Path, PathBuf},
};

use omma_base::files::open_regular;
use serde::Deserialize;

use super::table::{ImageTable, Row};
use crate::{
    dataset::Split,
    error::{DataError, Result},
};

/// The file as it is; what else it says is passed over.
#[derive(Deserialize)]
struct Annotated {
    images: Vec<Image>,
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Image {
    id: Id,
    file_name: String,
}

#[derive(Deserialize)]
struct Annotation {
    image_id: Id,
    /// Files of boxes have annotations without.
    caption: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(untagged)]
enum Id {
    Number(i64),
    Name(String),
}

/// Folders in which images often lie, beside those that are called like the file.
const FOLDERS: &[&str] =
    &["images", "train2017", "val2017", "train2014", "val2014", "train", "val", "test"];

/// So many images are looked for in a folder before it counts as another one's.
const LOOKED_FOR: usize = 100;

impl ImageTable {
    /// Reads COCO's captions, not the images. They lie beside the file or in a folder beside it.
    pub fn coco(path: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let file = open_regular(path).map_err(DataError::io(path))?;
        let found: Annotated = serde_json::from_reader(BufReader::new(file)).map_err(|error| {
            fault(format!(
                "it is not a file of COCO's captions, with images and annotations: {error}; objects with an \
                 image and a caption go into a .jsonl file, one per line"
            ))
        })?;
        let mut places = HashMap::new();
        for (place, image) in found.images.iter().enumerate() {
            if places.insert(&image.id, place).is_some() {
                return Err(fault(format!("two of its images have the id {:?}", image.id)));
            }
        }
        let mut captions: Vec<Vec<String>> = vec![Vec::new(); found.images.len()];
        for (number, Annotation { image_id, caption }) in found.annotations.into_iter().enumerate()
        {
            let Some(place) = places.get(&image_id) else {
                let number = number + 1;
                return Err(fault(format!(
                    "annotation {number} is about image {image_id:?}, which is not among its images"
                )));
            };
            captions[*place].extend(caption);
        }
        if captions.iter().all(Vec::is_empty) {
            return Err(fault(
                "none of its annotations has a caption; COCO's captions are in captions_….json"
                    .to_owned(),
            ));
        }
        let names: Vec<&str> = found.images.iter().map(|image| image.file_name.as_str()).collect();
        let folder = folder_of(path, &names).map_err(fault)?;
        let rows = found.images.into_iter().zip(captions).map(|(image, captions)| Row {
            file: folder.join(image.file_name),
            label: None,
            captions,
        });
        Self::of(path, rows.collect(), None)
    }
}

/// The folder that has the images of a file.
fn folder_of(path: &Path, names: &[&str]) -> Result<PathBuf, String> {
    let folders = folders(path);
    let has_images =
        |folder: &&PathBuf| names.iter().take(LOOKED_FOR).any(|name| folder.join(name).is_file());
    folders.iter().find(has_images).cloned().ok_or_else(|| {
        let looked: Vec<String> =
            folders.iter().map(|folder| folder.join("").display().to_string()).collect();
        format!(
            "its images, such as {:?}, were not found; it was looked in {}",
            names.first().copied().unwrap_or_default(),
            looked.join(", ")
        )
    })
}

/// Where the images of a file may lie: beside it, in folders beside it, and where it is in `annotations`, beside
/// that folder.
fn folders(path: &Path) -> Vec<PathBuf> {
    let here = path.parent().unwrap_or(Path::new(""));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let short = stem.strip_prefix("captions_").unwrap_or(&stem).to_owned();
    let mut bases = vec![here.to_owned()];
    if here.file_name().is_some_and(|name| name == ANNOTATIONS) {
        bases.extend(here.parent().map(Path::to_owned));
    }
    let mut all = Vec::new();
    for base in bases {
        let inner = base.join("images").join(&short);
        let named = [base.clone(), base.join(&stem), base.join(&short), inner];
        let usual = FOLDERS.iter().map(|folder| base.join(folder));
        for folder in named.into_iter().chain(usual) {
            if !all.contains(&folder) {
                all.push(folder);
            }
        }
    }
    all
}

/// The folder that COCO's files come in.
pub(super) const ANNOTATIONS: &str = "annotations";

/// The captions of a split in a folder, or in its folder `annotations`: `captions_train….json`, and
/// `captions_val….json` or `captions_test….json`.
pub(super) fn captions_of(folder: &Path, split: Split) -> Option<PathBuf> {
    let starts: &[&str] = match split {
        Split::Train => &["captions_train"],
        Split::Test => &["captions_test", "captions_val"],
    };
    let folders = [folder.to_owned(), folder.join(ANNOTATIONS)];
    let mut files: Vec<PathBuf> = folders
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "json") && file.is_file())
        .collect();
    files.sort();
    let begins = |file: &&PathBuf, start: &str| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
    };
    starts.iter().find_map(|start| files.iter().find(|file| begins(file, start)).cloned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{dataset::Dataset, picture::Picture};

    const TWO: &str = r#"{"info": {}, "images": [
        {"id": 7, "file_name": "a.png", "width": 3}, {"id": 8, "file_name": "b.png"}, {"id": 9, "file_name": "c.png"}],
        "annotations": [{"id": 1, "image_id": 8, "caption": "two\n"}, {"id": 2, "image_id": 7, "caption": "one"},
        {"id": 3, "image_id": 8, "caption": "three"}]}"#;

    fn image(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Picture::filled(3, 2, [1, 2, 3]).save_png(path).unwrap();
    }

    #[test]
    fn images_are_found_beside_the_file_and_in_its_folders() {
        for (json, picture) in [
            ("x.json", "a.png"),
            ("x.json", "x/a.png"),
            ("x.json", "images/b.png"),
            ("captions_val2017.json", "val2017/a.png"),
            ("annotations/captions_train2017.json", "train2017/a.png"),
            ("annotations/captions_train2017.json", "images/train2017/a.png"),
        ] {
            let root = tempfile::tempdir().unwrap();
            image(&root.path().join(picture));
            let path = root.path().join(json);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, TWO).unwrap();
            let data = ImageTable::coco(&path).unwrap();
            assert!(data.has_captions() && data.classes().is_empty());
            let captions: Vec<_> = (0..data.len()).map(|i| data.captions(i).unwrap()).collect();
            assert_eq!(captions, [vec!["one"], vec!["two", "three"]]);
            let there = usize::from(picture.ends_with("b.png"));
            assert!(data.get(there).is_ok() && data.get(1 - there).is_err(), "{picture}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_says_why() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.json");
        let message = |text: &str| {
            fs::write(&path, text).unwrap();
            ImageTable::coco(&path).unwrap_err().to_string()
        };
        let looked = message(TWO);
        assert!(looked.contains("\"a.png\"") && looked.contains("x.json"), "{looked}");
        assert!(looked.contains("/x/") && looked.contains("/val2017/"), "{looked}");
        image(&root.path().join("a.png"));
        for (text, why) in [
            ("[]", "not a file of COCO's captions"),
            ("{\"images\": []", "not a file of COCO's captions"),
            (r#"{"images": [], "annotations": []}"#, "none of its annotations has a caption"),
            (
                r#"{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "bbox": []}]}"#,
                "none of its annotations has a caption",
            ),
            (
                r#"{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": "x", "caption": "c"}]}"#,
                "annotation 1 is about image",
            ),
            (
                r#"{"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "b.png"}], "annotations": []}"#,
                "two of its images",
            ),
        ] {
            let message = message(text);
            assert!(message.contains(why), "{message}");
        }
    }
}
