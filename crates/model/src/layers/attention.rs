//! Multi-head self-attention.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::{attention, layer_norm, linear, self_attention};

use super::{
    init::{constant, xavier},
    norm::LAYER_NORM_EPSILON,
};

/// `softmax(q kᵀ / √Dh) v` per head, from and to tokens of `D` features.
#[derive(Module, Debug)]
pub struct Attention {
    /// `[D, 3·D]`: queries, keys, values; in each, head by head.
    pub qkv: Param<Tensor<2>>,
    /// `[3·D]`.
    pub qkv_bias: Param<Tensor<1>>,
    /// `[Dh]`: scale of the queries' normalisation, if there is one.
    pub q_norm: Option<Param<Tensor<1>>>,
    /// `[Dh]`: the same for the keys.
    pub k_norm: Option<Param<Tensor<1>>>,
    /// `[D, D]`.
    pub out: Param<Tensor<2>>,
    /// `[D]`.
    pub out_bias: Param<Tensor<1>>,
    #[module(skip)]
    heads: usize,
}

impl Attention {
    /// Xavier uniform per projection, biases 0.
    pub fn new(width: usize, heads: usize, qk_norm: bool, seed: Seed, device: &Device) -> Self {
        let norm = || qk_norm.then(|| constant([width / heads], 1.0, device));
        Self {
            qkv: xavier([width, 3 * width], (width, width), seed.named("qkv"), device),
            qkv_bias: constant([3 * width], 0.0, device),
            q_norm: norm(),
            k_norm: norm(),
            out: xavier([width, width], (width, width), seed.named("out"), device),
            out_bias: constant([width], 0.0, device),
            heads,
        }
    }

    /// - `x`: `[B, T, D]`
    /// - returns: `[B, T, D]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let qkv = linear(x, self.qkv.val(), Some(self.qkv_bias.val())); // [B, T, 3·D]
        let mixed = match (&self.q_norm, &self.k_norm) {
            (Some(q_norm), Some(k_norm)) => {
                let [q, k, v]: [Tensor<3>; 3] =
                    qkv.chunk(3, 2).try_into().expect("three equal parts");
                let q = self.per_head_norm(q, q_norm);
                let k = self.per_head_norm(k, k_norm);
                attention(q, k, v, self.heads)
            }
            _ => self_attention(qkv, self.heads),
        };
        linear(mixed, self.out.val(), Some(self.out_bias.val()))
    }

    fn per_head_norm(&self, x: Tensor<3>, scale: &Param<Tensor<1>>) -> Tensor<3> {
        let [batch, tokens, width] = x.dims();
        let split = x.reshape([batch, tokens, self.heads, width / self.heads]);
        let shift = Tensor::zeros_like(&scale.val()).detach();
        layer_norm(split, scale.val(), shift, LAYER_NORM_EPSILON).reshape([batch, tokens, width])
    }
}
