//! Activations on disk: a folder with `activations.f32`, rows one after the other, and `index.json`, which
//! is written last and says what they are, with a checksum of every row.

use std::{
    fs::{self, File},
    io::{BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Mutex,
};

use omma_base::files::{
    open_regular, read_regular,
    tensors::{bytes_of, floats_of, is_sealed, sealed},
    write_atomically,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Key;
use crate::error::{Result, TrainError};

const ROWS: &str = "activations.f32";
const INDEX: &str = "index.json";
/// An index has some ten bytes per row; this is for a hundred million.
const LARGEST_INDEX: u64 = 1 << 31;

#[derive(Serialize, Deserialize)]
struct Sealed {
    content: Box<RawValue>,
    checksum: String,
}

/// What is in a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Content {
    key: Key,
    /// `T` and `D` of every image.
    shape: [usize; 2],
    /// Which image of the training images every row is; of every draw the same.
    images: Vec<u32>,
    /// CRC-32 of every row, draw by draw.
    checksums: Vec<u32>,
}

/// Activations that can be read, row by row.
#[derive(Debug)]
pub(crate) struct Store {
    content: Content,
    path: PathBuf,
    file: Mutex<File>,
}

impl Store {
    /// Those of a key; nothing where there are none, where they are of something else, or not whole.
    pub(crate) fn open(folder: &Path, key: &Key) -> Result<Option<Self>> {
        let index = folder.join(INDEX);
        let bytes = match read_regular(&index, LARGEST_INDEX) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(TrainError::io(&index))?,
        };
        let sealed: Option<Sealed> = serde_json::from_slice(&bytes).ok();
        let sealed = sealed.filter(|sealed| is_sealed(&sealed.content, &sealed.checksum));
        let content: Option<Content> =
            sealed.and_then(|sealed| serde_json::from_str(sealed.content.get()).ok());
        let Some(content) = content.filter(|content| content.key == *key) else { return Ok(None) };
        let path = folder.join(ROWS);
        let file = open_regular(&path).map_err(TrainError::io(&path))?;
        let size = file.metadata().map_err(TrainError::io(&path))?.len();
        let expected = content.checksums.len() as u64 * content.row_bytes() as u64;
        Ok((size == expected).then(|| Self { content, path, file: Mutex::new(file) }))
    }

    /// Images that there are activations of.
    pub(crate) fn images(&self) -> &[u32] {
        &self.content.images
    }

    /// `T` and `D`.
    pub(crate) fn shape(&self) -> [usize; 2] {
        self.content.shape
    }

    /// Draws of every image, at least 1.
    pub(crate) fn draws(&self) -> usize {
        self.content.key.draws.max(1)
    }

    /// On disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.content.checksums.len() as u64 * self.content.row_bytes() as u64
    }

    /// Appends the activations of an image, `[T, D]`, by its place among [`Self::images`].
    pub(crate) fn read(&self, draw: usize, place: usize, to: &mut Vec<f32>) -> Result<()> {
        let row = draw * self.content.images.len() + place;
        let mut bytes = vec![0; self.content.row_bytes()];
        {
            let mut file = self.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            file.seek(SeekFrom::Start(row as u64 * bytes.len() as u64))
                .and_then(|_| file.read_exact(&mut bytes))
                .map_err(TrainError::io(&self.path))?;
        }
        if self.content.checksums.get(row) != Some(&crc32fast::hash(&bytes)) {
            return Err(TrainError::Damaged {
                path: self.path.clone(),
                why: format!(
                    "row {row} does not have its checksum; remove the folder that it is in"
                ),
            });
        }
        to.extend(floats_of(&bytes));
        Ok(())
    }
}

impl Content {
    fn row_bytes(&self) -> usize {
        4 * self.shape[0] * self.shape[1]
    }
}

/// A store that is being written. Dropped before its end, it leaves nothing behind.
pub(crate) struct Writing {
    folder: PathBuf,
    rows: BufWriter<File>,
    content: Content,
    done: bool,
}

impl Writing {
    /// Into a folder, in place of what was there.
    pub(crate) fn begin(folder: &Path, key: &Key) -> Result<Self> {
        fs::create_dir_all(folder).map_err(TrainError::io(folder))?;
        // Without its index, what was there counts for nothing from now on.
        let index = folder.join(INDEX);
        match fs::remove_file(&index) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(TrainError::io(&index)(error));
            }
            _ => {}
        }
        let path = folder.join(ROWS);
        let file = File::create(&path).map_err(TrainError::io(&path))?;
        let content =
            Content { key: key.clone(), shape: [0; 2], images: Vec::new(), checksums: Vec::new() };
        let (folder, rows) = (folder.to_owned(), BufWriter::with_capacity(1 << 20, file));
        Ok(Self { folder, rows, content, done: false })
    }

    /// Adds an image of a draw; draws come one after the other, each with the same images.
    ///
    /// - `activations`: `[T, D]`, of `shape`
    pub(crate) fn add(
        &mut self,
        draw: usize,
        image: usize,
        activations: &[f32],
        shape: [usize; 2],
    ) -> Result<()> {
        self.content.shape = shape;
        if draw == 0 {
            self.content.images.push(image as u32);
        }
        let bytes = bytes_of(activations);
        self.content.checksums.push(crc32fast::hash(&bytes));
        self.rows.write_all(&bytes).map_err(TrainError::io(self.folder.join(ROWS)))
    }

    /// Makes it whole.
    pub(crate) fn finish(mut self) -> Result<()> {
        let fault = |name: &str| TrainError::io(self.folder.join(name));
        self.rows.flush().map_err(fault(ROWS))?;
        self.rows.get_ref().sync_all().map_err(fault(ROWS))?;
        let (content, checksum) = sealed(&self.content);
        let index = serde_json::to_vec(&Sealed { content, checksum }).expect("it can be written");
        write_atomically(&self.folder.join(INDEX), |temporary| fs::write(temporary, index))
            .map_err(fault(INDEX))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_file(self.folder.join(ROWS));
        }
    }
}
