//! The families of checkpoints, and how they are told apart.

use std::fmt;

use omma_base::{Resolution, files::read_regular};

use super::{
    flax, huggingface, timm,
    transform::{How, Transform},
};
use crate::{
    config::{ImageConfig, ModelConfig},
    error::{ModelError, Result},
    tensors::TensorSource,
};

/// A way of naming and laying out a vision transformer's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// timm's `VisionTransformer`.
    Timm,
    /// DINOv2 as its authors publish it.
    Dinov2,
    /// Hugging Face's `ViTModel` and `ViTForImageClassification`.
    HfVit,
    /// Hugging Face's `Dinov2Model` and its classifier.
    HfDinov2,
    /// Google's ViTs as `.npz`, with big_vision's later names too.
    GoogleVit,
    /// vmoe: V-MoE, E³ and Soft MoE in Flax's names, joined with `/` or `.`.
    Vmoe,
}

/// Our parameter, what happens to theirs, and their names; `{}` stands for a block's number.
pub(super) type Rule = (&'static str, How, &'static [&'static str]);

/// A `config.json` has a few thousand bytes.
const LARGEST_CONFIG: u64 = 1 << 24;

/// In front of names that do not have the prefix of the others.
const OUTSIDE: &str = "/";

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timm => "timm ViT",
            Self::Dinov2 => "DINOv2",
            Self::HfVit => "Hugging Face ViT",
            Self::HfDinov2 => "Hugging Face Dinov2",
            Self::GoogleVit => "Google ViT",
            Self::Vmoe => "vmoe",
        })
    }
}

impl Family {
    /// Tells a checkpoint's family by its tensors' names.
    pub fn of(source: &dyn TensorSource) -> Result<Self> {
        let any = |part: &str| source.tensors().keys().any(|name| name.contains(part));
        let fault = |why: String| ModelError::Import { path: source.path().into(), why };
        if ["mlp.w12", "mlp.w1.", "weights_in.", "mlp.fc1_g."].iter().any(|part| any(part)) {
            return Err(fault(
                "its feed-forward networks are SwiGLU, which this program does not have; models with \
                 a GELU (DINOv2 up to ViT-L) can be read"
                    .to_owned(),
            ));
        }
        Ok(match () {
            _ if any("Encoder/encoderblock_0/") || any("Encoder.encoderblock_0.") => Self::Vmoe,
            _ if any("Transformer/encoderblock_0/") => Self::GoogleVit,
            _ if any("layer_scale1.lambda1") => Self::HfDinov2,
            _ if any("embeddings.patch_embeddings.projection.weight") => Self::HfVit,
            _ if any("patch_embed.proj.weight") && any("mask_token") => Self::Dinov2,
            _ if any("patch_embed.proj.weight") => Self::Timm,
            _ => {
                let names: Vec<&str> =
                    source.tensors().keys().take(3).map(String::as_str).collect();
                return Err(fault(format!(
                    "its tensors have the names of no family that is known here (timm, DINOv2, \
                     Hugging Face ViT and Dinov2, Google ViT, vmoe); they begin with {}",
                    names.join(", ")
                )));
            }
        })
    }

    /// What the shapes of the tensors say about the model. They say how many positions there are, not
    /// whether these form a square: where `resolution` has as many patches, it is that of the images.
    pub fn config(
        self,
        source: &dyn TensorSource,
        resolution: Option<Resolution>,
    ) -> Result<ModelConfig> {
        let shapes = Shapes { source, prefix: self.prefix(source), resolution };
        match self {
            Self::Timm | Self::Dinov2 => timm::config(self, &shapes),
            Self::HfVit | Self::HfDinov2 => huggingface::config(self, &shapes),
            Self::GoogleVit | Self::Vmoe => flax::config(self, &shapes),
        }
    }

    fn rules(self) -> &'static [Rule] {
        match self {
            Self::Timm | Self::Dinov2 => timm::RULES,
            Self::HfVit => huggingface::VIT_RULES,
            Self::HfDinov2 => huggingface::DINOV2_RULES,
            Self::GoogleVit => flax::VIT_RULES,
            Self::Vmoe => flax::VMOE_RULES,
        }
    }

    /// Where one of our parameters comes from.
    pub(super) fn transform(
        self,
        parameter: &str,
        image: &ImageConfig,
        source: &dyn TensorSource,
    ) -> Result<Transform> {
        let prefix = self.prefix(source);
        let mut parts = parameter.split('.');
        let (pattern, block) = match (parts.next(), parts.next()) {
            (Some("blocks"), Some(number)) => {
                (parameter.replacen(&format!(".{number}."), ".{}.", 1), number)
            }
            _ => (parameter.to_owned(), ""),
        };
        // Of several rules for a parameter, the one whose tensors are there.
        let transforms = self.rules().iter().filter(|(ours, ..)| *ours == pattern);
        let transforms = transforms.map(|(_, how, theirs)| {
            let name = |theirs: &&str| {
                let name = match theirs.strip_prefix(OUTSIDE) {
                    Some(name) => name.to_owned(),
                    None => format!("{prefix}{}", theirs.replace("{}", block)),
                };
                self.spelled(name, source)
            };
            Transform { how: *how, tensors: theirs.iter().map(name).collect() }
        });
        let transforms: Vec<Transform> = transforms.collect();
        let there = |transform: &&Transform| {
            transform.tensors.iter().all(|name| source.tensors().contains_key(name))
        };
        let found = transforms.iter().find(there).or(transforms.first()).cloned();
        let found = found.ok_or_else(|| ModelError::Import {
            path: source.path().into(),
            why: format!("{self} has nothing for the model's parameter {parameter}"),
        })?;
        Ok(match self {
            Self::Timm => timm::with_positions(parameter, found, image, source),
            _ => found,
        })
    }

    /// Flax paths are joined with `/`, or with `.` where tools dislike that.
    fn spelled(self, name: String, source: &dyn TensorSource) -> String {
        match self {
            Self::Vmoe | Self::GoogleVit if !source.tensors().contains_key(&name) => {
                name.replace('/', ".")
            }
            _ => name,
        }
    }

    /// What stands in front of every name.
    fn prefix(self, source: &dyn TensorSource) -> String {
        let marks: &[&str] = match self {
            Self::Timm | Self::Dinov2 => &["patch_embed.proj.weight"],
            Self::HfVit | Self::HfDinov2 => &["embeddings.patch_embeddings.projection.weight"],
            Self::GoogleVit => &["Transformer/encoderblock_0/"],
            Self::Vmoe => &["Encoder/encoderblock_0/", "Encoder.encoderblock_0."],
        };
        let names = source.tensors().keys();
        let places = names.filter_map(|name| {
            let place = marks.iter().find_map(|mark| name.find(mark))?;
            Some(name[..place].to_owned())
        });
        places.min_by_key(String::len).unwrap_or_default()
    }

    /// Why a tensor that no parameter uses may be left, if it may.
    pub(super) fn not_needed(self, tensor: &str) -> Option<&'static str> {
        let ends = |end: &str| tensor.ends_with(end);
        match self {
            _ if ends("mask_token") => Some("only masked pre-training uses it"),
            Self::HfVit if tensor.contains("pooler.dense") => {
                Some("the classifier does not use it")
            }
            _ if ends("num_batches_tracked") || ends("position_ids") => Some("a counter"),
            Self::GoogleVit | Self::Vmoe if tensor.starts_with("opt/state") => {
                Some("state of an optimiser")
            }
            _ => None,
        }
    }
}

/// The first size of a shape.
pub(super) fn first(shape: &[usize]) -> usize {
    shape.first().copied().unwrap_or(0)
}

/// Shapes of tensors by their family's names.
pub(super) struct Shapes<'a> {
    source: &'a dyn TensorSource,
    prefix: String,
    /// That of the images, as far as it was told.
    resolution: Option<Resolution>,
}

impl Shapes<'_> {
    /// The shape of a tensor, if it is there, with or without the prefix.
    pub(super) fn find(&self, name: &str) -> Option<&[usize]> {
        let tensors = self.source.tensors();
        let full = format!("{}{name}", self.prefix);
        let names = [full.clone(), full.replace('/', "."), name.to_owned()];
        names.iter().find_map(|name| tensors.get(name)).map(|info| info.shape.as_slice())
    }

    /// The shape of a tensor that must be there.
    pub(super) fn get<const R: usize>(&self, name: &str) -> Result<[usize; R]> {
        let path = || self.source.path().into();
        let shape = self.find(name).ok_or_else(|| ModelError::MissingTensor {
            path: path(),
            tensor: format!("{}{name}", self.prefix),
        })?;
        shape.try_into().map_err(|_| ModelError::Import {
            path: path(),
            why: format!("tensor \"{name}\" has {} axes instead of {R}", shape.len()),
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// How many blocks there are: the first number whose tensor is missing.
    pub(super) fn count(&self, pattern: &str) -> usize {
        (0..).find(|i: &usize| !self.has(&pattern.replace("{}", &i.to_string()))).unwrap_or(0)
    }

    /// The images whose patches have so many positions, once the positions of some other tokens are
    /// taken off: of the numbers in `others`, the first that leaves a grid. That is the told one, or else
    /// a square.
    pub(super) fn grid(
        &self,
        positions: usize,
        others: &[usize],
        patch: usize,
    ) -> Result<(usize, Resolution)> {
        let left = |other: &usize| Some((*other, positions.checked_sub(*other)?));
        let told = |(other, patches): (usize, usize)| {
            let resolution = self.resolution.filter(|_| patch > 0)?;
            let (rows, columns) = resolution.patches(patch);
            (rows.checked_mul(columns) == Some(patches)).then_some((other, resolution))
        };
        let square = |(other, patches): (usize, usize)| {
            let side = patches.isqrt();
            let resolution = Resolution::square(side.saturating_mul(patch));
            (side * side == patches).then_some((other, resolution))
        };
        let lefts = || others.iter().filter_map(left);
        lefts().find_map(told).or_else(|| lefts().find_map(square)).ok_or_else(|| {
            self.fault(match self.resolution {
                Some(resolution) => format!(
                    "{positions} positions are those neither of a square nor of an image of \
                     {resolution} pixels in patches of {patch}"
                ),
                None => format!(
                    "{positions} positions are not those of a square grid; say how large its images \
                     were, as in `omma convert --set resolution=[{}, {}]`",
                    3 * patch,
                    4 * patch
                ),
            })
        })
    }

    /// An error about this checkpoint.
    pub(super) fn fault(&self, why: impl Into<String>) -> ModelError {
        ModelError::Import { path: self.source.path().into(), why: why.into() }
    }

    /// The configuration that Hugging Face keeps beside the tensors, if it is there.
    pub(super) fn beside(&self) -> Option<serde_json::Value> {
        let path = self.source.path().with_file_name("config.json");
        let text = read_regular(&path, LARGEST_CONFIG).ok()?;
        serde_json::from_slice(&text).ok()
    }
}
