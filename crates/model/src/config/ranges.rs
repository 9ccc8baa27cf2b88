//! The values that the numbers of a configuration may have.
//!
//! Lower ends are what a model needs to be one. Upper ends lie far beyond the papers' largest models (width
//! 1280, hidden 5120 and 32 blocks of H/14, 000 Table 6; 512 experts and hidden 30,720 in 004), where a number
//! is a slip or an attack.

use omma_base::range::{Range, Ranges};

/// Sides of an image, in pixels.
const SIDE: Range = Range::of(1.0, 16_384.0);
/// Sizes of a matrix.
const SIZE: Range = Range::of(1.0, 1_048_576.0);
const COUNT: Range = Range::of(1.0, 65_536.0);
const MEMBERS: Range = Range::of(1.0, 1_024.0);
/// Probabilities of dropping a value: all of them cannot be dropped.
const RATE: Range = Range::below(0.0, 1.0);
const WEIGHT: Range = Range::of(0.0, 1_000.0);
const CAPACITY: Range = Range::above(0.0, 1_000_000.0);

/// Every number of a [`ModelConfig`](super::ModelConfig).
pub(super) const RANGES: &Ranges = &[
    ("resolution", SIDE),
    ("position_resolution", SIDE.optional()),
    ("channels", Range::of(1.0, 1_024.0)),
    ("patch", SIDE),
    ("width", COUNT),
    ("depth", Range::of(1.0, 1_024.0)),
    ("heads", COUNT),
    ("mlp", SIZE),
    ("dropout", RATE),
    ("layer_scale", Range::of(-1_000.0, 1_000.0).optional()),
    ("registers", Range::of(0.0, 65_536.0)),
    ("representation", SIZE.optional()),
    ("classes", Range::of(0.0, 10_000_000.0)),
    ("mc_samples", Range::of(1.0, 10_000.0)),
    ("normalisation.mean", Range::of(-1_000.0, 1_000.0)),
    ("normalisation.deviation", Range::above(0.0, 1_000.0)),
    ("moe.experts", COUNT),
    ("moe.k", COUNT),
    ("moe.slots", COUNT),
    ("moe.members", MEMBERS),
    ("moe.overlap", Range::of(0.0, 65_536.0)),
    ("moe.partition", MEMBERS),
    ("moe.capacity_ratio", CAPACITY),
    ("moe.inference_capacity_ratio", CAPACITY.optional()),
    ("moe.capacity_multiple", SIZE),
    ("moe.order.modality-first", Range::of(0.0, 255.0)),
    ("moe.images_per_group", Range::of(0.0, 1e9)),
    ("moe.noise", WEIGHT),
    ("moe.importance_loss", WEIGHT),
    ("moe.load_loss", WEIGHT),
    ("moe.balance_loss", WEIGHT),
    ("moe.z_loss", WEIGHT),
    ("moe.hidden", SIZE.optional()),
    ("moe.dropout", RATE),
    ("batch_ensemble.members", MEMBERS),
    ("mimo.members", MEMBERS),
    ("mimo.input_replication", Range::of(0.0, 1.0)),
    ("mimo.batch_repetition", Range::of(1.0, 1_024.0)),
];

#[cfg(test)]
mod tests {
    use omma_base::range::without_range;
    use omma_routing::Order;

    use super::*;
    use crate::config::{BatchEnsembleConfig, MimoConfig, ModelConfig, MoeConfig};

    #[test]
    fn no_number_is_without_a_range() {
        let moe = MoeConfig {
            inference_capacity_ratio: Some(8.0),
            hidden: Some(8),
            order: Order::ModalityFirst(0),
            ..MoeConfig::default()
        };
        let full = ModelConfig {
            position_resolution: Some(8),
            layer_scale: Some(0.1),
            representation: Some(8),
            moe: Some(moe),
            batch_ensemble: Some(BatchEnsembleConfig::default()),
            mimo: Some(MimoConfig::default()),
            ..ModelConfig::default()
        };
        let tree = serde_json::to_value(full).unwrap();
        assert_eq!(without_range(RANGES, &tree), Vec::<String>::new());
    }
}
