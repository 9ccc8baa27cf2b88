//! Auxiliary losses: what a router pays for using its experts badly.
//!
//! Every loss is a function from the values of `G` groups of `S` tokens over `E` experts,
//! `[G, S, E]`, to one number per group, `[G]`. A [`LossTerm`] names a loss, its weight, and the
//! tokens it looks at; [`AuxiliaryLosses`] holds the values of a router's terms for every group and
//! every gate, from which the total is a plain average (papers 000 App. C.2 and 002 App. E.5).

mod balance;
mod entropy;
mod importance;
mod load;
mod terms;
mod z;

pub use balance::balance_loss;
pub(crate) use balance::first_largest;
pub use entropy::{
    global_entropy_loss, global_entropy_loss_of, information_loss, local_entropy_loss, marginal,
    merged_entropy_loss, modality_information_loss, target_entropy_loss,
};
pub use importance::importance_loss;
pub use load::load_loss;
pub(crate) use terms::GateTensors;
pub use terms::{AuxiliaryLosses, Loss, LossTerm, LossValue};
pub use z::z_loss;

use burn::tensor::{Int, Tensor, TensorData};
use omma_base::transfer;

use crate::allocation::top_columns;

/// `(σ / μ)²` over the experts, with the biased variance.
///
/// - `values`: `[G, 1, E]`
/// - returns: `[G]`
fn squared_variation(values: Tensor<3>) -> Tensor<1> {
    let [groups, _, _] = values.dims();
    let mean = values.clone().mean_dim(2);
    let variance = (values - mean.clone()).square().mean_dim(2);
    (variance / mean.square()).reshape([groups])
}

/// The places of every token's `k` largest values, best first; ties go to the lowest expert.
///
/// - `values`: `[G, S, E]`
/// - returns: `[G, S, k]`
fn best_experts(values: &Tensor<3>, k: usize) -> Tensor<3, Int> {
    let [groups, size, experts] = values.dims();
    let host: Vec<f32> = values.clone().try_into_vec_as().expect("logits are floats");
    transfer::fetched(&host);
    let mut best = vec![0; groups * size * k];
    for (best, row) in best.chunks_exact_mut(k).zip(host.chunks_exact(experts)) {
        top_columns(row, None, best);
    }
    let best: Vec<i32> = best.into_iter().map(|expert| expert as i32).collect();
    transfer::brought(&best);
    Tensor::from_data(TensorData::new(best, [groups, size, k]), &values.device())
}
