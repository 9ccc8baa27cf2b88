//! The z-loss (paper 002 App. B.1; ST-MoE, arXiv:2202.08906).

use burn::tensor::Tensor;

/// Mean of the squared log-sum-exp of the logits, which keeps them small.
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G]`
pub fn z_loss(logits: Tensor<3>) -> Tensor<1> {
    let [groups, _, _] = logits.dims();
    let max = logits.clone().max_dim(2).detach();
    let log_sum = (logits - max.clone()).exp().sum_dim(2).log() + max;
    log_sum.square().mean_dim(1).reshape([groups])
}
