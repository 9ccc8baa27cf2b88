//! From a checkpoint to an ensemble of another kind (paper 000 App. B).

use burn::tensor::Device;
use omma_base::Seed;
use omma_routing::Gate;

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
    /// The same experts under another router: an E³, with or without overlap, tiling or partitioning
    /// alone, and whatever else can be set. The router of a V-MoE is cut row-wise into one for every
    /// subset of the experts, and every parameter stays what it was (App. B.1); an expert that several
    /// members share has its row in each of theirs.
    Experts(Box<MoeConfig>),
    /// A BatchEnsemble: the feed-forward networks keep their matrices, every member gets fast weights and
    /// a copy of the biases (App. B.2, Table 11).
    BatchEnsemble(BatchEnsembleConfig),
    /// MIMO: the embedding and the classifier are replicated and scaled by `1/M` (App. B.3).
    Mimo(MimoConfig),
}

impl Target {
    /// What a model of a configuration becomes.
    pub fn of(&self, from: &ModelConfig) -> ModelConfig {
        match self {
            Self::Experts(moe) => {
                let moe = Some(MoeConfig::clone(moe));
                with_encoder(from, |encoder| encoder.moe = moe)
            }
            Self::BatchEnsemble(ensemble) => {
                let ensemble = Some(ensemble.clone());
                with_encoder(from, |encoder| encoder.batch_ensemble = ensemble)
            }
            Self::Mimo(mimo) => ModelConfig { mimo: Some(mimo.clone()), ..from.clone() },
        }
    }
}

/// Adapts a model.
pub fn adapt(
    model: &VisionTransformer,
    target: &Target,
    seed: Seed,
    device: &Device,
) -> Result<VisionTransformer> {
    let from = model.config();
    let kind = match target {
        Target::Experts(_) => {
            one_gate(from)?;
            "model with other gates"
        }
        Target::BatchEnsemble(_) => "BatchEnsemble",
        Target::Mimo(_) if from.mimo.is_some() => {
            return Err(fault("MIMO model", "MIMO model", "it is one already"));
        }
        Target::Mimo(_) => "MIMO model",
    };
    let config = target.of(from);
    let values = by_name(model);
    let missing = |name: &str| fault("model", kind, &format!("it has nothing for {name}"));
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
        Ok(Some(match target {
            Target::Experts(moe) if name.ends_with(".router.weight") => {
                columns_of(&moe.router.pool.gates(moe.router.experts)?, &one, shape[1])
                    .ok_or_else(|| missing(name))?
            }
            Target::Mimo(mimo) => match name {
                // `[patch · patch · channels, D]`: the channels of every pixel, copies beside each other.
                "embed.weight" => {
                    let channels = from.image.channels * shape[1];
                    replicated(&one, channels, mimo.members, 1.0 / mimo.members as f32)
                }
                "head.weight" => {
                    replicated(&one, shape[1], mimo.members, 1.0 / mimo.members as f32)
                }
                "head.bias" => replicated(&one, shape[0], mimo.members, 1.0),
                _ => one,
            },
            Target::BatchEnsemble(ensemble) if parameter.shape[1..] == shape[..] => {
                one.repeat(ensemble.members)
            }
            _ if *shape == parameter.shape => one,
            _ => return Err(missing(name)),
        }))
    })
}

/// Fails unless tokens choose among all experts by one gate, whose rows can be cut.
pub(super) fn one_gate(config: &ModelConfig) -> Result<()> {
    let to = "model with other gates";
    let moe = config.moe().ok_or_else(|| {
        fault("dense model", to, "it has no experts; make some with `omma upcycle`")
    })?;
    if moe.k().is_none() {
        let why = "tokens have to choose their experts there";
        return Err(fault("model whose experts choose", to, why));
    }
    if !moe.pruned.is_empty() {
        let why = "some of its experts are gone; change the whole model, and prune that";
        return Err(fault("pruned model", to, why));
    }
    match moe.router.pool.gates(moe.router.experts)?.len() {
        1 => Ok(()),
        _ => Err(fault("model with several gates", to, "its router is cut already")),
    }
}

fn fault(from: &str, to: &str, why: &str) -> ModelError {
    ModelError::Adapt { from: from.to_owned(), to: to.to_owned(), why: why.to_owned() }
}

/// The same model with another encoder.
fn with_encoder(from: &ModelConfig, change: impl FnOnce(&mut EncoderConfig)) -> ModelConfig {
    let mut config = from.clone();
    change(&mut config.encoder);
    config
}

/// Every gate's columns beside each other, taken from one column per expert.
///
/// - `weight`: `[D, E]`
/// - returns: `[D, columns]`; nothing where a gate has an expert that is not there
fn columns_of(gates: &[Gate], weight: &[f32], experts: usize) -> Option<Vec<f32>> {
    let order: Vec<usize> = gates.iter().flat_map(|gate| gate.experts.iter().copied()).collect();
    let known = order.iter().all(|expert| *expert < experts);
    known.then(|| {
        let rows = weight.chunks_exact(experts);
        rows.flat_map(|row| order.iter().map(|expert| row[*expert])).collect()
    })
}

/// Every run of `length` values `copies` times, scaled.
fn replicated(values: &[f32], length: usize, copies: usize, scale: f32) -> Vec<f32> {
    let runs = values.chunks(length).flat_map(|run| std::iter::repeat_n(run, copies));
    runs.flatten().map(|value| value * scale).collect()
}

#[cfg(test)]
mod tests {
    use omma_routing::Pool;

    use super::*;

    #[test]
    fn runs_are_repeated_beside_each_other() {
        assert_eq!(replicated(&[1., 2., 3., 4.], 2, 2, 0.5), [0.5, 1., 0.5, 1., 1.5, 2., 1.5, 2.]);
    }

    #[test]
    fn a_shared_expert_has_its_column_in_every_gate() {
        let weight = [0., 1., 2., 3., 10., 11., 12., 13.];
        let gates = |overlap| Pool::Members { members: 2, overlap }.gates(4).unwrap();
        assert_eq!(columns_of(&gates(0), &weight, 4).unwrap(), weight);
        assert_eq!(columns_of(&gates(4), &weight, 4).unwrap(), weight);
        let shared = [0., 2., 3., 1., 2., 3., 10., 12., 13., 11., 12., 13.];
        assert_eq!(columns_of(&gates(2), &weight, 4).unwrap(), shared);
        assert_eq!(columns_of(&gates(0), &weight, 2), None);
    }
}
