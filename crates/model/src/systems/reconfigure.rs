//! The same parameters under other settings, for predictions: `K` at test time (paper 000 App. L.8), a
//! capacity, noise, MC samples, pruned experts.

use burn::tensor::Device;
use omma_base::Seed;
use omma_routing::{Allocation, RouterConfig};

use super::upcycle::by_name;
use crate::{
    config::{EncoderConfig, ExpertStart, MimoConfig, ModelConfig, MoeConfig, apply_settings},
    error::{ModelError, Result},
    parameters::{parameters, with_values},
    vit::VisionTransformer,
};

/// A model whose predictions are made with settings on top of its own. Fails on a setting that needs other
/// parameters, and on one that predictions do not depend on.
pub fn reconfigure<S: AsRef<str>>(
    model: VisionTransformer,
    settings: &[S],
    device: &Device,
) -> Result<VisionTransformer> {
    if settings.is_empty() {
        return Ok(model);
    }
    let config = apply_settings(model.config(), settings)?;
    for (place, setting) in settings.iter().enumerate() {
        let others = settings.iter().enumerate().filter(|(other, _)| *other != place);
        let others: Vec<&str> = others.map(|(_, other)| other.as_ref()).collect();
        // Without it the others may contradict each other, and then it does make a difference.
        let Ok(without) = apply_settings(model.config(), &others) else { continue };
        if without != config && for_predictions(&without) == for_predictions(&config) {
            let setting = setting.as_ref().to_owned();
            return Err(ModelError::IdleSetting { hint: instead_of(&setting), setting });
        }
    }
    let fresh = config.init(Seed::new(0), device)?;
    let (here, there) = (parameters(&model), parameters(&fresh));
    if let Some(other) = there.iter().find(|other| !here.contains(other)) {
        return Err(ModelError::OtherParameters { parameter: other.name.clone() });
    }
    if let Some(own) = here.iter().find(|own| !there.contains(own)) {
        return Err(ModelError::OtherParameters { parameter: own.name.clone() });
    }
    let values = by_name(&model);
    with_values(fresh, |parameter| Ok(Some(values[&parameter.name].read())))
}

/// What its user may have meant by a setting that only training uses.
fn instead_of(setting: &str) -> &'static str {
    match setting.split('=').next().unwrap_or_default().trim() {
        "moe.noise" => "; predictions have moe.inference_noise",
        "moe.capacity_ratio" => "; predictions have moe.inference_capacity_ratio",
        "moe.dropout" | "dropout" => "; with mc_samples predictions are drawn with it",
        "moe.order" => "; without moe.inference_capacity_ratio nobody has to wait",
        _ => "",
    }
}

/// A configuration with everything that only training uses as it is by default.
fn for_predictions(config: &ModelConfig) -> ModelConfig {
    let samples = config.encoder.mc_samples > 1;
    let dropout = |rate: f32| if samples { rate } else { 0.0 };
    let moe = config.moe().map(|moe| {
        let mut allocation = moe.router.allocation;
        if let Allocation::TokenChoice(choice) = &mut allocation {
            choice.capacity = None;
            if choice.inference_capacity.is_none() {
                choice.order = Default::default();
            }
        }
        let router =
            RouterConfig { allocation, noise: 0.0, losses: Vec::new(), ..moe.router.clone() };
        let (dropout, start) = (dropout(moe.dropout), ExpertStart::default());
        MoeConfig { router, dropout, start, ..moe.clone() }
    });
    let mimo = config.mimo.as_ref();
    let mimo = mimo.map(|mimo| MimoConfig { members: mimo.members, ..MimoConfig::default() });
    let encoder =
        EncoderConfig { moe, dropout: dropout(config.encoder.dropout), ..config.encoder.clone() };
    ModelConfig { encoder, mimo, ..config.clone() }
}
