//! Layer normalisation over the last axis.

use rayon::prelude::*;

use super::{
    matrix::sum_of_rows,
    rows_per_task,
    scratch::Scratch,
    simd::{self, multiversion},
};

multiversion! {
    fn normalise(x: &[f32], gamma: &[f32], beta: &[f32], mean: f32, inverse: f32, y: &mut [f32]) {
        for (((x, gamma), beta), y) in x.iter().zip(gamma).zip(beta).zip(y) {
            *y = (x - mean) * inverse * gamma + beta;
        }
    }
}

multiversion! {
    fn squared_distance(x: &[f32], mean: f32) -> f32 {
        let mut lanes = [0.0_f32; 32];
        let blocks = x.chunks_exact(32);
        let rest: f32 = blocks.remainder().iter().map(|x| (x - mean) * (x - mean)).sum();
        for block in blocks {
            for (lane, x) in lanes.iter_mut().zip(block) {
                *lane += (x - mean) * (x - mean);
            }
        }
        lanes.iter().sum::<f32>() + rest
    }
}

/// `y = (x - mean) / √(variance + ε) · γ + β`, with the biased variance.
///
/// - `x`: `[rows, width]`; `gamma`, `beta`: `[width]`
/// - returns: `y [rows, width]`, and the mean and inverse deviation of every row
pub(crate) fn forward(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    epsilon: f32,
) -> (Vec<f32>, Vec<[f32; 2]>) {
    let width = gamma.len();
    let rows = x.len() / width;
    let mut y = vec![0.0; x.len()];
    let mut moments = vec![[0.0; 2]; rows];
    let per_task = rows_per_task(rows);
    y.par_chunks_mut(per_task * width)
        .zip(x.par_chunks(per_task * width))
        .zip(moments.par_chunks_mut(per_task))
        .for_each(|((y, x), moments)| {
            let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(moments);
            for ((y, x), moments) in rows {
                let mean = simd::sum(x) / width as f32;
                let variance = squared_distance(x, mean) / width as f32;
                let inverse = 1.0 / (variance + epsilon).sqrt();
                normalise(x, gamma, beta, mean, inverse, y);
                *moments = [mean, inverse];
            }
        });
    (y, moments)
}

multiversion! {
    /// `x̂`, `dy · x̂` and `dy · γ` of one row.
    fn row_terms(x: &[f32], dy: &[f32], gamma: &[f32], moments: [f32; 2], dgamma: &mut [f32], dx: &mut [f32]) {
        for ((((x, dy), gamma), dgamma), dx) in x.iter().zip(dy).zip(gamma).zip(dgamma).zip(dx) {
            *dgamma = dy * (x - moments[0]) * moments[1];
            *dx = dy * gamma;
        }
    }
}

multiversion! {
    fn row_gradient(x: &[f32], moments: [f32; 2], mean: f32, projection: f32, dx: &mut [f32]) {
        for (x, dx) in x.iter().zip(dx) {
            let normal = (x - moments[0]) * moments[1];
            *dx = (*dx - mean - normal * projection) * moments[1];
        }
    }
}

/// Gradients of `x`, `gamma` and `beta`.
pub(crate) fn backward(
    x: &[f32],
    gamma: &[f32],
    moments: &[[f32; 2]],
    dy: &[f32],
) -> [Vec<f32>; 3] {
    let width = gamma.len();
    let mut dx = vec![0.0; x.len()];
    let mut scaled = Scratch::new(x.len());
    let per_task = rows_per_task(moments.len());
    dx.par_chunks_mut(per_task * width)
        .zip(scaled.par_chunks_mut(per_task * width))
        .zip(x.par_chunks(per_task * width))
        .zip(dy.par_chunks(per_task * width))
        .zip(moments.par_chunks(per_task))
        .for_each(|((((dx, scaled), x), dy), moments)| {
            let rows = dx.chunks_exact_mut(width).zip(scaled.chunks_exact_mut(width));
            let inputs = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(moments);
            for ((dx, scaled), ((x, dy), moments)) in rows.zip(inputs) {
                row_terms(x, dy, gamma, *moments, scaled, dx);
                let mean = simd::sum(dx) / width as f32;
                let projection = simd::dot(scaled, gamma) / width as f32;
                row_gradient(x, *moments, mean, projection, dx);
            }
        });
    let dgamma = sum_of_rows(&scaled, width);
    [dx, dgamma, sum_of_rows(dy, width)]
}
