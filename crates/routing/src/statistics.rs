//! How healthy a routing is.

use burn::tensor::Tensor;
use omma_base::transfer;
use serde::Serialize;

use crate::{
    gate::GateTable,
    plan::{Plan, SoftPlan, SparsePlan},
    router::Routing,
};

/// Counts and averages of one routing. Tokens are rows of the token matrix, also where one decision
/// moved a whole image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Statistics {
    /// Tokens that were routed.
    pub tokens: usize,
    /// Experts that could be chosen: all but the pruned ones.
    pub available: usize,
    /// `[E]`: tokens per expert; for soft routing, slots per expert.
    pub load: Vec<usize>,
    /// Choices of each rank that found no room: first choices, second choices, and so on. Empty
    /// where tokens do not choose.
    pub dropped: Vec<usize>,
    /// Entry `n` counts the tokens that `n` experts served.
    pub experts_per_token: Vec<usize>,
    /// `[E]`: gate mass per expert; for soft routing, the mass of its combine weights.
    pub importance: Vec<f64>,
    /// Mean entropy of a token's gates, in nats.
    pub gate_entropy: f64,
    /// Entropy of the load over the experts, in nats; the logarithm of `available` when balanced.
    pub load_entropy: f64,
    /// Share of tokens whose best expert was not pruned, if any was and the router still has its column
    /// (paper 002 App. E.4).
    pub coverage: Option<f64>,
    /// Experts that got nothing.
    pub dead: Vec<usize>,
}

impl Statistics {
    pub(crate) fn of(routing: &Routing) -> Self {
        match &routing.plan {
            Plan::Sparse(plan) => Self::of_sparse(plan, routing),
            Plan::Soft(plan) => Self::of_soft(plan),
        }
    }

    /// Share of all choices that found no room.
    pub fn dropped_share(&self) -> f64 {
        let dropped: usize = self.dropped.iter().sum();
        let served: usize = self.load.iter().sum();
        if dropped == 0 { 0.0 } else { dropped as f64 / (dropped + served) as f64 }
    }

    /// Tokens that no expert served.
    pub fn unserved(&self) -> usize {
        self.experts_per_token.first().copied().unwrap_or(0)
    }

    /// The busiest expert's load relative to a balanced one; 1 when balanced, `available` when
    /// collapsed.
    pub fn peak_load(&self) -> f64 {
        let total: usize = self.load.iter().sum();
        let peak = self.load.iter().max().copied().unwrap_or(0);
        if total == 0 { 0.0 } else { peak as f64 * self.available as f64 / total as f64 }
    }

    fn of_sparse(plan: &SparsePlan, routing: &Routing) -> Self {
        let span = plan.span();
        let experts = plan.n_experts();
        let load: Vec<usize> = (0..experts).map(|e| plan.of_expert(e).len() * span).collect();

        let mut served = vec![0_usize; plan.n_tokens()];
        plan.tokens().iter().for_each(|token| served[*token as usize] += 1);
        let mut experts_per_token = vec![0; served.iter().max().map_or(1, |most| most + 1)];
        served.iter().for_each(|count| experts_per_token[*count] += span);

        let mut importance = vec![0.0; experts];
        let (mut entropy, mut rows) = (0.0, 0);
        for table in &routing.tables {
            for row in table.gates.chunks_exact(table.columns()) {
                for (gate, expert) in row.iter().zip(&table.experts) {
                    importance[*expert] += f64::from(*gate) * span as f64;
                }
                entropy += row_entropy(row);
                rows += 1;
            }
        }
        let choosable = |expert: usize| {
            let offers = |table: &GateTable| {
                let column = table.experts.iter().position(|other| *other == expert);
                column.is_some_and(|column| table.available[column])
            };
            routing.tables.iter().any(offers)
        };
        Self {
            tokens: plan.n_tokens() * span,
            available: (0..experts).filter(|expert| choosable(*expert)).count(),
            dropped: dropped_per_rank(plan),
            experts_per_token,
            importance,
            gate_entropy: entropy / rows as f64,
            load_entropy: load_entropy(&load),
            coverage: routing.coverage,
            dead: dead(&load),
            load,
        }
    }

    fn of_soft(plan: &SoftPlan) -> Self {
        let [groups, size, _] = plan.combine().dims();
        let (live, slots, tokens) = (plan.experts().len(), plan.n_slots(), groups * size);
        let per_expert: Tensor<3> =
            plan.combine().clone().reshape([tokens, live, slots]).sum_dim(2);
        let mass: Vec<f32> = per_expert.try_into_vec_as().expect("weights are floats");
        transfer::fetched(&mass);
        let mut load = vec![0; plan.n_experts()];
        let mut importance = vec![0.0; plan.n_experts()];
        let serves = |expert: usize| match plan.run() {
            Some(run) => run.iter().filter(|serving| serving.contains(&expert)).count(),
            None => groups,
        };
        let serving = plan.run().and_then(|run| run.first()).map_or(live, Vec::len);
        for (column, &expert) in plan.experts().iter().enumerate() {
            load[expert] = serves(expert) * slots;
            importance[expert] =
                mass.iter().skip(column).step_by(live).map(|m| f64::from(*m)).sum();
        }
        let mut experts_per_token = vec![0; serving + 1];
        experts_per_token[serving] = tokens;
        Self {
            tokens,
            available: live,
            dropped: Vec::new(),
            experts_per_token,
            importance,
            gate_entropy: mass.chunks_exact(live).map(row_entropy).sum::<f64>() / tokens as f64,
            load_entropy: load_entropy(&load),
            coverage: None,
            dead: dead(&load),
            load,
        }
    }
}

fn dropped_per_rank(plan: &SparsePlan) -> Vec<usize> {
    let Some(decisions) = plan.decisions() else { return Vec::new() };
    let mut dropped = vec![0; decisions.per_token / decisions.per_rank];
    for group in 0..plan.groups().len() {
        let capacity = plan.capacities()[group] as u32;
        for &token in plan.groups().tokens(group) {
            let first = token as usize * decisions.per_token;
            let slots = &decisions.slots[first..first + decisions.per_token];
            for (rank, slots) in slots.chunks_exact(decisions.per_rank).enumerate() {
                dropped[rank] +=
                    slots.iter().filter(|slot| **slot >= capacity).count() * plan.span();
            }
        }
    }
    dropped
}

fn row_entropy(row: &[f32]) -> f64 {
    row.iter().filter(|p| **p > 0.0).map(|p| f64::from(-p * p.ln())).sum()
}

fn load_entropy(load: &[usize]) -> f64 {
    let total: usize = load.iter().sum();
    let shares = load.iter().filter(|load| **load > 0).map(|load| *load as f64 / total as f64);
    shares.map(|share| -share * share.ln()).sum()
}

fn dead(load: &[usize]) -> Vec<usize> {
    (0..load.len()).filter(|expert| load[*expert] == 0).collect()
}
