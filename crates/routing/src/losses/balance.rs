//! The load-balancing loss of GShard and Switch (paper 003 eq. 2–4; arXiv:2006.16668).

use burn::tensor::{Tensor, TensorData};
use omma_base::transfer;

/// `E · Σ_i f_i · P_i`, with `f_i` the share of tokens whose largest gate is expert `i` and `P_i`
/// the mean gate of expert `i`. It is 1 when balanced. Gradients flow through `P` only.
///
/// - `gates`: `[G, S, E]`, the gates that route (noisy ones where there is noise)
/// - returns: `[G]`
pub fn balance_loss(gates: Tensor<3>) -> Tensor<1> {
    let [groups, size, experts] = gates.dims();
    let mean_gate = gates.clone().mean_dim(1);
    let values: Vec<f32> = gates.try_into_vec_as().expect("gates are floats");
    transfer::fetched(&values);
    let mut share = vec![0.0; groups * experts];
    for (token, gates) in values.chunks_exact(experts).enumerate() {
        share[token / size * experts + first_largest(gates)] += 1.0 / size as f32;
    }
    transfer::brought(&share);
    let share = TensorData::new(share, [groups, 1, experts]);
    let share = Tensor::from_data(share, &mean_gate.device());
    (share * mean_gate).sum_dim(2).reshape([groups]) * experts as f64
}

/// The place of the largest value; the first of equals.
pub(crate) fn first_largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (place, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = place;
        }
    }
    best
}
