//! The dense MLP of a transformer block.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::{
    cpu::{
        activation::Activation,
        dropout::Dropout,
        expert_mlp::{Experts, Parameters, Routes, Sizes},
        scratch::Scratch,
    },
    fused::{Array, FusedOp, Input, apply},
    packed_weights, portable,
};

/// `act(x · up + up_bias) · down + down_bias` over the last axis.
///
/// - `x`: `[..., D]`; `up`: `([D, H], [H])`; `down`: `([H, D'], [D'])`
/// - returns: `[..., D']`
pub fn mlp<const R: usize>(
    x: Tensor<R>,
    up: (Tensor<2>, Tensor<1>),
    down: (Tensor<2>, Tensor<1>),
    activation: Activation,
    dropout: Option<Dropout>,
) -> Tensor<R> {
    let [inputs, hidden] = up.0.dims();
    assert_eq!(x.dims()[R - 1], inputs, "mlp: features");
    assert_eq!([up.1.dims()[0], down.0.dims()[0]], [hidden; 2], "mlp: hidden sizes");
    assert_eq!(down.0.dims()[1], down.1.dims()[0], "mlp: outputs and their bias");
    let arguments = [
        Input::new(&x),
        Input::new(&up.0),
        Input::new(&up.1),
        Input::new(&down.0),
        Input::new(&down.1),
    ];
    apply(&Mlp { activation, dropout }, arguments)
        .unwrap_or_else(|| portable::mlp(x, up, down, activation, dropout))
}

/// The one expert of a dense layer, to which all rows go as they are.
#[derive(Debug, Clone, Copy)]
struct Mlp {
    activation: Activation,
    dropout: Option<Dropout>,
}

impl Mlp {
    fn with_expert<T>(&self, inputs: &[Array; 5], run: impl FnOnce(Experts) -> T) -> T {
        let [x, up, up_bias, down, down_bias] = inputs;
        let (up_shape, down_shape) = (up.shape(), down.shape());
        let rows = x.values().len() / up_shape[0];
        run(Experts {
            sizes: Sizes { inputs: up_shape[0], hidden: up_shape[1], outputs: down_shape[1] },
            parameters: Parameters {
                up: up.values(),
                up_bias: up_bias.values(),
                down: down.values(),
                down_bias: down_bias.values(),
            },
            routes: Routes {
                offsets: &[0, rows],
                tokens: None,
                weights: None,
                n_tokens: rows,
                origins: None,
            },
            activation: self.activation,
            dropout: self.dropout,
        })
    }
}

impl FusedOp<5> for Mlp {
    type Saved = ([Array; 5], Arc<Scratch>);

    fn forward(&self, inputs: [Array; 5], keep: bool) -> (Array, Option<Self::Saved>) {
        let kept = [&inputs[1], &inputs[3]].map(|weights| packed_weights::kept(weights.values()));
        let (output, kept) =
            self.with_expert(&inputs, |expert| expert.forward(inputs[0].values(), kept, keep));
        let mut shape = inputs[0].shape();
        *shape.last_mut().expect("an input has features") = inputs[4].shape()[0];
        (Array::new(output, &shape), kept.map(|kept| (inputs, Arc::new(kept))))
    }

    fn backward(
        &self,
        (inputs, kept): Self::Saved,
        gradient: Array,
        wanted: [bool; 5],
    ) -> [Option<Array>; 5] {
        let [x, up, up_bias, down, down_bias] = wanted;
        let wanted = [x, false, up, up_bias, down, down_bias];
        let [dx, _, dup, dup_bias, ddown, ddown_bias] = self.with_expert(&inputs, |expert| {
            expert.backward(inputs[0].values(), &kept, gradient.values(), wanted)
        });
        let mut gradients = [dx, dup, dup_bias, ddown, ddown_bias].into_iter().zip(&inputs);
        std::array::from_fn(|_| {
            let (values, input) = gradients.next().expect("five gradients");
            values.map(|values| Array::new(values, &input.shape()))
        })
    }
}
