//! A dense layer.

use burn::tensor::Tensor;

use crate::{
    cpu::linear,
    fused::{Array, FusedOp, Input, apply},
    packed_weights::kept,
    portable,
};

/// `x · W + b` over the last axis.
///
/// - `x`: `[..., inputs]`, `weight`: `[inputs, outputs]`, `bias`: `[outputs]`
/// - returns: `[..., outputs]`
pub fn linear<const R: usize>(
    x: Tensor<R>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<R> {
    let shape = x.dims();
    assert_eq!(
        shape[R - 1],
        weight.dims()[0],
        "linear: the input has {} features, the weight {} rows",
        shape[R - 1],
        weight.dims()[0]
    );
    if let Some(bias) = &bias {
        assert_eq!(bias.dims()[0], weight.dims()[1], "linear: the weight's outputs and the bias");
    }
    let fused = match &bias {
        Some(bias) => apply(&Linear, [Input::new(&x), Input::new(&weight), Input::new(bias)]),
        None => apply(&Linear, [Input::new(&x), Input::new(&weight)]),
    };
    fused.unwrap_or_else(|| portable::linear(x, weight, bias))
}

#[derive(Debug, Clone, Copy)]
struct Linear;

impl Linear {
    fn run(x: &Array, weight: &Array, bias: Option<&Array>) -> Array {
        let sizes: [usize; 2] = weight.shape().try_into().expect("a weight is a matrix");
        let (x_values, weight, bias) = (x.values(), weight.values(), bias.map(Array::values));
        let y = linear::forward(x_values, weight, bias, sizes, kept(weight).as_ref());
        let mut shape = x.shape();
        *shape.last_mut().expect("an input has features") = sizes[1];
        Array::new(y, &shape)
    }

    fn gradients(x: &Array, weight: &Array, dy: &Array, wanted: [bool; 3]) -> [Option<Array>; 3] {
        let sizes: [usize; 2] = weight.shape().try_into().expect("a weight is a matrix");
        let [dx, dweight, dbias] =
            linear::backward(x.values(), weight.values(), dy.values(), sizes, wanted);
        [
            dx.map(|dx| Array::new(dx, &x.shape())),
            dweight.map(|dweight| Array::new(dweight, &sizes)),
            dbias.map(|dbias| Array::new(dbias, &sizes[1..])),
        ]
    }
}

impl FusedOp<2> for Linear {
    type Saved = (Array, Array);

    fn forward(&self, [x, weight]: [Array; 2], keep: bool) -> (Array, Option<Self::Saved>) {
        (Self::run(&x, &weight, None), keep.then_some((x, weight)))
    }

    fn backward(
        &self,
        (x, weight): Self::Saved,
        dy: Array,
        [a, b]: [bool; 2],
    ) -> [Option<Array>; 2] {
        let [dx, dweight, _] = Self::gradients(&x, &weight, &dy, [a, b, false]);
        [dx, dweight]
    }
}

impl FusedOp<3> for Linear {
    type Saved = (Array, Array);

    fn forward(&self, [x, weight, bias]: [Array; 3], keep: bool) -> (Array, Option<Self::Saved>) {
        (Self::run(&x, &weight, Some(&bias)), keep.then_some((x, weight)))
    }

    fn backward(
        &self,
        (x, weight): Self::Saved,
        dy: Array,
        wanted: [bool; 3],
    ) -> [Option<Array>; 3] {
        Self::gradients(&x, &weight, &dy, wanted)
    }
}
