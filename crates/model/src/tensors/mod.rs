//! Files of named tensors, read one tensor at a time.

mod npz;
mod pickle;
mod pytorch;
mod safetensors;

use std::{
    collections::BTreeMap,
    io::{self, Read},
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use omma_base::files::{open_regular, read_regular};

pub(crate) use self::safetensors::SafetensorsFile;
use self::{npz::NpzFile, pytorch::PytorchFile};
use crate::error::{ModelError, Result};

/// How numbers are stored. Everything becomes `f32` when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// 64 bits.
    F64,
    /// 32 bits.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
}

impl FloatType {
    fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Little-endian bytes as numbers.
    fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let mut values = Vec::with_capacity(bytes.len() / self.size());
        self.decode_into(bytes, &mut values);
        values
    }

    fn decode_into(self, bytes: &[u8], values: &mut Vec<f32>) {
        fn read<const N: usize>(
            bytes: &[u8],
            values: &mut Vec<f32>,
            value: impl Fn([u8; N]) -> f32,
        ) {
            let chunks = bytes.chunks_exact(N);
            values.extend(chunks.map(|chunk| value(chunk.try_into().expect("N bytes"))));
        }
        match self {
            Self::F64 => read(bytes, values, |b| f64::from_le_bytes(b) as f32),
            Self::F32 => read(bytes, values, f32::from_le_bytes),
            Self::F16 => read(bytes, values, |b| f16::from_le_bytes(b).to_f32()),
            Self::Bf16 => read(bytes, values, |b| bf16::from_le_bytes(b).to_f32()),
        }
    }
}

/// What a file says about one of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its shape.
    pub shape: Vec<usize>,
    /// How its numbers are stored, or the name of a type that is none of those.
    pub dtype: std::result::Result<FloatType, String>,
}

impl TensorInfo {
    /// How many numbers it has, if they can be counted.
    pub(crate) fn count(&self) -> Option<usize> {
        count(&self.shape)
    }
}

/// How many numbers a shape has, if they can be counted.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size))
}

/// Named tensors that are read when they are asked for.
pub trait TensorSource {
    /// Where they come from.
    fn path(&self) -> &Path;

    /// All of them.
    fn tensors(&self) -> &BTreeMap<String, TensorInfo>;

    /// The values of one of them, row by row.
    fn read(&mut self, name: &str) -> Result<Vec<f32>>;
}

/// Opens a safetensors file, an index of several (`*.safetensors.index.json`), an `.npz` archive, or a
/// PyTorch `.pt` / `.pth` / `.bin` file, none of whose pickles is ever executed. The format is told by
/// the file's first bytes, not by its name.
pub fn open_tensors(path: &Path) -> Result<Box<dyn TensorSource>> {
    let mut first = Vec::new();
    let file = open_regular(path).map_err(ModelError::io(path))?;
    file.take(9).read_to_end(&mut first).map_err(ModelError::io(path))?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    // Eight bytes of a size, any of them, and then JSON.
    let safetensors = first.get(8) == Some(&b'{');
    let zip = first.starts_with(b"PK\x03\x04");
    Ok(match extension {
        "json" => Box::new(ManyFiles::open_index(path)?),
        _ if safetensors => Box::new(SafetensorsFile::open(path)?),
        _ if zip && extension == "npz" => Box::new(NpzFile::open(path)?),
        _ if zip || first.starts_with(&[0x80]) => Box::new(PytorchFile::open(path)?),
        "npz" | "pt" | "pth" | "bin" => {
            let why = format!("its first bytes are not those of a .{extension} file");
            return Err(ModelError::NotACheckpoint { path: path.into(), why });
        }
        _ => Box::new(SafetensorsFile::open(path)?),
    })
}

/// An index names every tensor of a model.
const LARGEST_INDEX: u64 = 100_000_000;

/// A checkpoint in several safetensors files, as large models are published.
struct ManyFiles {
    path: PathBuf,
    files: Vec<SafetensorsFile>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl ManyFiles {
    fn open_index(path: &Path) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = read_regular(path, LARGEST_INDEX).map_err(ModelError::io(path))?;
        let index: Index = serde_json::from_slice(&text).map_err(|error| {
            ModelError::NotACheckpoint { path: path.into(), why: error.to_string() }
        })?;
        let names: std::collections::BTreeSet<&String> = index.weight_map.values().collect();
        let folder = path.parent().unwrap_or(Path::new(""));
        let open = |name: &&String| SafetensorsFile::open(&folder.join(name));
        let files: Vec<SafetensorsFile> = names.iter().map(open).collect::<Result<_>>()?;
        let tensors = files.iter().flat_map(|file| file.tensors().clone()).collect();
        Ok(Self { path: path.into(), files, tensors })
    }
}

impl TensorSource for ManyFiles {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        match self.files.iter_mut().find(|file| file.tensors().contains_key(name)) {
            Some(file) => file.read(name),
            None => Err(missing(&self.path, name)),
        }
    }
}

/// An error of a reader that unpacks: of the file system, or of what it found in the file.
fn read_fault(path: &Path) -> impl Fn(io::Error) -> ModelError {
    let path = path.to_owned();
    move |error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::Other => {
            let why = format!("it is damaged ({error})");
            ModelError::NotACheckpoint { path: path.clone(), why }
        }
        _ => ModelError::io(&path)(error),
    }
}

fn missing(path: &Path, name: &str) -> ModelError {
    ModelError::MissingTensor { path: path.into(), tensor: name.to_owned() }
}

fn checked_type(path: &Path, name: &str, info: &TensorInfo) -> Result<FloatType> {
    info.dtype.clone().map_err(|dtype| ModelError::TensorType {
        path: path.into(),
        tensor: name.to_owned(),
        dtype,
    })
}
