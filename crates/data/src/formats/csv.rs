//! A table of images: a CSV or TSV file with a column of paths and one of labels or captions.

use std::{collections::VecDeque, io::Read, path::Path};

use csv::StringRecord;
use omma_base::files::open_regular;

use super::{
    assumed::say_assumed,
    columns::{Columns, Layout},
    table::{ImageTable, Row},
};
use crate::error::{DataError, Result};

/// A row behind the last one. Where a quoted field was left open, it ends up inside that field.
const END: &str = "\n\u{1}end of the table\u{1}\n";

/// Rows by which the columns of a table without a header are told.
const LOOKED_AT: usize = 1000;

impl ImageTable {
    /// Reads a CSV or TSV file, not the images. Paths are relative to it.
    pub fn csv(path: &Path) -> Result<Self> {
        Self::csv_as(path, &Columns::default(), None)
    }

    /// Reads a table of which the user says something, perhaps of a split whose classes another split has
    /// named.
    pub(super) fn csv_as(path: &Path, said: &Columns, known: Option<&[String]>) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let tabs = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tsv"));
        let file = open_regular(path).map_err(DataError::io(path))?;
        let reader = csv::ReaderBuilder::new()
            .delimiter(if tabs { b'\t' } else { b',' })
            .flexible(true)
            .has_headers(false)
            .from_reader(file.chain(END.as_bytes()));
        let mut records = reader.into_records().map(|record| {
            let record = record.map_err(|error| fault(error.to_string()))?;
            let is_end = record.len() == 1 && record[0] == *END.trim();
            Ok(Some(record).filter(|_| !is_end))
        });
        let mut next = || records.next().transpose().map(Option::flatten);
        let is_open = |record: &StringRecord| record.iter().any(|field| field.contains(END.trim()));
        let first = next()?.ok_or_else(|| fault("it is empty".to_owned()))?;
        if is_open(&first) {
            return Err(fault("a quoted field of its first row has no end".to_owned()));
        }
        let mut ahead = VecDeque::from([first.clone()]);
        while ahead.len() < LOOKED_AT {
            let Some(record) = next()? else { break };
            ahead.push_back(record);
        }
        let cells: Vec<Vec<&str>> =
            ahead.iter().map(|record| record.iter().map(trimmed).collect()).collect();
        let folder = path.parent().unwrap_or(Path::new(""));
        let layout = Layout::of(&cells, folder, said).map_err(fault)?;
        if layout.has_header {
            ahead.pop_front();
        } else {
            say_assumed(path, &format!("it has no header; {layout} (--columns says otherwise)"));
        }
        let mut rows = Vec::new();
        while let Some(record) = ahead.pop_front().map_or_else(&mut next, |row| Ok(Some(row)))? {
            let number = rows.len() + 1;
            if is_open(&record) {
                return Err(fault(format!(
                    "a quoted field of row {number} has no end, so that it takes in the rest of the table"
                )));
            }
            if record.len() != first.len() {
                return Err(fault(format!(
                    "row {number} has {} fields, and the {} {}",
                    record.len(),
                    if layout.has_header { "header" } else { "first row" },
                    first.len()
                )));
            }
            let field = |place: usize| trimmed(record.get(place).unwrap_or_default()).to_owned();
            let label = layout.label.map(field);
            if label.as_deref() == Some("") {
                return Err(fault(format!("row {number} has no label")));
            }
            let captions = layout.caption.map(field).into_iter().collect();
            rows.push(Row { file: folder.join(field(layout.image)), label, captions });
        }
        Self::of(path, rows, known)
    }
}

/// A cell without the mark of its encoding and space around it.
fn trimmed(cell: &str) -> &str {
    cell.trim_start_matches('\u{feff}').trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dataset::Dataset, picture::Picture};

    fn table(name: &str, text: &str) -> (tempfile::TempDir, Result<ImageTable>) {
        let folder = tempfile::tempdir().unwrap();
        Picture::filled(3, 2, [1, 2, 3]).save_png(&folder.path().join("a, b.png")).unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
        let table = ImageTable::csv(&folder.path().join(name));
        (folder, table)
    }

    #[test]
    fn columns_may_be_in_any_order_and_quoted() {
        let text = "\u{feff}Label,extra,PATH,caption\r\ndog,1,\"a, b.png\",\"small, \"\"dark\"\"\"\r\n\
                    cat,2,missing.png,none\r\n";
        let (_folder, table) = table("t.csv", text);
        let table = table.unwrap();
        assert_eq!(table.classes(), ["cat", "dog"]);
        assert_eq!(table.len(), 2);
        let sample = table.get(0).unwrap();
        assert_eq!((sample.label, sample.captions), (1, vec!["small, \"dark\"".to_owned()]));
        assert_eq!(sample.picture, Picture::filled(3, 2, [1, 2, 3]));
        let message = table.get(1).unwrap_err().to_string();
        assert!(message.contains("missing.png"), "{message}");
    }

    #[test]
    fn tabs_and_captions_alone_will_do() {
        let (_folder, table) = table("t.tsv", "image\ttext\na, b.png\tone, two\n");
        let table = table.unwrap();
        let sample = table.get(0).unwrap();
        assert!(table.has_captions() && table.classes().is_empty());
        assert_eq!((sample.label, sample.captions), (0, vec!["one, two".to_owned()]));
    }

    #[test]
    fn a_table_without_a_header_is_all_rows() {
        for (name, text) in [
            ("t.tsv", "\u{feff}a, b.png\tdog\nc.png\tcat\n"),
            ("t.csv", "\"a, b.png\",dog\nc.png,cat\n"),
        ] {
            let (_folder, table) = table(name, text);
            let table = table.unwrap();
            assert_eq!(
                (table.len(), table.classes()),
                (2, &["cat".to_owned(), "dog".to_owned()][..])
            );
            assert_eq!(table.get(0).unwrap().label, 1);
            assert_eq!(table.get(0).unwrap().picture, Picture::filled(3, 2, [1, 2, 3]));
        }
        let message = table("t.tsv", "a, b.png\tdog\nc.png\n").1.unwrap_err().to_string();
        assert!(message.contains("row 2 has 1 fields, and the first row 2"), "{message}");
    }

    #[test]
    fn sentences_are_captions_even_without_a_header() {
        let numbered =
            "a, b.png\t0\tA dog runs .\na, b.png\t1\tA cat , or \"two\"\nc.png\t0\tOne owl\n";
        let (_folder, table) = table("t.tsv", numbered);
        let table = table.unwrap();
        assert_eq!((table.len(), table.classes().len()), (2, 0));
        assert_eq!(table.captions(0).unwrap(), ["A dog runs .", "A cat , or \"two\""]);
    }

    #[test]
    fn a_table_that_cannot_be_used_says_why() {
        for (text, why) in [
            ("", "it is empty"),
            ("label\n1\n", "column of paths"),
            ("path,size\na.png,3\n", "column of labels"),
            ("path,label\n", "no rows"),
            ("path,label\na.png,\n", "row 1 has no label"),
            ("path,label\na.png,1,2,3\n", "fields"),
            ("path,label\na.png,1\nb.p", "row 2 has 1 fields"),
            ("path,label\n\"a.png,1\nb.png,1\nc.png,2\n", "no end"),
            ("path,label\na.png,1\n\"b.png\",\"1\nc.png,2\n", "no end"),
            ("path,\"label\na.png,1\n", "first row has no end"),
        ] {
            let message = table("t.csv", text).1.unwrap_err().to_string();
            assert!(message.contains(why) && message.contains("t.csv"), "{message}");
        }
        assert!(ImageTable::csv(Path::new("no/such.csv")).is_err());
    }
}
