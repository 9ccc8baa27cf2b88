//! Files of tensors that say what they are: safetensors with a note, and checksums in it.

use std::{borrow::Cow, collections::HashMap, fs, io, path::Path};

use safetensors::{Dtype, SafeTensorError, View, tensor::serialize_to_file};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::write_atomically;
use crate::checksum;

/// Floats that are copied when they are written, one tensor at a time.
pub trait Floats {
    /// The tensor's name in the file.
    fn name(&self) -> &str;
    /// Its axes.
    fn shape(&self) -> Cow<'_, [usize]>;
    /// Its values, row by row.
    fn values(&self) -> Cow<'_, [f32]>;
}

/// Writes tensors in one step, with a note under a key of the header.
pub fn write_tensors<F: Floats>(
    path: &Path,
    (key, note): (&str, String),
    tensors: &[F],
) -> io::Result<()> {
    let views: Vec<(&str, Written<F>)> =
        tensors.iter().map(|tensor| (tensor.name(), Written::new(tensor))).collect();
    let notes = HashMap::from([(key.to_owned(), note)]);
    write_atomically(path, |temporary| {
        // The crate puts a private file of its own in its place.
        let permissions = fs::metadata(temporary)?.permissions();
        serialize_to_file(views, Some(notes), temporary).map_err(|error| match error {
            SafeTensorError::IoError(error) => error,
            other => io::Error::other(other),
        })?;
        fs::set_permissions(temporary, permissions)
    })
}

/// Little-endian bytes, as a file has them.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * values.len());
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    bytes
}

/// The floats of little-endian bytes, four each.
pub fn floats_of(bytes: &[u8]) -> Vec<f32> {
    let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    bytes.chunks_exact(4).map(float).collect()
}

/// What a note says, as it is written, and its checksum: that is one of bytes, and reading and writing
/// again may change them.
pub fn sealed(content: &impl Serialize) -> (Box<RawValue>, String) {
    let content = to_raw_value(content).expect("a note can be written");
    let checksum = checksum(content.get());
    (content, checksum)
}

/// Whether a note is as it was sealed.
pub fn is_sealed(content: &RawValue, by: &str) -> bool {
    checksum(content.get()) == by
}

struct Written<'a, F> {
    tensor: &'a F,
    shape: Vec<usize>,
}

impl<'a, F: Floats> Written<'a, F> {
    fn new(tensor: &'a F) -> Self {
        Self { tensor, shape: tensor.shape().into_owned() }
    }
}

impl<F: Floats> View for Written<'_, F> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(bytes_of(&self.tensor.values()))
    }

    fn data_len(&self) -> usize {
        4 * self.shape.iter().product::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    struct Row(&'static str, Vec<f32>);

    impl Floats for Row {
        fn name(&self) -> &str {
            self.0
        }
        fn shape(&self) -> Cow<'_, [usize]> {
            Cow::Owned(vec![1, self.1.len()])
        }
        fn values(&self) -> Cow<'_, [f32]> {
            Cow::Borrowed(&self.1)
        }
    }

    #[test]
    fn tensors_are_as_readable_as_any_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let [own, other] = ["x.safetensors", "x.txt"].map(|name| folder.path().join(name));
        write_tensors(&own, ("key", String::new()), &[Row("a", vec![1.0])]).unwrap();
        fs::write(&other, "text").unwrap();
        let permissions = |path| fs::metadata(path).unwrap().permissions();
        assert_eq!(permissions(own), permissions(other));
    }

    #[test]
    fn what_is_written_is_read_with_its_note() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let (content, seal) = sealed(&[0.1 + 0.2]);
        assert!(is_sealed(&content, &seal) && !is_sealed(&content, "0"));
        let rows = [Row("a", vec![1.0, f32::NAN]), Row("b", vec![-0.0])];
        write_tensors(&path, ("key", content.get().to_owned()), &rows).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["key"], content.get());
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for Row(name, values) in &rows {
            let tensor = file.tensor(name).unwrap();
            assert_eq!(tensor.shape(), [1, values.len()]);
            assert_eq!(bytes_of(&floats_of(tensor.data())), bytes_of(values));
        }
    }
}
