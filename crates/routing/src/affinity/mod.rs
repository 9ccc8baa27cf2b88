//! Token–expert affinity: how well each token and each expert suit each other.
//!
//! An affinity is a matrix `Π [T, E]` (paper 001 §2). [Allocation](crate::allocation) reads the
//! dispatch off it; the combine weights come from the softmax gates or from `Π` itself.

mod simplex;
mod sinkhorn;
mod sparse_transport;

use serde::{Deserialize, Serialize};

pub use simplex::sparse_simplex_projection;
pub use sinkhorn::{Sinkhorn, SinkhornPlan};
pub use sparse_transport::{SparseSide, SparseTransport, SparseTransportPlan};

use crate::error::Result;

/// How logits `XW` become affinities.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Affinity {
    /// Softmax over the experts (paper 001 eq. 6).
    #[default]
    Softmax,
    /// Entropy-regularised optimal transport (eq. 8), which gives every expert the same total.
    Sinkhorn(Sinkhorn),
    /// Optimal transport with a sparsity constraint (eq. 9).
    SparseTransport(SparseTransport),
}

impl Affinity {
    /// Fails on settings that cannot be solved.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Softmax => Ok(()),
            Self::Sinkhorn(sinkhorn) => sinkhorn.check(),
            Self::SparseTransport(transport) => transport.check(),
        }
    }
}

/// Where the combine weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CombineWeights {
    /// From the softmax gates, whatever the affinity: better and faster (paper 001 §2.2).
    #[default]
    Gates,
    /// From the affinity itself, the ablation of paper 001 §3.4. Gradients then pass through the
    /// transport plan.
    Affinity,
    /// From the softmax gates, divided by their sum over the experts that serve the token, so that
    /// copies of one network together do what it did (sparse upcycling). With one expert per token
    /// the weight is 1, and only auxiliary losses teach the router.
    Normalised,
}
