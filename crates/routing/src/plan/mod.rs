//! Plans: the result of routing, as data that layers apply.

mod soft;
mod sparse;
mod written;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

pub use soft::SoftPlan;
pub use sparse::SparsePlan;
pub(crate) use sparse::indices;

use crate::definition::RoutingTensors;

/// Who goes where, and what comes back.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "one per layer, and only tensors of GPUs are so large"
)]
pub enum Plan {
    /// Whole tokens to few experts.
    Sparse(SparsePlan),
    /// Mixtures of tokens to every slot.
    Soft(SoftPlan),
}

impl Plan {
    /// Runs every expert on what the plan gives it and brings the results back to the tokens.
    ///
    /// - `tokens`: `X [N, D]`
    /// - `expert`: the `e`-th expert, from its inputs `[n, D]` to their outputs `[n, D']`
    /// - returns: `[N, D']`; a token that no expert serves gets zeros
    pub fn apply(
        &self,
        tokens: Tensor<2>,
        expert: impl FnMut(usize, Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        match self {
            Self::Sparse(plan) => plan.apply(tokens, expert),
            Self::Soft(plan) => plan.apply(tokens, expert),
        }
    }

    /// How many groups were routed independently.
    pub fn n_groups(&self) -> usize {
        match self {
            Self::Sparse(plan) => plan.groups().len(),
            Self::Soft(plan) => plan.n_groups(),
        }
    }

    /// The tokens of a group, in the order of the rows of [`dense`](Self::dense).
    pub fn group_tokens(&self, group: usize) -> Vec<u32> {
        match self {
            Self::Sparse(plan) => plan.expanded().groups().tokens(group).to_vec(),
            Self::Soft(plan) => plan.group_tokens(group),
        }
    }

    /// The routing tensors of one group, differentiable in the combine weights.
    pub fn dense(&self, group: usize) -> RoutingTensors {
        match self {
            Self::Sparse(plan) => plan.dense(group),
            Self::Soft(plan) => plan.dense(group),
        }
    }

    /// The sparse plan, if it is one.
    pub fn as_sparse(&self) -> Option<&SparsePlan> {
        match self {
            Self::Sparse(plan) => Some(plan),
            Self::Soft(_) => None,
        }
    }

    /// The soft plan, if it is one.
    pub fn as_soft(&self) -> Option<&SoftPlan> {
        match self {
            Self::Sparse(_) => None,
            Self::Soft(plan) => Some(plan),
        }
    }
}
