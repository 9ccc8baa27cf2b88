//! A feed-forward network that several members share up to a rank-one factor.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::{gelu, linear};

use super::{
    experts::{Mlp, MlpConfig},
    init::{normal_around, random_sign},
};
use crate::config::FastWeights;

/// BatchEnsemble (paper 000 App. B.2): member `m` multiplies by `U ∘ (r_m s_mᵀ)`, which is `U` with
/// its inputs scaled by `r_m` and its outputs by `s_m`. The shared network is an ordinary one, and
/// the biases are shared too.
#[derive(Module, Debug)]
pub struct BatchEnsembleMlp {
    /// What the members share.
    pub shared: Mlp,
    /// `[M, D]`: scales of the first product's inputs.
    pub up_in: Param<Tensor<2>>,
    /// `[M, H]`: scales of its outputs.
    pub up_out: Param<Tensor<2>>,
    /// `[M, H]`: scales of the second product's inputs.
    pub down_in: Param<Tensor<2>>,
    /// `[M, D]`: scales of its outputs.
    pub down_out: Param<Tensor<2>>,
}

impl BatchEnsembleMlp {
    /// A fresh shared network, or that of a checkpoint put in later, and fast weights.
    pub fn new(
        mlp: MlpConfig,
        members: usize,
        kind: FastWeights,
        seed: Seed,
        device: &Device,
    ) -> Self {
        let fast = |width, name| match kind {
            FastWeights::RandomSign => random_sign([members, width], seed.named(name), device),
            FastWeights::Gaussian => {
                normal_around([members, width], (1.0, 0.5), seed.named(name), device)
            }
        };
        Self {
            shared: mlp.init(seed.named("shared"), device),
            up_in: fast(mlp.width, "up_in"),
            up_out: fast(mlp.hidden, "up_out"),
            down_in: fast(mlp.hidden, "down_in"),
            down_out: fast(mlp.width, "down_out"),
        }
    }

    /// - `x`: `[B·M, T, D]`, the members' copies of an image next to each other
    /// - returns: the same shape
    pub fn forward(&self, x: Tensor<3>, dropout: Option<Seed>) -> Tensor<3> {
        let [rows, tokens, width] = x.dims();
        let [members, hidden] = self.up_out.dims();
        let scale = |x: Tensor<3>, by: &Param<Tensor<2>>| {
            let [_, _, width] = x.dims();
            let split = x.reshape([rows / members, members, tokens, width]);
            let by = by.val().reshape([1, members, 1, width]);
            (split * by).reshape([rows, tokens, width])
        };
        let shared = &self.shared;
        let up = linear(scale(x, &self.up_in), shared.up.val(), None);
        let bias = shared.up_bias.val().reshape([1, 1, hidden]);
        let h = gelu(scale(up, &self.up_out) + bias, shared.config().activation);
        let h = match shared.config().dropout_in(dropout) {
            Some(dropout) => omma_kernels::dropout(h, dropout),
            None => h,
        };
        let down = linear(scale(h, &self.down_in), shared.down.val(), None);
        scale(down, &self.down_out) + shared.down_bias.val().reshape([1, 1, width])
    }
}
