//! Our own files: a folder with `model.safetensors` and `config.json`.
//!
//! `model.safetensors` holds every parameter as `f32` under the name of [`parameters`], experts
//! stacked `[E, in, out]`, and a note `omma` with the configuration and a checksum of every tensor. It
//! is complete in itself, so replacing it is one atomic step; `config.json` is the same
//! configuration for people and other tools to read.
//!
//! [`parameters`]: crate::parameters

mod earlier;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use omma_base::{
    Seed, checksum,
    files::{
        tensors::{Floats, bytes_of, is_sealed, sealed, write_tensors},
        write_atomically,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

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

/// The tokenizer's file in the folder of a checkpoint that reads: Hugging Face's `tokenizer.json`.
pub const TOKENIZER: &str = "tokenizer.json";

const NOTE: &str = "omma";
/// 1 had a flat configuration.
const FORMAT: u32 = 2;

/// What our files say of themselves.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    format: u32,
    /// As it was written: a checksum is one of bytes, and reading and writing again may change them.
    config: Box<RawValue>,
    config_checksum: String,
    checksums: BTreeMap<String, String>,
}

/// What tells a checkpoint's weights from any others: a checksum of everything that the file says of
/// itself, which has the checksums of all tensors in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(String);

impl Identity {
    fn of(note: &str) -> Self {
        Self(format!("{}-{}", checksum(note), note.len()))
    }
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

/// The tokenizer of a checkpoint given by its folder or by its file of weights.
pub fn tokenizer_path(path: &Path) -> PathBuf {
    weights_path(path).with_file_name(TOKENIZER)
}

/// Writes a checkpoint into a folder, which is made if it is not there. Whatever happens while it is
/// written, the folder holds the old checkpoint or the new one.
pub fn save(model: &VisionTransformer, folder: &Path) -> Result<Identity> {
    save_values(model.config(), &parameter_values(model), folder)
}

/// The same of a model that is not in one place: all of its parameters, in the order of the modules. Each is read
/// twice.
pub fn save_values(
    config: &ModelConfig,
    tensors: &[ParameterValues],
    folder: &Path,
) -> Result<Identity> {
    fs::create_dir_all(folder).map_err(ModelError::io(folder))?;
    let sum = |tensor: &ParameterValues| {
        let mut checksum = Checksum::new(&tensor.parameter);
        checksum.add(&bytes_of(&tensor.read()));
        (tensor.parameter.name.clone(), checksum.finish())
    };
    let checksums = tensors.iter().map(sum).collect();
    let (sealed, config_checksum) = sealed(config);
    let note = Note { format: FORMAT, config: sealed, config_checksum, checksums };
    let note = serde_json::to_string(&note).expect("a configuration can be written");
    let identity = Identity::of(&note);
    let weights = folder.join(WEIGHTS);
    write_tensors(&weights, (NOTE, note), tensors).map_err(ModelError::io(&weights))?;
    let config = serde_json::to_string_pretty(config).expect("it can be written");
    let path = folder.join(CONFIG);
    write_atomically(&path, |temporary| fs::write(temporary, config + "\n"))
        .map_err(ModelError::io(&path))?;
    Ok(identity)
}

/// Reads a checkpoint, with every tensor checked against its checksum.
pub fn load(path: &Path, device: &Device) -> Result<VisionTransformer> {
    Ok(load_identified(path, device)?.0)
}

/// Reads a checkpoint, and what tells it from others.
pub fn load_identified(path: &Path, device: &Device) -> Result<(VisionTransformer, Identity)> {
    let path = weights_path(path);
    let mut file = SafetensorsFile::open(&path)?;
    let Described { config, checksums, identity } = read_note(&path, &file)?;
    warn_of_another_config(&path, &config);
    let model = config.init(Seed::new(0), device)?;
    let present: HashSet<String> = file.tensors().keys().cloned().collect();
    let stored = |parameter: &Parameter| {
        let before = earlier::before(parameter).filter(|before| present.contains(&before.name));
        before.unwrap_or_else(|| parameter.clone())
    };
    let known: HashSet<String> = parameters(&model).iter().map(|p| stored(p).name).collect();
    let mut unused: Vec<String> = present.difference(&known).cloned().collect();
    if !unused.is_empty() {
        unused.sort();
        return Err(ModelError::UnusedTensors { path, tensors: unused });
    }
    let model = with_values(model, |parameter| {
        let stored = stored(parameter);
        let Parameter { name, shape } = &stored;
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
        let mut checksum = Checksum::new(&stored);
        let values = file.read_seen(name, |bytes| checksum.add(bytes))?;
        if checksums.get(name) != Some(&checksum.finish()) {
            return Err(ModelError::Checksum { path: path.clone(), tensor: tensor() });
        }
        let wanted: usize = parameter.shape.iter().product();
        Ok(Some(match values.len() {
            found if found == wanted => values,
            found => values.repeat(wanted / found.max(1)),
        }))
    })?;
    Ok((model, identity))
}

/// What a checkpoint is, from its first bytes alone.
pub fn summary(path: &Path) -> Result<Summary> {
    let path = weights_path(path);
    let file = SafetensorsFile::open(&path)?;
    Ok(Summary { config: read_note(&path, &file)?.config, tensors: file.tensors().clone() })
}

/// Whether a file is one of ours, rather than another project's safetensors file.
pub fn is_ours(path: &Path) -> bool {
    SafetensorsFile::open(&weights_path(path)).is_ok_and(|file| file.header().note(NOTE).is_some())
}

/// What a note says, once it is believed.
struct Described {
    config: ModelConfig,
    checksums: BTreeMap<String, String>,
    identity: Identity,
}

fn read_note(path: &Path, file: &SafetensorsFile) -> Result<Described> {
    let fault = |why: String| ModelError::NotACheckpoint { path: path.into(), why };
    let text = file.header().note(NOTE).ok_or_else(|| {
        fault("it is a safetensors file of another project; `omma convert` reads it".to_owned())
    })?;
    let unreadable = |error| fault(format!("its configuration cannot be read ({error})"));
    let note: Note = serde_json::from_str(text).map_err(unreadable)?;
    if !(1..=FORMAT).contains(&note.format) {
        let found = note.format;
        return Err(fault(format!("it has format {found}, this program reads up to {FORMAT}")));
    }
    if !is_sealed(&note.config, &note.config_checksum) {
        return Err(fault("its configuration does not have its checksum".to_owned()));
    }
    let config = serde_json::from_str(note.config.get()).map_err(unreadable)?;
    Ok(Described { config, checksums: note.checksums, identity: Identity::of(text) })
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

impl Floats for ParameterValues {
    fn name(&self) -> &str {
        &self.parameter.name
    }

    fn shape(&self) -> Cow<'_, [usize]> {
        Cow::Borrowed(&self.parameter.shape)
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Owned(self.read())
    }
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
