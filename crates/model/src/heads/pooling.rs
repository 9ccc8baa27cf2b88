//! Attention pooling.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::attention;

use crate::layers::{Dense, Mlp, MlpConfig, Norm, xavier};

/// The MAP head: a learned query attends to all tokens, then `z + MLP(LN(z))`.
#[derive(Module, Debug)]
pub struct AttentionPooling {
    /// `[D]`: the query.
    pub probe: Param<Tensor<1>>,
    /// Of the query.
    pub query: Dense,
    /// Of the tokens, `[D, D]`.
    pub key: Dense,
    /// Of the tokens, `[D, D]`.
    pub value: Dense,
    /// Of what was found, `[D, D]`.
    pub out: Dense,
    /// In front of the MLP.
    pub norm: Norm,
    /// As large as a block's.
    pub mlp: Mlp,
    #[module(skip)]
    heads: usize,
}

impl AttentionPooling {
    /// Everything Xavier uniform.
    pub fn new(mlp: MlpConfig, heads: usize, seed: Seed, device: &Device) -> Self {
        let width = mlp.width;
        let dense = |name| Dense::new(width, width, seed.named(name), device);
        Self {
            probe: xavier([width], (1, width), seed.named("probe"), device),
            query: dense("query"),
            key: dense("key"),
            value: dense("value"),
            out: dense("out"),
            norm: Norm::new(width, device),
            mlp: mlp.init(seed.named("mlp"), device),
            heads,
        }
    }

    /// - `x`: `[B, T, D]`
    /// - returns: `[B, D]`
    pub fn forward(&self, x: Tensor<3>, dropout: Option<Seed>) -> Tensor<2> {
        let [batch, _, width] = x.dims();
        let query = self.query.forward(self.probe.val().reshape([1, 1, width]));
        let query = query.expand([batch, 1, width]);
        let found =
            attention(query, self.key.forward(x.clone()), self.value.forward(x), self.heads);
        let z = self.out.forward(found).reshape([batch, width]);
        z.clone() + self.mlp.forward(self.norm.forward(z), dropout)
    }
}
