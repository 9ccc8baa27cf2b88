//! PyTorch's files. The reader understands what state dictionaries are made of and refuses
//! everything else; nothing in a file is ever executed.

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use omma_base::{Limits, files::open_regular};
use pytorch_reader::{DType, MAX_PICKLE_SIZE, PytorchReader, Tensor};
use zip::ZipArchive;

use super::{FloatType, TensorInfo, TensorSource, checked_type, missing, pickle, read_fault};
use crate::error::{ModelError, Result};

/// Entries under which training scripts keep the model's tensors.
const WRAPPERS: &[&str] = &["state_dict.", "model.", "model_state_dict.", "teacher.", "module."];

pub(super) struct PytorchFile {
    path: PathBuf,
    stored: HashMap<String, Tensor>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl PytorchFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let fault = |why: String| ModelError::NotACheckpoint { path: path.into(), why };
        check_pickles(path)?;
        let reader = PytorchReader::new(path).map_err(|error| fault(error.to_string()))?;
        let mut stored = reader.into_tensors();
        for wrapper in WRAPPERS {
            if !stored.is_empty() && stored.keys().all(|name| name.starts_with(wrapper)) {
                let unwrap =
                    |(name, tensor): (String, Tensor)| (name[wrapper.len()..].to_owned(), tensor);
                stored = stored.into_iter().map(unwrap).collect();
            }
        }
        let tensors = stored.iter().map(|(name, tensor)| {
            let dtype = match tensor.dtype() {
                DType::F64 => Ok(FloatType::F64),
                DType::F32 => Ok(FloatType::F32),
                DType::F16 => Ok(FloatType::F16),
                DType::BF16 => Ok(FloatType::Bf16),
                other => Err(format!("{other:?}")),
            };
            (name.clone(), TensorInfo { shape: tensor.shape().to_vec(), dtype })
        });
        let tensors: BTreeMap<String, TensorInfo> = tensors.collect();
        // A view can have far more numbers than are stored for it.
        let packed = std::fs::metadata(path).map_err(ModelError::io(path))?.len();
        for (name, info) in &tensors {
            let size = info.dtype.as_ref().map_or(8, |dtype| dtype.size());
            let unpacked = info.count().and_then(|count| count.checked_mul(size));
            let unpacked = unpacked.map_or(u64::MAX, |bytes| bytes as u64);
            Limits::current()
                .check_unpacking(packed, unpacked)
                .map_err(|why| fault(format!("tensor \"{name}\": {why}")))?;
        }
        Ok(Self { path: path.into(), stored, tensors })
    }
}

/// Refuses a file whose pickles name what a file of weights does not. A new file is an archive with one
/// pickle in it; an old one begins with five of them, the fourth of which holds the tensors.
fn check_pickles(path: &Path) -> Result<()> {
    let fault = |why: String| ModelError::NotACheckpoint { path: path.into(), why };
    let mut file = BufReader::new(open_regular(path).map_err(ModelError::io(path))?);
    let mut bytes = Vec::new();
    file.by_ref().take(1).read_to_end(&mut bytes).map_err(ModelError::io(path))?;
    if bytes == [0x80] {
        // What follows the pickles is as long as the tensors; all of it may have to be skipped.
        file.take(MAX_PICKLE_SIZE).read_to_end(&mut bytes).map_err(ModelError::io(path))?;
        let mut rest = bytes.as_slice();
        for _ in 0..5 {
            if rest.first() != Some(&0x80) {
                break;
            }
            rest = pickle::check(rest).map_err(fault)?;
        }
        return Ok(());
    }
    file.seek_relative(-1).map_err(ModelError::io(path))?;
    let mut archive = ZipArchive::new(file).map_err(|error| read_fault(path)(error.into()))?;
    for place in 0..archive.len() {
        let member = archive.by_index(place).map_err(|error| read_fault(path)(error.into()))?;
        let name = member.name().map_err(|error| read_fault(path)(error.into()))?;
        if !name.ends_with(".pkl") {
            continue;
        }
        let mut bytes = Vec::new();
        member.take(MAX_PICKLE_SIZE).read_to_end(&mut bytes).map_err(read_fault(path))?;
        pickle::check(&bytes).map_err(fault)?;
    }
    Ok(())
}

impl TensorSource for PytorchFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn read(&mut self, name: &str) -> Result<Vec<f32>> {
        let tensor = self.stored.get(name).ok_or_else(|| missing(&self.path, name))?;
        let dtype = checked_type(&self.path, name, &self.tensors[name])?;
        let bytes = tensor.read().map_err(ModelError::io(&self.path))?;
        Ok(dtype.decode(&bytes))
    }
}
