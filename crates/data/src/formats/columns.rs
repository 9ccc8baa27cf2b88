//! Which column of a table is what: by its header, by what the user says, or by what its first row holds.

use std::{collections::BTreeSet, fmt, path::Path, str::FromStr};

use omma_base::nearest;
use serde::{Deserialize, Serialize};

use super::is_image;

/// Column names that are understood.
pub(super) const IMAGE: &[&str] = &["image", "path", "file", "filepath", "filename", "file_name"];
pub(super) const LABEL: &[&str] = &["label", "class", "target"];
pub(super) const CAPTION: &[&str] = &["caption", "text", "title", "description"];

/// What a message shows of a table: columns, and letters of each.
const MOST_SHOWN: usize = 20;
const LONGEST_SHOWN: usize = 40;

/// What the user says of a table's columns, `image=photo,label=3`: each by its name or its number from 1.
/// Those that are left out are found by their usual names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Columns {
    /// Of the paths of images.
    pub image: Option<String>,
    /// Of the labels.
    pub label: Option<String>,
    /// Of the captions.
    pub caption: Option<String>,
}

impl FromStr for Columns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "columns are written image=NAME,label=NAME,caption=NAME (one or more of these; a name, or a \
                    number from 1)";
        let mut columns = Self::default();
        for part in text.split(',') {
            let (what, column) = part.split_once('=').ok_or_else(|| form.to_owned())?;
            let place = match what.trim() {
                "image" => &mut columns.image,
                "label" => &mut columns.label,
                "caption" => &mut columns.caption,
                other => return Err(format!("{other:?} is not image, label or caption; {form}")),
            };
            let column = column.trim();
            if column.is_empty() {
                return Err(format!("{} names no column; {form}", what.trim()));
            }
            if place.replace(column.to_owned()).is_some() {
                return Err(format!("{} is there twice; {form}", what.trim()));
            }
        }
        Ok(columns)
    }
}

impl TryFrom<String> for Columns {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Columns> for String {
    fn from(columns: Columns) -> Self {
        columns.to_string()
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("image", &self.image), ("label", &self.label), ("caption", &self.caption)];
        let parts = parts.iter().filter_map(|(what, column)| Some((what, column.as_ref()?)));
        let parts: Vec<String> = parts.map(|(what, column)| format!("{what}={column}")).collect();
        f.write_str(&parts.join(","))
    }
}

/// The places of a table's columns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) image: usize,
    pub(super) label: Option<usize>,
    pub(super) caption: Option<usize>,
    /// Whether the first row names the columns, and is no data.
    pub(super) has_header: bool,
}

impl Layout {
    /// What the first rows of a table in `folder` say, with what the user says of it.
    pub(super) fn of(rows: &[Vec<&str>], folder: &Path, said: &Columns) -> Result<Self, String> {
        let cells = rows.first().map_or(&[][..], Vec::as_slice);
        let first = FirstRow { cells, folder };
        let wanted = [&said.image, &said.label, &said.caption];
        let names = [IMAGE, LABEL, CAPTION];
        let is_named = names.concat().iter().any(|name| first.named(name).is_some())
            || wanted.iter().filter_map(|name| name.as_ref()).any(|n| first.named(n).is_some());
        let numbered = said.image.as_deref().and_then(|image| first.numbered(image));
        let has_header = match numbered {
            Some(place) => !first.is_file(place) && !is_image(first.cells[place].as_ref()),
            None => is_named || first.image().is_none(),
        };
        if !has_header {
            return first.without_header(rows, said);
        }
        let mut places = [None; 3];
        for ((place, wanted), usual) in places.iter_mut().zip(wanted).zip(names) {
            *place = match wanted {
                Some(wanted) => Some(first.place(wanted)?),
                None => usual.iter().find_map(|name| first.named(name)),
            };
        }
        let [image, label, caption] = places;
        let Some(image) = image else {
            return Err(format!(
                "it needs a column of paths, called one of {}; {}{}",
                IMAGE.join(", "),
                first.columns(),
                first.missing_file()
            ));
        };
        if label.is_none() && caption.is_none() {
            return Err(format!(
                "it needs a column of labels ({}) or captions ({}); {}",
                LABEL.join(", "),
                CAPTION.join(", "),
                first.columns()
            ));
        }
        Ok(Self { image, label, caption, has_header })
    }
}

/// The first row of a table, and where its paths begin.
struct FirstRow<'a> {
    cells: &'a [&'a str],
    folder: &'a Path,
}

impl FirstRow<'_> {
    /// The place of a column by its name; as it is written, or else in large or small letters.
    fn named(&self, name: &str) -> Option<usize> {
        let exactly = self.cells.iter().position(|cell| *cell == name);
        exactly.or_else(|| self.cells.iter().position(|cell| cell.eq_ignore_ascii_case(name)))
    }

    /// The place of a column by its number from 1.
    fn numbered(&self, number: &str) -> Option<usize> {
        let number: usize = number.parse().ok()?;
        number.checked_sub(1).filter(|place| *place < self.cells.len())
    }

    /// The place of a column that the user names, or what there is instead.
    fn place(&self, wanted: &str) -> Result<usize, String> {
        let place = self.named(wanted).or_else(|| self.numbered(wanted));
        place.ok_or_else(|| {
            let near = nearest(wanted, self.cells.iter().copied());
            format!("there is no column {wanted:?}{near}; {}", self.columns())
        })
    }

    /// Whether a cell names a file.
    fn is_file(&self, place: usize) -> bool {
        !self.cells[place].is_empty() && self.folder.join(self.cells[place]).is_file()
    }

    /// The first cell that names a file, as no name of a column does.
    fn image(&self) -> Option<usize> {
        (0..self.cells.len()).find(|place| self.is_file(*place))
    }

    /// The columns that exist, and how to say which is what.
    fn columns(&self) -> String {
        let names: Vec<String> = self.shown().zip(1..).map(|(c, n)| format!("{n} {c:?}")).collect();
        let more = if self.cells.len() > MOST_SHOWN { ", …" } else { "" };
        format!(
            "its columns are {}{more}; say which is what with --columns image=…,label=…",
            names.join(", ")
        )
    }

    /// The cells as far as a message shows them.
    fn shown(&self) -> impl Iterator<Item = String> {
        let short = |cell: &&str| match cell.char_indices().nth(LONGEST_SHOWN) {
            Some((end, _)) => format!("{}…", &cell[..end]),
            None => (*cell).to_owned(),
        };
        self.cells.iter().take(MOST_SHOWN).map(short)
    }

    /// What is wrong with a first row that looks like one of a table without a header.
    fn missing_file(&self) -> String {
        match self.cells.iter().find(|cell| is_image(cell.as_ref())) {
            Some(file) => format!(
                ". If it has no header: {file:?} of its first row is not a file below {}",
                self.folder.join("").display()
            ),
            None => String::new(),
        }
    }

    /// A table whose first row is data: the columns go by their numbers. The first that has a sentence of its
    /// own for most images is the caption; where there is none, and of two columns, the one that is not the
    /// image is the label.
    fn without_header(&self, rows: &[Vec<&str>], said: &Columns) -> Result<Layout, String> {
        let first = || {
            let cells: Vec<String> = self.shown().collect();
            format!("its first row, which names a file and so is no header, is {cells:?}")
        };
        let place = |wanted: &Option<String>| {
            match wanted {
            None => Ok(None),
            Some(wanted) => self.numbered(wanted).map(Some).ok_or_else(|| {
                format!(
                    "there is no column {wanted:?}: without a header, columns go by number, from 1 to {}; {}",
                    self.cells.len(),
                    first()
                )
            }),
        }
        };
        let (mut label, mut caption) = (place(&said.label)?, place(&said.caption)?);
        let image = place(&said.image)?.or_else(|| self.image());
        let image = image.ok_or_else(|| format!("no column names files; {}", first()))?;
        if label.is_none() && caption.is_none() {
            let others = (0..self.cells.len()).filter(|place| *place != image);
            caption = others.into_iter().find(|place| has_sentences(rows, *place));
            label = match self.cells.len() {
                _ if caption.is_some() => None,
                2 => Some(1 - image),
                count => {
                    return Err(format!(
                        "it has {count} columns and no header; say which is what by number, such as \
                         --columns image={},label=2 or --columns image={},caption=3; {}",
                        image + 1,
                        image + 1,
                        first()
                    ));
                }
            };
        }
        Ok(Layout { image, label, caption, has_header: false })
    }
}

/// Whether most cells of a column are of several words, and most of them different.
fn has_sentences(rows: &[Vec<&str>], place: usize) -> bool {
    let cells = rows.iter().filter_map(|row| row.get(place).copied());
    let sentences: Vec<&str> = cells.filter(|cell| cell.contains(char::is_whitespace)).collect();
    let distinct: BTreeSet<&str> = sentences.iter().copied().collect();
    2 * sentences.len() > rows.len() && 2 * distinct.len() > sentences.len()
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {} for images", self.image + 1)?;
        for (place, what) in [(self.label, "labels"), (self.caption, "captions")] {
            if let Some(place) = place {
                write!(f, ", column {} for {what}", place + 1)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of image, label and caption, and whether there is a header; `a.png` is a file.
    fn layout(
        first: &[&str],
        said: &str,
    ) -> Result<(usize, Option<usize>, Option<usize>, bool), String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.png"), "x").unwrap();
        let said = if said.is_empty() { Columns::default() } else { said.parse().unwrap() };
        let found = Layout::of(&[first.to_vec()], folder.path(), &said)?;
        Ok((found.image, found.label, found.caption, found.has_header))
    }

    #[test]
    fn columns_are_read_and_written_alike() {
        for text in ["image=photo,label=3", "label=kind of thing", "image=1,label=2,caption=a=b"] {
            assert_eq!(text.parse::<Columns>().unwrap().to_string(), text);
        }
        assert_eq!(
            " image = a , label = b ".parse::<Columns>().unwrap().to_string(),
            "image=a,label=b"
        );
        for (text, why) in [
            ("", "are written"),
            ("image", "are written"),
            ("picture=a", "\"picture\" is not image"),
            ("label=", "label names no column"),
            ("label=a,label=b", "twice"),
        ] {
            let message = text.parse::<Columns>().unwrap_err();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn a_header_names_columns_and_the_user_may_name_others() {
        assert_eq!(layout(&["Label", "x", "PATH"], ""), Ok((2, Some(0), None, true)));
        assert_eq!(
            layout(&["photo", "kind", "label"], "image=photo,label=kind"),
            Ok((0, Some(1), None, true))
        );
        assert_eq!(layout(&["photo", "kind"], "image=1,label=2"), Ok((0, Some(1), None, true)));
        // A name goes before a number, and the rest is found by its usual name.
        assert_eq!(layout(&["path", "2", "1"], "label=1"), Ok((0, Some(2), None, true)));
        assert_eq!(
            layout(&["file", "Kind", "text"], "label=kind"),
            Ok((0, Some(1), Some(2), true))
        );
    }

    #[test]
    fn a_first_row_that_names_a_file_is_no_header() {
        assert_eq!(layout(&["a.png", "cat"], ""), Ok((0, Some(1), None, false)));
        assert_eq!(layout(&["cat", "a.png"], ""), Ok((1, Some(0), None, false)));
        assert_eq!(
            layout(&["a.png", "0", "a cat"], "image=1,caption=3"),
            Ok((0, None, Some(2), false))
        );
        assert_eq!(layout(&["a.png", "x", "cat"], "label=3"), Ok((0, Some(2), None, false)));
        // A sentence is no class.
        assert_eq!(layout(&["a.png", "a cat"], ""), Ok((0, None, Some(1), false)));
        assert_eq!(layout(&["a.png", "7", "a cat", "b c"], ""), Ok((0, None, Some(2), false)));
        assert_eq!(layout(&["a.png", "a cat"], "label=2"), Ok((0, Some(1), None, false)));
        // Told which column has the paths, a class may have a column's name, and a file may be missing.
        assert_eq!(layout(&["b.png", "title"], "image=1,label=2"), Ok((0, Some(1), None, false)));
    }

    #[test]
    fn names_of_classes_in_two_words_are_no_captions() {
        let rows: Vec<Vec<&str>> =
            ["polar bear", "sea lion", "polar bear", "sea lion"].map(|c| vec!["a.png", c]).into();
        assert!(!has_sentences(&rows, 1));
        let rows: Vec<Vec<&str>> = ["one", "a dog", "two cats"].map(|c| vec!["a.png", c]).into();
        assert!(has_sentences(&rows, 1));
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        for (first, said, parts) in [
            (
                &["photo", "kind"][..],
                "",
                &["column of paths", "1 \"photo\", 2 \"kind\"", "--columns"][..],
            ),
            (
                &["photo", "kind"],
                "image=foto,label=kind",
                &["\"foto\"; did you mean \"photo\"", "2 \"kind\""],
            ),
            (&["photo", "kind"], "image=1,label=3", &["no column \"3\"", "2 \"kind\""]),
            (&["photo", "kind"], "image=0,label=2", &["no column \"0\""]),
            (&["path", "size"], "", &["column of labels", "2 \"size\""]),
            (&["b.png", "cat"], "", &["\"b.png\" of its first row is not a file"]),
            (
                &["a.png", "x", "cat"],
                "",
                &["3 columns and no header", "--columns image=1,label=2", "\"x\""],
            ),
            (&["a.png", "cat"], "label=kind", &["no column \"kind\"", "by number, from 1 to 2"]),
        ] {
            let message = layout(first, said).unwrap_err();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
