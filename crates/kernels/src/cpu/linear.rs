//! `y = x · W + b`.

use rayon::prelude::*;

use super::{
    matrix::{Matrix, sum_of_rows},
    product::{Packed, Write, multiply_packed, multiply_parallel},
    rows_per_task, simd,
};

/// - `x`: `[rows, inputs]`, `weight`: `[inputs, outputs]`, `bias`: `[outputs]` or nothing
/// - returns: `[rows, outputs]`
pub(crate) fn forward(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    [inputs, outputs]: [usize; 2],
) -> Vec<f32> {
    let rows = x.len() / inputs;
    let mut y = vec![0.0; rows * outputs];
    let weight = Packed::in_parallel(Matrix::new(weight, inputs, outputs));
    by_rows(&mut y, Matrix::new(x, rows, inputs), &weight, outputs, bias);
    y
}

/// `y = x · weight + bias`, rows cut among the threads.
fn by_rows(y: &mut [f32], x: Matrix, weight: &Packed, outputs: usize, bias: Option<&[f32]>) {
    let per_task = rows_per_task(x.rows());
    y.par_chunks_mut((per_task * outputs).max(1)).enumerate().for_each(|(task, y)| {
        let x = x.slice_rows(task * per_task, y.len() / outputs);
        multiply_packed(y, outputs, Write::Replace, x, weight, |_, y| {
            if let Some(bias) = bias {
                y.chunks_exact_mut(outputs).for_each(|row| simd::add(row, bias));
            }
        });
    });
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
    let dx = wanted[0].then(|| {
        let mut dx = vec![0.0; rows * inputs];
        by_rows(&mut dx, gradient, &Packed::in_parallel(weight.transposed()), inputs, None);
        dx
    });
    let dweight = wanted[1].then(|| {
        let mut dweight = vec![0.0; inputs * outputs];
        multiply_parallel(&mut dweight, Write::Replace, x.transposed(), gradient);
        dweight
    });
    [dx, dweight, wanted[2].then(|| sum_of_rows(dy, outputs))]
}
