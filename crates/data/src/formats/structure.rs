//! What lies in a folder or an archive, for messages that say what was found and what is probably meant.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use super::is_image;
use crate::dataset::Split;

/// What a folder of classes looks like.
const EXPECTED: &str = "a folder of classes is expected, root/class/*.jpg";
/// Names that are listed.
const SHOWN: usize = 4;

/// What the folder of a split is called, in this order.
pub(super) fn split_names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &["train", "training"],
        Split::Test => &["test", "val", "validation", "valid"],
    }
}

/// Whether a folder of this name is a split.
pub(super) fn is_split(name: &str) -> bool {
    let names = [split_names(Split::Train), split_names(Split::Test)].concat();
    names.iter().any(|split| name.eq_ignore_ascii_case(split))
}

/// A folder, and all that is below it but what is hidden.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Structure {
    /// Images directly in it.
    images: usize,
    /// Other files directly in it.
    files: Vec<String>,
    folders: BTreeMap<String, Structure>,
}

impl Structure {
    /// A folder on disk. What cannot be read is left out, since this is only told.
    pub(super) fn of(folder: &Path) -> Self {
        let mut found = Self::default();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            match () {
                _ if name.starts_with('.') => {}
                _ if is_folder => _ = found.folders.insert(name, Self::of(&path)),
                _ if is_image(&path) => found.images += 1,
                _ => found.files.push(name),
            }
        }
        found.files.sort();
        found
    }

    /// A file of an archive.
    pub(super) fn add(&mut self, parts: &[String]) {
        match parts {
            [] => {}
            [file] if is_image(file.as_ref()) => self.images += 1,
            [file] => self.files.push(file.clone()),
            [folder, rest @ ..] => self.folders.entry(folder.clone()).or_default().add(rest),
        }
    }

    fn images_below(&self) -> usize {
        self.images + self.folders.values().map(Self::images_below).sum::<usize>()
    }

    /// Folders with images somewhere below.
    fn classes(&self) -> impl Iterator<Item = (&String, &Self)> {
        self.folders.iter().filter(|(_, folder)| folder.images_below() > 0)
    }

    /// Why this is no folder of two classes or more, and what is probably meant.
    ///
    /// - `root`: where it is; an archive's path has nothing beside or below it that a user could name
    pub(super) fn explained(&self, root: &Path) -> String {
        let classes: Vec<_> = self.classes().take(2).collect();
        match classes.as_slice() {
            [] if self.images > 0 => {
                format!(
                    "found {self}, so that it looks like one class by itself; {}",
                    parent_of_class(root)
                )
            }
            [] if *self == Self::default() => format!("it is empty; {EXPECTED}"),
            [] => format!("found {self}, and no image; {}", self.file_that_is_meant(root)),
            [(name, inner)] if inner.images == 0 && inner.holds_data() => format!(
                "found {self}; is it one level too high? Did you mean {}, which holds {inner}?",
                root.join(name).display()
            ),
            [(name, _)] => format!(
                "found {self}, so that {name:?} is the only class; {EXPECTED}, with two classes or more"
            ),
            _ => format!("found {self}; {EXPECTED}"),
        }
    }

    /// Whether it holds several classes, or splits.
    fn holds_data(&self) -> bool {
        self.classes().count() > 1 || self.classes().any(|(name, _)| is_split(name))
    }

    /// A file in it that is a data set by itself.
    fn file_that_is_meant(&self, root: &Path) -> String {
        let is_data = |name: &&String| {
            let name = name.to_lowercase();
            let endings = [".zip", ".csv", ".tsv", ".tar", ".parquet", ".bin", ".bin.gz"];
            endings.iter().any(|ending| name.ends_with(ending))
        };
        match self.files.iter().find(is_data).filter(|_| root.is_dir()) {
            Some(file) => format!("did you mean {}?", root.join(file).display()),
            None => EXPECTED.to_owned(),
        }
    }
}

/// What is meant by the path of one class: the folder that it is in, if that has others.
fn parent_of_class(class: &Path) -> String {
    let whole = fs::canonicalize(class).unwrap_or_else(|_| class.to_owned());
    let parent: Option<PathBuf> = whole.parent().map(Path::to_owned).filter(|_| class.is_dir());
    let Some(parent) = parent else {
        return EXPECTED.to_owned();
    };
    let shown = match class.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && class.file_name().is_some() => {
            parent.to_owned()
        }
        _ => parent.clone(),
    };
    // Looked at one level deep: it may be anything, and large.
    let has_images = |folder: &Path| {
        let mut files = fs::read_dir(folder).into_iter().flatten().flatten();
        files.any(|file| is_image(&file.path()))
    };
    let beside = fs::read_dir(&parent).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut names: Vec<String> = beside
        .filter(|folder| folder.is_dir() && has_images(folder))
        .filter_map(|folder| Some(folder.file_name()?.to_string_lossy().into_owned()))
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    // A split without classes is beside other splits, not beside other classes.
    let is_class = whole.file_name().is_some_and(|name| !is_split(&name.to_string_lossy()));
    match names.len() {
        0 | 1 => format!("{EXPECTED}, with the images of every class in a folder of their own"),
        _ if !is_class => format!("{EXPECTED}, for every split"),
        count => format!(
            "its parent is probably meant, {}, which holds {count} folders with images ({})",
            shown.display(),
            listed(&names)
        ),
    }
}

/// The first names of many.
fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    shown.join(", ") + if names.len() > SHOWN { ", …" } else { "" }
}

fn counted(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.folders.is_empty() {
            let folder = |(name, folder): (&String, &Self)| {
                format!("{name}: {}", counted(folder.images_below(), "image", "images"))
            };
            let names: Vec<String> = self.folders.iter().map(folder).collect();
            let count = counted(self.folders.len(), "folder", "folders");
            parts.push(format!("{count} ({})", listed(&names)));
        }
        if self.images > 0 {
            let beside = if self.folders.is_empty() { "" } else { " beside" };
            parts.push(format!("{}{beside}", counted(self.images, "image", "images")));
        }
        if !self.files.is_empty() {
            let count = counted(self.files.len(), "other file", "other files");
            parts.push(format!("{count} ({})", listed(&self.files)));
        }
        match parts.is_empty() {
            true => f.write_str("nothing"),
            false => f.write_str(&parts.join(" and ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(files: &[&str], at: &str) -> (String, String) {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let at = root.path().join(at);
        (Structure::of(&at).explained(&at), root.path().display().to_string())
    }

    #[test]
    fn a_folder_one_level_too_high_is_told_with_the_right_one() {
        let files =
            ["photos/mydata/cat/1.jpg", "photos/mydata/dog/2.jpg", "photos/mydata/dog/3.jpg"];
        let (text, root) = explained(&files, "photos");
        assert!(text.contains("1 folder (mydata: 3 images)"), "{text}");
        assert!(
            text.contains(&format!("Did you mean {root}/photos/mydata, which holds")),
            "{text}"
        );
        assert!(text.contains("2 folders (cat: 1 image, dog: 2 images)"), "{text}");
        let (text, root) = explained(&["photos/mydata/train/cat/1.jpg"], "photos");
        assert!(text.contains(&format!("Did you mean {root}/photos/mydata")), "{text}");
    }

    #[test]
    fn a_folder_that_is_one_class_is_told_with_its_parent() {
        let files = ["photos/cat/1.jpg", "photos/cat/2.jpg", "photos/dog/2.jpg", "photos/.x/3.jpg"];
        let (text, root) = explained(&files, "photos/cat");
        assert!(text.starts_with("found 2 images"), "{text}");
        assert!(
            text.contains(&format!("parent is probably meant, {root}/photos, which")),
            "{text}"
        );
        assert!(text.contains("2 folders with images (cat, dog)"), "{text}");
        let (text, _) = explained(&["train/1.jpg", "test/2.jpg"], "train");
        assert!(text.contains("for every split") && !text.contains("parent"), "{text}");
        let (text, _) = explained(&["cat/1.jpg"], "cat");
        assert!(text.contains("in a folder of their own"), "{text}");
    }

    #[test]
    fn one_class_and_none_are_told_with_what_is_there() {
        let (text, _) = explained(&["cat/1.jpg", "cat/deep/2.jpg", "notes.txt"], "");
        assert!(
            text.contains("found 1 folder (cat: 2 images) and 1 other file (notes.txt)"),
            "{text}"
        );
        assert!(text.contains("\"cat\" is the only class"), "{text}");
        let (text, root) = explained(&["notes.txt", "photos.zip"], "");
        assert!(
            text.contains("no image; did you mean") && text.contains(&format!("{root}/photos.zip"))
        );
        let (text, _) = explained(&[".hidden/x.jpg"], "");
        assert!(text.contains("it is empty; a folder of classes is expected"), "{text}");
    }
}
