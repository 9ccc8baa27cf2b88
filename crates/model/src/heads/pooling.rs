//! Attention pooling.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::attention;

use crate::layers::{
    Dense, Mlp, MlpConfig, Norm, attention_to_present, constant, per_head_norm, xavier,
};

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
    /// `[Dh]`: scale of the query's normalisation, if there is one.
    pub q_norm: Option<Param<Tensor<1>>>,
    /// `[Dh]`: the same for the keys.
    pub k_norm: Option<Param<Tensor<1>>>,
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
            q_norm: None,
            k_norm: None,
            out: dense("out"),
            norm: Norm::new(width, device),
            mlp: mlp.init(seed.named("mlp"), device),
            heads,
        }
    }

    /// The same with a query and keys that are normalised per head.
    pub(crate) fn with_norms(self, device: &Device) -> Self {
        let norm =
            || Some(constant([self.probe.lazy_shape().num_elements() / self.heads], 1.0, device));
        Self { q_norm: norm(), k_norm: norm(), ..self }
    }

    /// - `x`: `[B, T, D]`
    /// - returns: `[B, D]`
    pub fn forward(&self, x: Tensor<3>, dropout: Option<Seed>) -> Tensor<2> {
        self.forward_present(x, None, dropout)
    }

    /// The same where the query attends to some of the tokens alone.
    ///
    /// - `present`: `[B, T]`, 1 for these and 0 for others
    pub(crate) fn forward_present(
        &self,
        x: Tensor<3>,
        present: Option<Tensor<2>>,
        dropout: Option<Seed>,
    ) -> Tensor<2> {
        let [batch, _, width] = x.dims();
        let norm = |x: Tensor<3>, scale: &Option<Param<Tensor<1>>>| match scale {
            Some(scale) => per_head_norm(x, scale.val(), self.heads),
            None => x,
        };
        let query = norm(self.query.forward(self.probe.val().reshape([1, 1, width])), &self.q_norm);
        let query = query.expand([batch, 1, width]);
        let key = norm(self.key.forward(x.clone()), &self.k_norm);
        let value = self.value.forward(x);
        let found = match present {
            Some(present) => attention_to_present(query, key, value, present, self.heads),
            None => attention(query, key, value, self.heads),
        };
        let z = self.out.forward(found).reshape([batch, width]);
        z.clone() + self.mlp.forward(self.norm.forward(z), dropout)
    }
}
