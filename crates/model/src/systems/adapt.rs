//! From a checkpoint to an ensemble of another kind (paper 000 App. B).

use burn::tensor::Device;
use omma_base::Seed;
use omma_routing::{Allocation, Pool, RouterConfig, TokenChoice};

use super::upcycle::by_name;
use crate::{
    config::{BatchEnsembleConfig, EncoderConfig, MimoConfig, ModelConfig, MoeConfig},
    error::{ModelError, Result},
    parameters::with_values,
    vit::VisionTransformer,
};

/// What a model becomes.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// An efficient ensemble of experts: the router of a V-MoE is cut row-wise into one for every
    /// member's experts, and every parameter stays what it was (App. B.1).
    E3 {
        /// Ensemble members, `M`.
        members: usize,
        /// Experts per token and member, `K`.
        k: usize,
    },
    /// A BatchEnsemble: the feed-forward networks keep their matrices and get fast weights (App. B.2).
    BatchEnsemble(BatchEnsembleConfig),
    /// MIMO: the embedding and the classifier are replicated and scaled by `1/M` (App. B.3).
    Mimo(MimoConfig),
}

/// Adapts a model.
pub fn adapt(
    model: &VisionTransformer,
    target: &Target,
    seed: Seed,
    device: &Device,
) -> Result<VisionTransformer> {
    let from = model.config();
    let (config, kind) = match target {
        Target::E3 { members, k } => {
            let moe = from.moe().cloned().ok_or_else(|| ModelError::Adapt {
                from: "dense model".to_owned(),
                to: "E³ model".to_owned(),
                why: "it has no experts; make some with `omma upcycle`".to_owned(),
            })?;
            if moe.members() > 1 || moe.router.pool != Pool::All {
                return Err(ModelError::Adapt {
                    from: "model with several gates".to_owned(),
                    to: "E³ model".to_owned(),
                    why: "its router is cut already".to_owned(),
                });
            }
            let Allocation::TokenChoice(choice) = moe.router.allocation else {
                return Err(ModelError::Adapt {
                    from: "model whose experts choose".to_owned(),
                    to: "E³ model".to_owned(),
                    why: "tokens have to choose their experts there".to_owned(),
                });
            };
            let router = RouterConfig {
                allocation: Allocation::TokenChoice(TokenChoice { k: *k, ..choice }),
                pool: Pool::Members { members: *members, overlap: 0 },
                ..moe.router
            };
            let moe = MoeConfig { router, ..moe };
            (with_encoder(from, |encoder| encoder.moe = Some(moe)), "E³ model")
        }
        Target::BatchEnsemble(ensemble) => {
            let ensemble = Some(ensemble.clone());
            (with_encoder(from, |encoder| encoder.batch_ensemble = ensemble), "BatchEnsemble")
        }
        Target::Mimo(mimo) => {
            if from.mimo.is_some() {
                return Err(ModelError::Adapt {
                    from: "MIMO model".to_owned(),
                    to: "MIMO model".to_owned(),
                    why: "it is one already".to_owned(),
                });
            }
            (ModelConfig { mimo: Some(mimo.clone()), ..from.clone() }, "MIMO model")
        }
    };
    let values = by_name(model);
    let missing = |name: &str| ModelError::Adapt {
        from: "model".to_owned(),
        to: kind.to_owned(),
        why: format!("it has nothing for {name}"),
    };
    config.check_memory()?;
    let fresh = config.init(seed, device)?;
    with_values(fresh, |parameter| {
        let name = parameter.name.as_str();
        if ["up_in", "up_out", "down_in", "down_out"].iter().any(|fast| name.ends_with(fast)) {
            return Ok(None);
        }
        let original = name.replace(".shared.", ".");
        let value = values.get(name).or(values.get(&original)).ok_or_else(|| missing(name))?;
        let shape = &value.parameter.shape;
        let one = value.read();
        let copies = match target {
            Target::Mimo(mimo) => mimo.members,
            _ => 1,
        };
        Ok(Some(match (target, name) {
            // `[patch · patch · channels, D]`: the channels of every pixel, copies beside each other.
            (Target::Mimo(_), "embed.weight") => {
                replicated(&one, from.image.channels * shape[1], copies, 1.0 / copies as f32)
            }
            (Target::Mimo(_), "head.weight") => {
                replicated(&one, shape[1], copies, 1.0 / copies as f32)
            }
            (Target::Mimo(_), "head.bias") => replicated(&one, shape[0], copies, 1.0),
            _ if *shape == parameter.shape => one,
            _ => return Err(missing(name)),
        }))
    })
}

/// The same model with another encoder.
fn with_encoder(from: &ModelConfig, change: impl FnOnce(&mut EncoderConfig)) -> ModelConfig {
    let mut config = from.clone();
    change(&mut config.encoder);
    config
}

/// Every run of `length` values `copies` times, scaled.
fn replicated(values: &[f32], length: usize, copies: usize, scale: f32) -> Vec<f32> {
    let runs = values.chunks(length).flat_map(|run| std::iter::repeat_n(run, copies));
    runs.flatten().map(|value| value * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_repeated_beside_each_other() {
        assert_eq!(replicated(&[1., 2., 3., 4.], 2, 2, 0.5), [0.5, 1., 0.5, 1., 1.5, 2., 1.5, 2.]);
    }
}
