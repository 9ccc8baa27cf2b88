//! Safetensors files, without reading more of them than is asked for.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use omma_base::files::open_regular;
use safetensors::{Dtype, tensor::Metadata};

use super::{FloatType, TensorInfo, TensorSource, checked_type, missing};
use crate::error::{ModelError, Result};

/// The same limit as the reference implementation's.
const LARGEST_HEADER: u64 = 100_000_000;
/// Bytes that are read at once; a multiple of every type's size.
const PIECE: usize = 1 << 20;

/// What stands in front of the data.
#[derive(Debug)]
pub(crate) struct Header {
    metadata: Metadata,
    data_start: u64,
}

impl Header {
    /// Reads and checks it, and that all the data it promises is there.
    fn read(path: &Path, file: &mut File) -> Result<Self> {
        let not_one = |why: String| ModelError::NotACheckpoint { path: path.into(), why };
        let length = file.metadata().map_err(ModelError::io(path))?.len();
        let cut = |why: String| ModelError::Truncated { path: path.into(), why };
        let mut size = [0; 8];
        if length < 8 {
            return Err(cut(format!("it has {length} bytes")));
        }
        file.read_exact(&mut size).map_err(ModelError::io(path))?;
        let size = u64::from_le_bytes(size);
        if size > LARGEST_HEADER {
            return Err(not_one("it does not begin like a safetensors file".to_owned()));
        }
        if 8 + size > length {
            return Err(cut(format!("its header needs {size} bytes and {} are there", length - 8)));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(ModelError::io(path))?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| not_one(format!("its header cannot be read ({error})")))?;
        let data_start = 8 + size;
        let promised = metadata.data_len() as u64;
        let found = length - data_start;
        match promised.cmp(&found) {
            std::cmp::Ordering::Greater => {
                Err(cut(format!("its tensors need {promised} bytes and {found} are there")))
            }
            std::cmp::Ordering::Less => {
                Err(not_one(format!("{} bytes follow its last tensor", found - promised)))
            }
            std::cmp::Ordering::Equal => Ok(Self { metadata, data_start }),
        }
    }

    /// A line of text that whoever wrote the file left in it.
    pub(crate) fn note(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }
}

/// An open safetensors file.
pub(crate) struct SafetensorsFile {
    path: PathBuf,
    file: File,
    header: Header,
    tensors: BTreeMap<String, TensorInfo>,
}

impl SafetensorsFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut file = open_regular(path).map_err(ModelError::io(path))?;
        let header = Header::read(path, &mut file)?;
        let mut tensors = BTreeMap::new();
        for (name, info) in header.metadata.tensors() {
            let dtype = match info.dtype {
                Dtype::F64 => Ok(FloatType::F64),
                Dtype::F32 => Ok(FloatType::F32),
                Dtype::F16 => Ok(FloatType::F16),
                Dtype::BF16 => Ok(FloatType::Bf16),
                other => Err(format!("{other:?}")),
            };
            let tensor = TensorInfo { shape: info.shape.clone(), dtype };
            let (start, end) = info.data_offsets;
            let size = |dtype: &FloatType| tensor.count()?.checked_mul(dtype.size());
            let expected = tensor.dtype.as_ref().map_or(Some(end.wrapping_sub(start)), size);
            if start > end || expected != Some(end - start) {
                let why = format!("the place of tensor \"{name}\" does not have its size");
                return Err(ModelError::NotACheckpoint { path: path.into(), why });
            }
            tensors.insert(name, tensor);
        }
        Ok(Self { path: path.into(), file, header, tensors })
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// The values of a tensor; `see` is shown their bytes, piece by piece, on the way. Nothing but the
    /// values stays in memory.
    pub(crate) fn read_seen(&mut self, name: &str, mut see: impl FnMut(&[u8])) -> Result<Vec<f32>> {
        let info = self.tensors.get(name).ok_or_else(|| missing(&self.path, name))?;
        let dtype = checked_type(&self.path, name, info)?;
        let mut values = Vec::with_capacity(info.count().unwrap_or_default());
        let place = self.header.metadata.info(name).ok_or_else(|| missing(&self.path, name))?;
        let (start, end) = place.data_offsets;
        let start = SeekFrom::Start(self.header.data_start + start as u64);
        self.file.seek(start).map_err(ModelError::io(&self.path))?;
        let mut piece = vec![0; PIECE.min(end - place.data_offsets.0)];
        let mut left = end - place.data_offsets.0;
        while left > 0 {
            let piece = &mut piece[..left.min(PIECE)];
            self.file.read_exact(piece).map_err(ModelError::io(&self.path))?;
            see(piece);
            dtype.decode_into(piece, &mut values);
            left -= piece.len();
        }
        Ok(values)
    }
}

impl TensorSource for SafetensorsFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        self.read_seen(name, |_| {})
    }
}
