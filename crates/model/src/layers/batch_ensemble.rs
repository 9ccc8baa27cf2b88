//! A feed-forward network that several members share up to a rank-one factor and their biases.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::{activate, linear};

use super::{
    experts::{BIAS_DEVIATION, MlpConfig},
    init::{normal, normal_around, random_sign, xavier},
};
use crate::config::FastWeights;

/// BatchEnsemble (paper 000 App. B.2): member `m` multiplies by `U ∘ (r_m s_mᵀ)`, which is `U` with
/// its inputs scaled by `r_m` and its outputs by `s_m`. The matrices are shared; fast weights and biases
/// are every member's own (Table 11).
#[derive(Module, Debug)]
pub struct BatchEnsembleMlp {
    /// What the members share.
    pub shared: SharedMatrices,
    /// `[M, D]`: scales of the first product's inputs.
    pub up_in: Param<Tensor<2>>,
    /// `[M, H]`: scales of its outputs.
    pub up_out: Param<Tensor<2>>,
    /// `[M, H]`: what is added to them.
    pub up_bias: Param<Tensor<2>>,
    /// `[M, H]`: scales of the second product's inputs.
    pub down_in: Param<Tensor<2>>,
    /// `[M, D]`: scales of its outputs.
    pub down_out: Param<Tensor<2>>,
    /// `[M, D]`: what is added to them.
    pub down_bias: Param<Tensor<2>>,
    #[module(skip)]
    config: MlpConfig,
}

/// The products of a feed-forward network.
#[derive(Module, Debug)]
pub struct SharedMatrices {
    /// `[D, H]`.
    pub up: Param<Tensor<2>>,
    /// `[H, D]`.
    pub down: Param<Tensor<2>>,
}

impl BatchEnsembleMlp {
    /// Fresh matrices, or those of a checkpoint put in later, fast weights, and biases near zero.
    pub fn new(
        mlp: MlpConfig,
        members: usize,
        kind: FastWeights,
        seed: Seed,
        device: &Device,
    ) -> Self {
        let MlpConfig { width, hidden, .. } = mlp;
        let fast = |width, name| match kind {
            FastWeights::RandomSign => random_sign([members, width], seed.named(name), device),
            FastWeights::Gaussian => {
                normal_around([members, width], (1.0, 0.5), seed.named(name), device)
            }
        };
        let matrices = seed.named("shared");
        let bias =
            |width, name| normal([members, width], BIAS_DEVIATION, matrices.named(name), device);
        Self {
            shared: SharedMatrices {
                up: xavier([width, hidden], (width, hidden), matrices.named("up"), device),
                down: xavier([hidden, width], (hidden, width), matrices.named("down"), device),
            },
            up_in: fast(width, "up_in"),
            up_out: fast(hidden, "up_out"),
            up_bias: bias(hidden, "up_bias"),
            down_in: fast(hidden, "down_in"),
            down_out: fast(width, "down_out"),
            down_bias: bias(width, "down_bias"),
            config: mlp,
        }
    }

    /// - `x`: `[B·M, T, D]`, the members' copies of an image next to each other
    /// - returns: the same shape
    pub fn forward(&self, x: Tensor<3>, dropout: Option<Seed>) -> Tensor<3> {
        let [rows, tokens, _] = x.dims();
        let [members, _] = self.up_out.dims();
        let split = |x: Tensor<3>| {
            let [_, _, width] = x.dims();
            x.reshape([rows / members, members, tokens, width])
        };
        let of_rows = x.dtype();
        let own =
            |values: &Param<Tensor<2>>| values.val().cast(of_rows).unsqueeze_dims::<4>(&[0, 2]);
        let joined = |x: Tensor<4>| {
            let [_, _, _, width] = x.dims();
            x.reshape([rows, tokens, width])
        };
        let up = linear(joined(split(x) * own(&self.up_in)), self.shared.up.val(), None);
        let up = joined(split(up) * own(&self.up_out) + own(&self.up_bias));
        let h = activate(up, self.config.activation);
        let h = match self.config.dropout_in(dropout) {
            Some(dropout) => omma_kernels::dropout(h, dropout),
            None => h,
        };
        let down = linear(joined(split(h) * own(&self.down_in)), self.shared.down.val(), None);
        joined(split(down) * own(&self.down_out) + own(&self.down_bias))
    }
}
