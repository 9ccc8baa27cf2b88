//! How healthy a routing is for each modality of its tokens (paper 002 §4, App. C).

use serde::{Deserialize, Serialize};

use crate::{
    plan::{Plan, SparsePlan},
    router::Routing,
};

/// Sums over the tokens of one modality. Those of several batches add up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModalityStatistics {
    /// Which modality.
    pub modality: usize,
    /// Rows of gates that were summed: a token's, once for every gate that it called.
    pub rows: usize,
    /// `[E]`: choices of its tokens that each expert served.
    pub load: Vec<f64>,
    /// Choices of its tokens that found no room.
    pub dropped: usize,
    /// Of the entropies of its tokens' gates, in nats.
    pub entropy: f64,
    /// `[E]`: of its tokens' gates.
    pub gates: Vec<f64>,
    /// Of the largest gate of each of its tokens.
    pub largest: f64,
}

impl ModalityStatistics {
    fn none(modality: usize, experts: usize) -> Self {
        let (load, gates) = (vec![0.0; experts], vec![0.0; experts]);
        Self { modality, rows: 0, load, dropped: 0, entropy: 0.0, gates, largest: 0.0 }
    }

    /// A token's gates, with the expert behind each.
    fn add_row(&mut self, row: &[f32], experts: &[usize]) {
        self.rows += 1;
        for (gate, expert) in row.iter().zip(experts) {
            let gate = f64::from(*gate);
            self.gates[*expert] += gate;
            self.entropy -= if gate > 0.0 { gate * gate.ln() } else { 0.0 };
        }
        self.largest += f64::from(row.iter().copied().fold(0.0, f32::max));
    }

    /// Of every modality that was routed, in increasing order; none where there is but one.
    pub(crate) fn of(routing: &Routing) -> Vec<Self> {
        let Some(modality) = &routing.modality else { return Vec::new() };
        let count = modality.iter().max().map_or(0, |last| last + 1);
        // Soft routing mixes the tokens of one sequence, which is of one modality.
        let Plan::Sparse(plan) = &routing.plan else { return Vec::new() };
        let experts = plan.n_experts();
        let mut all: Vec<Self> = (0..count).map(|one| Self::none(one, experts)).collect();
        for table in &routing.tables {
            let rows = table.gates.chunks_exact(table.columns());
            for (row, token) in rows.zip(&table.tokens) {
                all[modality[*token as usize]].add_row(row, &table.experts);
            }
        }
        for expert in 0..experts {
            for assignment in plan.of_expert(expert) {
                let token = plan.tokens()[assignment] as usize;
                all[modality[token]].load[expert] += 1.0;
            }
        }
        dropped(plan, |token| all[modality[token]].dropped += 1);
        all.retain(|one| one.rows > 0);
        all
    }
}

/// Shows the token of every choice that found no room to `each`.
fn dropped(plan: &SparsePlan, mut each: impl FnMut(usize)) {
    let Some(decisions) = plan.decisions() else { return };
    for group in 0..plan.groups().len() {
        let capacity = plan.capacities()[group] as u32;
        for &token in plan.groups().tokens(group) {
            let first = token as usize * decisions.per_token;
            let slots = &decisions.slots[first..first + decisions.per_token];
            let full = slots.iter().filter(|slot| **slot >= capacity).count();
            (0..full).for_each(|_| each(token as usize));
        }
    }
}

/// The modality of every row, where there are several.
pub(crate) fn several(modality: Option<Vec<usize>>) -> Option<Vec<usize>> {
    modality.filter(|all| all.windows(2).any(|pair| pair[0] != pair[1]))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Tensor};
    use omma_base::Seed;

    use super::*;
    use crate::{
        Allocation, Capacity, Context, Layout, Order, RouterConfig, Sequences, TokenChoice,
    };

    /// Two images of six tokens, and three texts of two.
    fn layout() -> Layout {
        let kind = |count, tokens, modality| Sequences { count, tokens, modality: Some(modality) };
        Layout::of(vec![kind(2, 6, 0), kind(3, 2, 1)])
    }

    fn routed(config: &RouterConfig, layout: Layout) -> Routing {
        let device = Device::flex();
        let tokens = Tensor::<2>::random([layout.rows(), 5], Distribution::Default, &device);
        let router = config.init(5, Seed::new(2), &device).unwrap();
        router.route(tokens * 20.0, &Context::inference(layout)).unwrap()
    }

    #[test]
    fn modalities_add_up_to_the_whole() {
        let limited = TokenChoice::limited(2, Capacity::factor(0.5), Order::Arrival);
        let tight = RouterConfig::new(4, Allocation::TokenChoice(limited));
        for config in [tight.clone(), RouterConfig::softmax_expert_choice(4, 1.0)] {
            let routing = routed(&config, layout());
            let (all, found) = (routing.statistics(), routing.by_modality());
            assert_eq!(
                found.iter().map(|one| (one.modality, one.rows)).collect::<Vec<_>>(),
                [(0, 12), (1, 6)]
            );
            for (expert, load) in all.load.iter().enumerate() {
                let sum: f64 = found.iter().map(|one| one.load[expert]).sum();
                assert_eq!(sum, *load as f64);
                let gates: f64 = found.iter().map(|one| one.gates[expert]).sum();
                assert!((gates - all.importance[expert]).abs() < 1e-6);
            }
            assert_eq!(config == tight, found.iter().all(|one| one.dropped > 0));
            let dropped: usize = found.iter().map(|one| one.dropped).sum();
            assert_eq!(dropped, all.dropped.iter().sum::<usize>());
            let entropy: f64 = found.iter().map(|one| one.entropy).sum();
            assert!((entropy / 18.0 - all.gate_entropy).abs() < 1e-5);
        }
    }

    #[test]
    fn one_token_is_counted_with_its_own_modality() {
        let routing = routed(&RouterConfig::softmax_token_choice(4, 1), layout());
        let table = &routing.tables[0];
        let texts: f64 = (0..table.tokens.len())
            .filter(|row| table.tokens[*row] >= 12)
            .map(|row| f64::from(table.gates[row * 4..][..4].iter().copied().fold(0.0, f32::max)))
            .sum();
        assert!((routing.by_modality()[1].largest - texts).abs() < 1e-9);
    }

    #[test]
    fn one_modality_alone_has_nothing_to_tell_apart() {
        let config = RouterConfig::softmax_token_choice(4, 1);
        for modality in [None, Some(1)] {
            let layout = Layout::of(vec![Sequences { count: 2, tokens: 3, modality }]);
            assert!(routed(&config, layout).by_modality().is_empty());
        }
    }
}
