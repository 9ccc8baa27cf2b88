//! A table of images: a CSV or TSV file with a column of paths and one of labels or captions.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use omma_base::files::open_regular;

use super::classes::{check_classes, classes, places};
use crate::{
    dataset::{Dataset, Sample},
    error::{DataError, Result},
    picture::Picture,
};

/// Column names that are understood.
const IMAGE: &[&str] = &["image", "path", "file", "filepath", "filename"];
const LABEL: &[&str] = &["label", "class", "target"];
const CAPTION: &[&str] = &["caption", "text", "title"];

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
        Self::read_as(path, None)
    }

    /// Reads the table of a split whose classes another split has named.
    pub(super) fn read_as(path: &Path, known: Option<&[String]>) -> Result<Self> {
        let fault = |why: String| DataError::Format { path: path.into(), why };
        let tabs = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tsv"));
        let file = open_regular(path).map_err(DataError::io(path))?;
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(if tabs { b'\t' } else { b',' })
            .flexible(true)
            .from_reader(file.chain(END.as_bytes()));
        let header = reader.headers().map_err(|error| fault(error.to_string()))?.clone();
        let column = |names: &[&str]| {
            let known = |name: &str| names.iter().any(|known| name.eq_ignore_ascii_case(known));
            header.iter().position(|name| known(name.trim_start_matches('\u{feff}').trim()))
        };
        let image = column(IMAGE).ok_or_else(|| {
            fault(format!("it needs a column of paths, called one of {}", IMAGE.join(", ")))
        })?;
        let (label, caption) = (column(LABEL), column(CAPTION));
        if label.is_none() && caption.is_none() {
            return Err(fault(format!(
                "it needs a column of labels ({}) or captions ({})",
                LABEL.join(", "),
                CAPTION.join(", ")
            )));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let open =
            |record: &csv::StringRecord| record.iter().any(|field| field.contains(END.trim()));
        let mut rows = Vec::new();
        for (number, record) in reader.records().enumerate() {
            let record = record.map_err(|error| fault(error.to_string()))?;
            if record.len() == 1 && record[0] == *END.trim() {
                break;
            }
            if open(&record) {
                return Err(fault(format!(
                    "a quoted field of row {} has no end, so that it takes in the rest of the table",
                    number + 1
                )));
            }
            if record.len() != header.len() {
                return Err(fault(format!(
                    "row {} has {} fields, and the header {}",
                    number + 1,
                    record.len(),
                    header.len()
                )));
            }
            let field = |place: usize| record.get(place).unwrap_or_default().trim().to_owned();
            // Without labels, all images are of one class.
            let label = label.map_or("0".to_owned(), field);
            if label.is_empty() {
                return Err(fault(format!("row {} has no label", number + 1)));
            }
            rows.push((folder.join(field(image)), label, caption.map(field)));
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
        Ok(Sample { caption: caption.clone(), ..Sample::new(Picture::open(file)?, *label) })
    }

    fn name(&self, index: usize) -> String {
        self.rows[index].0.to_string_lossy().into_owned()
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
        assert_eq!((sample.label, sample.caption.as_deref()), (1, Some("small, \"dark\"")));
        assert_eq!(sample.picture, Picture::filled(3, 2, [1, 2, 3]));
        let message = table.get(1).unwrap_err().to_string();
        assert!(message.contains("missing.png"), "{message}");
    }

    #[test]
    fn tabs_and_captions_alone_will_do() {
        let (_folder, table) = table("t.tsv", "image\ttext\na, b.png\tone, two\n");
        let sample = table.unwrap().get(0).unwrap();
        assert_eq!((sample.label, sample.caption.as_deref()), (0, Some("one, two")));
    }

    #[test]
    fn a_table_that_cannot_be_used_says_why() {
        for (text, why) in [
            ("", "column of paths"),
            ("label\n1\n", "column of paths"),
            ("path,size\na.png,3\n", "column of labels"),
            ("path,label\n", "no rows"),
            ("path,label\na.png,\n", "row 1 has no label"),
            ("path,label\na.png,1,2,3\n", "fields"),
            ("path,label\na.png,1\nb.p", "row 2 has 1 fields"),
            ("path,label\n\"a.png,1\nb.png,1\nc.png,2\n", "no end"),
            ("path,label\na.png,1\n\"b.png\",\"1\nc.png,2\n", "no end"),
        ] {
            let message = table("t.csv", text).1.unwrap_err().to_string();
            assert!(message.contains(why) && message.contains("t.csv"), "{message}");
        }
        assert!(CsvFile::read(Path::new("no/such.csv")).is_err());
    }
}
