//! A folder of images, one folder per class.

use std::path::{Path, PathBuf};

use omma_base::files::files_below;

use super::{
    assumed::say_assumed,
    classes::check_classes,
    is_image,
    structure::{Structure, split_names},
};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::{DataError, Result},
    picture::Picture,
};

/// `root/class/*.jpg`; the classes are the folders' names, sorted.
#[derive(Debug)]
pub(super) struct ImageFolder {
    classes: Vec<String>,
    files: Vec<(PathBuf, usize)>,
}

impl ImageFolder {
    /// Lists the images below a folder of classes.
    pub(super) fn read(root: &Path) -> Result<Self> {
        Self::read_as(root, None)
    }

    /// Lists the images of a split whose classes another split has named; it may lack some.
    pub(super) fn read_as(root: &Path, known: Option<Vec<String>>) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: root.into(), why };
        let found = class_folders(root)?;
        let classes = known.unwrap_or_else(|| found.iter().map(|(name, _)| name.clone()).collect());
        let mut files = Vec::new();
        let mut empty = Vec::new();
        for (name, folder) in &found {
            let Some(label) = classes.iter().position(|class| class == name) else {
                return Err(fault(format!("the training images have no class {name:?}")));
            };
            let images = files_below(folder, is_image)
                .map_err(|(path, error)| DataError::io(path)(error))?;
            if images.is_empty() {
                empty.push(name.as_str());
            }
            files.extend(images.into_iter().map(|file| (file, label)));
        }
        if files.is_empty() {
            return Err(fault(Structure::of(root).explained(root)));
        }
        if !empty.is_empty() {
            let (count, names) = (empty.len(), empty[..empty.len().min(5)].join(", "));
            let what = format!(
                "{count} classes have no image ({names}); is each of these folders a class?"
            );
            say_assumed(root, &what);
        }
        let outside = images_in(root)?;
        if outside > 0 {
            say_assumed(root, &format!("{outside} images in no folder of a class are left out"));
        }
        Ok(Self { classes, files })
    }

    /// The classes that a folder has.
    pub(super) fn class_names(root: &Path) -> Result<Vec<String>> {
        Ok(class_folders(root)?.into_iter().map(|(name, _)| name).collect())
    }

    /// The folder of a split below `root`, under any of its usual names.
    pub(super) fn split(root: &Path, split: Split) -> Option<PathBuf> {
        let mut folders: Vec<PathBuf> =
            std::fs::read_dir(root).ok()?.flatten().map(|entry| entry.path()).collect();
        folders.sort();
        let named = |folder: &PathBuf, name: &str| {
            folder.file_name().is_some_and(|own| own.eq_ignore_ascii_case(name)) && folder.is_dir()
        };
        let names = split_names(split);
        names.iter().find_map(|name| folders.iter().find(|folder| named(folder, name)).cloned())
    }
}

/// Names and paths of the folders in a folder, hidden ones left out; links to folders count.
fn class_folders(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(root).map_err(DataError::io(root))? {
        let entry = entry.map_err(DataError::io(root))?;
        let (name, path) = (entry.file_name(), entry.path());
        if !name.as_encoded_bytes().starts_with(b".") && path.is_dir() {
            folders.push((name.to_string_lossy().into_owned(), path));
        }
    }
    folders.sort();
    if let Some(pair) = folders.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let why = format!(
            "{:?} and {:?} are one name when they are written as text; rename one of them",
            pair[0].1.file_name().unwrap_or_default(),
            pair[1].1.file_name().unwrap_or_default()
        );
        return Err(DataError::Format { path: root.into(), why });
    }
    check_classes(root, folders.len())?;
    Ok(folders)
}

/// How many images are directly in a folder.
fn images_in(folder: &Path) -> Result<usize> {
    let mut images = 0;
    for entry in std::fs::read_dir(folder).map_err(DataError::io(folder))? {
        let entry = entry.map_err(DataError::io(folder))?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        images += usize::from(!is_hidden && is_image(&entry.path()) && !entry.path().is_dir());
    }
    Ok(images)
}

impl Dataset for ImageFolder {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn label(&self, index: usize) -> usize {
        self.files[index].1
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (file, label) = &self.files[index];
        Ok(Sample::new(Picture::open(file)?, *label))
    }

    fn name(&self, index: usize) -> String {
        self.files[index].0.to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::{EvalLoader, Pixels, dataset::Shared};

    fn image(root: &Path, name: &str, shade: u8) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Picture::filled(4, 3, [shade; 3]).save_png(&path).unwrap();
    }

    #[test]
    fn folders_are_classes() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        image(root, "dog/b.PNG", 1);
        image(root, "dog/deep/er/a.png", 2);
        image(root, "cat/a.jpg", 3);
        image(root, ".hidden/a.png", 4);
        image(root, "dog/.thumb.png", 5);
        fs::write(root.join("dog/notes.txt"), "no image").unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        let folder = ImageFolder::read(root).unwrap();
        assert_eq!(folder.classes(), ["cat", "dog", "empty"]);
        let samples: Vec<_> = (0..folder.len()).map(|index| folder.get(index).unwrap()).collect();
        let found: Vec<_> = samples.iter().map(|s| (s.label, s.picture.pixels[0])).collect();
        assert_eq!(found, [(0, 3), (1, 1), (1, 2)]);
        assert_eq!(folder.name(1), root.join("dog/b.PNG").to_str().unwrap());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn names_that_are_the_same_as_text_are_refused() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let root = tempfile::tempdir().unwrap();
        for name in [&b"caf\xe9"[..], b"caf\xe8"] {
            let folder = root.path().join(OsStr::from_bytes(name));
            fs::create_dir(&folder).unwrap();
            Picture::filled(4, 3, [1; 3]).save_png(&folder.join("a.png")).unwrap();
        }
        let message = ImageFolder::read(root.path()).unwrap_err().to_string();
        assert!(message.contains("rename"), "{message}");
    }

    #[test]
    fn splits_may_be_written_large() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        image(root, "Train/dog/a.png", 1);
        image(root, "VAL/dog/a.png", 2);
        assert_eq!(ImageFolder::split(root, Split::Train), Some(root.join("Train")));
        assert_eq!(ImageFolder::split(root, Split::Test), Some(root.join("VAL")));
    }

    #[test]
    fn a_folder_without_images_says_what_is_expected() {
        let root = tempfile::tempdir().unwrap();
        let message = ImageFolder::read(root.path()).unwrap_err().to_string();
        assert!(message.contains("root/class/*.jpg"), "{message}");
        assert!(ImageFolder::read(&root.path().join("nothing")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn files_that_cannot_be_read_are_left_out_and_links_do_not_circle() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for i in 0..300 {
            image(root, &format!("a/{i:03}.png"), 7);
        }
        fs::write(root.join("a/text.jpg"), "this is text").unwrap();
        std::os::unix::fs::symlink("nowhere.png", root.join("a/gone.png")).unwrap();
        std::os::unix::fs::symlink(root, root.join("a/circle")).unwrap();
        let data: Shared = Arc::new(ImageFolder::read(root).unwrap());
        assert_eq!(data.len(), 302);
        let pixels = Pixels {
            resolution: omma_base::Resolution::square(8),
            mean: [0.0; 3],
            deviation: [1.0; 3],
        };
        let loader = EvalLoader::new(data, pixels, 64);
        assert_eq!(loader.map(|batch| batch.unwrap().len()).sum::<usize>(), 300);

        for i in 0..5 {
            fs::write(root.join(format!("a/{i:03}.png")), "no longer an image").unwrap();
        }
        let data: Shared = Arc::new(ImageFolder::read(root).unwrap());
        let error = EvalLoader::new(data, pixels, 64).find_map(Result::err).unwrap();
        assert!(matches!(error, DataError::TooManyBad { .. }), "{error}");
    }
}
