//! Tokens mixed into slots, and slots into tokens.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::{
    cpu::{
        matrix::Matrix,
        product::{Write, multiply, multiply_parallel},
    },
    fused::{Array, FusedOp, Input, apply},
    portable,
};

/// Which way a table of weights `[S, P]` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// `weightsᵀ · x`: from `S` tokens to `P` slots.
    ToSlots,
    /// `weights · x`: from `P` slots to `S` tokens.
    ToTokens,
}

/// Mixes the rows of every group by its weights.
///
/// - `weights`: `[G, S, P]`; `x`: `[G, S, D]` to slots, `[G, P, D]` to tokens
/// - returns: `[G, P, D]` to slots, `[G, S, D]` to tokens
pub fn mix(weights: Tensor<3>, x: Tensor<3>, mixing: Mixing) -> Tensor<3> {
    let ([groups, tokens, slots], [x_groups, rows, _]) = (weights.dims(), x.dims());
    let expected = if mixing == Mixing::ToSlots { tokens } else { slots };
    assert_eq!([x_groups, rows], [groups, expected], "mix: weights and rows");
    apply(&Mix(mixing), [Input::new(&weights), Input::new(&x)])
        .unwrap_or_else(|| portable::mix(weights, x, mixing))
}

#[derive(Debug, Clone, Copy)]
struct Mix(Mixing);

impl FusedOp<2> for Mix {
    type Saved = [Array; 2];

    fn forward(&self, inputs: [Array; 2], keep: bool) -> (Array, Option<Self::Saved>) {
        let [weights, x] = &inputs;
        let ([groups, tokens, slots], [_, _, width]) = (sizes(weights), sizes(x));
        let rows = if self.0 == Mixing::ToSlots { slots } else { tokens };
        let y = in_groups(groups, rows * width, |group, y, product| {
            let x = of_group(x, group);
            let weights = of_group(weights, group);
            match self.0 {
                Mixing::ToSlots => product(y, weights.transposed(), x),
                Mixing::ToTokens => product(y, weights, x),
            }
        });
        (Array::new(y, &[groups, rows, width]), keep.then_some(inputs))
    }

    fn backward(&self, inputs: Self::Saved, dy: Array, wanted: [bool; 2]) -> [Option<Array>; 2] {
        let [weights, x] = &inputs;
        let [groups, tokens, slots] = sizes(weights);
        let dweights = wanted[0].then(|| {
            let dweights = in_groups(groups, tokens * slots, |group, dweights, product| {
                let (x, dy) = (of_group(x, group), of_group(&dy, group));
                match self.0 {
                    Mixing::ToSlots => product(dweights, x, dy.transposed()),
                    Mixing::ToTokens => product(dweights, dy, x.transposed()),
                }
            });
            Array::new(dweights, &weights.shape())
        });
        let dx = wanted[1].then(|| {
            let [_, rows, width] = sizes(x);
            let dx = in_groups(groups, rows * width, |group, dx, product| {
                let (weights, dy) = (of_group(weights, group), of_group(&dy, group));
                match self.0 {
                    Mixing::ToSlots => product(dx, weights, dy),
                    Mixing::ToTokens => product(dx, weights.transposed(), dy),
                }
            });
            Array::new(dx, &x.shape())
        });
        [dweights, dx]
    }
}

fn sizes(array: &Array) -> [usize; 3] {
    array.shape().try_into().expect("three axes")
}

/// One group's matrix.
fn of_group(array: &Array, group: usize) -> Matrix<'_> {
    let [_, rows, columns] = sizes(array);
    Matrix::new(&array.values()[group * rows * columns..][..rows * columns], rows, columns)
}

/// Fills the results of all groups, `size` values each: many groups side by side, few one after the
/// other on all threads.
fn in_groups(
    groups: usize,
    size: usize,
    each: impl Fn(usize, &mut [f32], &dyn Fn(&mut [f32], Matrix, Matrix)) + Sync,
) -> Vec<f32> {
    let mut results = vec![0.0; groups * size];
    let size = size.max(1);
    if groups < 2 * rayon::current_num_threads() {
        for (group, result) in results.chunks_mut(size).enumerate() {
            each(group, result, &|c, a, b| multiply_parallel(c, Write::Replace, a, b));
        }
    } else {
        results.par_chunks_mut(size).enumerate().for_each(|(group, result)| {
            each(group, result, &|c, a, b| multiply(c, Write::Replace, a, b));
        });
    }
    results
}
