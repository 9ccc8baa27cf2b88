//! The images of parquet files, read a page at a time when they are asked for.

use std::{
    collections::VecDeque,
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use parquet::{
    column::page::PageReader,
    data_type::{ByteArray, ByteArrayType},
    errors::ParquetError,
    file::{metadata::ColumnChunkMetaData, serialized_reader::SerializedPageReader},
};

use super::table::{Table, guarded, values};
use crate::error::{DataError, Result};

/// Pages that are kept, in bytes and in number; the one that was read last is kept at any size.
const MOST_BYTES: u64 = 64 << 20;
const MOST_PAGES: usize = 64;

/// Images of all files, as bytes of image files. A page, which is the least that can be read, has some
/// of them one after the other; a few pages that were used last are in memory.
#[derive(Debug)]
pub(super) struct Images {
    files: Vec<PathBuf>,
    chunks: Vec<Chunk>,
    /// In the order of their rows.
    pages: Vec<Page>,
    recent: Mutex<VecDeque<(usize, Loaded)>>,
}

/// The images of a row group.
#[derive(Debug)]
struct Chunk {
    file: usize,
    /// Rows of the file before it.
    before: usize,
    rows: usize,
    column: ColumnChunkMetaData,
}

/// Where a page is.
#[derive(Debug)]
struct Page {
    chunk: usize,
    /// Rows of all files before it.
    first: usize,
    /// Rows of its row group before it.
    start: usize,
    rows: usize,
    /// About its size in memory, as far as it matters.
    bytes: u64,
}

/// The images of a page, or why there are none. Whoever asks first reads it; others wait.
type Loaded = Arc<OnceLock<Result<Vec<Option<ByteArray>>, String>>>;

impl Images {
    /// Finds the pages; reads their headers only.
    pub(super) fn find(tables: &[Table]) -> Result<Self> {
        let files = tables.iter().map(|table| table.path().to_owned()).collect();
        let mut images =
            Self { files, chunks: Vec::new(), pages: Vec::new(), recent: Mutex::default() };
        for (file, table) in tables.iter().enumerate() {
            let mut before = 0;
            for (number, group) in table.metadata().row_groups().iter().enumerate() {
                let rows = usize::try_from(group.num_rows()).unwrap_or(0);
                let Some(column) = group.columns().get(table.image()).cloned() else {
                    return Err(table.fault(format!("row group {} lacks a column", number + 1)));
                };
                let chunk = Chunk { file, before, rows, column };
                let pages = images.page_rows(&chunk).map_err(|why| table.fault(why))?;
                let found = pages.iter().fold(0usize, |sum, rows| sum.saturating_add(*rows));
                if found != rows {
                    return Err(table.fault(format!(
                        "row group {} has {rows} rows, but {found} rows of images",
                        number + 1
                    )));
                }
                images.add(chunk, &pages);
                before += rows;
            }
        }
        Ok(images)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.pages.last().map_or(0, |page| page.first + page.rows)
    }

    /// The bytes of an image, and what to call it in messages.
    pub(super) fn get(&self, index: usize) -> Result<(ByteArray, PathBuf)> {
        let number = self.pages.partition_point(|page| page.first <= index) - 1;
        let page = &self.pages[number];
        let chunk = &self.chunks[page.chunk];
        let row = index - page.first;
        let name = format!("row {}", chunk.before + page.start + row + 1);
        let path = self.files[chunk.file].join(name);
        let loaded = self.loaded(number);
        match loaded.get_or_init(|| self.load(page)) {
            Ok(images) => match &images[row] {
                Some(bytes) => Ok((bytes.clone(), path)),
                None => Err(DataError::NotAnImage { path, why: "it has no bytes".to_owned() }),
            },
            Err(why) => Err(DataError::Format { path, why: why.clone() }),
        }
    }

    /// Rows of the pages of a row group, from their headers.
    fn page_rows(&self, chunk: &Chunk) -> Result<Vec<usize>, String> {
        guarded(|| {
            let mut reader = self.reader(chunk)?;
            let mut all = Vec::new();
            while let Some(page) = reader.peek_next_page()? {
                reader.skip_next_page()?;
                let rows = page.num_rows.or(page.num_levels).unwrap_or(0);
                if !page.is_dict && rows > 0 {
                    all.push(rows);
                }
            }
            Ok(all)
        })
    }

    fn add(&mut self, chunk: Chunk, pages: &[usize]) {
        let of_row = chunk.column.uncompressed_size().max(0) as u64 / chunk.rows.max(1) as u64;
        let mut start = 0;
        for &rows in pages {
            let bytes = of_row.saturating_mul(rows as u64).min(MOST_BYTES);
            self.pages.push(Page {
                chunk: self.chunks.len(),
                first: self.len(),
                start,
                rows,
                bytes,
            });
            start += rows;
        }
        self.chunks.push(chunk);
    }

    /// The pages of a row group. A file that is opened anew has a position of its own.
    fn reader(&self, chunk: &Chunk) -> Result<SerializedPageReader<File>, ParquetError> {
        let file = Arc::new(File::open(&self.files[chunk.file])?);
        SerializedPageReader::new(file, &chunk.column, chunk.rows, None)
    }

    fn load(&self, page: &Page) -> Result<Vec<Option<ByteArray>>, String> {
        let chunk = &self.chunks[page.chunk];
        guarded(|| {
            let reader = Box::new(self.reader(chunk)?);
            let column = chunk.column.column_descr_ptr();
            values::<ByteArrayType>(reader, column, page.start, page.rows)
        })
    }

    /// The place of a page in memory, made if there is none; what was used longest ago goes.
    fn loaded(&self, number: usize) -> Loaded {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recent.iter().position(|(page, _)| *page == number);
        let entry = known.and_then(|place| recent.remove(place));
        let (_, loaded) = entry.unwrap_or_else(|| (number, Loaded::default()));
        recent.push_front((number, loaded.clone()));
        let mut bytes: u64 = recent.iter().map(|(page, _)| self.pages[*page].bytes).sum();
        while recent.len() > 1 && (recent.len() > MOST_PAGES || bytes > MOST_BYTES) {
            let gone = recent.pop_back();
            bytes -= gone.map_or(0, |(page, _)| self.pages[page].bytes);
        }
        loaded
    }

    /// Pages in memory.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> usize {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
