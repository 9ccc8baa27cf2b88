//! How healthy a model's routing is: a few numbers per layer with experts, summed over batches.

use omma_routing::{ModalityStatistics, Routing, Statistics};
use serde::{Deserialize, Serialize};

use super::modalities::{self, ModalityHealth};

/// A layer's routing over some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerHealth {
    /// Which block.
    pub block: usize,
    /// The busiest expert's load relative to a balanced one.
    pub peak_load: f64,
    /// Share of choices that found no room.
    pub dropped_share: f64,
    /// Experts that got nothing and could have.
    pub dead: usize,
    /// Experts that are pruned.
    #[serde(default, skip_serializing_if = "none")]
    pub pruned: usize,
    /// Mean entropy of a token's gates, in nats.
    pub gate_entropy: f64,
    /// `[E]`: share of the load that each expert had.
    pub load: Vec<f64>,
    /// Every modality by itself, where tokens of several were routed together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modalities: Vec<ModalityHealth>,
}

fn none(count: &usize) -> bool {
    *count == 0
}

impl LayerHealth {
    /// What a user should know of, in words.
    pub fn warning(&self) -> Option<String> {
        let experts = self.load.len() - self.pruned.min(self.load.len());
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

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Layer {
    block: usize,
    load: Vec<u64>,
    pruned: usize,
    dropped: u64,
    entropy: f64,
    tokens: f64,
    modalities: Vec<ModalityStatistics>,
}

/// Sums of one model's statistics, layer by layer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RoutingTally {
    layers: Vec<Layer>,
}

impl RoutingTally {
    /// Of one forward pass: its blocks with experts, and who went where in them.
    pub fn of(routings: &[(usize, Routing)]) -> Self {
        let layer = |(block, routing): &(usize, Routing)| {
            let Statistics { load, available, dropped, gate_entropy, tokens, .. } =
                routing.statistics();
            Layer {
                block: *block,
                pruned: load.len() - available,
                load: load.into_iter().map(|load| load as u64).collect(),
                dropped: dropped.iter().sum::<usize>() as u64,
                entropy: gate_entropy * tokens as f64,
                tokens: tokens as f64,
                modalities: routing.by_modality(),
            }
        };
        Self { layers: routings.iter().map(layer).collect() }
    }

    /// Adds what another tally of the same model has counted.
    pub fn add(&mut self, other: Self) {
        if self.layers.is_empty() {
            self.layers = other.layers;
            return;
        }
        for (layer, other) in self.layers.iter_mut().zip(other.layers) {
            layer.load.iter_mut().zip(other.load).for_each(|(sum, load)| *sum += load);
            layer.dropped += other.dropped;
            layer.entropy += other.entropy;
            layer.tokens += other.tokens;
            modalities::add(&mut layer.modalities, other.modalities);
        }
    }

    /// What was added since the last time; it starts anew.
    pub fn take(&mut self) -> Vec<LayerHealth> {
        let health = |layer: Layer| {
            let served: u64 = layer.load.iter().sum();
            let total = served.max(1) as f64;
            let load: Vec<f64> = layer.load.iter().map(|load| *load as f64 / total).collect();
            let idle = layer.load.iter().filter(|load| **load == 0).count();
            LayerHealth {
                block: layer.block,
                peak_load: load.iter().copied().fold(0.0, f64::max)
                    * (load.len() - layer.pruned) as f64,
                dropped_share: layer.dropped as f64 / (layer.dropped + served).max(1) as f64,
                dead: idle.saturating_sub(layer.pruned),
                pruned: layer.pruned,
                gate_entropy: layer.entropy / layer.tokens.max(1.0),
                load,
                modalities: layer.modalities.iter().map(ModalityHealth::of).collect(),
            }
        };
        std::mem::take(&mut self.layers).into_iter().map(health).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(load: [u64; 4], dropped: u64, tokens: f64, entropy: f64) -> RoutingTally {
        let (load, entropy) = (load.to_vec(), entropy * tokens);
        let modalities = Vec::new();
        RoutingTally {
            layers: vec![Layer { block: 3, load, pruned: 0, dropped, entropy, tokens, modalities }],
        }
    }

    #[test]
    fn batches_count_by_their_tokens() {
        let mut sum = tally([6, 2, 0, 0], 2, 10.0, 1.0);
        sum.add(tally([10, 6, 6, 0], 8, 30.0, 0.2));
        let health = sum.take();
        // 30 of 40 choices found room, 16 of these at the first expert.
        assert_eq!(
            health,
            [LayerHealth {
                block: 3,
                peak_load: 4.0 * 16.0 / 30.0,
                dropped_share: 0.25,
                dead: 1,
                pruned: 0,
                gate_entropy: 0.4,
                load: [16.0, 8.0, 6.0, 0.0].map(|load| load / 30.0).to_vec(),
                modalities: Vec::new(),
            }]
        );
        assert_eq!(sum.take(), [], "what was taken is not counted again");
    }

    #[test]
    fn collapsed_and_idle_layers_are_warned_of() {
        let warning = |load| tally(load, 0, 10.0, 1.0).take()[0].warning();
        assert_eq!(warning([3, 3, 2, 2]), None);
        assert_eq!(warning([5, 5, 0, 0]), None, "half of the experts may rest");
        let collapsed = warning([97, 1, 1, 1]).unwrap();
        assert!(collapsed.contains("block 3: one expert gets 97 %"), "{collapsed}");
        let idle = warning([1, 0, 0, 0]).unwrap();
        assert!(idle.contains("100 %"), "{idle}");
        let idle =
            LayerHealth { peak_load: 2.0, dead: 3, ..tally([1; 4], 0, 1.0, 1.0).take().remove(0) };
        assert_eq!(idle.warning().unwrap(), "block 3: 3 of 4 experts got no token");
    }

    #[test]
    fn experts_that_are_pruned_are_not_missed() {
        let mut tally = tally([6, 2, 0, 0], 0, 10.0, 1.0);
        tally.layers[0].pruned = 2;
        let health = tally.take().remove(0);
        assert_eq!((health.peak_load, health.dead, health.pruned), (1.5, 0, 2));
        assert_eq!(health.warning(), None);
    }

    #[test]
    fn logs_of_earlier_runs_are_understood() {
        let line = r#"{"block":1,"peak_load":1.5,"dropped_share":0.1,"dead":0,"gate_entropy":0.7,
            "load":[0.75,0.25]}"#;
        let health: LayerHealth = serde_json::from_str(line).unwrap();
        assert_eq!((health.block, health.load.as_slice()), (1, &[0.75, 0.25][..]));
        assert_eq!(
            serde_json::to_value(&health).unwrap(),
            serde_json::from_str::<serde_json::Value>(line).unwrap()
        );
    }
}
