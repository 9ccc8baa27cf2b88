//! Other people's checkpoints.
//!
//! A [`Family`] is a way of naming and laying out a vision transformer's tensors. Each is one table
//! from our parameters to theirs, and a function that reads a [`ModelConfig`] off the tensors'
//! shapes. Nothing is left over silently: a tensor that the table does not use is an error, unless
//! the family lists it as one that the model does not need, and then the mapping says so.

mod family;
mod flax;
mod huggingface;
mod reference;
mod timm;
mod transform;

use std::{collections::BTreeSet, path::Path};

use burn::tensor::Device;
use omma_base::{Resolution, Seed};

pub use self::{family::Family, reference::largest_difference};
use crate::{
    config::{ModelConfig, apply_settings, apply_value, full_name, parse_setting},
    error::{ModelError, Result},
    parameters::with_values,
    tensors::{TensorSource, open_tensors},
    vit::VisionTransformer,
};

/// Which tensors became which parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Our parameter; nothing if the tensors are not needed.
    pub parameter: Option<String>,
    /// Their tensors.
    pub tensors: Vec<String>,
    /// What happened to them on the way.
    pub how: String,
    /// The parameter's shape.
    pub shape: Vec<usize>,
}

/// A checkpoint of another project as a model of ours.
#[derive(Debug)]
pub struct Imported {
    /// Whose names it had.
    pub family: Family,
    /// The model.
    pub model: VisionTransformer,
    /// Where every parameter comes from, and what was not needed.
    pub mapping: Vec<Mapped>,
}

/// Reads a checkpoint of any known family; `settings` say what shapes cannot tell, such as `heads=6`, or
/// `resolution=[24, 32]` where the grid of positions is not a square.
pub fn import<S: AsRef<str>>(path: &Path, settings: &[S], device: &Device) -> Result<Imported> {
    let path = &tensor_file(path)?;
    let mut source = open_tensors(path)?;
    let family = Family::of(source.as_ref())?;
    let config = configure(source.as_ref(), family, settings)?;
    import_from(source.as_mut(), family, &config, device)
}

/// What a checkpoint's model is, from its shapes and from `settings`.
pub fn configure<S: AsRef<str>>(
    source: &dyn TensorSource,
    family: Family,
    settings: &[S],
) -> Result<ModelConfig> {
    let found = family.config(source, told_resolution(settings)?)?;
    let mut config = apply_settings(&found, settings)?;
    // The positions stay at their own grid, and are interpolated to the images that were asked for.
    let moved = config.image.position_grid() != found.image.position_grid();
    if moved && config.image.position_resolution.is_none() && found.image.learns_positions() {
        config.image.position_resolution = Some(found.image.resolution);
    }
    Ok(config)
}

/// The size of the images that positions were made for, as far as settings say it.
fn told_resolution<S: AsRef<str>>(settings: &[S]) -> Result<Option<Resolution>> {
    let about = |name: &str| {
        let of_name = |setting: &&S| {
            let key = setting.as_ref().split('=').next().unwrap_or_default();
            full_name(key.trim()) == name
        };
        settings.iter().rfind(of_name).map(AsRef::as_ref)
    };
    let told = about("image.position_resolution").or(about("image.resolution"));
    let Some(told) = told else { return Ok(None) };
    let (key, value, text) = parse_setting(told)?;
    let image = apply_value(&ModelConfig::default(), key, value, text)?.image;
    Ok(Some(image.position_resolution.unwrap_or(image.resolution)))
}

/// The file of tensors at a path, which may be a folder as Hugging Face lays it out.
pub fn tensor_file(path: &Path) -> Result<std::path::PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let names = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
    let found = names.iter().map(|name| path.join(name)).find(|file| file.exists());
    found.ok_or_else(|| ModelError::NotACheckpoint {
        path: path.into(),
        why: format!("the folder has none of {}", names.join(", ")),
    })
}

/// Reads a model of a known configuration.
pub fn import_from(
    source: &mut dyn TensorSource,
    family: Family,
    config: &ModelConfig,
    device: &Device,
) -> Result<Imported> {
    let model = config.init(Seed::new(0), device)?;
    let mut unused: BTreeSet<String> = source.tensors().keys().cloned().collect();
    let mut mapping = Vec::new();
    let model = with_values(model, |parameter| {
        let transform = family.transform(&parameter.name, &config.image, source)?;
        let values = transform.run(parameter, source)?;
        for tensor in &transform.tensors {
            unused.remove(tensor);
        }
        mapping.push(Mapped {
            parameter: Some(parameter.name.clone()),
            how: transform.how.to_string(),
            tensors: transform.tensors,
            shape: parameter.shape.clone(),
        });
        Ok(Some(values))
    })?;
    let mut left = Vec::new();
    for tensor in unused {
        match family.not_needed(&tensor) {
            Some(why) => mapping.push(Mapped {
                parameter: None,
                how: why.to_owned(),
                shape: source.tensors()[&tensor].shape.clone(),
                tensors: vec![tensor],
            }),
            None => left.push(tensor),
        }
    }
    match left.is_empty() {
        true => Ok(Imported { family, model, mapping }),
        false => Err(ModelError::UnusedTensors { path: source.path().into(), tensors: left }),
    }
}
