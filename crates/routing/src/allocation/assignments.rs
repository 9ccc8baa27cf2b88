//! The outcome of a sparse allocation, before it has weights.

use serde::{Deserialize, Serialize};

/// One token in one slot of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) token: u32,
    /// The token's place in the expert's buffer for the token's group.
    pub(crate) slot: u32,
    /// Which of the token's choices this is; 0 where experts choose.
    pub(crate) choice: u32,
    /// Where the assignment's weight stands in the gates' values, table after table.
    pub(crate) value: u32,
}

/// All assignments, sorted by expert, then group, then slot.
#[derive(Debug, Clone)]
pub(crate) struct Assignments {
    /// Assignments of expert `e` are `offsets[e]..offsets[e + 1]`.
    pub(crate) offsets: Vec<usize>,
    pub(crate) list: Vec<Assignment>,
    /// Slots per expert in each group.
    pub(crate) capacities: Vec<usize>,
    pub(crate) decisions: Option<Decisions>,
}

/// Everything that tokens wished for under token choice, whether or not there was room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions {
    /// Choices of one token: `K` per gate it calls.
    pub per_token: usize,
    /// Choices of the same rank: the gates a token calls.
    pub per_rank: usize,
    /// `[tokens, per_token]`: the chosen experts, all first choices before all second ones.
    pub experts: Vec<u32>,
    /// `[tokens, per_token]`: the slot of each choice in its expert's buffer. Counting goes on past
    /// the capacity, so a slot at or above it means that the choice was dropped.
    pub slots: Vec<u32>,
}

impl Decisions {
    /// The same decisions with every token replaced by `span` tokens in a row.
    pub(crate) fn expanded(&self, span: usize) -> Self {
        let of_tokens = |values: &[u32], value: fn(u32, u32, u32) -> u32| -> Vec<u32> {
            let tokens = values.chunks_exact(self.per_token);
            tokens
                .flat_map(|choices| (0..span as u32).map(move |copy| (choices, copy)))
                .flat_map(|(choices, copy)| {
                    choices.iter().map(move |c| value(*c, copy, span as u32))
                })
                .collect()
        };
        Self {
            experts: of_tokens(&self.experts, |expert, _, _| expert),
            slots: of_tokens(&self.slots, |slot, copy, span| slot * span + copy),
            ..*self
        }
    }
}
