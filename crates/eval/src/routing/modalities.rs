//! How healthy a layer's routing is for each modality of its tokens: one of them may collapse while the layer as a
//! whole looks well (paper 002 §4).

use std::collections::BTreeMap;

use omma_model::{IMAGES, TEXTS};
use omma_routing::ModalityStatistics;
use serde::{Deserialize, Serialize};

use super::LayerHealth;

/// The routing of one modality in a layer over some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModalityHealth {
    /// Which modality: 0 images, 1 texts.
    pub modality: usize,
    /// Share of its tokens' choices that found no room; the success rate is the rest.
    pub dropped_share: f64,
    /// Mean entropy of a token's gates, in nats.
    pub local_entropy: f64,
    /// Entropy of the mean of its tokens' gates, in nats.
    pub global_entropy: f64,
    /// The same as a number of experts, `e^H`.
    pub experts: f64,
    /// Mean of the largest gate of its tokens.
    pub largest_gate: f64,
    /// `[E]`: share of its load that each expert had.
    pub load: Vec<f64>,
}

impl ModalityHealth {
    pub(super) fn of(sums: &ModalityStatistics) -> Self {
        let rows = sums.rows.max(1) as f64;
        let served: f64 = sums.load.iter().sum();
        let choices = served + sums.dropped as f64;
        let entropy = |sum: &f64| match sum / rows {
            share if share > 0.0 => -share * share.ln(),
            _ => 0.0,
        };
        let global_entropy: f64 = sums.gates.iter().map(entropy).sum();
        Self {
            modality: sums.modality,
            dropped_share: if choices > 0.0 { sums.dropped as f64 / choices } else { 0.0 },
            local_entropy: sums.entropy / rows,
            global_entropy,
            experts: global_entropy.exp(),
            largest_gate: sums.largest / rows,
            load: sums.load.iter().map(|load| load / served.max(f64::MIN_POSITIVE)).collect(),
        }
    }

    /// What the modality is called.
    pub fn name(&self) -> String {
        modality_name(self.modality)
    }

    /// Share of its tokens' choices that found room.
    pub fn success_rate(&self) -> f64 {
        1.0 - self.dropped_share
    }

    /// Whether hardly more than one expert is left to it, or most of its tokens find no room.
    fn is_collapsed(&self) -> bool {
        self.load.len() > 2
            && (self.experts < FEWEST_EXPERTS || self.success_rate() < LOWEST_SUCCESS)
    }
}

/// What a modality is called.
pub fn modality_name(modality: usize) -> String {
    match modality {
        IMAGES => "images".to_owned(),
        TEXTS => "texts".to_owned(),
        other => format!("modality {other}"),
    }
}

/// Adds sums of a pass to those of earlier ones, modality by modality.
pub(super) fn add(sums: &mut Vec<ModalityStatistics>, more: Vec<ModalityStatistics>) {
    for one in more {
        let Some(sum) = sums.iter_mut().find(|sum| sum.modality == one.modality) else {
            sums.push(one);
            sums.sort_by_key(|sum| sum.modality);
            continue;
        };
        sum.rows += one.rows;
        sum.dropped += one.dropped;
        sum.entropy += one.entropy;
        sum.largest += one.largest;
        sum.load.iter_mut().zip(one.load).for_each(|(sum, load)| *sum += load);
        sum.gates.iter_mut().zip(one.gates).for_each(|(sum, gates)| *sum += gates);
    }
}

const FEWEST_EXPERTS: f64 = 1.5;
const LOWEST_SUCCESS: f64 = 0.5;
/// Lines of the log that a modality is collapsed in before that is said.
const PATIENCE: usize = 3;

/// Modalities that have collapsed, and for how long.
#[derive(Debug, Clone, Default)]
pub struct CollapseWatch {
    /// By block and modality: lines of the log in a row.
    lasting: BTreeMap<(usize, usize), usize>,
}

impl CollapseWatch {
    /// Looks at another line of the log; gives what a user should know of, once for every collapse.
    pub fn seen(&mut self, layers: &[LayerHealth]) -> Vec<String> {
        let mut warnings = Vec::new();
        for layer in layers {
            for one in &layer.modalities {
                let lasting = self.lasting.entry((layer.block, one.modality)).or_default();
                *lasting = if one.is_collapsed() { *lasting + 1 } else { 0 };
                if *lasting == PATIENCE {
                    warnings.push(format!(
                        "block {}: the {} have collapsed ({:.1} experts in use, {:.0} % of their choices find \
                         room); raise the weight or the threshold of their global entropy loss",
                        layer.block,
                        one.name(),
                        one.experts,
                        100.0 * one.success_rate()
                    ));
                }
            }
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(modality: usize, gates: [f64; 4], dropped: usize) -> ModalityStatistics {
        let (load, rows) = (gates.to_vec(), gates.iter().sum::<f64>() as usize);
        let (entropy, largest) = (0.25 * rows as f64, 0.5 * rows as f64);
        ModalityStatistics {
            modality,
            rows,
            load,
            dropped,
            entropy,
            gates: gates.to_vec(),
            largest,
        }
    }

    #[test]
    fn entropies_are_those_of_all_tokens_together() {
        let mut all = Vec::new();
        add(&mut all, vec![sums(1, [2.0, 0.0, 0.0, 0.0], 0)]);
        add(&mut all, vec![sums(0, [4.0, 0.0, 0.0, 0.0], 1), sums(1, [0.0, 2.0, 2.0, 2.0], 8)]);
        let found: Vec<ModalityHealth> = all.iter().map(ModalityHealth::of).collect();
        assert_eq!(found.iter().map(ModalityHealth::name).collect::<Vec<_>>(), ["images", "texts"]);
        let [images, texts] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((images.global_entropy, images.experts, images.dropped_share), (0.0, 1.0, 0.2));
        assert!(
            (texts.experts - 4.0).abs() < 1e-12,
            "each batch has its own, together they have all"
        );
        assert_eq!(
            (texts.success_rate(), texts.local_entropy, texts.largest_gate),
            (0.5, 0.25, 0.5)
        );
        assert_eq!(texts.load, [0.25; 4]);
    }

    #[test]
    fn a_collapse_that_lasts_is_said_once_with_layer_and_modality() {
        let layer = |gates, dropped| LayerHealth {
            block: 3,
            peak_load: 1.0,
            dropped_share: 0.0,
            dead: 0,
            pruned: 0,
            gate_entropy: 1.0,
            load: vec![0.25; 4],
            modalities: vec![
                ModalityHealth::of(&sums(0, [1.0; 4], 0)),
                ModalityHealth::of(&sums(1, gates, dropped)),
            ],
        };
        let (well, collapsed, full) =
            (layer([1.0; 4], 0), layer([9.0, 0.0, 0.0, 1.0], 0), layer([1.0; 4], 5));
        for bad in [collapsed, full] {
            let mut watch = CollapseWatch::default();
            let lines = [&bad, &bad, &well, &bad, &bad, &bad, &bad];
            let said = lines.map(|layer| watch.seen(std::slice::from_ref(layer)));
            assert_eq!(said.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 0]);
            assert!(said[5][0].starts_with("block 3: the texts have collapsed"), "{}", said[5][0]);
        }
    }
}
