//! Soft routing: every slot takes a mixture of all tokens (paper 001 §2.6, paper 004 §2.1).

use burn::tensor::{Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use crate::{
    capacity::{Capacity, Rounding},
    error::{Result, RoutingError},
};

/// Settings of soft routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Soft {
    /// Slots per expert, `P`.
    pub slots: usize,
    /// Whether tokens and slots are scaled to unit length and their product by a learned number, as
    /// Soft MoE is trained at scale (arXiv:2308.00951 §2.3), or left as they are (papers 001, 004).
    #[serde(default)]
    pub normalised: bool,
}

impl Soft {
    /// The slots that cost as much as `factor` experts per token: `round(factor · T / E)`.
    pub fn slots_for(tokens: usize, experts: usize, factor: f64) -> Result<usize> {
        Capacity { rounding: Rounding::Round, ..Capacity::factor(factor) }.slots(tokens, experts)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.slots == 0 { Err(RoutingError::NoSlots) } else { Ok(()) }
    }

    /// Affinities of tokens and slots (eq. 10).
    ///
    /// - `tokens`: `X [T, D]`; `slots`: `Φ [D, E · P]`; `scale`: `[1]`, used by the normalised form
    /// - returns: `Z [T, E · P]`
    pub fn logits(
        &self,
        tokens: Tensor<2>,
        slots: Tensor<2>,
        scale: Option<Tensor<1>>,
    ) -> Tensor<2> {
        match scale {
            None => tokens.matmul(slots),
            // Products of unit vectors, with the tokens' lengths divided out where it is cheapest.
            Some(scale) => {
                let directions = slots.clone() / length(slots, 0) * scale.unsqueeze();
                tokens.clone().matmul(directions) / length(tokens, 1)
            }
        }
    }

    /// Dispatch and combine weights (eq. 11): a softmax over the tokens of a group for every slot,
    /// and a softmax over all slots for every token.
    ///
    /// - `logits`: `Z [G, S, E · P]`
    /// - returns: dispatch and combine, both `[G, S, E · P]`
    pub fn weights(&self, logits: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        (softmax(logits.clone(), 1), softmax(logits, 2))
    }
}

/// `√(Σx² + 1e-6)` along `dim`.
fn length(x: Tensor<2>, dim: usize) -> Tensor<2> {
    (x.square().sum_dim(dim) + 1e-6).sqrt()
}
