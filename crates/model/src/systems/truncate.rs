//! The first blocks of a model, as a model of its own.

use burn::tensor::Device;
use omma_base::Seed;

use super::upcycle::by_name;
use crate::{
    config::{EncoderConfig, ModelConfig, Placement},
    error::Result,
    parameters::with_values,
    vit::VisionTransformer,
};

/// The first `depth` blocks of a model under its own normalisation and pooling, with a fresh classifier for
/// so many classes. What frozen features know is often most in front of the last blocks. Of a model that compares
/// images with texts, what images pass is left.
pub fn truncated(
    model: &VisionTransformer,
    depth: usize,
    classes: usize,
    device: &Device,
) -> Result<VisionTransformer> {
    let config = model.config();
    let encoder = &config.encoder;
    let below = |placement: &Placement| -> Result<Option<Placement>> {
        let mut blocks = placement.blocks(encoder.depth)?;
        blocks.retain(|block| *block < depth);
        Ok((!blocks.is_empty()).then_some(Placement::Blocks(blocks)))
    };
    let (mut moe, mut batch_ensemble) = (encoder.moe.clone(), encoder.batch_ensemble.clone());
    if depth < encoder.depth {
        if let Some(own) = &mut moe {
            match below(&own.placement)? {
                Some(placement) => {
                    own.placement = placement;
                    own.pruned.retain(|pruned| pruned.block < depth);
                }
                None => moe = None,
            }
        }
        if let Some(own) = &mut batch_ensemble {
            match below(&own.placement)? {
                Some(placement) => own.placement = placement,
                None => batch_ensemble = None,
            }
        }
    }
    let encoder = EncoderConfig { depth, moe, batch_ensemble, ..encoder.clone() };
    let config = ModelConfig { encoder, ..config.image_tower() }.with_classes(classes);
    let fresh = config.init(Seed::new(0), device)?;
    let known = by_name(model);
    with_values(fresh, |parameter| {
        let own = known.get(&parameter.name).filter(|_| !parameter.name.starts_with("head."));
        Ok(own.map(|own| own.read()))
    })
}
