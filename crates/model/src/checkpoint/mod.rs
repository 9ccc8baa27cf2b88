//! Our own files: a folder with `model.safetensors` and `config.json`.
//!
//! `model.safetensors` holds every parameter as `f32` under the name of [`parameters`], experts
//! stacked `[E, in, out]`, and a note `omma` with the configuration and a checksum of every tensor. It
//! is complete in itself, so replacing it is one atomic step; `config.json` is the same
//! configuration for people and other tools to read.
//!
//! [`parameters`]: crate::parameters

mod atomic;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use omma_routing::Seed;
use safetensors::{Dtype, View, tensor::serialize_to_file};
use serde::{Deserialize, Serialize};

pub use self::atomic::write_atomically;
use crate::{
    config::ModelConfig,
    error::{ModelError, Result},
    parameters::{Parameter, ParameterValues, parameter_values, parameters, with_values},
    tensors::{SafetensorsFile, TensorInfo, TensorSource},
    vit::VisionTransformer,
};

/// The parameters' file in a checkpoint's folder.
pub const WEIGHTS: &str = "model.safetensors";
/// The configuration's file in a checkpoint's folder.
pub const CONFIG: &str = "config.json";

const NOTE: &str = "omma";
const FORMAT: u32 = 1;

/// What our files say of themselves.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    format: u32,
    config: ModelConfig,
    config_checksum: String,
    checksums: BTreeMap<String, String>,
}

fn config_checksum(config: &ModelConfig) -> String {
    let text = serde_json::to_vec(config).expect("a configuration can be written");
    format!("{:08x}", crc32fast::hash(&text))
}

/// What a checkpoint is, without its values.
#[derive(Debug)]
pub struct Summary {
    /// What the model is.
    pub config: ModelConfig,
    /// Every tensor of the file.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// The weights of a checkpoint given by its folder or by the file itself.
pub fn weights_path(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.join(WEIGHTS),
        false => path.to_owned(),
    }
}

/// Writes a checkpoint into a folder, which is made if it is not there. Whatever happens while it is
/// written, the folder holds the old checkpoint or the new one.
pub fn save(model: &VisionTransformer, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(ModelError::io(folder))?;
    let tensors = parameter_values(model);
    let sum = |tensor: &ParameterValues| {
        let mut checksum = Checksum::new(&tensor.parameter);
        checksum.add(&bytes_of(&tensor.read()));
        (tensor.parameter.name.clone(), checksum.finish())
    };
    let checksums = tensors.iter().map(sum).collect();
    let config = model.config().clone();
    let config_checksum = config_checksum(&config);
    let note = Note { format: FORMAT, config, config_checksum, checksums };
    let note = serde_json::to_string(&note).expect("a configuration can be written");
    write_atomically(&folder.join(WEIGHTS), |temporary| {
        let notes = HashMap::from([(NOTE.to_owned(), note)]);
        let views = tensors.iter().map(|tensor| (tensor.parameter.name.as_str(), tensor));
        serialize_to_file(views, Some(notes), temporary).map_err(std::io::Error::other)
    })?;
    let config = serde_json::to_string_pretty(model.config()).expect("it can be written");
    write_atomically(&folder.join(CONFIG), |temporary| fs::write(temporary, config + "\n"))
}

/// Reads a checkpoint, with every tensor checked against its checksum.
pub fn load(path: &Path, device: &Device) -> Result<VisionTransformer> {
    let path = weights_path(path);
    let mut file = SafetensorsFile::open(&path)?;
    let note = read_note(&path, &file)?;
    warn_of_another_config(&path, &note.config);
    let model = note.config.init(Seed::new(0), device)?;
    let known: HashSet<String> = parameters(&model).into_iter().map(|p| p.name).collect();
    let unused: Vec<String> =
        file.tensors().keys().filter(|name| !known.contains(*name)).cloned().collect();
    if !unused.is_empty() {
        return Err(ModelError::UnusedTensors { path, tensors: unused });
    }
    with_values(model, |parameter| {
        let Parameter { name, shape } = parameter;
        let tensor = || name.clone();
        let Some(info) = file.tensors().get(name).cloned() else {
            return Err(ModelError::MissingTensor { path: path.clone(), tensor: tensor() });
        };
        if info.shape != *shape {
            return Err(ModelError::TensorShape {
                path: path.clone(),
                tensor: tensor(),
                expected: shape.clone(),
                found: info.shape,
            });
        }
        let mut checksum = Checksum::new(parameter);
        let values = file.read_seen(name, |bytes| checksum.add(bytes))?;
        if note.checksums.get(name) != Some(&checksum.finish()) {
            return Err(ModelError::Checksum { path: path.clone(), tensor: tensor() });
        }
        Ok(Some(values))
    })
}

/// What a checkpoint is, from its first bytes alone.
pub fn summary(path: &Path) -> Result<Summary> {
    let path = weights_path(path);
    let file = SafetensorsFile::open(&path)?;
    let note = read_note(&path, &file)?;
    Ok(Summary { config: note.config, tensors: file.tensors().clone() })
}

/// Whether a file is one of ours, rather than another project's safetensors file.
pub fn is_ours(path: &Path) -> bool {
    SafetensorsFile::open(&weights_path(path)).is_ok_and(|file| file.header().note(NOTE).is_some())
}

fn read_note(path: &Path, file: &SafetensorsFile) -> Result<Note> {
    let fault = |why: String| ModelError::NotACheckpoint { path: path.into(), why };
    let note = file.header().note(NOTE).ok_or_else(|| {
        fault("it is a safetensors file of another project; `omma convert` reads it".to_owned())
    })?;
    let note: Note = serde_json::from_str(note)
        .map_err(|error| fault(format!("its configuration cannot be read ({error})")))?;
    match note.format {
        FORMAT if note.config_checksum == config_checksum(&note.config) => Ok(note),
        FORMAT => Err(fault("its configuration does not have its checksum".to_owned())),
        other => Err(fault(format!("it has format {other}, this program reads {FORMAT}"))),
    }
}

fn warn_of_another_config(weights: &Path, inside: &ModelConfig) {
    let beside = weights.with_file_name(CONFIG);
    let Ok(text) = fs::read(&beside) else { return };
    if serde_json::from_slice::<ModelConfig>(&text).ok().as_ref() != Some(inside) {
        tracing::warn!(
            "{} says something else than the configuration inside {}, which is used",
            beside.display(),
            weights.display()
        );
    }
}

impl View for &ParameterValues {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.parameter.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(bytes_of(&self.read()))
    }

    fn data_len(&self) -> usize {
        4 * self.parameter.shape.iter().product::<usize>()
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 * values.len());
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    bytes
}

/// CRC-32 of a tensor's name, shape and bytes.
struct Checksum(crc32fast::Hasher);

impl Checksum {
    fn new(Parameter { name, shape }: &Parameter) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(name.as_bytes());
        for size in shape {
            hasher.update(&(*size as u64).to_le_bytes());
        }
        Self(hasher)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(self) -> String {
        format!("{:08x}", self.0.finalize())
    }
}
