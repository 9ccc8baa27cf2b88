//! Entropy losses of LIMoE (paper 002 App. B and E.1; arXiv:2206.02770 §2.2.2).
//!
//! Entropies are in nats. A loss for one modality is the same function of that modality's tokens
//! alone; "merged over the modalities" is the same function of all tokens.

use burn::tensor::{
    Tensor,
    activation::{log_softmax, softmax},
};

use super::best_experts;

/// Mean entropy of the tokens' gates, `Ω_local`: small when every token is sure of its expert.
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G]`
pub fn local_entropy_loss(logits: Tensor<3>) -> Tensor<1> {
    let [groups, _, _] = logits.dims();
    let log_gates = log_softmax(logits, 2);
    let entropy = (log_gates.clone().exp() * log_gates).sum_dim(2).neg();
    entropy.mean_dim(1).reshape([groups])
}

/// Negative entropy of the mean gates, `Ω_global = -H(p̃)`, or with a threshold
/// `max(0, τ - H(p̃))`: small when the tokens together use at least `e^τ` experts. Where the entropy
/// is above the threshold it is exactly 0 and flat.
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G]`
pub fn global_entropy_loss(logits: Tensor<3>, threshold: Option<f64>) -> Tensor<1> {
    global_entropy_loss_of(marginal(logits), threshold)
}

/// [`global_entropy_loss`] of given marginals, for example of the mean of the modalities' marginals
/// where every modality shall count the same however many tokens it has.
///
/// - `marginal`: `p̃ [G, E]`
/// - returns: `[G]`
pub fn global_entropy_loss_of(marginal: Tensor<2>, threshold: Option<f64>) -> Tensor<1> {
    let entropy = entropy(marginal);
    match threshold {
        None => entropy.neg(),
        Some(threshold) => (entropy.neg() + threshold).clamp_min(0.0),
    }
}

/// Negative mutual information between experts and tokens, `Ω_local + Ω_global` without threshold.
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G]`
pub fn information_loss(logits: Tensor<3>) -> Tensor<1> {
    local_entropy_loss(logits.clone()) + global_entropy_loss(logits, None)
}

/// Negative mutual information between experts and modalities (App. B.1):
/// `mean_m H(p̃_m) - H(mean_m p̃_m)`.
///
/// - `marginals`: the marginal `p̃_m [G, E]` of every modality
/// - returns: `[G]`
///
/// # Panics
/// If there is no modality.
pub fn modality_information_loss(marginals: &[Tensor<2>]) -> Tensor<1> {
    let entropies = marginals.iter().cloned().map(entropy);
    mean(entropies) - entropy(mean(marginals.iter().cloned()))
}

/// `(log K - Ω_local)²`: a local entropy that leaves room for `K` experts (App. E.1).
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G]`
pub fn target_entropy_loss(logits: Tensor<3>, k: usize) -> Tensor<1> {
    (local_entropy_loss(logits) - (k as f64).ln()).square()
}

/// Mean entropy of "among the `K` best or not" (App. E.1): the mass shall be on the `K` experts,
/// however it is spread among them.
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G]`
///
/// # Panics
/// If `k` is not in `1..=E`.
pub fn merged_entropy_loss(logits: Tensor<3>, k: usize) -> Tensor<1> {
    let [groups, _, _] = logits.dims();
    let gates = softmax(logits, 2);
    let best = best_experts(&gates, k);
    let chosen = gates.gather(2, best).sum_dim(2).clamp_max(1.0);
    let rest = chosen.clone().neg() + 1.0;
    (times_log(chosen) + times_log(rest)).neg().mean_dim(1).reshape([groups])
}

/// Mean gates over the tokens, `p̃`.
///
/// - `logits`: `[G, S, E]`
/// - returns: `[G, E]`
pub fn marginal(logits: Tensor<3>) -> Tensor<2> {
    let [groups, _, experts] = logits.dims();
    softmax(logits, 2).mean_dim(1).reshape([groups, experts])
}

/// `[G, E]` to `[G]`.
fn entropy(distribution: Tensor<2>) -> Tensor<1> {
    let [groups, _] = distribution.dims();
    times_log(distribution).sum_dim(1).reshape([groups]).neg()
}

/// `x · log x`, with 0 at 0.
fn times_log<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    x.clone() * x.clamp_min(f32::MIN_POSITIVE).log()
}

fn mean<const R: usize>(tensors: impl ExactSizeIterator<Item = Tensor<R>>) -> Tensor<R> {
    let count = tensors.len();
    let sum = tensors.reduce(|sum, tensor| sum + tensor).expect("at least one modality");
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    fn logits(rows: &[[f32; 3]]) -> Tensor<3> {
        let values: Vec<f32> = rows.iter().flatten().copied().collect();
        Tensor::from_data(TensorData::new(values, [1, rows.len(), 3]), &Device::flex())
    }

    /// Gates (½, ¼, ¼): with K = 1 a fair coin, with K = 2 a coin of ¾.
    #[test]
    fn merged_entropy_looks_at_the_k_best_together() {
        let gates = logits(&[[0.5_f32.ln(), 0.25_f32.ln(), 0.25_f32.ln()]]);
        let coin = |p: f64| -(p * p.ln() + (1.0 - p) * (1.0 - p).ln());
        for (k, expected) in [(1, coin(0.5)), (2, coin(0.75)), (3, 0.0)] {
            let loss: f32 = merged_entropy_loss(gates.clone(), k).into_scalar();
            assert!((f64::from(loss) - expected).abs() < 1e-5, "k = {k}: {loss} {expected}");
        }
    }

    /// Modalities that use different experts tell all about each other, equal ones nothing.
    #[test]
    fn modality_information_is_that_of_the_marginals() {
        let sure = |expert: usize| {
            let mut row = [-40.0; 3];
            row[expert] = 40.0;
            marginal(logits(&[row]))
        };
        let apart: f32 = modality_information_loss(&[sure(0), sure(1)]).into_scalar();
        assert!((apart + 2.0_f32.ln()).abs() < 1e-6, "{apart}");
        let same: f32 = modality_information_loss(&[sure(2), sure(2)]).into_scalar();
        assert!(same.abs() < 1e-6, "{same}");
    }

    /// Logits so far apart that a gate underflows to 0 must not give NaN.
    #[test]
    fn gates_of_exactly_zero_have_no_entropy_and_a_finite_gradient() {
        let device = Device::flex().autodiff();
        let far = TensorData::new(vec![300.0_f32, 0.0, -300.0], [1, 1, 3]);
        let far = Tensor::<3>::from_data(far, &device).require_grad();
        let total = local_entropy_loss(far.clone())
            + global_entropy_loss(far.clone(), Some(1.0))
            + merged_entropy_loss(far.clone(), 1)
            + information_loss(far.clone());
        let gradient = far.grad(&total.backward()).unwrap();
        let gradient: Vec<f32> = gradient.into_data().try_to_vec().unwrap();
        assert!(gradient.iter().all(|value| value.is_finite()), "{gradient:?}");
    }
}
