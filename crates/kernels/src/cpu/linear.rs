//! `y = x · W + b`.

use rayon::prelude::*;

use super::{
    matrix::{Matrix, Write, multiply, multiply_parallel, sum_of_rows},
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
    let (x, weight) = (Matrix::new(x, rows, inputs), Matrix::new(weight, inputs, outputs));
    let per_task = rows.div_ceil(rayon::current_num_threads()).max(rows_per_task(rows));
    y.par_chunks_mut(per_task * outputs).enumerate().for_each(|(task, y)| {
        let count = y.len() / outputs;
        multiply(y, Write::Replace, x.slice_rows(task * per_task, count), weight);
        if let Some(bias) = bias {
            y.chunks_exact_mut(outputs).for_each(|row| simd::add(row, bias));
        }
    });
    y
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
        multiply_parallel(&mut dx, Write::Replace, gradient, weight.transposed());
        dx
    });
    let dweight = wanted[1].then(|| {
        let mut dweight = vec![0.0; inputs * outputs];
        multiply_parallel(&mut dweight, Write::Replace, x.transposed(), gradient);
        dweight
    });
    [dx, dweight, wanted[2].then(|| sum_of_rows(dy, outputs))]
}
