//! Layer normalisation over the last axis.

use rayon::prelude::*;

use super::{
    rows_per_task,
    simd::{self, LANES, multiversion, sum_by_lanes},
    unfilled::{Blank, filled, unfilled},
};

/// Rows whose gradients of `γ` and `β` are summed by one task.
const ROWS_PER_SUM: usize = 128;

multiversion! {
    /// One row; returns its mean and inverse deviation.
    fn normalise(x: &[f32], gamma: &[f32], beta: &[f32], epsilon: f32, y: &mut [Blank]) -> [f32; 2] {
        let width = x.len() as f32;
        let mean = sum_by_lanes(x, |x| x) / width;
        let variance = sum_by_lanes(x, |x| (x - mean) * (x - mean)) / width;
        let inverse = 1.0 / (variance + epsilon).sqrt();
        for (((x, gamma), beta), y) in x.iter().zip(gamma).zip(beta).zip(y) {
            y.write((x - mean) * inverse * gamma + beta);
        }
        [mean, inverse]
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
    let mut y = unfilled(x.len());
    let mut moments = vec![[0.0; 2]; rows];
    let per_task = rows_per_task(rows);
    y.par_chunks_mut(per_task * width)
        .zip(x.par_chunks(per_task * width))
        .zip(moments.par_chunks_mut(per_task))
        .for_each(|((y, x), moments)| {
            let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(moments);
            for ((y, x), moments) in rows {
                *moments = normalise(x, gamma, beta, epsilon, y);
            }
        });
    // SAFETY: every row is written.
    (unsafe { filled(y) }, moments)
}

multiversion! {
    /// The gradient of one row; `dgamma` and `dbeta` are added to.
    fn row_gradient(
        x: &[f32],
        dy: &[f32],
        gamma: &[f32],
        moments: [f32; 2],
        dx: &mut [f32],
        dgamma: &mut [f32],
        dbeta: &mut [f32],
    ) {
        let [mean, inverse] = moments;
        for ((((x, dy), gamma), dx), (dgamma, dbeta)) in
            x.iter().zip(dy).zip(gamma).zip(dx.iter_mut()).zip(dgamma.iter_mut().zip(dbeta))
        {
            *dx = dy * gamma;
            *dgamma += dy * ((x - mean) * inverse);
            *dbeta += dy;
        }
        let width = x.len() as f32;
        let shift = sum_by_lanes(dx, |dx| dx) / width;
        let mut projection = [0.0_f32; LANES];
        for (x, dx) in x.chunks(LANES).zip(dx.chunks(LANES)) {
            for ((sum, x), dx) in projection.iter_mut().zip(x).zip(dx) {
                *sum += dx * ((x - mean) * inverse);
            }
        }
        let projection = simd::sum(projection) / width;
        for (x, dx) in x.iter().zip(dx) {
            *dx = (*dx - shift - (x - mean) * inverse * projection) * inverse;
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
    // Parts of one size on any number of threads, so that the sums over rows have the same bits.
    let sums: Vec<[Vec<f32>; 2]> = dx
        .par_chunks_mut(ROWS_PER_SUM * width)
        .zip(x.par_chunks(ROWS_PER_SUM * width))
        .zip(dy.par_chunks(ROWS_PER_SUM * width))
        .zip(moments.par_chunks(ROWS_PER_SUM))
        .map(|(((dx, x), dy), moments)| {
            let [mut dgamma, mut dbeta] = [vec![0.0; width], vec![0.0; width]];
            let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(moments);
            for (dx, ((x, dy), moments)) in dx.chunks_exact_mut(width).zip(rows) {
                row_gradient(x, dy, gamma, *moments, dx, &mut dgamma, &mut dbeta);
            }
            [dgamma, dbeta]
        })
        .collect();
    let [mut dgamma, mut dbeta] = [vec![0.0; width], vec![0.0; width]];
    for [of_gamma, of_beta] in &sums {
        simd::add(&mut dgamma, of_gamma);
        simd::add(&mut dbeta, of_beta);
    }
    [dx, dgamma, dbeta]
}
