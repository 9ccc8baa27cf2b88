//! One parquet file as a table of images: which column is what, and what is in the small ones.

use std::{
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use parquet::{
    basic::{ConvertedType, Type},
    column::{page::PageReader, reader::ColumnReaderImpl},
    data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, ParquetStatisticsPolicy},
        reader::{FileReader, SerializedFileReader},
        serialized_reader::ReadOptionsBuilder,
    },
    schema::types::{ColumnDescPtr, ColumnDescriptor},
};

use crate::error::{DataError, Result};

/// Column names that are understood, the best first. Any other column of images will do too.
const IMAGE: &[&str] = &["image", "img"];
const LABEL: &[&str] = &["label", "fine_label", "labels", "class", "target"];
const CAPTION: &[&str] = &["caption", "captions", "text", "title", "description"];

/// An open file with a column of images and one of labels or captions.
pub(super) struct Table {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    rows: usize,
    image: usize,
    label: Option<usize>,
    caption: Option<usize>,
}

/// The labels of a file, one per row.
pub(super) enum Labels {
    Numbers(Vec<i64>),
    Words(Vec<String>),
    /// So many rows without any.
    Absent(usize),
}

impl Table {
    /// Reads what the file says of itself, and nothing of its rows.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let file = File::open(path).map_err(DataError::io(path))?;
        let options = ReadOptionsBuilder::new()
            .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
            .build();
        let reader = guarded(|| SerializedFileReader::new_with_options(file, options));
        let reader = reader.map_err(fault)?;
        let columns = reader.metadata().file_metadata().schema_descr().columns();
        let image = image(columns).ok_or_else(|| {
            fault("it needs a column of images: of bytes, or of a struct with bytes".to_owned())
        })?;
        let label = named(columns, LABEL, |column| match column.physical_type() {
            Type::BOOLEAN | Type::INT32 | Type::INT64 => true,
            Type::BYTE_ARRAY => column.converted_type() != ConvertedType::DECIMAL,
            _ => false,
        });
        let caption = captions(columns);
        if label.is_none() && caption.is_none() {
            return Err(fault(format!(
                "it needs a column of labels ({}), numbers or words, or one of captions ({})",
                LABEL.join(", "),
                CAPTION.join(", ")
            )));
        }
        let rows = reader.metadata().row_groups().iter().try_fold(0usize, |rows, group| {
            rows.checked_add(usize::try_from(group.num_rows()).ok()?)
        });
        let rows =
            rows.filter(|rows| *rows > 0).ok_or_else(|| fault("it has no rows".to_owned()))?;
        Ok(Self { path: path.into(), reader, rows, image, label, caption })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What it says of itself.
    pub(super) fn metadata(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    /// An error about it.
    pub(super) fn fault(&self, why: String) -> DataError {
        DataError::Format { path: self.path.clone(), why }
    }

    /// The place of the images among its columns.
    pub(super) fn image(&self) -> usize {
        self.image
    }

    /// Names of the classes, if Hugging Face's note in the file has them.
    pub(super) fn class_names(&self) -> Option<Vec<String>> {
        let metadata = self.metadata().file_metadata();
        let column = metadata.schema_descr().column(self.label?);
        let note = metadata.key_value_metadata()?.iter().find(|note| note.key == "huggingface")?;
        let note: serde_json::Value = serde_json::from_str(note.value.as_deref()?).ok()?;
        let names = note["info"]["features"][column.name()]["names"].as_array()?;
        let names = names.iter().map(|name| name.as_str().map(str::to_owned));
        names.collect::<Option<Vec<_>>>().filter(|names| !names.is_empty())
    }

    /// The label of every row.
    pub(super) fn labels(&self) -> Result<Labels> {
        let Some(label) = self.label else { return Ok(Labels::Absent(self.rows)) };
        let column = self.metadata().file_metadata().schema_descr().column(label);
        Ok(match column.physical_type() {
            Type::BOOLEAN => Labels::Numbers(self.all::<BoolType, _>(label, i64::from)?),
            Type::INT32 => Labels::Numbers(self.all::<Int32Type, _>(label, i64::from)?),
            Type::INT64 => Labels::Numbers(self.all::<Int64Type, _>(label, |number| number)?),
            _ => Labels::Words(self.all::<ByteArrayType, _>(label, text)?),
        })
    }

    /// The captions of every row; empty ones are none.
    pub(super) fn captions(&self) -> Result<Vec<Vec<String>>> {
        let Some(caption) = self.caption else { return Ok(vec![Vec::new(); self.rows]) };
        let rows = self.column_of_lists(caption)?;
        let words = |row: Vec<ByteArray>| {
            let texts = row.into_iter().map(|bytes| text(bytes).trim().to_owned());
            texts.filter(|text| !text.is_empty()).collect()
        };
        Ok(rows.into_iter().map(words).collect())
    }

    /// A column of texts or of lists of texts, all of every row.
    fn column_of_lists(&self, number: usize) -> Result<Vec<Vec<ByteArray>>> {
        let column = self.metadata().file_metadata().schema_descr().column(number);
        let lists = guarded(|| {
            let mut all = Vec::new();
            for group in 0..self.metadata().num_row_groups() {
                let group = self.reader.get_row_group(group)?;
                let rows = usize::try_from(group.metadata().num_rows())?;
                let pages = group.get_column_page_reader(number)?;
                all.extend(lists(pages, column.clone(), rows)?);
            }
            Ok(all)
        });
        lists.map_err(|why| self.fault(why))
    }

    /// A column of labels, none of which may be missing.
    fn all<T: DataType, U>(&self, number: usize, change: impl Fn(T::T) -> U) -> Result<Vec<U>> {
        let values = self.column::<T>(number)?.into_iter().enumerate().map(|(row, value)| {
            let missing = || self.fault(format!("row {} has no label", row + 1));
            value.map(&change).ok_or_else(missing)
        });
        values.collect()
    }

    fn column<T: DataType>(&self, number: usize) -> Result<Vec<Option<T::T>>> {
        let column = self.metadata().file_metadata().schema_descr().column(number);
        let values = guarded(|| {
            let mut all = Vec::new();
            for group in 0..self.metadata().num_row_groups() {
                let group = self.reader.get_row_group(group)?;
                let rows = usize::try_from(group.metadata().num_rows())?;
                let pages = group.get_column_page_reader(number)?;
                all.extend(values::<T>(pages, column.clone(), 0, rows)?);
            }
            Ok(all)
        });
        values.map_err(|why| self.fault(why))
    }
}

/// Values of a column from row `start` on, nothing where it is null.
pub(super) fn values<T: DataType>(
    pages: Box<dyn PageReader>,
    column: ColumnDescPtr,
    start: usize,
    rows: usize,
) -> Result<Vec<Option<T::T>>, ParquetError> {
    let present = column.max_def_level();
    let mut reader = ColumnReaderImpl::<T>::new(column, pages);
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let skipped = reader.skip_records(start)?;
    let (read, _, _) = reader.read_records(rows, Some(&mut levels), None, &mut values)?;
    if (skipped, read) != (start, rows) {
        return Err(ParquetError::EOF("a column ends before the table does".to_owned()));
    }
    if present == 0 {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    let value = |level: &i16| if *level == present { values.next() } else { None };
    Ok(levels.iter().map(value).collect())
}

/// All values of each of so many rows: a row has as many as its list is long, or one or none.
fn lists(
    pages: Box<dyn PageReader>,
    column: ColumnDescPtr,
    rows: usize,
) -> Result<Vec<Vec<ByteArray>>, ParquetError> {
    if column.max_rep_level() == 0 {
        let values = values::<ByteArrayType>(pages, column, 0, rows)?;
        return Ok(values.into_iter().map(|value| value.into_iter().collect()).collect());
    }
    let present = column.max_def_level();
    let mut reader = ColumnReaderImpl::<ByteArrayType>::new(column, pages);
    let (mut values, mut levels, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    let (read, _, _) =
        reader.read_records(rows, Some(&mut levels), Some(&mut repeated), &mut values)?;
    let (mut values, mut lists) = (values.into_iter(), Vec::<Vec<ByteArray>>::new());
    for (level, repeated) in levels.iter().zip(repeated) {
        if repeated == 0 {
            lists.push(Vec::new());
        }
        if let (true, Some(list)) = (*level == present, lists.last_mut()) {
            list.extend(values.next());
        }
    }
    match (read, lists.len()) == (rows, rows) {
        true => Ok(lists),
        false => Err(ParquetError::EOF("a column ends before the table does".to_owned())),
    }
}

/// What the parquet library makes of a file, or why nothing. It asserts some of what a damaged file may
/// break, which is an error like any other here.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("it is damaged".to_owned()),
    }
}

fn text(bytes: ByteArray) -> String {
    String::from_utf8_lossy(bytes.data()).into_owned()
}

/// The first column of these names that is of a form that will do.
fn named(
    columns: &[ColumnDescPtr],
    names: &[&str],
    will_do: impl Fn(&ColumnDescriptor) -> bool,
) -> Option<usize> {
    let place = |name: &&str| {
        columns.iter().position(|column| {
            let parts = column.path().parts();
            parts.len() == 1
                && parts[0].eq_ignore_ascii_case(name)
                && column.max_rep_level() == 0
                && will_do(column)
        })
    };
    names.iter().find_map(place)
}

/// The column of captions: of texts, or of lists of texts, whatever its parts are called.
fn captions(columns: &[ColumnDescPtr]) -> Option<usize> {
    let place = |name: &&str| {
        columns.iter().position(|column| {
            let parts = column.path().parts();
            let is_text = column.physical_type() == Type::BYTE_ARRAY;
            let is_list = parts.len() == 3 && column.max_rep_level() == 1;
            let is_plain = parts.len() == 1 && column.max_rep_level() <= 1;
            is_text && parts[0].eq_ignore_ascii_case(name) && (is_plain || is_list)
        })
    };
    CAPTION.iter().find_map(place)
}

/// The column of images: one that is called so, or else a struct with bytes, or else mere bytes.
fn image(columns: &[ColumnDescPtr]) -> Option<usize> {
    let is =
        |names: &[&str], name: &str| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    let rank = |column: &ColumnDescPtr| {
        let bytes = column.physical_type() == Type::BYTE_ARRAY
            && column.converted_type() == ConvertedType::NONE
            && column.logical_type_ref().is_none()
            && column.max_rep_level() == 0;
        let parts: Vec<&str> = column.path().parts().iter().map(String::as_str).collect();
        match parts[..] {
            [name] | [name, "bytes"] if bytes && is(IMAGE, name) => Some(0),
            [_, "bytes"] if bytes => Some(1),
            [name] if bytes && !is(LABEL, name) && !is(CAPTION, name) => Some(2),
            _ => None,
        }
    };
    let ranked =
        columns.iter().enumerate().filter_map(|(place, column)| Some((rank(column)?, place)));
    ranked.min().map(|(_, place)| place)
}
