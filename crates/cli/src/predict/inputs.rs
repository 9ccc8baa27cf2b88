//! The images that a user means.

use std::{
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use omma_base::{
    Limits,
    files::{files_below, open_regular},
    nearest,
};
use omma_data::{DataError, Picture, formats::is_image};

use crate::table::note;

/// Column names that are taken for paths of images, as in tables to train on.
const IMAGE: [&str; 5] = ["image", "path", "file", "filepath", "filename"];
/// Standard input.
const STDIN: &str = "-";
/// Bytes of standard input: an image is not larger, and lists of a hundred million bytes are.
const MOST_BYTES: u64 = 1 << 30;

/// All images, and what tables say about them.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) images: Vec<Input>,
    /// Columns of the tables, other than those of the images.
    pub(crate) columns: Vec<String>,
}

/// An image that was not read yet.
pub(crate) struct Input {
    /// As the user named it.
    pub(crate) name: String,
    source: Source,
    /// What a table says about it, by column; columns that its table does not have are missing or empty.
    pub(crate) carried: Vec<String>,
}

enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Input {
    fn file(path: PathBuf) -> Self {
        let name = path.display().to_string();
        Self { name, source: Source::File(path), carried: Vec::new() }
    }

    pub(crate) fn open(&self) -> Result<Picture, DataError> {
        match &self.source {
            Source::File(path) => Picture::open(path),
            Source::Bytes(bytes) => Picture::decode(bytes, Path::new("standard input")),
        }
    }
}

impl Inputs {
    /// What texts mean: files, folders, patterns, tables, or `-` for standard input.
    ///
    /// - `image_column`: the column of paths in tables, if it has a name of its own
    pub(crate) fn of(texts: &[String], image_column: Option<&str>) -> Result<Self> {
        let mut inputs = Self::default();
        for text in texts {
            let path = Path::new(text);
            if text == STDIN {
                inputs.read_stdin()?;
            } else if path.is_file() && delimiter(path).is_some() {
                inputs.read_table(path, image_column)?;
            } else {
                inputs.images.extend(expand(text)?.into_iter().map(Input::file));
            }
        }
        Ok(inputs)
    }

    fn read_stdin(&mut self) -> Result<()> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            note("paths of images from standard input, one per line; Ctrl-D ends them");
        }
        let mut bytes = Vec::new();
        let most = MOST_BYTES.max(Limits::current().pixels.saturating_mul(8));
        stdin.lock().take(most).read_to_end(&mut bytes).context("standard input")?;
        self.add_stream(bytes)
    }

    /// The bytes of an image, or paths line by line.
    fn add_stream(&mut self, bytes: Vec<u8>) -> Result<()> {
        if begins_an_image(&bytes) {
            let (name, source) = (STDIN.to_owned(), Source::Bytes(bytes));
            self.images.push(Input { name, source, carried: Vec::new() });
            return Ok(());
        }
        let Ok(text) = String::from_utf8(bytes) else {
            bail!(
                "standard input is neither an image (JPEG, PNG, WebP, BMP) nor text with the path of an \
                 image on every line"
            );
        };
        let before = self.images.len();
        for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
            let path = Path::new(line);
            match path.is_dir() {
                true => self.images.extend(below(path)?.into_iter().map(Input::file)),
                false => self.images.push(Input::file(path.to_owned())),
            }
        }
        match self.images.len() > before {
            true => Ok(()),
            false => bail!("standard input names no image; write a path on every line"),
        }
    }

    /// The images of a table, with its other columns. Paths are relative to the table.
    fn read_table(&mut self, path: &Path, image_column: Option<&str>) -> Result<()> {
        let shown = path.display();
        let file = open_regular(path).with_context(|| shown.to_string())?;
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(delimiter(path).unwrap_or(b','))
            .from_reader(std::io::BufReader::new(file));
        let header = reader.headers().with_context(|| shown.to_string())?.clone();
        let names: Vec<&str> =
            header.iter().map(|name| name.trim_start_matches('\u{feff}').trim()).collect();
        let image = match image_column {
            Some(wanted) => names.iter().position(|name| *name == wanted).with_context(|| {
                let hint = nearest(wanted, names.iter().copied());
                format!("{shown} has no column \"{wanted}\"{hint}")
            })?,
            None => {
                let known =
                    |name: &&str| IMAGE.iter().any(|known| name.eq_ignore_ascii_case(known));
                names.iter().position(known).with_context(|| {
                    format!(
                        "{shown} has none of the columns {}; say which one has the paths with \
                         --image-column, or give the paths alone: cut -f 1 TABLE | omma predict RUN -",
                        IMAGE.join(", ")
                    )
                })?
            }
        };
        let places: Vec<Option<usize>> = names
            .iter()
            .enumerate()
            .map(|(column, name)| (column != image).then(|| self.column(name)))
            .collect();
        let folder = path.parent().unwrap_or(Path::new(""));
        let before = self.images.len();
        for record in reader.records() {
            let record = record.with_context(|| shown.to_string())?;
            let name = record.get(image).unwrap_or_default().trim().to_owned();
            let source = Source::File(folder.join(&name));
            let mut carried = vec![String::new(); self.columns.len()];
            for (field, place) in record.iter().zip(&places) {
                if let Some(cell) = place.and_then(|place| carried.get_mut(place)) {
                    field.clone_into(cell);
                }
            }
            self.images.push(Input { name, source, carried });
        }
        match self.images.len() > before {
            true => Ok(()),
            false => bail!("{shown} has no rows"),
        }
    }

    /// The place of a column, which is made if no table has had it.
    fn column(&mut self, name: &str) -> usize {
        let place = self.columns.iter().position(|known| known == name);
        place.unwrap_or_else(|| {
            self.columns.push(name.to_owned());
            self.columns.len() - 1
        })
    }
}

/// What stands between the fields of a table; nothing for a file that is none.
fn delimiter(path: &Path) -> Option<u8> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "csv" => Some(b','),
        "tsv" => Some(b'\t'),
        _ => None,
    }
}

/// Whether bytes begin as one of the images that are read; a list of paths does not.
fn begins_an_image(bytes: &[u8]) -> bool {
    let part =
        |from: usize, expected: &[u8]| bytes.get(from..).is_some_and(|b| b.starts_with(expected));
    part(0, b"\xff\xd8\xff")
        || part(0, b"\x89PNG\r\n\x1a\n")
        || (part(0, b"RIFF") && part(8, b"WEBP"))
        || (part(0, b"BM") && part(6, &[0; 4]))
}

fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    files_below(folder, is_image)
        .map_err(|(path, error)| anyhow!(error).context(path.display().to_string()))
}

/// The images that a text means: a file, all below a folder, or those that match a pattern.
fn expand(text: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(text);
    let mut found = Vec::new();
    if path.is_dir() {
        found = below(path)?;
    } else if path.exists() {
        found.push(path.to_owned());
    } else {
        let matches = glob::glob(text).with_context(|| format!("{text} is not a pattern"))?;
        for entry in matches {
            let entry = entry?;
            match entry.is_dir() {
                true => found.extend(below(&entry)?),
                false => found.push(entry),
            }
        }
    }
    if found.is_empty() {
        bail!("there is no image at {text}");
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, text: &str, column: Option<&str>) -> Result<Inputs> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut inputs = Inputs::default();
        inputs.read_table(&path, column).map(|()| inputs)
    }

    #[test]
    fn a_table_names_images_and_keeps_its_other_columns() {
        let text = "\u{feff}id,Path,note\r\n7,\"a, b.png\",\"says \"\"x\"\"\"\r\n8,c.png,\r\n";
        let inputs = table("t.csv", text, None).unwrap();
        assert_eq!(inputs.columns, ["id", "note"]);
        let rows: Vec<(&str, &[String])> =
            inputs.images.iter().map(|one| (one.name.as_str(), &one.carried[..])).collect();
        let cells = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(rows[0], ("a, b.png", &cells("7", "says \"x\"")[..]));
        assert_eq!(rows[1], ("c.png", &cells("8", "")[..]));
        let tabs = table("t.TSV", "photo\tid\nx.png\t1\n", Some("photo")).unwrap();
        assert_eq!(
            (tabs.images[0].name.as_str(), &tabs.columns[..]),
            ("x.png", &["id".to_owned()][..])
        );
    }

    #[test]
    fn a_table_that_cannot_be_read_says_what_to_do() {
        let message = |text: &str, column: Option<&str>| {
            format!("{:#}", table("t.csv", text, column).err().unwrap())
        };
        assert!(message("photo,id\nx,1\n", None).contains("--image-column"));
        assert!(message("photo,id\nx,1\n", Some("foto")).contains("\"photo\""));
        assert!(message("image,id\n", None).contains("no rows"));
        assert!(message("image,id\nx\n", None).contains("2 fields"));
    }

    #[test]
    fn standard_input_is_paths_or_one_image() {
        let stream = |bytes: &[u8]| {
            let mut inputs = Inputs::default();
            inputs.add_stream(bytes.to_vec()).map(|()| inputs.images)
        };
        let paths = stream(b"a.png\r\n\nBM.png\n").unwrap();
        let names: Vec<&str> = paths.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["a.png", "BM.png"]);
        let image = stream(b"\x89PNG\r\n\x1a\nrest").unwrap();
        assert_eq!(image[0].name, "-");
        assert!(image[0].open().unwrap_err().to_string().contains("standard input"));
        for (bytes, why) in [(&b"\xff\xfe\x00"[..], "neither"), (b"\n\n", "names no image")] {
            let message = stream(bytes).err().unwrap().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
