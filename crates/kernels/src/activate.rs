//! A nonlinearity, element by element.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::{
    cpu::activation::Activation,
    fused::{Array, FusedOp, Input, apply},
    portable,
};

/// `f(x)` for any of the nonlinearities.
pub fn activate<const R: usize>(x: Tensor<R>, activation: Activation) -> Tensor<R> {
    apply(&Activate(activation), [Input::new(&x)])
        .unwrap_or_else(|| portable::activate(x, activation))
}

#[derive(Debug, Clone, Copy)]
struct Activate(Activation);

/// Elements that one task handles.
const BLOCK: usize = 1 << 15;

impl FusedOp<1> for Activate {
    type Saved = Array;

    fn forward(&self, [x]: [Array; 1], keep: bool) -> (Array, Option<Array>) {
        let mut y = vec![0.0; x.values().len()];
        y.par_chunks_mut(BLOCK)
            .zip(x.values().par_chunks(BLOCK))
            .for_each(|(y, x)| self.0.forward(x, y));
        (Array::new(y, &x.shape()), keep.then_some(x))
    }

    fn backward(&self, x: Array, gradient: Array, _: [bool; 1]) -> [Option<Array>; 1] {
        let mut dx = gradient.values().to_vec();
        dx.par_chunks_mut(BLOCK).zip(x.values().par_chunks(BLOCK)).for_each(|(dx, x)| {
            let mut y = vec![0.0; x.len()];
            self.0.backward(x, &mut y, dx);
        });
        [Some(Array::new(dx, &x.shape()))]
    }
}
