//! A table of images: a CSV or TSV file with a column of paths and one of labels or captions.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use omma_base::files::open_regular;

use super::{
    assumed::say_assumed,
    classes::{check_classes, classes, places},
    columns::{Columns, Layout},
};
use crate::{
    dataset::{Dataset, Sample},
    error::{DataError, Result},
    picture::Picture,
};

/// A row behind the last one. Where a quoted field was left open, it ends up inside that field.
const END: &str = "\n\u{1}end of the table\u{1}\n";

/// Images named in a table. Paths are relative to the table.
#[derive(Debug)]
pub struct CsvFile {
    classes: Vec<String>,
    rows: Vec<(PathBuf, usize, Option<String>)>,
}

impl CsvFile {
    /// Reads the table, not the images.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_as(path, &Columns::default(), None)
    }

    /// Reads a table of which the user says something, perhaps of a split whose classes another split has
    /// named.
    pub(super) fn read_as(path: &Path, said: &Columns, known: Option<&[String]>) -> Result<Self> {
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
        let is_open =
            |record: &csv::StringRecord| record.iter().any(|field| field.contains(END.trim()));
        let first = next()?.ok_or_else(|| fault("it is empty".to_owned()))?;
        if is_open(&first) {
            return Err(fault("a quoted field of its first row has no end".to_owned()));
        }
        let cells: Vec<&str> =
            first.iter().map(|cell| cell.trim_start_matches('\u{feff}').trim()).collect();
        let folder = path.parent().unwrap_or(Path::new(""));
        let layout = Layout::of(&cells, folder, said).map_err(fault)?;
        let mut row = if layout.has_header { next()? } else { Some(first.clone()) };
        if !layout.has_header {
            say_assumed(path, &format!("it has no header; {layout} (--columns says otherwise)"));
        }
        let mut rows = Vec::new();
        while let Some(record) = row {
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
            let field = |place: usize| {
                let field = record.get(place).unwrap_or_default();
                field.trim_start_matches('\u{feff}').trim().to_owned()
            };
            // Without labels, all images are of one class.
            let label = layout.label.map_or("0".to_owned(), field);
            if label.is_empty() {
                return Err(fault(format!("row {number} has no label")));
            }
            rows.push((folder.join(field(layout.image)), label, layout.caption.map(field)));
            row = next()?;
        }
        if rows.is_empty() {
            return Err(fault("it has no rows".to_owned()));
        }
        let classes = match known {
            Some(known) => known.to_vec(),
            None => classes(rows.iter().map(|(_, label, _)| label.as_str())),
        };
        check_classes(path, classes.len())?;
        let places = places(&classes);
        let rows = rows.into_iter().map(|(file, label, caption)| {
            let place = places.get(label.as_str());
            let place = place
                .ok_or_else(|| fault(format!("the training images have no class {label:?}")))?;
            Ok((file, *place, caption))
        });
        let rows = rows.collect::<Result<_>>()?;
        Ok(Self { classes, rows })
    }
}

impl Dataset for CsvFile {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn label(&self, index: usize) -> usize {
        self.rows[index].1
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (file, label, caption) = &self.rows[index];
        Ok(Sample {
            captions: caption.iter().cloned().collect(),
            ..Sample::new(Picture::open(file)?, *label)
        })
    }

    fn name(&self, index: usize) -> String {
        self.rows[index].0.to_string_lossy().into_owned()
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(self.rows[index].2.iter().cloned().collect())
    }

    fn has_captions(&self) -> bool {
        self.rows.iter().any(|(_, _, caption)| caption.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, text: &str) -> (tempfile::TempDir, Result<CsvFile>) {
        let folder = tempfile::tempdir().unwrap();
        Picture::filled(3, 2, [1, 2, 3]).save_png(&folder.path().join("a, b.png")).unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
        let table = CsvFile::read(&folder.path().join(name));
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
        let sample = table.unwrap().get(0).unwrap();
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
        assert!(CsvFile::read(Path::new("no/such.csv")).is_err());
    }
}
