//! NumPy's archives of arrays, as JAX projects publish their weights: zip files of `.npy` members.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use omma_base::{
    Limits,
    files::{NpyHead, open_regular},
};
use zip::{ZipArchive, read::ZipFile};

use super::{FloatType, TensorInfo, TensorSource, checked_type, missing, read_fault};
use crate::error::{ModelError, Result};

/// Bytes that are unpacked at once; a multiple of every type's size.
const PIECE: usize = 1 << 20;

type Archive = ZipArchive<BufReader<File>>;

pub(super) struct NpzFile {
    path: PathBuf,
    archive: Archive,
    /// Which member of the archive an array is.
    places: HashMap<String, usize>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl NpzFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path).map_err(ModelError::io(path))?;
        let archive = ZipArchive::new(BufReader::new(file));
        let mut archive = archive.map_err(|error| read_fault(path)(error.into()))?;
        let (mut places, mut tensors) = (HashMap::new(), BTreeMap::new());
        for place in 0..archive.len() {
            let member = member(path, &mut archive, place)?;
            let name = member.name().map_err(|error| read_fault(path)(error.into()))?;
            let Some(name) = name.strip_suffix(".npy").map(str::to_owned) else { continue };
            tensors.insert(name.clone(), describe(path, &name, member)?);
            places.insert(name, place);
        }
        Ok(Self { path: path.into(), archive, places, tensors })
    }
}

fn member<'a>(
    path: &Path,
    archive: &'a mut Archive,
    place: usize,
) -> Result<ZipFile<'a, BufReader<File>>> {
    archive.by_index(place).map_err(|error| read_fault(path)(error.into()))
}

/// What the head of an array says, if the archive has as many bytes for it as that needs.
fn describe(path: &Path, name: &str, mut member: ZipFile<BufReader<File>>) -> Result<TensorInfo> {
    let (packed, unpacked) = (member.compressed_size(), member.size());
    let fault = |why: String| ModelError::NotACheckpoint {
        path: path.into(),
        why: format!("array \"{name}\": {why}"),
    };
    Limits::current().check_unpacking(packed, unpacked).map_err(fault)?;
    let head = NpyHead::read(&mut member).map_err(|error| fault(error.to_string()))?;
    let data = unpacked.saturating_sub(head.length);
    let info = TensorInfo { dtype: float_type(head.dtype), shape: head.shape };
    if let Ok(dtype) = info.dtype {
        let promised = info.count().and_then(|count| count.checked_mul(dtype.size()));
        if promised.map(|bytes| bytes as u64) != Some(data) {
            let shape = &info.shape;
            return Err(fault(format!("its shape {shape:?} does not fit its {data} bytes")));
        }
    }
    Ok(info)
}

impl TensorSource for NpzFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Reads the member to its end: only there does the archive's checksum tell.
    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let info = self.tensors.get(name).ok_or_else(|| missing(&self.path, name))?;
        let dtype = checked_type(&self.path, name, info)?;
        let place = *self.places.get(name).ok_or_else(|| missing(&self.path, name))?;
        let fault = read_fault(&self.path);
        let mut data = member(&self.path, &mut self.archive, place)?;
        let head = NpyHead::read(&mut data).map_err(&fault)?;
        let count = info.count().unwrap_or_default();
        let mut values = Vec::with_capacity(count);
        let mut piece = vec![0; PIECE.min(count * dtype.size())];
        while values.len() < count {
            let length = piece.len().min((count - values.len()) * dtype.size());
            data.read_exact(&mut piece[..length]).map_err(&fault)?;
            dtype.decode_into(&piece[..length], &mut values);
        }
        if data.read(&mut [0]).map_err(&fault)? > 0 {
            let why = format!("array \"{name}\" has more numbers than its shape says");
            return Err(ModelError::NotACheckpoint { path: self.path.clone(), why });
        }
        Ok(match head.by_columns {
            false => values,
            true => by_rows(&values, &info.shape),
        })
    }
}

/// bfloat16 has no name in NumPy and is stored as two bytes of anything.
fn float_type(dtype: String) -> std::result::Result<FloatType, String> {
    match dtype.as_str() {
        "<f8" | "=f8" => Ok(FloatType::F64),
        "<f4" | "=f4" => Ok(FloatType::F32),
        "<f2" | "=f2" => Ok(FloatType::F16),
        "|V2" | "<V2" => Ok(FloatType::Bf16),
        _ => Err(dtype),
    }
}

/// Values stored column by column, row by row.
fn by_rows(columns: &[f32], shape: &[usize]) -> Vec<f32> {
    let mut rows = Vec::with_capacity(columns.len());
    for mut place in 0..columns.len() {
        let mut source = 0;
        let mut stride = columns.len();
        for size in shape.iter().rev() {
            stride /= size;
            source += place % size * stride;
            place /= size;
        }
        rows.push(columns[source]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

    use super::*;

    #[test]
    fn an_archive_that_would_fill_the_memory_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bomb.npz");
        let mut writer = ZipWriter::new(File::create(&path).unwrap());
        let packed = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        writer.start_file("a.npy", packed).unwrap();
        let head = "{'descr': '<f4', 'fortran_order': False, 'shape': (75497472,), }\n";
        writer.write_all(b"\x93NUMPY\x01\0").unwrap();
        writer.write_all(&(head.len() as u16).to_le_bytes()).unwrap();
        writer.write_all(head.as_bytes()).unwrap();
        (0..288).for_each(|_| writer.write_all(&[0; 1 << 20]).unwrap());
        writer.finish().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
        let message = NpzFile::open(&path).err().unwrap().to_string();
        assert!(message.contains("--max-unpacked"), "{message}");
    }

    #[test]
    fn types_of_numpy_are_floats_or_named() {
        let known = [("<f8", FloatType::F64), ("<f4", FloatType::F32), ("<f2", FloatType::F16)];
        for (name, float) in known.into_iter().chain([("|V2", FloatType::Bf16)]) {
            assert_eq!(float_type(name.to_owned()), Ok(float));
        }
        for other in [">f4", "<i8", r#"[["a","<f4"]]"#] {
            assert_eq!(float_type(other.to_owned()), Err(other.to_owned()));
        }
    }

    #[test]
    fn columns_become_rows() {
        // [[0, 1, 2], [3, 4, 5]] column by column.
        assert_eq!(by_rows(&[0., 3., 1., 4., 2., 5.], &[2, 3]), [0., 1., 2., 3., 4., 5.]);
    }
}
