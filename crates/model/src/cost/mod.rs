//! What a model costs, from its configuration alone.
//!
//! # How it is counted
//!
//! - **Parameters** are those of the model that the configuration builds. **Active** ones are those
//!   that the tokens of one image can pass: with `K` of `E` experts chosen by a gate, `K/E` of the
//!   experts' parameters, times the members that choose for themselves.
//! - **Forward multiply-adds** are those of all matrix products at inference, where nothing is dropped
//!   and nothing padded (paper 003 counts so).
//! - **Training FLOPs** are those of one image in one step (paper 000 Tables 20 and 22): every product
//!   three times, forward and for both gradients, with two operations per multiply-add; the patch
//!   embedding only twice, because pixels need no gradient; experts on all of their capacity, used or
//!   not; and what is done value by value, as [`ValueWork`] says.
//!
//! Position interpolation, class-token concatenation, sorting and the optimiser are not counted.

mod image_memory;
mod products;

pub use image_memory::ImageMemory;
use omma_base::{Resolution, Seed, memory};
use omma_routing::Allocation;
pub use products::Dispatching;
use serde::Serialize;

use self::products::Products;
use crate::{
    config::{EncoderConfig, FeedForwardKind, ModelConfig, MoeConfig},
    error::{ModelError, Result},
    parameters::parameters,
};

/// Operations per value, forward and backward together, in training.
pub struct ValueWork;

impl ValueWork {
    /// Mean, variance, scaling and shifting, and the three gradients.
    pub const NORM: u64 = 24;
    /// Maximum, exponential, sum, division, and its gradient.
    pub const SOFTMAX: u64 = 14;
    /// The tanh form and its gradient.
    pub const GELU: u64 = 32;
    /// Adding, and summing up the gradient.
    pub const BIAS: u64 = 2;
    /// Adding a branch to what it branched from.
    pub const RESIDUAL: u64 = 1;
    /// Weighting an expert's output, adding it up, and both gradients.
    pub const COMBINE: u64 = 6;
    /// Random bits by Threefry (20 rounds of 5 operations), a comparison, and two multiplications: in
    /// paper 000 experts have dropout while dense blocks have none, and this is why V-MoEs cost more
    /// than their products.
    pub const DROPOUT: u64 = 104;
    /// An iteration of Sinkhorn: scaling rows and columns, each by a multiplication and an addition.
    pub const SINKHORN: u64 = 4;
    /// A step of sparsity-constrained transport: adding the dual, the projection of the largest, and the gradient.
    pub const TRANSPORT: u64 = 6;
}

/// One row of the account.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerCost {
    /// Where it is, in the words of the parameters' names.
    pub name: String,
    /// What it is.
    pub kind: String,
    /// Its parameters.
    pub params: u64,
    /// Those of them that an image passes.
    pub params_active: u64,
    /// Multiply-adds at inference, for one image.
    pub forward_macs: u64,
    /// Operations in training, for one image.
    pub training_flops: u64,
}

/// The whole account.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// Height and width of the images.
    pub resolution: Resolution,
    /// Tokens of one image, or of what is counted.
    pub tokens: usize,
    /// Predictions per image.
    pub members: usize,
    /// All parameters.
    pub params_total: u64,
    /// Those that an image passes.
    pub params_active: u64,
    /// Multiply-adds at inference, for one image.
    pub forward_macs: u64,
    /// Operations in training, for one image.
    pub training_flops: u64,
    /// Values that routed experts take in training, of all layers, for one image: rows times their width.
    pub expert_values: u64,
    /// Row by row.
    pub layers: Vec<LayerCost>,
}

/// What one is an account of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// An image.
    Images,
    /// A text.
    Texts,
    /// An image and its text (paper 002 App. D.2).
    Pairs,
}

impl ModelConfig {
    /// The account of this model on images of `resolution` pixels; of one that reads, on an image and its
    /// text together, "the approach which makes the least assumptions" (paper 002 App. D.2).
    pub fn cost(&self, resolution: Resolution) -> Result<Cost> {
        self.cost_with(resolution, Dispatching::Gather)
    }

    /// The same with tokens brought to their experts in another way.
    pub fn cost_with(&self, resolution: Resolution, dispatching: Dispatching) -> Result<Cost> {
        let counted = if self.text.is_some() { Counted::Pairs } else { Counted::Images };
        self.account(counted, resolution, dispatching)
    }

    /// The account of images or of texts alone.
    pub fn cost_of(&self, counted: Counted, resolution: Resolution) -> Result<Cost> {
        self.account(counted, resolution, Dispatching::Gather)
    }

    fn account(
        &self,
        counted: Counted,
        resolution: Resolution,
        dispatching: Dispatching,
    ) -> Result<Cost> {
        let model = self.init(Seed::new(0), &burn::tensor::Device::flex())?;
        let parameters = parameters(&model);
        let passed = |encoder: Option<&EncoderConfig>, experts: u64| {
            encoder
                .and_then(|encoder| encoder.moe.as_ref())
                .map_or(experts, |moe| passed(moe, experts))
        };
        let products = Products::new(self, counted, resolution, dispatching)?;
        let expert_values = products.rows.iter().map(|row| row.taken).sum();
        let layers = products.rows.into_iter().map(|row| {
            let inside = |name: &str| row.parts.iter().any(|part| name.starts_with(part));
            let (mut params, mut params_active) = (0, 0);
            for parameter in parameters.iter().filter(|parameter| inside(&parameter.name)) {
                let count: usize = parameter.shape.iter().product();
                params += count as u64;
                let of_texts = parameter.name.starts_with("text.");
                let encoder = if of_texts { self.text_tower() } else { Some(&self.encoder) };
                params_active += match parameter.name.contains(".experts.") {
                    true => {
                        let experts = (parameter.shape[0] as u64).max(1);
                        count as u64 * passed(encoder, experts) / experts
                    }
                    false => count as u64,
                };
            }
            LayerCost {
                name: row.name,
                kind: row.kind,
                params,
                params_active,
                forward_macs: row.forward,
                training_flops: row.training,
            }
        });
        let layers: Vec<LayerCost> = layers.collect();
        let sum = |of: fn(&LayerCost) -> u64| layers.iter().map(of).sum();
        let text = self.text.as_ref().map_or(0, |text| text.length);
        let image = self.image.tokens(resolution);
        let tokens = match counted {
            Counted::Images => image,
            Counted::Texts => text,
            Counted::Pairs => image + text,
        };
        Ok(Cost {
            resolution,
            tokens,
            members: self.members(),
            params_total: sum(|layer| layer.params),
            params_active: sum(|layer| layer.params_active),
            forward_macs: sum(|layer| layer.forward_macs),
            training_flops: sum(|layer| layer.training_flops),
            expert_values,
            layers,
        })
    }

    /// Refuses a model whose weights alone do not fit into memory; asking for it would end the process.
    pub fn check_memory(&self) -> Result<()> {
        let Some(available) = memory::available() else { return Ok(()) };
        let parameters = self.cost(self.image.resolution)?.params_total;
        let gigabytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        match parameters.saturating_mul(4) {
            needed if needed > available => Err(ModelError::Memory {
                parameters,
                needed: gigabytes(needed),
                available: gigabytes(available),
            }),
            _ => Ok(()),
        }
    }
}

/// How many experts' parameters one image passes in a layer that has so many of them.
fn passed(moe: &MoeConfig, experts: u64) -> u64 {
    match moe.router.allocation {
        Allocation::TokenChoice(_) => {
            ((moe.experts_per_token() * moe.members()) as u64).min(experts)
        }
        _ => experts, // every expert takes something of every image
    }
}

fn kind_of((index, kind): (usize, FeedForwardKind), config: &EncoderConfig) -> String {
    match (kind, &config.moe, &config.batch_ensemble) {
        (FeedForwardKind::Moe, Some(moe), _) => {
            let router = match &moe.router.allocation {
                Allocation::Soft(soft) => format!("{} slots", soft.slots),
                Allocation::TokenChoice(choice) => format!("K = {}", choice.k),
                Allocation::ExpertChoice(choice) => format!("capacity {}", choice.capacity.factor),
            };
            let shared = if moe.shared_expert { ", shared" } else { "" };
            let experts = match (moe.experts_in(index), moe.router.experts) {
                (left, all) if left == all => all.to_string(),
                (left, all) => format!("{left} of {all}"),
            };
            format!("{experts} experts, {router}{shared}")
        }
        (FeedForwardKind::BatchEnsemble, _, Some(ensemble)) => {
            format!("BatchEnsemble of {}", ensemble.members)
        }
        _ => "MLP".to_owned(),
    }
}
