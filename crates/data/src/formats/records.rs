//! Records of one size in a file, read where they are.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use flate2::read::MultiGzDecoder;
use omma_base::{Limits, files::open_regular};

use crate::error::{DataError, Result};

/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file that is read from its beginning, gzip or not. Nothing is unpacked but what was asked for, so that
/// a header can be read and believed before the rest.
pub(super) struct Unpacked {
    path: PathBuf,
    source: Source,
    /// Bytes of the file itself.
    length: u64,
}

enum Source {
    Plain(File),
    Packed(Box<MultiGzDecoder<File>>),
}

impl Unpacked {
    /// Opens a file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fault = || DataError::io(path);
        let mut file = open_regular(path).map_err(fault())?;
        let length = file.metadata().map_err(fault())?.len();
        let mut first = Vec::new();
        file.by_ref().take(GZIP.len() as u64).read_to_end(&mut first).map_err(fault())?;
        file.rewind().map_err(fault())?;
        let source = match first == GZIP {
            true => Source::Packed(Box::new(MultiGzDecoder::new(file))),
            false => Source::Plain(file),
        };
        Ok(Self { path: path.into(), source, length })
    }

    /// The next bytes, fewer than asked for where the file ends.
    pub(super) fn read(&mut self, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader().take(most).read_to_end(&mut bytes).map_err(DataError::io(&self.path))?;
        Ok(bytes)
    }

    /// For headers that read themselves.
    pub(super) fn reader(&mut self) -> &mut dyn Read {
        match &mut self.source {
            Source::Plain(file) => file,
            Source::Packed(packed) => packed,
        }
    }

    /// What is left, if it is exactly so many bytes.
    pub(super) fn exactly(self, promised: u64) -> Result<Rest> {
        let fault = |why: String| DataError::Format { path: self.path.clone(), why };
        if let Source::Packed(_) = self.source {
            Limits::current().check_unpacking(self.length, promised).map_err(fault)?;
        }
        let path = self.path.clone();
        let rest = self.rest_up_to(promised)?;
        match rest.length {
            found if found == promised => Ok(rest),
            found => {
                let found = if found > promised { "more".to_owned() } else { found.to_string() };
                let why = format!("{promised} bytes are promised, {found} are there");
                Err(DataError::Format { path, why })
            }
        }
    }

    /// All that is left.
    pub(super) fn rest(self) -> Result<Rest> {
        let (path, packed) = (self.path.clone(), self.length);
        let limits = Limits::current();
        let most = limits.most_unpacked(packed);
        let rest = self.rest_up_to(most)?;
        match rest.length > most && rest.unpacked {
            false => Ok(rest),
            true => {
                let why = limits.check_unpacking(packed, rest.length).err().unwrap_or_default();
                Err(DataError::Format { path, why })
            }
        }
    }

    /// All that is left; of what is packed, at most one byte more than `most`.
    fn rest_up_to(self, most: u64) -> Result<Rest> {
        let Self { path, source, length } = self;
        let fault = || DataError::io(&path);
        match source {
            Source::Plain(mut file) => {
                let start = file.stream_position().map_err(fault())?;
                let length = length.saturating_sub(start);
                Ok(Rest { path, file, start, length, unpacked: false })
            }
            Source::Packed(packed) => {
                let unpacked = tempfile::tempfile().and_then(|mut file| {
                    let length = io::copy(&mut packed.take(most.saturating_add(1)), &mut file)?;
                    Ok((file, length))
                });
                let (file, length) = unpacked.map_err(|error| {
                    let why = format!("unpacking it into a temporary file: {error}");
                    fault()(io::Error::new(error.kind(), why))
                })?;
                Ok(Rest { path, file, start: 0, length, unpacked: true })
            }
        }
    }
}

/// What follows a header, in its file. What gzip had packed lies in a temporary file without a name, which
/// is gone with the program.
pub(super) struct Rest {
    path: PathBuf,
    file: File,
    start: u64,
    /// Bytes in it.
    pub(super) length: u64,
    unpacked: bool,
}

impl Rest {
    /// All of it.
    pub(super) fn bytes(mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file
            .seek(SeekFrom::Start(self.start))
            .and_then(|_| self.file.take(self.length).read_to_end(&mut bytes))
            .map_err(DataError::io(&self.path))?;
        Ok(bytes)
    }

    /// Records of `size` bytes, one or more.
    pub(super) fn records(self, size: usize) -> Records {
        let count = (self.length / size as u64) as usize;
        Records { path: self.path, file: Mutex::new(self.file), start: self.start, size, count }
    }
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
            let records = file.exactly(200).unwrap().records(2);
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
        let records = Unpacked::open(&path).unwrap().rest().unwrap().records(1);
        let mut file = File::options().write(true).open(&path).unwrap();
        file.write_all(&[9]).unwrap();
        assert_eq!(records.get(0).unwrap(), [9]);
        file.set_len(10).unwrap();
        let message = records.get(50).unwrap_err().to_string();
        assert!(message.contains("records"), "{message}");
    }

    #[test]
    fn nothing_is_unpacked_that_was_not_promised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bomb.gz");
        // Two gigabytes of zeros, a megabyte at a time in members of their own: 2 MB on disk.
        let million = packed(&vec![0; 1 << 20]);
        std::fs::write(&path, million.repeat(2_000)).unwrap();
        let open = || Unpacked::open(&path).unwrap();
        let begun = std::time::Instant::now();
        let message = open().exactly(5).err().unwrap().to_string();
        assert!(message.contains("more are there"), "{message}");
        let message = open().exactly(2_000 << 20).err().unwrap().to_string();
        assert!(message.contains("--max-unpacked"), "{message}");
        assert!(begun.elapsed().as_secs_f64() < 2.0, "it was unpacked");
        let message = open().rest().err().unwrap().to_string();
        assert!(message.contains("--max-unpacked"), "{message}");
    }

    #[test]
    fn a_packed_file_that_ends_early_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records.gz");
        let bytes = packed(&numbered());
        std::fs::write(&path, &bytes[..bytes.len() - 12]).unwrap();
        let message = Unpacked::open(&path).unwrap().rest().err().unwrap().to_string();
        assert!(message.contains("records.gz") && message.contains("unpacking"), "{message}");
        assert!(Unpacked::open(folder.path()).is_err());
        assert!(Unpacked::open(&folder.path().join("none")).is_err());
    }
}
