//! How sure a router is of the tokens of one modality, and whom it serves first.

use omma_model::IMAGES;
use omma_routing::{GateTable, Order, RouterConfig};
use serde::{Deserialize, Serialize};

use super::{
    coverage::{CoverageStep, coverage},
    information::entropy,
};

/// Places of a queue that are told apart.
pub(super) const BINS: usize = 20;

/// Tokens of one modality in a layer, as they come.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ModalityTally {
    /// Rows of the token matrix.
    pub(super) tokens: u64,
    /// Rows that no expert took.
    pub(super) unserved: u64,
    /// `[E]`: what each expert took.
    pub(super) load: Vec<f64>,
    /// `[E]`: choices that the capacity of training would have dropped.
    pub(super) dropped: Vec<f64>,
    /// `[E]`: rows of gates whose largest is the expert's.
    best: Vec<f64>,
    /// `[E]`: sums of gates.
    gates: Vec<f64>,
    /// Rows of gates.
    rows: u64,
    /// Sum of their entropies.
    entropy: f64,
    /// Sum of their largest, and of its square.
    largest: (f64, f64),
    /// By place in the queue, the first served first: tokens, and the sum of their priorities.
    queue: [(f64, f64); BINS],
}

/// Tokens of one modality in a layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModalityRoutes {
    /// `images` or `texts`.
    pub modality: String,
    /// How many came.
    pub tokens: u64,
    /// Those of them that no expert took.
    pub unserved: u64,
    /// `[E]`: tokens that each expert took; for soft routing, the mass of its combine weights.
    pub load: Vec<f64>,
    /// `[E]`: choices that would have found no room at the capacity of training, noise aside; nothing where
    /// training has none.
    pub dropped_in_training: Option<Vec<f64>>,
    /// Mean of a token's largest gate (paper 002 Fig. 38).
    pub largest_gate: f64,
    /// Its standard deviation over tokens.
    pub largest_gate_deviation: f64,
    /// Mean entropy of a token's gates, in nats.
    pub local_entropy: f64,
    /// Entropy of the mean gates, in nats.
    pub global_entropy: f64,
    /// The same as a number of experts, `e^H`.
    pub experts: f64,
    /// Experts as they would be kept (Fig. 13).
    pub coverage: Vec<CoverageStep>,
    /// By place in the queue of a batch, in twentieths, the first served first (Figs. 32–37); empty where tokens do
    /// not choose.
    pub queue: Vec<QueueBin>,
}

/// A twentieth of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueueBin {
    /// Tokens of this modality that stand there.
    pub tokens: f64,
    /// The mean of their priorities.
    pub priority: f64,
}

impl ModalityTally {
    pub(super) fn new(experts: usize) -> Self {
        let none = || vec![0.0; experts];
        Self { load: none(), dropped: none(), best: none(), gates: none(), ..Self::default() }
    }

    /// A token's gates, in the order of `experts`; experts that may not be chosen are not the best.
    pub(super) fn add_gates(&mut self, row: &[f32], table: &GateTable) {
        let (mut largest, mut best, mut entropy) = (f32::NEG_INFINITY, 0, 0.0);
        for ((gate, expert), available) in row.iter().zip(&table.experts).zip(&table.available) {
            self.gates[*expert] += f64::from(*gate);
            if *gate > 0.0 {
                entropy -= gate * gate.ln();
            }
            if *available && *gate > largest {
                (largest, best) = (*gate, *expert);
            }
        }
        self.add_row(best, largest.max(0.0), entropy);
    }

    /// A token whose gates were looked at elsewhere.
    pub(super) fn add_row(&mut self, best: usize, largest: f32, entropy: f32) {
        let largest = f64::from(largest);
        self.rows += 1;
        self.best[best] += 1.0;
        self.entropy += f64::from(entropy);
        self.largest.0 += largest;
        self.largest.1 += largest * largest;
    }

    /// A gate of a token whose row is added elsewhere.
    pub(super) fn add_gate(&mut self, expert: usize, gate: f32) {
        self.gates[expert] += f64::from(gate);
    }

    /// A token at a place of a queue of so many.
    pub(super) fn add_queued(&mut self, place: usize, of: usize, priority: f32) {
        let (tokens, sum) = &mut self.queue[(place * BINS / of).min(BINS - 1)];
        *tokens += 1.0;
        *sum += f64::from(priority);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens == 0
    }

    /// - `limited`: whether training has a capacity
    pub(super) fn record(&self, modality: usize, limited: bool) -> ModalityRoutes {
        let rows = self.rows.max(1) as f64;
        let mean = self.largest.0 / rows;
        let global_entropy = entropy(&self.gates);
        let queued = self.queue.iter().any(|(tokens, _)| *tokens > 0.0);
        let bin = |&(tokens, sum): &(f64, f64)| QueueBin {
            tokens,
            priority: if tokens > 0.0 { sum / tokens } else { 0.0 },
        };
        ModalityRoutes {
            modality: crate::routing::modality_name(modality),
            tokens: self.tokens,
            unserved: self.unserved,
            load: self.load.clone(),
            dropped_in_training: limited.then(|| self.dropped.clone()),
            largest_gate: mean,
            largest_gate_deviation: (self.largest.1 / rows - mean * mean).max(0.0).sqrt(),
            local_entropy: self.entropy / rows,
            global_entropy,
            experts: global_entropy.exp(),
            coverage: coverage(&self.load, &self.best),
            queue: if queued { self.queue.iter().map(bin).collect() } else { Vec::new() },
        }
    }
}

impl ModalityRoutes {
    /// Whether these are images.
    pub(crate) fn is_of_images(&self) -> bool {
        self.modality == crate::routing::modality_name(IMAGES)
    }

    /// Share of the choices that the capacity of training would have dropped.
    pub fn dropped_share(&self) -> Option<f64> {
        let dropped: f64 = self.dropped_in_training.as_ref()?.iter().sum();
        let choices: f64 = self.load.iter().sum();
        Some(if choices > 0.0 { dropped / choices } else { 0.0 })
    }
}

/// Whether a token's priority is the sum of the gates that it chose, or the largest of them.
pub(super) fn sums_gates(router: &RouterConfig) -> bool {
    router.token_choice().is_some_and(|choice| choice.order == Order::SumOfGates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(gates: Vec<f32>, available: Vec<bool>) -> GateTable {
        let rows = gates.len() / available.len();
        GateTable {
            experts: (0..available.len()).collect(),
            tokens: (0..rows as u32).collect(),
            bounds: vec![0, rows],
            available,
            gates,
            affinity: None,
        }
    }

    #[test]
    fn means_and_entropies_are_those_of_the_rows() {
        let table = table(vec![0.5, 0.5, 0.0, 0.25, 0.25, 0.5], vec![true; 3]);
        let mut tally = ModalityTally::new(3);
        table.gates.chunks(3).for_each(|row| tally.add_gates(row, &table));
        let found = tally.record(0, false);
        assert!((found.largest_gate - 0.5).abs() < 1e-9 && found.largest_gate_deviation < 1e-6);
        let ln2 = std::f64::consts::LN_2;
        assert!((found.local_entropy - (ln2 + 1.5 * ln2) / 2.0).abs() < 1e-6);
        let mean = [0.375, 0.375, 0.25];
        let global: f64 = mean.iter().map(|p: &f64| -p * p.ln()).sum();
        assert!((found.global_entropy - global).abs() < 1e-9);
        assert_eq!(found.coverage.iter().map(|step| step.expert).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((tally.best, found.dropped_in_training), (vec![1.0, 0.0, 1.0], None));
    }

    #[test]
    fn an_expert_that_is_gone_is_nobodys_best() {
        let table = table(vec![0.7, 0.2, 0.1], vec![false, true, true]);
        let mut tally = ModalityTally::new(3);
        tally.add_gates(&table.gates, &table);
        assert_eq!(tally.best, [0.0, 1.0, 0.0]);
    }

    #[test]
    fn queues_of_any_length_have_twenty_places() {
        let mut tally = ModalityTally::new(1);
        (0..40).for_each(|place| tally.add_queued(place, 40, 1.0 - place as f32 / 40.0));
        (0..3).for_each(|place| tally.add_queued(place, 3, 0.5));
        let queue = tally.record(0, false).queue;
        assert_eq!(queue.len(), BINS);
        assert_eq!(queue[0].tokens, 3.0);
        assert!((queue[1].priority - (0.95 + 0.925) / 2.0).abs() < 1e-6);
        assert_eq!([6, 13].map(|bin| queue[bin].tokens), [3.0, 3.0], "a third and two thirds");
    }
}
