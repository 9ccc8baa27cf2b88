//! Multi-head self-attention.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor, activation::softmax},
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

    /// The same where nobody attends to some of the tokens.
    ///
    /// - `present`: `[B, T]`, 1 for tokens that are attended to and 0 for others
    pub(crate) fn forward_present(&self, x: Tensor<3>, present: Tensor<2>) -> Tensor<3> {
        let qkv = linear(x, self.qkv.val(), Some(self.qkv_bias.val()));
        let [q, k, v]: [Tensor<3>; 3] = qkv.chunk(3, 2).try_into().expect("three equal parts");
        let (q, k) = match (&self.q_norm, &self.k_norm) {
            (Some(q_norm), Some(k_norm)) => {
                (self.per_head_norm(q, q_norm), self.per_head_norm(k, k_norm))
            }
            _ => (q, k),
        };
        let mixed = attention_to_present(q, k, v, present, self.heads);
        linear(mixed, self.out.val(), Some(self.out_bias.val()))
    }

    fn per_head_norm(&self, x: Tensor<3>, scale: &Param<Tensor<1>>) -> Tensor<3> {
        per_head_norm(x, scale.val(), self.heads)
    }
}

/// Every head's features of queries or keys, normalised.
///
/// - `x`: `[B, T, D]`
/// - `scale`: `[Dh]`
pub(crate) fn per_head_norm(x: Tensor<3>, scale: Tensor<1>, heads: usize) -> Tensor<3> {
    let [batch, tokens, width] = x.dims();
    let split = x.reshape([batch, tokens, heads, width / heads]);
    let shift = Tensor::zeros_like(&scale).detach();
    layer_norm(split, scale, shift, LAYER_NORM_EPSILON).reshape([batch, tokens, width])
}

/// How much smaller a score is where nobody is to attend to.
const FAR: f64 = -1e9;

/// Attention of queries to the keys that are present.
///
/// - `queries`: `[B, Q, D]`; `keys`, `values`: `[B, T, D]`; `present`: `[B, T]`, 1 or 0
/// - returns: `[B, Q, D]`
pub(crate) fn attention_to_present(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    present: Tensor<2>,
    heads: usize,
) -> Tensor<3> {
    let [batch, count, width] = queries.dims();
    let [_, tokens, _] = keys.dims();
    let split = |x: Tensor<3>, rows: usize| {
        x.reshape([batch, rows, heads, width / heads]).swap_dims(1, 2) // [B, heads, rows, Dh]
    };
    let queries = split(queries, count) / ((width / heads) as f64).sqrt();
    let scores = queries.matmul(split(keys, tokens).swap_dims(2, 3)).cast(present.dtype());
    let far = (present.neg() + 1.0) * FAR;
    let weights = softmax(scores + far.reshape([batch, 1, 1, tokens]), 3).cast(values.dtype());
    let mixed = weights.matmul(split(values, tokens)); // [B, heads, Q, Dh]
    mixed.swap_dims(1, 2).reshape([batch, count, width])
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    /// What padding holds, and how much of it there is, changes nothing for the tokens.
    #[test]
    fn nobody_attends_to_what_is_not_there() {
        let device = Device::flex();
        let layer = Attention::new(8, 2, false, Seed::new(1), &device);
        let x = Tensor::<3>::random([2, 3, 8], Distribution::Normal(0.0, 1.0), &device);
        let padding = Tensor::<3>::random([2, 2, 8], Distribution::Normal(0.0, 9.0), &device);
        let padded = Tensor::cat(vec![x.clone(), padding], 1);
        let present = Tensor::<2>::from_floats([[1., 1., 1., 0., 0.]; 2], &device);
        let found = layer.forward_present(padded, present).narrow(1, 0, 3);
        found.into_data().assert_approx_eq::<f32>(
            &layer.forward(x).into_data(),
            burn::tensor::Tolerance::absolute(1e-5),
        );
    }
}
