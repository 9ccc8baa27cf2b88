//! The vectors of a folder's photos, kept beside them.
//!
//! `photos/.omma-search/` has a file per model, named by what tells its checkpoint from others: a tensor
//! `[N, E]`, and a note with the photos' names, sizes and times and a checksum of all of it. A photo whose size
//! and time are the same is the same photo.

use std::{
    borrow::Cow,
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use anyhow::{Context, Result, anyhow};
use omma_base::{
    checksum,
    files::{
        files_below, read_regular,
        tensors::{Floats, bytes_of, floats_of, is_sealed, sealed, write_tensors},
    },
};
use omma_data::formats::is_image;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

const FOLDER: &str = ".omma-search";
const NOTE: &str = "omma-search";
const TENSOR: &str = "embeddings";
const FORMAT: u32 = 1;
/// Bytes of an index; two million photos have fewer.
const MOST_BYTES: u64 = 1 << 32;

/// A photo as it was when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Photo {
    /// Its path below the folder.
    pub(crate) name: String,
    size: u64,
    /// Nanoseconds since 1970.
    modified: u64,
}

impl Photo {
    fn at(folder: &Path, path: &Path) -> Option<Self> {
        let name = path.strip_prefix(folder).ok()?.to_str()?.to_owned();
        // What cannot be looked at is found out when it is opened.
        let (size, modified) = match fs::metadata(path) {
            Ok(found) => (found.len(), found.modified().ok()),
            Err(_) => (0, None),
        };
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = since.map_or(0, |since| since.as_nanos() as u64);
        Some(Self { name, size, modified })
    }
}

/// The photos below a folder, sorted; those whose names are no text cannot be named, and are counted.
pub(crate) fn photos_below(folder: &Path) -> Result<(Vec<Photo>, usize)> {
    let paths = files_below(folder, is_image)
        .map_err(|(path, error)| anyhow!(error).context(path.display().to_string()))?;
    let photos: Vec<Photo> = paths.iter().filter_map(|path| Photo::at(folder, path)).collect();
    let nameless = paths.len() - photos.len();
    Ok((photos, nameless))
}

/// Photos and their vectors.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Index {
    pub(crate) photos: Vec<Photo>,
    /// `[N, E]`, one row per photo.
    pub(crate) vectors: Vec<f32>,
    /// Photos that could not be read, which are not tried again until they change.
    pub(crate) unreadable: Vec<Photo>,
}

#[derive(Serialize, Deserialize)]
struct Note {
    content: Box<RawValue>,
    checksum: String,
}

#[derive(Serialize, Deserialize)]
struct Content<'a> {
    format: u32,
    model: Cow<'a, str>,
    photos: Cow<'a, [Photo]>,
    unreadable: Cow<'a, [Photo]>,
    /// Of the vectors.
    vectors: String,
}

impl Index {
    /// What was kept for a model; nothing if nothing was, and an error if that is damaged.
    pub(crate) fn read(folder: &Path, model: &str, width: usize) -> Result<Option<Self>> {
        let path = path_of(folder, model);
        let bytes = match read_regular(&path, MOST_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.with_context(|| path.display().to_string())?,
        };
        let index = parse(&bytes, model, width);
        index.map(Some).with_context(|| format!("{} is damaged", path.display()))
    }

    /// Keeps it beside the photos, whole or not at all.
    pub(crate) fn write(&self, folder: &Path, model: &str) -> io::Result<()> {
        fs::create_dir_all(folder.join(FOLDER))?;
        let vectors = checksum(bytes_of(&self.vectors));
        let (content, checksum) = sealed(&Content {
            format: FORMAT,
            model: model.into(),
            photos: Cow::Borrowed(&self.photos),
            unreadable: Cow::Borrowed(&self.unreadable),
            vectors,
        });
        let note = serde_json::to_string(&Note { content, checksum })?;
        write_tensors(&path_of(folder, model), (NOTE, note), &[Vectors(self)])
    }

    /// What is known of photos as they are now: those that have not changed, and those to look at.
    pub(crate) fn split(self, photos: Vec<Photo>, width: usize) -> (Self, Vec<Photo>) {
        let places: HashMap<&str, usize> =
            self.photos.iter().enumerate().map(|(place, photo)| (&*photo.name, place)).collect();
        let refused: HashMap<&str, &Photo> =
            self.unreadable.iter().map(|photo| (&*photo.name, photo)).collect();
        let (mut known, mut fresh) = (Self::default(), Vec::new());
        for photo in photos {
            match places.get(&*photo.name) {
                Some(&place) if self.photos[place] == photo => {
                    known.vectors.extend(&self.vectors[place * width..(place + 1) * width]);
                    known.photos.push(photo);
                }
                _ if refused.get(&*photo.name) == Some(&&photo) => known.unreadable.push(photo),
                _ => fresh.push(photo),
            }
        }
        (known, fresh)
    }

    /// In the order of names, whatever came when.
    pub(crate) fn sorted(self, width: usize) -> Self {
        let mut places: Vec<usize> = (0..self.photos.len()).collect();
        places.sort_by(|a, b| self.photos[*a].name.cmp(&self.photos[*b].name));
        let row = |place: &usize| &self.vectors[place * width..(place + 1) * width];
        let vectors = places.iter().flat_map(row).copied().collect();
        let photos = places.iter().map(|place| self.photos[*place].clone()).collect();
        Self { photos, vectors, unreadable: self.unreadable }
    }
}

fn path_of(folder: &Path, model: &str) -> PathBuf {
    folder.join(FOLDER).join(format!("{model}.safetensors"))
}

fn parse(bytes: &[u8], model: &str, width: usize) -> Result<Index> {
    let (_, head) = SafeTensors::read_metadata(bytes)?;
    let notes = head.metadata().as_ref().and_then(|notes| notes.get(NOTE));
    let note: Note = serde_json::from_str(notes.context("it has no note")?)?;
    if !is_sealed(&note.content, &note.checksum) {
        return Err(anyhow!("its note does not have its checksum"));
    }
    let content: Content = serde_json::from_str(note.content.get())?;
    if content.format != FORMAT || content.model != model {
        return Err(anyhow!("it is of another version or another model"));
    }
    let file = SafeTensors::deserialize(bytes)?;
    let tensor = file.tensor(TENSOR)?;
    let fits = tensor.dtype() == Dtype::F32 && tensor.shape() == [content.photos.len(), width];
    if !fits || checksum(tensor.data()) != content.vectors {
        return Err(anyhow!("its vectors are not those that it names"));
    }
    Ok(Index {
        photos: content.photos.into_owned(),
        vectors: floats_of(tensor.data()),
        unreadable: content.unreadable.into_owned(),
    })
}

/// The vectors of an index as a tensor of its file.
struct Vectors<'a>(&'a Index);

impl Floats for Vectors<'_> {
    fn name(&self) -> &str {
        TENSOR
    }

    fn shape(&self) -> Cow<'_, [usize]> {
        let photos = self.0.photos.len();
        Cow::Owned(vec![photos, self.0.vectors.len().checked_div(photos).unwrap_or(0)])
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self.0.vectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn photo(name: &str, size: u64) -> Photo {
        Photo { name: name.to_owned(), size, modified: 7 }
    }

    fn index() -> Index {
        Index {
            photos: vec![photo("a.png", 1), photo("b/c.png", 2), photo("d.png", 3)],
            vectors: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            unreadable: vec![photo("bad.jpg", 9)],
        }
    }

    #[test]
    fn what_is_kept_is_read_for_its_model_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(Index::read(folder, "m", 2).unwrap(), None);
        index().write(folder, "m").unwrap();
        assert_eq!(Index::read(folder, "m", 2).unwrap(), Some(index()));
        assert_eq!(Index::read(folder, "other", 2).unwrap(), None);
        assert!(Index::read(folder, "m", 3).is_err());
        fs::copy(path_of(folder, "m"), path_of(folder, "other")).unwrap();
        assert!(Index::read(folder, "other", 2).is_err());
    }

    #[test]
    fn whatever_byte_is_changed_it_is_found_out() {
        let folder = tempfile::tempdir().unwrap();
        index().write(folder.path(), "m").unwrap();
        let whole = fs::read(path_of(folder.path(), "m")).unwrap();
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x41;
            if let Ok(read) = parse(&bytes, "m", 2) {
                assert_eq!(read, index(), "byte {place}");
            }
            assert!(parse(&whole[..place], "m", 2).is_err(), "the first {place} bytes");
        }
    }

    #[test]
    fn only_what_is_new_or_changed_is_looked_at() {
        let now =
            vec![photo("a.png", 1), photo("b/c.png", 20), photo("bad.jpg", 9), photo("e.png", 4)];
        let (known, fresh) = index().split(now, 2);
        assert_eq!(known.photos, [photo("a.png", 1)]);
        assert_eq!(known.vectors, [1.0, 2.0]);
        assert_eq!(known.unreadable, [photo("bad.jpg", 9)]);
        assert_eq!(fresh, [photo("b/c.png", 20), photo("e.png", 4)]);
        let (_, fresh) = index().split(vec![photo("bad.jpg", 10)], 2);
        assert_eq!(fresh.len(), 1, "a file that was mended is tried again");
    }

    #[test]
    fn sorting_moves_rows_with_their_photos() {
        let mixed = Index {
            photos: vec![photo("d.png", 3), photo("a.png", 1), photo("b/c.png", 2)],
            vectors: vec![5.0, 6.0, 1.0, 2.0, 3.0, 4.0],
            unreadable: vec![photo("bad.jpg", 9)],
        };
        assert_eq!(mixed.sorted(2), index());
    }

    #[test]
    fn photos_are_named_below_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::create_dir_all(folder.join("x/.omma-search")).unwrap();
        for name in ["x/b.jpg", "a.png", "notes.txt", "x/.omma-search/c.png"] {
            fs::write(folder.join(name), name).unwrap();
        }
        let (photos, nameless) = photos_below(folder).unwrap();
        let names: Vec<&str> = photos.iter().map(|photo| photo.name.as_str()).collect();
        assert_eq!((names, nameless), (vec!["a.png", "x/b.jpg"], 0));
        assert!(photos.iter().all(|photo| photo.size == photo.name.len() as u64));
        assert!(photos.iter().all(|photo| photo.modified > 0));
    }
}
