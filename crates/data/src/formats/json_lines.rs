//! JSON lines: a table of images with an object per line.

use std::{
    io::{BufRead, BufReader},
    path::Path,
};

use omma_base::files::open_regular;
use serde_json::{Map, Value};

use super::{
    columns::{Columns, IMAGE, LABEL},
    json_words::captions,
    table::{ImageTable, Row},
};
use crate::error::{DataError, Result};

impl ImageTable {
    /// Reads a file of JSON lines, not the images. Paths are relative to it.
    pub fn json_lines(path: &Path) -> Result<Self> {
        Self::json_lines_as(path, &Columns::default(), None)
    }

    /// Reads lines of which the user says something, perhaps of a split whose classes another split has named.
    pub(super) fn json_lines_as(
        path: &Path,
        said: &Columns,
        known: Option<&[String]>,
    ) -> Result<Self> {
        let file = open_regular(path).map_err(DataError::io(path))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut rows = Vec::new();
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(DataError::io(path))?;
            let line = line.trim_start_matches('\u{feff}').trim();
            if line.is_empty() {
                continue;
            }
            rows.push(row(line, folder, said).map_err(|why| DataError::Format {
                path: path.into(),
                why: format!("line {}: {why}", number + 1),
            })?);
        }
        Self::of(path, rows, known)
    }
}

/// What a line says of an image.
fn row(line: &str, folder: &Path, said: &Columns) -> Result<Row, String> {
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("it is no JSON object: {error}"))?;
    let field = |said: &Option<String>, usual: &[&str]| match said {
        Some(name) => object.get(name).cloned(),
        None => usual.iter().find_map(|name| object.get(*name)).cloned(),
    };
    let there = || {
        let names: Vec<&str> = object.keys().map(String::as_str).take(20).collect();
        format!("there is {}; --columns image=…,caption=… takes others", names.join(", "))
    };
    let file = match field(&said.image, IMAGE) {
        Some(Value::String(file)) if !file.is_empty() => folder.join(file),
        _ => {
            let wanted = said.image.clone().unwrap_or_else(|| IMAGE.join(", "));
            return Err(format!("it needs the path of an image ({wanted}); {}", there()));
        }
    };
    let label = match field(&said.label, LABEL) {
        None | Some(Value::Null) => None,
        Some(Value::String(label)) if !label.trim().is_empty() => Some(label.trim().to_owned()),
        Some(Value::Number(label)) => Some(label.to_string()),
        Some(_) => return Err("its label is neither a name nor a number".to_owned()),
    };
    let captions = captions(&object, said.caption.as_deref())?;
    if label.is_none() && captions.is_empty() {
        return Err(format!("it has neither a caption nor a label; {}", there()));
    }
    Ok(Row { file, label, captions })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dataset::Dataset, picture::Picture};

    fn table(text: &str, said: &str) -> (tempfile::TempDir, Result<ImageTable>) {
        let folder = tempfile::tempdir().unwrap();
        Picture::filled(3, 2, [1, 2, 3]).save_png(&folder.path().join("a.png")).unwrap();
        let path = folder.path().join("t.jsonl");
        std::fs::write(&path, text).unwrap();
        let said = if said.is_empty() { Columns::default() } else { said.parse().unwrap() };
        (folder, ImageTable::json_lines_as(&path, &said, None))
    }

    #[test]
    fn lines_are_images_with_captions() {
        let text = "\u{feff}{\"image\": \"a.png\", \"caption\": \"one\", \"size\": [1, 2]}\r\n\n\
                    {\"file_name\": \"b.png\", \"captions\": [\"two\", \"three\"]}\n\
                    {\"path\": \"a.png\", \"text\": \"four\"}";
        let (_folder, data) = table(text, "");
        let data = data.unwrap();
        assert!(data.has_captions() && data.classes().is_empty());
        let captions: Vec<_> = (0..data.len()).map(|i| data.captions(i).unwrap()).collect();
        assert_eq!(captions, [vec!["one", "four"], vec!["two", "three"]]);
        assert_eq!(data.get(0).unwrap().picture, Picture::filled(3, 2, [1, 2, 3]));
        assert!(data.get(1).unwrap_err().to_string().contains("b.png"));
    }

    #[test]
    fn labels_are_names_or_numbers_and_fields_may_be_named() {
        let text = "{\"photo\": \"a.png\", \"kind\": 2, \"alt\": \"one\"}\n\
                    {\"photo\": \"b.png\", \"kind\": 0, \"alt\": null}\n";
        let (_folder, data) = table(text, "image=photo,label=kind,caption=alt");
        let data = data.unwrap();
        assert_eq!((data.classes().len(), data.label(0), data.label(1)), (3, 2, 0));
        assert_eq!(data.captions(0).unwrap(), ["one"]);
    }

    #[test]
    fn lines_that_cannot_be_used_say_why() {
        for (text, why) in [
            ("", "no rows"),
            ("{\"image\": \"a.png\", \"caption\": \"x\"}\n[1]", "line 2: it is no JSON object"),
            ("{\"image\": \"a.png\", \"capt", "line 1: it is no JSON object"),
            ("{\"photo\": \"a.png\", \"caption\": \"x\"}", "there is caption, photo; --columns"),
            ("{\"image\": \"a.png\", \"size\": 3}", "neither a caption nor a label"),
            ("{\"image\": \"a.png\", \"caption\": \" \"}", "none of its images has a caption"),
            ("{\"image\": \"a.png\", \"label\": []}", "neither a name nor a number"),
        ] {
            let message = table(text, "").1.unwrap_err().to_string();
            assert!(message.contains(why) && message.contains("t.jsonl"), "{message}");
        }
    }
}
