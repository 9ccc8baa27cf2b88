//! Models and ensembles by name.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use burn::tensor::Device;
use omma_serve::{Photos, Subject};

use super::known::{temperature, training_load};
use crate::{
    precision::PrecisionArguments,
    search::{Collection, Embedder, photos_below},
    subject::{Candidate, check_distinct, system},
};

/// One or more models that are served as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    paths: Vec<PathBuf>,
}

impl Named {
    /// `[NAME=]PATH[+PATH…]`; a path that has these signs in it and is there is a path.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if !Path::new(text).exists() => (Some(name.to_owned()), rest),
            _ => (None, text),
        };
        let paths: Vec<PathBuf> = match Path::new(rest).exists() {
            true => vec![rest.into()],
            false => rest.split('+').map(PathBuf::from).collect(),
        };
        let last = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            name.unwrap_or_else(|| path.display().to_string())
        };
        let name = name.unwrap_or_else(|| paths.iter().map(last).collect::<Vec<_>>().join("+"));
        let plain = |symbol: char| symbol.is_alphanumeric() || "-_.+".contains(symbol);
        if name.is_empty() || !name.chars().all(plain) {
            bail!(
                "{name:?} cannot be a model's name in an address; give it one of letters and digits: NAME={}",
                text
            );
        }
        check_distinct(&paths)?;
        Ok(Self { name, paths })
    }

    /// Reads all of it, now and whenever it is to be replaced.
    pub(crate) fn read(
        &self,
        settings: &[String],
        precision: PrecisionArguments,
        seed: u64,
        photos: Option<&Path>,
        device: &Device,
    ) -> Result<Subject> {
        let candidates = Candidate::read_all(&self.paths, settings, device)?;
        let candidates = precision.of(candidates, device)?;
        let classes = candidates.iter().find_map(|one| one.classes.clone()).unwrap_or_default();
        let temperature = match (candidates.as_slice(), settings.is_empty()) {
            ([one], true) => temperature(one)?,
            _ => None,
        };
        let training = candidates.iter().flat_map(training_load).collect();
        let reads = candidates.iter().any(|one| one.model.reads());
        let photos = match photos.filter(|_| reads) {
            Some(folder) => Some(self.photos(folder, device)?),
            None => None,
        };
        let system = system(candidates, seed, device)?;
        Ok(Subject { system, classes, temperature, training, photos })
    }

    /// The photos of a folder with their vectors, which are kept beside them as `omma search` does.
    fn photos(&self, folder: &Path, device: &Device) -> Result<Photos> {
        let [path] = self.paths.as_slice() else {
            bail!(
                "images of different models lie in different spaces; photos are searched by one model"
            )
        };
        let embedder = Embedder::read(path, device)?;
        let (photos, _) = photos_below(folder)?;
        let index = Collection::of(&embedder, folder, photos, 32, true)?.index;
        let names = index.photos.iter().map(|photo| photo.name.clone()).collect();
        Ok(Photos { names, vectors: index.vectors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_names_of_their_folders_or_their_own() {
        let parsed = |text: &str| Named::parse(text).unwrap();
        assert_eq!(parsed("runs/a-1").name, "a-1");
        let both = parsed("runs/a-1+runs/b-1");
        assert_eq!((both.name.as_str(), both.paths.len()), ("a-1+b-1", 2));
        let named = parsed("pair=runs/a-1+runs/b-1");
        assert_eq!((named.name.as_str(), named.paths.len()), ("pair", 2));
        for wrong in ["a b=runs/a-1", "=runs/a-1", "x=runs/a-1+runs/a-1"] {
            assert!(Named::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_that_is_there_is_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lr=1+2");
        std::fs::create_dir(&path).unwrap();
        let text = path.display().to_string();
        assert_eq!(Named::parse(&format!("m={text}")).unwrap().paths, [path]);
        assert!(Named::parse(&text).unwrap_err().to_string().contains("NAME="));
    }
}
