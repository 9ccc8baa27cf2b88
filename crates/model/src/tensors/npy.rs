//! The head of a NumPy array: a magic word, a version, and a Python dictionary with type, order and shape.

use std::io::{self, Read};

use serde::Deserialize;

use super::{FloatType, TensorInfo};

const MAGIC: &[u8] = b"\x93NUMPY";
/// The text of a head says a type and a shape.
const LONGEST: u64 = 1 << 16;

/// What the head of an array says.
pub(super) struct Head {
    pub(super) info: TensorInfo,
    /// Whether values are stored column by column.
    pub(super) by_columns: bool,
    /// Bytes of the head, up to where the values begin.
    pub(super) length: u64,
}

/// The dictionary, once it is written as JSON.
#[derive(Deserialize)]
struct Dictionary {
    descr: serde_json::Value,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Head {
    /// Reads a head and leaves the reader where the values begin.
    pub(super) fn read(reader: &mut impl Read) -> io::Result<Self> {
        let fault = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let mut first = [0; 8];
        reader.read_exact(&mut first)?;
        let sizes = match first {
            [magic @ .., 1, _] if magic == MAGIC => 2,
            [magic @ .., 2 | 3, _] if magic == MAGIC => 4,
            _ => return Err(fault("it does not begin like an array of NumPy")),
        };
        let mut length = [0; 4];
        reader.read_exact(&mut length[..sizes])?;
        let length = u64::from(u32::from_le_bytes(length));
        if length > LONGEST {
            return Err(fault("its head is too long"));
        }
        let mut text = Vec::new();
        reader.take(length).read_to_end(&mut text)?;
        let read = text.len() as u64;
        let Dictionary { descr, fortran_order, shape } = (read == length)
            .then(|| serde_json::from_str(&as_json(&String::from_utf8_lossy(&text))).ok())
            .flatten()
            .ok_or_else(|| fault("its head cannot be read"))?;
        let info = TensorInfo { shape, dtype: float_type(&descr) };
        Ok(Self { info, by_columns: fortran_order, length: 8 + sizes as u64 + length })
    }
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

/// bfloat16 has no name in NumPy and is stored as two bytes of anything.
fn float_type(descr: &serde_json::Value) -> Result<FloatType, String> {
    match descr.as_str() {
        Some("<f8" | "=f8") => Ok(FloatType::F64),
        Some("<f4" | "=f4") => Ok(FloatType::F32),
        Some("<f2" | "=f2") => Ok(FloatType::F16),
        Some("|V2" | "<V2") => Ok(FloatType::Bf16),
        Some(other) => Err(other.to_owned()),
        None => Err(descr.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(version: u8, text: &str) -> io::Result<Head> {
        let length = text.len() as u32;
        let sizes = if version == 1 { 2 } else { 4 };
        let bytes =
            [MAGIC, &[version, 0], &length.to_le_bytes()[..sizes], text.as_bytes(), b"values"]
                .concat();
        let mut rest = bytes.as_slice();
        let head = Head::read(&mut rest)?;
        assert_eq!(rest, b"values");
        assert_eq!(head.length as usize, bytes.len() - rest.len());
        Ok(head)
    }

    #[test]
    fn heads_as_numpy_writes_them() {
        for version in [1, 2, 3] {
            let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }       \n";
            let found = head(version, text).unwrap();
            assert_eq!((found.info.shape, found.by_columns), (vec![3, 4], false));
            assert_eq!(found.info.dtype, Ok(FloatType::F32));
        }
        let found = head(1, "{'shape': (7,), 'descr': '|V2', 'fortran_order': True}").unwrap();
        assert_eq!((found.info.shape, found.by_columns), (vec![7], true));
        assert_eq!(found.info.dtype, Ok(FloatType::Bf16));
        let found = head(1, "{'descr': '>f4', 'fortran_order': False, 'shape': ()}").unwrap();
        assert_eq!((found.info.shape.len(), found.info.dtype), (0, Err(">f4".to_owned())));
        let fields =
            "{'descr': [('a', '<f4'), ('b', '<i8')], 'fortran_order': False, 'shape': (2,)}";
        assert!(head(1, fields).unwrap().info.dtype.is_err());
    }

    #[test]
    fn other_heads_are_refused() {
        let huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}";
        for text in ["", "{}", "{'descr': '<f4'", "nonsense", huge] {
            assert!(head(1, text).is_err(), "{text}");
        }
        assert!(head(4, "{}").is_err());
        assert!(Head::read(&mut &b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"[..]).is_err());
        assert!(Head::read(&mut &b"\x93NUM"[..]).is_err());
    }
}
