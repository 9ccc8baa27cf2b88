//! Layer normalisation.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::{
    cpu::layer_norm,
    fused::{Array, FusedOp, Input, apply},
    portable,
};

/// `(x - mean) / √(variance + ε) · γ + β` over the last axis, with the biased variance.
///
/// - `x`: `[..., width]`; `gamma`, `beta`: `[width]`
pub fn layer_norm<const R: usize>(
    x: Tensor<R>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f32,
) -> Tensor<R> {
    let width = x.dims()[R - 1];
    assert_eq!([width; 2], [gamma.dims()[0], beta.dims()[0]], "layer_norm: width, gamma and beta");
    let inputs = [Input::new(&x), Input::new(&gamma), Input::new(&beta)];
    apply(&LayerNorm { epsilon }, inputs)
        .unwrap_or_else(|| portable::layer_norm(x, gamma, beta, epsilon))
}

#[derive(Debug, Clone, Copy)]
struct LayerNorm {
    epsilon: f32,
}

impl FusedOp<3> for LayerNorm {
    type Saved = (Array, Array, Arc<Vec<[f32; 2]>>);

    fn forward(&self, [x, gamma, beta]: [Array; 3], keep: bool) -> (Array, Option<Self::Saved>) {
        let (y, moments) =
            layer_norm::forward(x.values(), gamma.values(), beta.values(), self.epsilon);
        (Array::new(y, &x.shape()), keep.then(|| (x, gamma, Arc::new(moments))))
    }

    fn backward(
        &self,
        (x, gamma, moments): Self::Saved,
        dy: Array,
        _: [bool; 3],
    ) -> [Option<Array>; 3] {
        let [dx, dgamma, dbeta] =
            layer_norm::backward(x.values(), gamma.values(), &moments, dy.values());
        let width = gamma.shape();
        [
            Some(Array::new(dx, &x.shape())),
            Some(Array::new(dgamma, &width)),
            Some(Array::new(dbeta, &width)),
        ]
    }
}
