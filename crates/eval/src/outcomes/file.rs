//! `images.safetensors`: one tensor per number, with checksums, in the format of the checkpoints.

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use omma_base::{
    checksum,
    files::{
        read_regular,
        tensors::{Floats, bytes_of, floats_of, is_sealed, sealed, write_tensors},
    },
};
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{ImageOutcome, Outcomes};
use crate::error::{EvalError, Result};

/// The file beside `eval.json`.
pub const IMAGES_FILE: &str = "images.safetensors";
/// The note's key in the header.
const NOTE: &str = "omma-images";
/// A hundred million images have less.
const LARGEST: u64 = 1 << 32;

#[derive(Serialize, Deserialize)]
struct Note {
    content: Box<RawValue>,
    content_checksum: String,
}

#[derive(Serialize, Deserialize)]
struct Content {
    identity: String,
    checksums: BTreeMap<String, String>,
}

struct Column {
    name: &'static str,
    values: Vec<f32>,
}

impl Floats for Column {
    fn name(&self) -> &str {
        self.name
    }

    fn shape(&self) -> Cow<'_, [usize]> {
        Cow::Owned(vec![self.values.len()])
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self.values)
    }
}

/// A column: its name and an image's value in it. Places and classes are floats too, which have all integers up
/// to 16,777,216; the identity is of places as they are.
type Part = (&'static str, fn(&ImageOutcome) -> f32);

const COLUMNS: [Part; 7] = [
    ("index", |image| image.index as f32),
    ("label", |image| image.label as f32),
    ("predicted", |image| image.predicted as f32),
    ("rank", |image| image.rank as f32),
    ("confidence", |image| image.confidence),
    ("nll", |image| image.nll),
    ("brier", |image| image.brier),
];

impl Outcomes {
    /// Writes the file into a folder. Returns its seal, by which [`Outcomes::read`] knows it again.
    pub(crate) fn write(&self, folder: &Path) -> Result<String> {
        let path = folder.join(IMAGES_FILE);
        let column =
            |(name, of): Part| Column { name, values: self.images.iter().map(of).collect() };
        let columns = COLUMNS.map(column);
        let sum = |one: &Column| (one.name.to_owned(), checksum(bytes_of(&one.values)));
        let checksums = columns.iter().map(sum).collect();
        let (content, seal) = sealed(&Content { identity: self.identity.clone(), checksums });
        let note = Note { content, content_checksum: seal.clone() };
        let note = serde_json::to_string(&note).expect("a note can be written");
        write_tensors(&path, (NOTE, note), &columns).map_err(EvalError::io(&path))?;
        Ok(seal)
    }

    /// Reads the file of a folder that was written with this seal; what is not whole, or of another
    /// evaluation, is an error.
    pub(crate) fn read(folder: &Path, seal: &str) -> Result<Self> {
        let path = folder.join(IMAGES_FILE);
        let bytes = read_regular(&path, LARGEST).map_err(EvalError::io(&path))?;
        parse(&bytes, seal).map_err(|why| EvalError::Record { path, why })
    }
}

fn parse(bytes: &[u8], seal: &str) -> Result<Outcomes, String> {
    let say = |error: safetensors::SafeTensorError| error.to_string();
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(say)?;
    let note = header.metadata().as_ref().and_then(|notes| notes.get(NOTE));
    let note = note.ok_or("it has no results of single images")?;
    let Note { content, content_checksum } =
        serde_json::from_str(note).map_err(|error| error.to_string())?;
    if !is_sealed(&content, &content_checksum) {
        return Err("its header is damaged".to_owned());
    }
    if content_checksum != seal {
        return Err("it is of another evaluation than the eval.json beside it".to_owned());
    }
    let Content { identity, checksums } =
        serde_json::from_str(content.get()).map_err(|error| error.to_string())?;
    let file = SafeTensors::deserialize(bytes).map_err(say)?;
    let mut columns: Vec<Vec<f32>> = Vec::new();
    for (name, _) in COLUMNS {
        let tensor = file.tensor(name).map_err(say)?;
        if tensor.dtype() != safetensors::Dtype::F32
            || checksums.get(name) != Some(&checksum(tensor.data()))
        {
            return Err(format!("{name} is damaged"));
        }
        columns.push(floats_of(tensor.data()));
    }
    if columns.iter().any(|column| column.len() != columns[0].len()) {
        return Err("its columns are not equally long".to_owned());
    }
    let image = |place: usize| {
        let at = |column: usize| columns[column][place];
        ImageOutcome {
            index: at(0) as u32,
            label: at(1) as u32,
            predicted: at(2) as u32,
            rank: at(3) as u32,
            confidence: at(4),
            nll: at(5),
            brier: at(6),
        }
    };
    Ok(Outcomes { images: (0..columns[0].len()).map(image).collect(), identity })
}

#[cfg(test)]
mod tests {
    use super::{super::tests::drawn, *};

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let outcomes = drawn(30, 4);
        let seal = outcomes.write(folder.path()).unwrap();
        assert_eq!(Outcomes::read(folder.path(), &seal).unwrap(), outcomes);
        let path = folder.path().join(IMAGES_FILE);
        let whole = std::fs::read(&path).unwrap();
        for place in (0..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << (place % 8);
            // Spaces that fill the header up, and the order of its keys, mean nothing.
            if let Ok(read) = parse(&bytes, &seal) {
                assert_eq!(read, outcomes, "byte {place}");
            }
        }
        for length in (0..whole.len()).step_by(11) {
            assert!(parse(&whole[..length], &seal).is_err(), "{length} bytes");
        }
        let other = drawn(30, 5).write(folder.path()).unwrap();
        let message = Outcomes::read(folder.path(), &seal).unwrap_err().to_string();
        assert!(other != seal && message.contains("another evaluation"), "{message}");
        std::fs::remove_file(path).unwrap();
        assert!(Outcomes::read(folder.path(), &seal).is_err());
    }
}
