//! PyTorch's files. The reader understands what state dictionaries are made of and refuses
//! everything else; nothing in a file is ever executed.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use pytorch_reader::{DType, PytorchReader, Tensor};

use super::{FloatType, TensorInfo, TensorSource, checked_type, missing};
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
        let reader = PytorchReader::new(path).map_err(|error| ModelError::NotACheckpoint {
            path: path.into(),
            why: error.to_string(),
        })?;
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
        let tensors = tensors.collect();
        Ok(Self { path: path.into(), stored, tensors })
    }
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
