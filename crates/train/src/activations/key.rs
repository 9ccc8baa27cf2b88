//! What activations depend on.

use omma_base::{checksum, files::tensors::bytes_of};
use omma_data::{Pixels, Shared, augment::Augmentation, formats::stamp};
use omma_model::{
    EncoderConfig, FeedForwardKind, ModelConfig, VisionTransformer, parameter_values,
};
use serde::{Deserialize, Serialize};

use crate::{error::Result, recipe::Recipe};

/// What activations depend on. Those of another key are others, and are made anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Blocks of the trunk.
    pub(crate) blocks: usize,
    /// Draws of the augmentation of every image; 0 for its middle alone.
    pub(crate) draws: usize,
    /// Checksum of the trunk's parameters.
    weights: String,
    /// Checksum of what the trunk is.
    model: String,
    /// Checksum of the files of the data, which of its images they are, and their labels.
    images: String,
    /// Checksum of what pixels become, and of the augmentation.
    pixels: String,
}

/// What activations are made of.
pub(crate) struct Source<'a> {
    pub(crate) recipe: &'a Recipe,
    /// Without gradients.
    pub(crate) model: &'a VisionTransformer,
    /// Blocks of the trunk.
    pub(crate) blocks: usize,
    pub(crate) images: &'a Shared,
}

impl Key {
    pub(crate) fn of(source: &Source) -> Result<Self> {
        let Source { recipe, model, blocks, images } = *source;
        let mut weights = crc32fast::Hasher::new();
        for value in parameter_values(model) {
            if in_trunk(&value.parameter.name, blocks) {
                weights.update(value.parameter.name.as_bytes());
                weights.update(&bytes_of(&value.read()));
            }
        }
        let draws = recipe.data.cache_augmentations;
        let augmentation = (draws > 0).then_some((recipe.augment, recipe.seed));
        Ok(Self {
            blocks,
            draws,
            weights: format!("{:08x}", weights.finalize()),
            model: checksum(trunk_of(model.config(), blocks)?),
            images: checksum(of_images(recipe, images)?),
            pixels: checksum(of_pixels(&recipe.pixels(), augmentation)),
        })
    }

    /// What the folder of these activations is called.
    pub(crate) fn name(&self) -> String {
        let Self { weights, model, images, pixels, .. } = self;
        let rest = checksum(format!("{model}{images}{pixels}{}", self.draws));
        format!("{weights}-{rest}-{}", self.blocks)
    }
}

fn in_trunk(parameter: &str, blocks: usize) -> bool {
    let block = parameter.strip_prefix("blocks.").and_then(|rest| rest.split('.').next());
    match block.and_then(|block| block.parse::<usize>().ok()) {
        Some(block) => block < blocks,
        None => parameter.starts_with("embed."),
    }
}

/// The configuration as far as the trunk goes: experts above it may be any.
fn trunk_of(config: &ModelConfig, blocks: usize) -> Result<String> {
    let kinds = config.encoder.feed_forwards()?;
    let has = |kind| kinds[..blocks].contains(&kind);
    let encoder = EncoderConfig {
        depth: blocks,
        moe: config.encoder.moe.clone().filter(|_| has(FeedForwardKind::Moe)),
        batch_ensemble: None,
        mc_samples: 1,
        ..config.encoder.clone()
    };
    Ok(format!("{:?} {encoder:?} {kinds:?}", config.image, kinds = &kinds[..blocks]))
}

fn of_images(recipe: &Recipe, images: &Shared) -> Result<String> {
    let labels: Vec<u8> =
        (0..images.len()).flat_map(|index| (images.label(index) as u32).to_le_bytes()).collect();
    let files = stamp(&recipe.data_spec())?;
    let data = &recipe.data;
    let which = (data.limit, data.validation, data.holding_out);
    Ok(format!("{} {files} {which:?} {} {}", data.name, images.len(), checksum(labels)))
}

fn of_pixels(pixels: &Pixels, augmentation: Option<(Augmentation, u64)>) -> String {
    format!("{pixels:?} {augmentation:?}")
}
