//! `y = x · W + b`.

use std::sync::Arc;

use rayon::prelude::*;

use super::{
    matrix::{Matrix, sum_of_rows},
    product::{
        Kept, Packed, Panels, has_few_rows, multiply_packed_by_columns, multiply_packed_into,
        multiply_parallel_into,
    },
    rows_per_task, simd,
    unfilled::{Blank, filled, unfilled},
};

/// - `x`: `[rows, inputs]`, `weight`: `[inputs, outputs]`, `bias`: `[outputs]` or nothing
/// - `kept`: who keeps the weight's panels, if anybody
/// - returns: `[rows, outputs]`
pub(crate) fn forward(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    [inputs, outputs]: [usize; 2],
    kept: Option<&Arc<Kept>>,
) -> Vec<f32> {
    let rows = x.len() / inputs;
    let weight = Panels::of(kept, 0, Matrix::new(weight, inputs, outputs));
    multiplied(Matrix::new(x, rows, inputs), &weight, outputs, bias)
}

/// `x · weight + bias`, rows or columns cut among the threads.
fn multiplied(x: Matrix, weight: &Packed, outputs: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let mut y = unfilled(x.rows() * outputs);
    if has_few_rows(x.rows()) {
        multiply_packed_by_columns(&mut y, x, weight, |_, columns, y| {
            if let Some(bias) = bias {
                simd::add(y, &bias[columns]);
            }
        });
        // SAFETY: the product writes all of it.
        return unsafe { filled(y) };
    }
    let per_task = rows_per_task(x.rows());
    y.par_chunks_mut((per_task * outputs).max(1)).enumerate().for_each(|(task, y)| {
        let y: &mut [Blank] = y;
        let x = x.slice_rows(task * per_task, y.len() / outputs);
        multiply_packed_into(y, x, weight, |_, y| {
            if let Some(bias) = bias {
                y.chunks_exact_mut(outputs).for_each(|row| simd::add(row, bias));
            }
        });
    });
    // SAFETY: the tasks' parts are all of it, and every one is written by its product.
    unsafe { filled(y) }
}

/// Gradients of `x`, `weight` and `bias`, as far as they are wanted.
pub(crate) fn backward(
    x: &[f32],
    weight: &[f32],
    dy: &[f32],
    [inputs, outputs]: [usize; 2],
    wanted: [bool; 3],
) -> [Option<Vec<f32>>; 3] {
    let rows = x.len() / inputs;
    let (x, weight) = (Matrix::new(x, rows, inputs), Matrix::new(weight, inputs, outputs));
    let gradient = Matrix::new(dy, rows, outputs);
    let dx = wanted[0]
        .then(|| multiplied(gradient, &Packed::in_parallel(weight.transposed()), inputs, None));
    let dweight = wanted[1].then(|| {
        let mut dweight = unfilled(inputs * outputs);
        multiply_parallel_into(&mut dweight, x.transposed(), gradient);
        // SAFETY: the product writes all of it.
        unsafe { filled(dweight) }
    });
    [dx, dweight, wanted[2].then(|| sum_of_rows(dy, outputs))]
}
