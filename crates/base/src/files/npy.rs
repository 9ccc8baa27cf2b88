//! NumPy's arrays: a magic word, a version, and a Python dictionary with type, order and shape, then the values.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use serde::Deserialize;

use super::write_atomically;

const MAGIC: &[u8] = b"\x93NUMPY";
/// The text of a head says a type and a shape.
const LONGEST: u64 = 1 << 16;

/// Values begin at a multiple of it, as NumPy writes them.
const ALIGNMENT: usize = 64;

/// Writes a table of floats in one step, row by row.
///
/// # Panics
/// If there are not as many values as the shape says.
pub fn write_npy(path: &Path, [rows, columns]: [usize; 2], values: &[f32]) -> io::Result<()> {
    assert_eq!(values.len(), rows * columns, "values of a table");
    let head =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let before = MAGIC.len() + 4;
    let length = (before + head.len() + 1).next_multiple_of(ALIGNMENT) - before;
    write_atomically(path, |temporary| {
        let mut file = BufWriter::new(File::create(temporary)?);
        file.write_all(MAGIC)?;
        file.write_all(&[1, 0])?;
        file.write_all(&(length as u16).to_le_bytes())?;
        writeln!(file, "{head:<0$}", length - 1)?;
        for value in values {
            file.write_all(&value.to_le_bytes())?;
        }
        file.flush()
    })
}

/// What the head of an array says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyHead {
    /// The type of its values as NumPy writes it, such as `<f4`; of a record with fields, all of them.
    pub dtype: String,
    /// Its axes.
    pub shape: Vec<usize>,
    /// Whether values are stored column by column.
    pub by_columns: bool,
    /// Bytes of the head, up to where the values begin.
    pub length: u64,
}

/// The dictionary, once it is written as JSON.
#[derive(Deserialize)]
struct Dictionary {
    descr: serde_json::Value,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl NpyHead {
    /// Reads a head and leaves the reader where the values begin.
    pub fn read(mut reader: impl Read) -> io::Result<Self> {
        let fault = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let mut first = [0; 8];
        read_whole(&mut reader, &mut first)?;
        let sizes = match first {
            [magic @ .., 1, _] if magic == MAGIC => 2,
            [magic @ .., 2 | 3, _] if magic == MAGIC => 4,
            _ => return Err(fault("it does not begin like an array of NumPy")),
        };
        let mut length = [0; 4];
        read_whole(&mut reader, &mut length[..sizes])?;
        let length = u64::from(u32::from_le_bytes(length));
        if length > LONGEST {
            return Err(fault("its head is too long"));
        }
        let mut text = vec![0; length as usize];
        read_whole(&mut reader, &mut text)?;
        let Dictionary { descr, fortran_order, shape } =
            serde_json::from_str(&as_json(&String::from_utf8_lossy(&text)))
                .map_err(|_| fault("its head cannot be read"))?;
        let dtype = descr.as_str().map_or_else(|| descr.to_string(), str::to_owned);
        let length = 8 + sizes as u64 + length;
        Ok(Self { dtype, shape, by_columns: fortran_order, length })
    }
}

fn read_whole(reader: &mut impl Read, bytes: &mut [u8]) -> io::Result<()> {
    reader.read_exact(bytes).map_err(|error| match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => io::Error::new(kind, "it ends inside its head"),
        _ => error,
    })
}

/// A Python literal of strings, numbers, truths, tuples and dictionaries as JSON.
fn as_json(text: &str) -> String {
    let text = text.replace('\'', "\"").replace('(', "[").replace(')', "]");
    let text = text.replace("True", "true").replace("False", "false");
    // Python allows a comma behind the last item.
    let mut json = String::with_capacity(text.len());
    for symbol in text.chars() {
        if matches!(symbol, ']' | '}') {
            let end = json.trim_end().trim_end_matches(',').len();
            json.truncate(end);
        }
        json.push(symbol);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tensors::floats_of;

    fn head(version: u8, text: &str) -> io::Result<NpyHead> {
        let length = text.len() as u32;
        let sizes = if version == 1 { 2 } else { 4 };
        let bytes =
            [MAGIC, &[version, 0], &length.to_le_bytes()[..sizes], text.as_bytes(), b"values"]
                .concat();
        let mut rest = bytes.as_slice();
        let head = NpyHead::read(&mut rest)?;
        assert_eq!(rest, b"values");
        assert_eq!(head.length as usize, bytes.len() - rest.len());
        Ok(head)
    }

    #[test]
    fn heads_as_numpy_writes_them() {
        for version in [1, 2, 3] {
            let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }       \n";
            let found = head(version, text).unwrap();
            assert_eq!((found.shape, found.by_columns), (vec![3, 4], false));
            assert_eq!(found.dtype, "<f4");
        }
        let found = head(1, "{'shape': (7,), 'descr': '|V2', 'fortran_order': True}").unwrap();
        assert_eq!((found.shape, found.by_columns), (vec![7], true));
        assert_eq!(found.dtype, "|V2");
        let found = head(1, "{'descr': '>f4', 'fortran_order': False, 'shape': ()}").unwrap();
        assert_eq!((found.shape.len(), found.dtype.as_str()), (0, ">f4"));
        let fields =
            "{'descr': [('a', '<f4'), ('b', '<i8')], 'fortran_order': False, 'shape': (2,)}";
        assert_eq!(head(1, fields).unwrap().dtype, r#"[["a","<f4"],["b","<i8"]]"#);
    }

    #[test]
    fn a_table_that_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        for (shape, values) in [([2, 3], vec![0.0, 1.0, -2.5, 3.0, 4.0, 1e9]), ([0, 512], vec![])] {
            write_npy(&path, shape, &values).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let head = NpyHead::read(&bytes[..]).unwrap();
            assert_eq!((head.dtype.as_str(), head.by_columns), ("<f4", false));
            assert_eq!(head.shape, shape);
            assert!(head.length.is_multiple_of(64));
            assert_eq!(floats_of(&bytes[head.length as usize..]), values);
        }
    }

    #[test]
    fn other_heads_are_refused() {
        let huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}";
        for text in ["", "{}", "{'descr': '<f4'", "nonsense", huge] {
            let error = head(1, text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text}");
        }
        assert!(head(4, "{}").is_err());
        assert!(NpyHead::read(&b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"[..]).is_err());
        for early in [&b"\x93NUM"[..], b"\x93NUMPY\x01\0\x09", b"\x93NUMPY\x01\0\x09\0{'desc"] {
            let error = NpyHead::read(early).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(error.to_string(), "it ends inside its head");
        }
    }
}
