//! The load loss (paper 001 App. A, eq. 12–15; V-MoE, arXiv:2106.05974 App. A).

use burn::tensor::Tensor;

use super::{best_experts, squared_variation};

/// Squared coefficient of variation of the experts' expected load: the chance of an expert to be
/// among a token's `k` if only its own noise were drawn again,
/// `1 - Φ((η_k - logit) / σ)` with `η_k` the token's `k`-th largest noisy logit.
///
/// Gradients flow through the threshold `η_k` too. The loss exists only where there is noise.
///
/// - `clean`, `noisy`: logits `[G, S, E]`; `sigma`: standard deviation of the noise
/// - returns: `[G]`
///
/// # Panics
/// If `k` is not in `1..=E`.
pub fn load_loss(clean: Tensor<3>, noisy: Tensor<3>, k: usize, sigma: f64) -> Tensor<1> {
    let kth_best = best_experts(&noisy, k).narrow(2, k - 1, 1);
    let threshold = noisy.gather(2, kth_best);
    let distance = (clean - threshold) / (sigma * std::f64::consts::SQRT_2);
    let chance = (distance.erf() + 1.0) * 0.5;
    squared_variation(chance.mean_dim(1))
}
