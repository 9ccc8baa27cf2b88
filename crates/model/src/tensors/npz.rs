//! NumPy archives, as JAX users keep their parameters.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use npyz::{DType, Endianness, Order, TypeChar, npz::NpzArchive};

use super::{FloatType, TensorInfo, TensorSource, checked_type, missing};
use crate::error::{ModelError, Result};

pub(super) struct NpzFile {
    path: PathBuf,
    archive: NpzArchive<BufReader<File>>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl NpzFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut archive = NpzArchive::open(path).map_err(ModelError::io(path))?;
        let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
        let mut tensors = BTreeMap::new();
        for name in names {
            let array = archive.by_name(&name).map_err(ModelError::io(path))?;
            let Some(array) = array else { continue };
            let shape = array.shape().iter().map(|size| *size as usize).collect();
            let dtype = float_type(&array.header().dtype());
            tensors.insert(name, TensorInfo { shape, dtype });
        }
        Ok(Self { path: path.into(), archive, tensors })
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

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let info = self.tensors.get(name).ok_or_else(|| missing(&self.path, name))?;
        let dtype = checked_type(&self.path, name, info)?;
        let array = self.archive.by_name(name).map_err(ModelError::io(&self.path))?;
        let array = array.ok_or_else(|| missing(&self.path, name))?;
        let order = array.order();
        let count: usize = info.shape.iter().product();
        let mut bytes = vec![0; count * dtype.size()];
        array.into_inner().read_exact(&mut bytes).map_err(ModelError::io(&self.path))?;
        let values = dtype.decode(&bytes);
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
