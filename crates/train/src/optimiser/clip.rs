//! Clipping by the norm of all gradients together.

use burn::tensor::Tensor;
use rayon::prelude::*;

use super::sums::sum_of_squares;

/// Scales gradients so that their global norm is at most `limit`, 0 for any; returns the norm that
/// they had. Gradients that are not finite stay as they are.
pub fn clip_global_norm(gradients: &mut [Vec<f32>], limit: f64) -> f64 {
    let norm = gradients.iter().map(|gradient| sum_of_squares(gradient)).sum::<f64>().sqrt();
    clip(gradients, norm, limit);
    norm
}

/// The same of gradients whose norm, with some that are elsewhere, is known.
pub(crate) fn clip(gradients: &mut [Vec<f32>], norm: f64, limit: f64) {
    if let Some(scale) = scale(norm, limit) {
        gradients.par_iter_mut().flatten().for_each(|g| *g *= scale);
    }
}

/// What gradients of a norm are multiplied by; nothing where they stay as they are.
pub(super) fn scale(norm: f64, limit: f64) -> Option<f32> {
    (limit > 0.0 && norm > limit && norm.is_finite()).then(|| (limit / norm) as f32)
}

/// `[1]`: the norm of gradients that are on a device, added up in single precision: one whose square has no room
/// there is not finite.
pub(crate) fn global_norm(gradients: &[Tensor<1>]) -> Tensor<1> {
    let squares = gradients.iter().map(|gradient| gradient.clone().square().sum());
    Tensor::cat(squares.collect(), 0).sum().sqrt()
}
