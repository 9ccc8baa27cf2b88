//! Allocation: from affinities to who goes where (paper 001, Algorithms 1 and 2, and §2.6).
//!
//! Allocation is integer work on the host; it carries no gradient.

mod assignments;
mod expert_choice;
mod order;
mod soft;
mod token_choice;
mod top_k;

use serde::{Deserialize, Serialize};

pub(crate) use assignments::Assignments;
pub use assignments::Decisions;
pub use expert_choice::ExpertChoice;
pub(crate) use order::Arrivals;
pub use order::Order;
pub use soft::{Soft, SubsetChoice};
pub use token_choice::TokenChoice;
pub(crate) use top_k::top_columns;

use crate::error::Result;

/// Who chooses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Allocation {
    /// Every token chooses its best experts (Algorithm 1).
    TokenChoice(TokenChoice),
    /// Every expert chooses its best tokens (Algorithm 2).
    ExpertChoice(ExpertChoice),
    /// Every slot of every expert takes a mixture of all tokens (§2.6).
    Soft(Soft),
}

impl Allocation {
    /// Fails on settings that allocate nothing, where `experts` is the smallest number of experts
    /// any gate can choose from.
    pub fn check(&self, experts: usize) -> Result<()> {
        match self {
            Self::TokenChoice(choice) => choice.check(experts),
            Self::ExpertChoice(choice) => choice.check(),
            Self::Soft(soft) => soft.check(experts),
        }
    }
}
