//! Token choice: every token picks its best experts (paper 001, Algorithm 1).

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{
    assignments::{Assignment, Assignments, Decisions},
    order::{Arrivals, Order},
    top_k::top_columns,
};
use crate::{
    capacity::Capacity,
    error::{Result, RoutingError},
    gate::GateTable,
};

/// Settings of token choice.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenChoice {
    /// Experts per token, `K` (per gate that the token calls).
    pub k: usize,
    /// How much each expert takes while training; without it nothing is dropped.
    #[serde(default)]
    pub capacity: Option<Capacity>,
    /// The same at inference. The default, no limit, makes an image's output independent of its
    /// neighbours in the batch, if the affinity is (softmax is, transport plans are inside a group).
    #[serde(default)]
    pub inference_capacity: Option<Capacity>,
    /// Who is served first when there is a limit.
    #[serde(default)]
    pub order: Order,
}

impl TokenChoice {
    /// `k` experts per token and no limit.
    pub fn dropless(k: usize) -> Self {
        Self { k, capacity: None, inference_capacity: None, order: Order::Arrival }
    }

    /// `k` experts per token, with the same limit in training and at inference.
    pub fn limited(k: usize, capacity: Capacity, order: Order) -> Self {
        Self { k, capacity: Some(capacity), inference_capacity: Some(capacity), order }
    }

    pub(super) fn check(&self, experts: usize) -> Result<()> {
        if self.k == 0 {
            return Err(RoutingError::NoChoices);
        }
        if self.k > experts {
            return Err(RoutingError::TooManyChoices { k: self.k, experts });
        }
        self.capacity.iter().chain(&self.inference_capacity).try_for_each(Capacity::check)
    }

    /// Algorithm 1 for every group: first choices of all tokens, then second choices, and so on,
    /// each into the next free slot of its expert.
    ///
    /// - `tables`: the gates, `per_rank` of which every token calls
    /// - `experts`: how many experts there are in all
    /// - `capacities`: slots per expert in each group; without them nothing is dropped
    pub(crate) fn allocate(
        &self,
        tables: &[GateTable],
        per_rank: usize,
        experts: usize,
        arrivals: &Arrivals,
        capacities: Option<Vec<usize>>,
    ) -> Assignments {
        let wishes = Wishes::new(tables, per_rank, self.k, arrivals.groups.order().len());
        let per_token = self.k * per_rank;
        let groups = arrivals.groups.len();

        let mut slots = vec![0; wishes.experts.len()];
        let mut loads = vec![0_u32; groups * experts];
        for (group, load) in loads.chunks_exact_mut(experts).enumerate() {
            let served = self.order.serve(arrivals, group, &wishes.max, &wishes.sum);
            for rank in 0..self.k {
                for &token in &served {
                    let first = token as usize * per_token + rank * per_rank;
                    for choice in first..first + per_rank {
                        let taken = &mut load[wishes.experts[choice] as usize];
                        slots[choice] = *taken;
                        *taken += 1;
                    }
                }
            }
        }

        let capacities = capacities.unwrap_or_else(|| {
            let largest =
                |load: &[u32]| load.iter().max().map_or(1, |load| (*load as usize).max(1));
            loads.chunks_exact(experts).map(largest).collect()
        });
        for (load, capacity) in loads.chunks_exact_mut(experts).zip(&capacities) {
            load.iter_mut().for_each(|load| *load = (*load).min(*capacity as u32));
        }
        let (offsets, starts) = expert_major_starts(&loads, groups, experts);

        let empty = Assignment { token: 0, slot: 0, choice: 0, value: 0 };
        let mut list = vec![empty; offsets[experts]];
        for (group, capacity) in capacities.iter().enumerate() {
            for &token in arrivals.groups.tokens(group) {
                for choice in 0..per_token {
                    let wish = token as usize * per_token + choice;
                    let (expert, slot) = (wishes.experts[wish] as usize, slots[wish]);
                    if (slot as usize) < *capacity {
                        list[starts[group * experts + expert] + slot as usize] = Assignment {
                            token,
                            slot,
                            choice: choice as u32,
                            value: wishes.values[wish],
                        };
                    }
                }
            }
        }
        let decisions = Decisions { per_token, per_rank, experts: wishes.experts, slots };
        Assignments { offsets, list, capacities, decisions: Some(decisions) }
    }
}

/// Where each expert's assignments start, and where those of each `(group, expert)` do.
fn expert_major_starts(loads: &[u32], groups: usize, experts: usize) -> (Vec<usize>, Vec<usize>) {
    let mut offsets = Vec::with_capacity(experts + 1);
    let mut starts = vec![0; loads.len()];
    let mut next = 0;
    for expert in 0..experts {
        offsets.push(next);
        for group in 0..groups {
            starts[group * experts + expert] = next;
            next += loads[group * experts + expert] as usize;
        }
    }
    offsets.push(next);
    (offsets, starts)
}

/// What every token would choose if there were room.
struct Wishes {
    /// `[tokens, k · gates]`: the chosen expert.
    experts: Vec<u32>,
    /// `[tokens, k · gates]`: where its weight stands.
    values: Vec<u32>,
    /// `[tokens]`: the largest chosen affinity.
    max: Vec<f32>,
    /// `[tokens]`: the sum of the chosen affinities.
    sum: Vec<f32>,
}

impl Wishes {
    fn new(tables: &[GateTable], per_rank: usize, k: usize, tokens: usize) -> Self {
        const ROWS_PER_TASK: usize = 1024;
        let mut wishes = Self {
            experts: vec![0; tokens * k * per_rank],
            values: vec![0; tokens * k * per_rank],
            max: vec![f32::NEG_INFINITY; tokens],
            sum: vec![0.0; tokens],
        };
        let mut first_value = 0;
        for (gate, table) in tables.iter().enumerate() {
            let (columns, scores) = (table.columns(), table.scores());
            let mask = table.available.contains(&false).then_some(table.available.as_slice());
            let mut best = vec![0; table.tokens.len() * k];
            best.par_chunks_mut(ROWS_PER_TASK * k)
                .zip(scores.par_chunks(ROWS_PER_TASK * columns))
                .for_each(|(best, scores)| {
                    for (best, row) in best.chunks_exact_mut(k).zip(scores.chunks_exact(columns)) {
                        top_columns(row, mask, best);
                    }
                });
            for (row, &token) in table.tokens.iter().enumerate() {
                let token = token as usize;
                for (rank, &column) in best[row * k..(row + 1) * k].iter().enumerate() {
                    let wish = (token * k + rank) * per_rank + gate % per_rank;
                    let cell = row * columns + column as usize;
                    wishes.experts[wish] = table.experts[column as usize] as u32;
                    wishes.values[wish] = (first_value + cell) as u32;
                    wishes.max[token] = wishes.max[token].max(scores[cell]);
                    wishes.sum[token] += scores[cell];
                }
            }
            first_value += scores.len();
        }
        wishes
    }
}
