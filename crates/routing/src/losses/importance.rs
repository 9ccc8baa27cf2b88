//! The importance loss (paper 001 App. A; V-MoE, arXiv:2106.05974 App. A).

use burn::tensor::Tensor;

use super::squared_variation;

/// Squared coefficient of variation of the experts' gate mass:
/// `CV(Σ_t Π[t, :])²` with `Π` the softmax of the clean logits.
///
/// - `gates`: `[G, S, E]`
/// - returns: `[G]`
pub fn importance_loss(gates: Tensor<3>) -> Tensor<1> {
    squared_variation(gates.sum_dim(1))
}
