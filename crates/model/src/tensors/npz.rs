//! NumPy's archives of arrays, as JAX projects publish their weights: zip files of `.npy` members.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use npyz::{DType, Endianness, NpyFile, Order, TypeChar};
use omma_base::{Limits, files::open_regular};
use zip::{ZipArchive, read::ZipFile};

use super::{FloatType, TensorInfo, TensorSource, checked_type, missing, read_fault};
use crate::error::{ModelError, Result};

/// Bytes that are unpacked at once; a multiple of every type's size.
const PIECE: usize = 1 << 20;
/// The head of a member says its type and shape.
const LARGEST_HEAD: u64 = 1 << 16;

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
fn describe(path: &Path, name: &str, member: ZipFile<BufReader<File>>) -> Result<TensorInfo> {
    let (packed, unpacked) = (member.compressed_size(), member.size());
    let fault = |why: String| ModelError::NotACheckpoint {
        path: path.into(),
        why: format!("array \"{name}\": {why}"),
    };
    Limits::current().check_unpacking(packed, unpacked).map_err(fault)?;
    let mut head = member.take(LARGEST_HEAD);
    let mut first = Vec::new();
    head.by_ref().take(12).read_to_end(&mut first).map_err(read_fault(path))?;
    if head_length(&first) > LARGEST_HEAD {
        return Err(fault("its head is too long".to_owned()));
    }
    let array = NpyFile::new(first.chain(&mut head)).map_err(|error| fault(error.to_string()))?;
    let size = |size: &u64| usize::try_from(*size).ok();
    let shape = array.shape().iter().map(size).collect::<Option<Vec<usize>>>();
    let shape = shape.ok_or_else(|| fault("it is too large".to_owned()))?;
    let info = TensorInfo { shape, dtype: float_type(&array.header().dtype()) };
    drop(array);
    let data = unpacked.saturating_sub(LARGEST_HEAD - head.limit());
    if let Ok(dtype) = info.dtype {
        let promised = info.count().and_then(|count| count.checked_mul(dtype.size()));
        if promised.map(|bytes| bytes as u64) != Some(data) {
            let shape = &info.shape;
            return Err(fault(format!("its shape {shape:?} does not fit its {data} bytes")));
        }
    }
    Ok(info)
}

/// The length of the text at an array's beginning, from its first twelve bytes.
fn head_length(first: &[u8]) -> u64 {
    match first {
        [_, _, _, _, _, _, 1, _, low, high, ..] => u16::from_le_bytes([*low, *high]).into(),
        [_, _, _, _, _, _, _, _, length @ ..] => {
            length.iter().rev().fold(0, |length, byte| length << 8 | u64::from(*byte))
        }
        _ => 0,
    }
}

/// bfloat16 has no name in NumPy and is stored as two bytes of anything.
fn float_type(dtype: &DType) -> std::result::Result<FloatType, String> {
    let other = Err(dtype.descr());
    let DType::Plain(plain) = dtype else { return other };
    if plain.endianness() == Endianness::Big && plain.size_field() > 1 {
        return other;
    }
    match (plain.type_char(), plain.size_field()) {
        (TypeChar::Float, 8) => Ok(FloatType::F64),
        (TypeChar::Float, 4) => Ok(FloatType::F32),
        (TypeChar::Float, 2) => Ok(FloatType::F16),
        (TypeChar::RawData, 2) => Ok(FloatType::Bf16),
        _ => other,
    }
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
        let array = NpyFile::new(member(&self.path, &mut self.archive, place)?).map_err(&fault)?;
        let order = array.order();
        let mut data = array.into_inner();
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
        Ok(match order {
            Order::C => values,
            Order::Fortran => by_rows(&values, &info.shape),
        })
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
    use super::*;

    #[test]
    fn columns_become_rows() {
        // [[0, 1, 2], [3, 4, 5]] column by column.
        assert_eq!(by_rows(&[0., 3., 1., 4., 2., 5.], &[2, 3]), [0., 1., 2., 3., 4., 5.]);
    }
}
