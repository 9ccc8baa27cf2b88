//! Records of one size in a file, read where they are.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use flate2::read::MultiGzDecoder;

use crate::error::{DataError, Result};

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file that can be read in any order. What gzip has packed lies in a temporary file without a name,
/// which is gone with the program.
#[derive(Debug)]
pub(super) struct Unpacked {
    path: PathBuf,
    file: File,
    length: u64,
    position: u64,
}

impl Unpacked {
    /// Opens a file, gzip or not.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = unpack(path).map_err(DataError::io(path))?;
        let length = file.metadata().map_err(DataError::io(path))?.len();
        Ok(Self { path: path.into(), file, length, position: 0 })
    }

    /// Bytes that were not read yet.
    pub(super) fn left(&self) -> u64 {
        self.length.saturating_sub(self.position)
    }

    /// The next bytes, fewer than asked for where the file ends.
    pub(super) fn read(&mut self, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        (&self.file).take(most).read_to_end(&mut bytes).map_err(DataError::io(&self.path))?;
        self.position += bytes.len() as u64;
        Ok(bytes)
    }

    /// All that is left, as records of `size` bytes, one or more.
    pub(super) fn records(self, size: usize) -> Records {
        let start = self.position;
        let count = (self.left() / size as u64) as usize;
        Records { path: self.path, file: Mutex::new(self.file), start, size, count }
    }
}

fn unpack(path: &Path) -> io::Result<File> {
    let mut file = File::open(path)?;
    let mut first = Vec::new();
    file.by_ref().take(GZIP.len() as u64).read_to_end(&mut first)?;
    file.rewind()?;
    if first != GZIP {
        return Ok(file);
    }
    let unpacked = tempfile::tempfile().and_then(|mut unpacked| {
        io::copy(&mut MultiGzDecoder::new(file), &mut unpacked)?;
        unpacked.rewind()?;
        Ok(unpacked)
    });
    unpacked.map_err(|error| {
        io::Error::new(error.kind(), format!("unpacking it into a temporary file: {error}"))
    })
}

/// Records of one size. They stay in their file; one is in memory while it is in use.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
    file: Mutex<File>,
    start: u64,
    size: usize,
    count: usize,
}

impl Records {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The bytes of a record.
    pub(super) fn get(&self, index: usize) -> Result<Vec<u8>> {
        let mut record = vec![0; self.size];
        // Whoever held the file last, the position is set anew.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.start + index as u64 * self.size as u64))
            .and_then(|_| file.read_exact(&mut record))
            .map_err(DataError::io(&self.path))?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rayon::prelude::*;

    use super::*;

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    /// Records `[i, i]` after a header of three bytes.
    fn numbered() -> Vec<u8> {
        [7; 3].into_iter().chain((0..100).flat_map(|i| [i, i])).collect()
    }

    #[test]
    fn any_thread_reads_any_record_packed_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let halves = [packed(&numbered()[..50]), packed(&numbered()[50..])].concat();
        for bytes in [numbered(), packed(&numbered()), halves] {
            let path = folder.path().join("records");
            std::fs::write(&path, bytes).unwrap();
            let mut file = Unpacked::open(&path).unwrap();
            assert_eq!(file.read(3).unwrap(), [7; 3]);
            assert_eq!(file.left(), 200);
            let records = file.records(2);
            assert_eq!(records.len(), 100);
            (0..1000).into_par_iter().for_each(|i| {
                let index = i * 37 % 100;
                assert_eq!(records.get(index).unwrap(), [index as u8; 2]);
            });
        }
    }

    #[test]
    fn records_stay_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        std::fs::write(&path, numbered()).unwrap();
        let records = Unpacked::open(&path).unwrap().records(1);
        let mut file = File::options().write(true).open(&path).unwrap();
        file.write_all(&[9]).unwrap();
        assert_eq!(records.get(0).unwrap(), [9]);
        file.set_len(10).unwrap();
        let message = records.get(50).unwrap_err().to_string();
        assert!(message.contains("records"), "{message}");
    }

    #[test]
    fn a_packed_file_that_ends_early_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.gz");
        let bytes = packed(&numbered());
        std::fs::write(&path, &bytes[..bytes.len() - 12]).unwrap();
        let message = Unpacked::open(&path).unwrap_err().to_string();
        assert!(message.contains("records.gz") && message.contains("unpacking"), "{message}");
        assert!(Unpacked::open(folder.path()).is_err());
        assert!(Unpacked::open(&folder.path().join("none")).is_err());
    }
}
