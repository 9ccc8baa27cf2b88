//! How healthy the routing of a run is: a few numbers per layer with experts, summed over steps.

use omma_routing::{Routing, Statistics};
use serde::{Deserialize, Serialize};

/// A layer's routing over some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerHealth {
    /// Which block.
    pub block: usize,
    /// The busiest expert's load relative to a balanced one.
    pub peak_load: f64,
    /// Share of choices that found no room.
    pub dropped_share: f64,
    /// Experts that got nothing.
    pub dead: usize,
    /// Mean entropy of a token's gates, in nats.
    pub gate_entropy: f64,
    /// `[E]`: share of the load that each expert had.
    pub load: Vec<f64>,
}

impl LayerHealth {
    /// What a user should know of, in words.
    pub fn warning(&self) -> Option<String> {
        let experts = self.load.len();
        let collapsed = experts > 2 && self.peak_load > 0.8 * experts as f64;
        match (collapsed, self.dead) {
            (true, _) => Some(format!(
                "block {}: one expert gets {:.0} % of all tokens; raise moe.importance_loss or \
                 moe.balance_loss",
                self.block,
                100.0 * self.peak_load / experts as f64
            )),
            (false, dead) if 2 * dead > experts => {
                Some(format!("block {}: {dead} of {experts} experts got no token", self.block))
            }
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Default)]
struct Tally {
    load: Vec<u64>,
    dropped: u64,
    entropy: f64,
    tokens: f64,
}

/// Sums of statistics, layer by layer.
#[derive(Debug, Clone, Default)]
pub struct RoutingTally {
    layers: Vec<(usize, Tally)>,
}

impl RoutingTally {
    /// Of one forward pass.
    pub fn of(routings: &[(usize, Routing)]) -> Self {
        let tally = |(block, routing): &(usize, Routing)| {
            let Statistics { load, dropped, gate_entropy, tokens, .. } = routing.statistics();
            let tally = Tally {
                load: load.into_iter().map(|load| load as u64).collect(),
                dropped: dropped.iter().sum::<usize>() as u64,
                entropy: gate_entropy * tokens as f64,
                tokens: tokens as f64,
            };
            (*block, tally)
        };
        Self { layers: routings.iter().map(tally).collect() }
    }

    /// Adds what another tally of the same model has counted.
    pub fn add(&mut self, other: Self) {
        if self.layers.is_empty() {
            self.layers = other.layers;
            return;
        }
        for ((_, tally), (_, other)) in self.layers.iter_mut().zip(other.layers) {
            tally.load.iter_mut().zip(other.load).for_each(|(sum, load)| *sum += load);
            tally.dropped += other.dropped;
            tally.entropy += other.entropy;
            tally.tokens += other.tokens;
        }
    }

    /// What was added since the last time.
    pub fn take(&mut self) -> Vec<LayerHealth> {
        let health = |(block, tally): (usize, Tally)| {
            let served: u64 = tally.load.iter().sum();
            let total = served.max(1) as f64;
            let load: Vec<f64> = tally.load.iter().map(|load| *load as f64 / total).collect();
            LayerHealth {
                block,
                peak_load: load.iter().copied().fold(0.0, f64::max) * load.len() as f64,
                dropped_share: tally.dropped as f64 / (tally.dropped + served).max(1) as f64,
                dead: tally.load.iter().filter(|load| **load == 0).count(),
                gate_entropy: tally.entropy / tally.tokens.max(1.0),
                load,
            }
        };
        std::mem::take(&mut self.layers).into_iter().map(health).collect()
    }
}
