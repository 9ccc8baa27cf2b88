//! A transformer block.

use std::ops::Range;

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor, TensorData},
};
use omma_base::transfer;
use omma_kernels::Precision;
use omma_routing::{Context, Layout, Routing, Seed, Sequences};

use super::{
    attention::Attention,
    batch_ensemble::BatchEnsembleMlp,
    experts::{Mlp, MlpConfig},
    init::constant,
    moe_layer::{MoeLayer, MoeLayerConfig},
    norm::Norm,
};
use crate::{
    config::{EncoderConfig, FeedForwardKind},
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

/// `x + s₁ · attention(LN x)`, then `x + s₂ · ff(LN x)`; a configuration may leave out the first half, the
/// normalisations, and what experts' outputs are added to.
#[derive(Module, Debug)]
pub struct Block {
    /// In front of the attention, if tokens are normalised.
    pub norm1: Option<Norm>,
    /// The first half, if tokens attend to each other.
    pub attention: Option<Attention>,
    /// `[D]`: LayerScale of the first half.
    pub scale1: Option<Param<Tensor<1>>>,
    /// In front of the feed-forward network, if tokens are normalised.
    pub norm2: Option<Norm>,
    /// The second half.
    pub feed_forward: FeedForward,
    /// `[D]`: LayerScale of the second half.
    pub scale2: Option<Param<Tensor<1>>>,
    /// Contributions that stay apart, in the last block of a multi-pred model.
    #[module(skip)]
    choices: Option<usize>,
    /// Whether the second half is added to its input.
    #[module(skip)]
    residual: bool,
    /// What products are computed in.
    #[module(skip)]
    precision: Precision,
}

/// What a block adds to the tokens.
#[derive(Debug)]
pub struct BlockOutput {
    /// `[N, D]`, with more members than before where contributions stay apart.
    pub tokens: Tensor<2>,
    /// How the rows of the tokens are arranged.
    pub layout: Layout,
    /// Who went where, in a block with experts.
    pub routing: Option<Routing>,
}

impl Block {
    /// A block of an encoder; `choices` contributions of a token stay apart, if that is asked for.
    pub(crate) fn new(
        config: &EncoderConfig,
        (index, kind): (usize, FeedForwardKind),
        choices: Option<usize>,
        seed: Seed,
        device: &Device,
    ) -> Result<Self> {
        let EncoderConfig { width, heads, activation, .. } = *config;
        let dense = MlpConfig { width, hidden: config.mlp, activation, dropout: config.dropout };
        let scale = || config.layer_scale.map(|value| constant([width], value, device));
        let inside = seed.named("feed_forward");
        let feed_forward = match (kind, &config.moe, &config.batch_ensemble) {
            (FeedForwardKind::Moe, Some(moe), _) => {
                let hidden = moe.hidden.unwrap_or(config.mlp);
                let layer = MoeLayerConfig {
                    router: moe.router_of(index),
                    mlp: MlpConfig { hidden, dropout: moe.dropout, ..dense },
                    shared_expert: moe.shared_expert,
                    start: moe.start,
                };
                let layer = layer.init(inside, device)?;
                FeedForward::Moe(if moe.bias { layer } else { layer.without_biases() })
            }
            (FeedForwardKind::BatchEnsemble, _, Some(ensemble)) => {
                let (members, kind) = (ensemble.members, ensemble.fast_weights);
                FeedForward::BatchEnsemble(BatchEnsembleMlp::new(
                    dense, members, kind, inside, device,
                ))
            }
            _ => FeedForward::Dense(dense.init(inside, device)),
        };
        let attention = || {
            let seed = seed.named("attention");
            Attention::new(width, heads, config.qk_norm, seed, device)
        };
        let norm = |wanted: bool| (config.norm && wanted).then(|| Norm::new(width, device));
        let experts = config.moe.as_ref().filter(|_| kind == FeedForwardKind::Moe);
        Ok(Self {
            norm1: norm(config.attention),
            attention: config.attention.then(attention),
            scale1: scale().filter(|_| config.attention),
            norm2: norm(true),
            feed_forward,
            scale2: scale(),
            choices,
            residual: experts.is_none_or(|moe| moe.residual),
            precision: Precision::default(),
        })
    }

    /// Computes products in a precision from now on.
    pub(crate) fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
        if let FeedForward::Moe(layer) = &mut self.feed_forward {
            layer.precision = precision;
        }
    }

    /// - `x`: `[N, D]`, rows as `layout` says
    /// - returns: the same shape
    pub fn attend(&self, x: Tensor<2>, layout: &Layout) -> Tensor<2> {
        let Some(attention) = &self.attention else { return x };
        let normed = normed(x.clone(), &self.norm1);
        let attend = |x, rows: Range<usize>| match layout.absent() {
            Some(absent) if absent[rows.clone()].contains(&true) => {
                let present = present(&absent[rows], &x);
                attention.forward_present(x, present)
            }
            _ => attention.forward(x),
        };
        let branch = self.precision.within(normed, |x| by_kind(x, layout, attend));
        x + scaled(branch, &self.scale1)
    }

    /// - `x`: `[N, D]`, rows as `layout` says
    pub fn feed(
        &self,
        x: Tensor<2>,
        layout: Layout,
        mode: &Mode,
        seed: Seed,
    ) -> Result<BlockOutput> {
        let normed = normed(x.clone(), &self.norm2);
        let dropout = mode.drops().then(|| seed.named("dropout"));
        let (branches, routing) = match &self.feed_forward {
            FeedForward::Dense(mlp) => {
                (vec![self.precision.within(normed, |x| mlp.forward(x, dropout))], None)
            }
            FeedForward::BatchEnsemble(mlp) => {
                let own = |x| by_kind(x, &layout, |x, _| mlp.forward(x, dropout));
                (vec![self.precision.within(normed, own)], None)
            }
            FeedForward::Moe(moe) => {
                let (layout, seed) = (layout.clone(), seed.named("routing"));
                let context = match mode {
                    Mode::Training(_) => Context::training(layout, seed),
                    Mode::Sampling { .. } => Context::sampling(layout, seed),
                    Mode::Inference => Context::inference(layout),
                };
                let (outputs, routing) = match self.choices {
                    Some(choices) => moe.forward_choices(normed, &context, choices, dropout)?,
                    None => {
                        let result = moe.forward(normed, &context, dropout)?;
                        (vec![result.output], result.routing)
                    }
                };
                (outputs, Some(routing))
            }
        };
        let members = layout.members() * branches.len();
        let outputs = branches.into_iter().map(|branch| match self.residual {
            true => x.clone() + scaled(branch, &self.scale2),
            false => scaled(branch, &self.scale2),
        });
        Ok(BlockOutput {
            tokens: interleave(outputs.collect(), &layout),
            layout: layout.tiled(members),
            routing,
        })
    }
}

fn normed(x: Tensor<2>, norm: &Option<Norm>) -> Tensor<2> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

fn scaled(branch: Tensor<2>, scale: &Option<Param<Tensor<1>>>) -> Tensor<2> {
    match scale {
        Some(scale) => branch * scale.val().unsqueeze::<2>(),
        None => branch,
    }
}

/// Something that is done to every kind of sequences by itself.
///
/// - `x`: `[N, D]`, rows as `layout` says
/// - `each`: gets the rows of a kind as `[B·M, T, D]`, and which these are, and gives as many sequences of
///   that length for every one of them
fn by_kind(
    x: Tensor<2>,
    layout: &Layout,
    each: impl Fn(Tensor<3>, Range<usize>) -> Tensor<3>,
) -> Tensor<2> {
    let [_, width] = x.dims();
    let flat = |x: Tensor<3>| {
        let [sequences, tokens, width] = x.dims();
        x.reshape([sequences * tokens, width])
    };
    let shape = |kind: Sequences| [kind.count * layout.members(), kind.tokens, width];
    if let Some(only) = layout.only_kind() {
        return flat(each(x.reshape(shape(only)), 0..layout.rows()));
    }
    let parts = layout.parts().map(|(kind, rows)| {
        let own = x.clone().slice([rows.clone(), 0..width]).reshape(shape(kind));
        flat(each(own, rows))
    });
    Tensor::cat(parts.collect(), 0)
}

/// `[B, T]`: 1 where there is a token, 0 where a row of `[B, T, D]` holds none.
pub(crate) fn present(absent: &[bool], x: &Tensor<3>) -> Tensor<2> {
    let [sequences, tokens, _] = x.dims();
    let values: Vec<f32> = absent.iter().map(|absent| f32::from(!*absent)).collect();
    transfer::brought(&values);
    Tensor::from_data(TensorData::new(values, [sequences, tokens]), &x.device())
}

/// `M` tensors `[N, D]` as one `[M · N, D]` with the members of a sequence next to each other.
fn interleave(mut members: Vec<Tensor<2>>, layout: &Layout) -> Tensor<2> {
    if members.len() == 1 {
        return members.remove(0);
    }
    let count = members.len();
    let [rows, width] = members[0].dims();
    // [M, N, D], then kind by kind with the member behind the sequence.
    let stacked = Tensor::stack::<3>(members, 0);
    let parts = layout.parts().map(|(kind, of_kind)| {
        let sequences = kind.count * layout.members();
        let part = match of_kind.len() == rows {
            true => stacked.clone(),
            false => stacked.clone().slice([0..count, of_kind, 0..width]),
        };
        part.reshape([count, sequences, kind.tokens * width])
            .swap_dims(0, 1)
            .reshape([sequences * count * kind.tokens, width])
    });
    Tensor::cat(parts.collect(), 0)
}

/// Every sequence of `[N, D]` `members` times, next to each other: `[M · N, D]`.
pub(crate) fn tile(x: Tensor<2>, layout: &Layout, members: usize) -> Tensor<2> {
    if members == 1 {
        return x;
    }
    by_kind(x, layout, |x, _| {
        let [sequences, tokens, width] = x.dims();
        x.reshape([sequences, 1, tokens, width])
            .expand([sequences, members, tokens, width])
            .reshape([sequences * members, tokens, width])
    })
}
