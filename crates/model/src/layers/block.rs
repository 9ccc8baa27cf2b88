//! A transformer block.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_routing::{Context, Layout, Routing, Seed};

use super::{
    attention::Attention,
    batch_ensemble::BatchEnsembleMlp,
    experts::{Mlp, MlpConfig},
    init::constant,
    moe_layer::{MoeLayer, MoeLayerConfig},
    norm::Norm,
};
use crate::{
    config::{FeedForwardKind, ModelConfig},
    error::Result,
    mode::Mode,
};

/// The second half of a block.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "a handful per model, next to megabytes of values")]
pub enum FeedForward {
    /// One network for all tokens.
    Dense(Mlp),
    /// Experts.
    Moe(MoeLayer),
    /// One network for all tokens, with every member's fast weights.
    BatchEnsemble(BatchEnsembleMlp),
}

/// `x + s₁ · attention(LN x)`, then `x + s₂ · ff(LN x)`.
#[derive(Module, Debug)]
pub struct Block {
    /// In front of the attention.
    pub norm1: Norm,
    /// The first half.
    pub attention: Attention,
    /// `[D]`: LayerScale of the first half.
    pub scale1: Option<Param<Tensor<1>>>,
    /// In front of the feed-forward network.
    pub norm2: Norm,
    /// The second half.
    pub feed_forward: FeedForward,
    /// `[D]`: LayerScale of the second half.
    pub scale2: Option<Param<Tensor<1>>>,
    /// Contributions that stay apart, in the last block of a multi-pred model.
    #[module(skip)]
    choices: Option<usize>,
}

/// What a block adds to the tokens.
#[derive(Debug)]
pub struct BlockOutput {
    /// `[B·M, T, D]`, with more members than before where contributions stay apart.
    pub tokens: Tensor<3>,
    /// How the rows of the tokens are arranged.
    pub layout: Layout,
    /// Who went where, in a block with experts.
    pub routing: Option<Routing>,
}

impl Block {
    /// Block `index` of a model.
    pub fn new(
        config: &ModelConfig,
        kind: FeedForwardKind,
        choices: Option<usize>,
        seed: Seed,
        device: &Device,
    ) -> Result<Self> {
        let ModelConfig { width, heads, activation, .. } = *config;
        let dense = MlpConfig { width, hidden: config.mlp, activation, dropout: config.dropout };
        let scale = || config.layer_scale.map(|value| constant([width], value, device));
        let inside = seed.named("feed_forward");
        let feed_forward = match (kind, &config.moe, &config.batch_ensemble) {
            (FeedForwardKind::Moe, Some(moe), _) => {
                let hidden = moe.hidden.unwrap_or(config.mlp);
                let layer = MoeLayerConfig {
                    router: moe.router_config(),
                    mlp: MlpConfig { hidden, dropout: moe.dropout, ..dense },
                    shared_expert: moe.shared_expert,
                };
                FeedForward::Moe(layer.init(inside, device)?)
            }
            (FeedForwardKind::BatchEnsemble, _, Some(ensemble)) => {
                let (members, kind) = (ensemble.members, ensemble.fast_weights);
                FeedForward::BatchEnsemble(BatchEnsembleMlp::new(
                    dense, members, kind, inside, device,
                ))
            }
            _ => FeedForward::Dense(dense.init(inside, device)),
        };
        Ok(Self {
            norm1: Norm::new(width, device),
            attention: Attention::new(
                width,
                heads,
                config.qk_norm,
                seed.named("attention"),
                device,
            ),
            scale1: scale(),
            norm2: Norm::new(width, device),
            feed_forward,
            scale2: scale(),
            choices,
        })
    }

    /// - `x`: `[B·M, T, D]`, rows as `layout` says
    /// - returns: the same shape
    pub fn attend(&self, x: Tensor<3>) -> Tensor<3> {
        let branch = self.attention.forward(self.norm1.forward(x.clone()));
        x + scaled(branch, &self.scale1)
    }

    /// - `x`: `[B·M, T, D]`, rows as `layout` says
    pub fn feed(
        &self,
        x: Tensor<3>,
        layout: Layout,
        mode: &Mode,
        seed: Seed,
    ) -> Result<BlockOutput> {
        let normed = self.norm2.forward(x.clone());
        let dropout = mode.drops().then(|| seed.named("dropout"));
        let (branches, routing) = match &self.feed_forward {
            FeedForward::Dense(mlp) => (vec![mlp.forward(normed, dropout)], None),
            FeedForward::BatchEnsemble(mlp) => (vec![mlp.forward(normed, dropout)], None),
            FeedForward::Moe(moe) => {
                let shape = normed.dims();
                let rows = normed.reshape([shape[0] * shape[1], shape[2]]);
                let context = match mode.trains() {
                    true => Context::training(layout, seed.named("routing")),
                    false => Context::inference(layout),
                };
                let (outputs, routing) = match self.choices {
                    Some(choices) => moe.forward_choices(rows, &context, choices, dropout)?,
                    None => {
                        let result = moe.forward(rows, &context, dropout)?;
                        (vec![result.output], result.routing)
                    }
                };
                let outputs = outputs.into_iter().map(|output| output.reshape(shape));
                (outputs.collect(), Some(routing))
            }
        };
        let members = branches.len();
        let outputs = branches.into_iter().map(|branch| x.clone() + scaled(branch, &self.scale2));
        Ok(BlockOutput {
            tokens: interleave(outputs.collect()),
            layout: layout.tiled(layout.members * members),
            routing,
        })
    }
}

fn scaled(branch: Tensor<3>, scale: &Option<Param<Tensor<1>>>) -> Tensor<3> {
    match scale {
        Some(scale) => branch * scale.val().unsqueeze::<3>(),
        None => branch,
    }
}

/// `M` tensors `[B, T, D]` as one `[B·M, T, D]` with the members of an image next to each other.
fn interleave(mut members: Vec<Tensor<3>>) -> Tensor<3> {
    if members.len() == 1 {
        return members.remove(0);
    }
    let [rows, tokens, width] = members[0].dims();
    let count = members.len();
    Tensor::stack::<4>(members, 1).reshape([rows * count, tokens, width])
}

/// Every row of `[B, T, D]` `members` times, next to each other: `[B·M, T, D]`.
pub(crate) fn tile(x: Tensor<3>, members: usize) -> Tensor<3> {
    if members == 1 {
        return x;
    }
    let [rows, tokens, width] = x.dims();
    x.reshape([rows, 1, tokens, width]).expand([rows, members, tokens, width]).reshape([
        rows * members,
        tokens,
        width,
    ])
}
