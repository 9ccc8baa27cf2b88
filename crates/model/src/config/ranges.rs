//! The values that the numbers of a configuration may have.
//!
//! Lower ends are what a model needs to be one. Upper ends lie far beyond the papers' largest models (width
//! 1280, hidden 5120 and 32 blocks of H/14, 000 Table 6; 512 experts and hidden 30,720 in 004), where a number
//! is a slip or an attack.

use omma_base::range::{OutOfRange, Range, Ranges, check_all};
use serde_json::{Value, json};

use super::names::in_short;

/// Sides of an image, in pixels.
const SIDE: Range = Range::of(1.0, 16_384.0);
/// Sizes of a matrix.
const SIZE: Range = Range::of(1.0, 1_048_576.0);
const COUNT: Range = Range::of(1.0, 65_536.0);
const MEMBERS: Range = Range::of(1.0, 1_024.0);
/// Probabilities of dropping a value: all of them cannot be dropped.
const RATE: Range = Range::below(0.0, 1.0);
const WEIGHT: Range = Range::of(0.0, 1_000.0);
const MODALITIES: Range = Range::of(0.0, 255.0);
const CAPACITY: Range = Range::above(0.0, 1_000_000.0);

/// Every number of a [`ModelConfig`](super::ModelConfig).
pub(super) const RANGES: &Ranges = &[
    ("image.resolution", SIDE),
    ("image.position_resolution", SIDE.optional()),
    ("image.channels", Range::of(1.0, 1_024.0)),
    ("image.patch", SIDE),
    ("image.registers", Range::of(0.0, 65_536.0)),
    ("image.normalisation.mean", Range::of(-1_000.0, 1_000.0)),
    ("image.normalisation.deviation", Range::above(0.0, 1_000.0)),
    ("encoder.width", COUNT),
    ("encoder.depth", Range::of(1.0, 1_024.0)),
    ("encoder.heads", COUNT),
    ("encoder.mlp", SIZE),
    ("encoder.dropout", RATE),
    ("encoder.layer_scale", Range::of(-1_000.0, 1_000.0).optional()),
    ("encoder.mc_samples", Range::of(1.0, 10_000.0)),
    ("encoder.batch_ensemble.members", MEMBERS),
    ("encoder.moe.tiling", MEMBERS),
    ("encoder.moe.hidden", SIZE.optional()),
    ("encoder.moe.dropout", RATE),
    ("encoder.moe.start.noise", WEIGHT),
    ("encoder.moe.pruned.block", Range::of(0.0, 1_024.0)),
    ("encoder.moe.pruned.experts", Range::of(0.0, 65_536.0)),
    ("encoder.moe.router.experts", COUNT),
    ("encoder.moe.router.noise", WEIGHT),
    ("encoder.moe.router.inference_noise", WEIGHT),
    ("encoder.moe.router.allocation.k", COUNT),
    ("encoder.moe.router.allocation.slots", COUNT),
    ("encoder.moe.router.allocation.subset", COUNT.optional()),
    ("encoder.moe.router.allocation.capacity.factor", CAPACITY),
    ("encoder.moe.router.allocation.capacity.multiple_of", SIZE),
    ("encoder.moe.router.allocation.inference_capacity.factor", CAPACITY),
    ("encoder.moe.router.allocation.inference_capacity.multiple_of", SIZE),
    ("encoder.moe.router.affinity.regularisation", Range::above(0.0, 1_000_000.0)),
    ("encoder.moe.router.affinity.tolerance", Range::above(0.0, 1.0)),
    ("encoder.moe.router.affinity.max_iterations", COUNT),
    ("encoder.moe.router.affinity.steps", COUNT),
    ("encoder.moe.router.affinity.learning_rate", Range::above(0.0, 1_000.0)),
    ("encoder.moe.router.pool.members", MEMBERS),
    ("encoder.moe.router.pool.overlap", Range::of(0.0, 65_536.0)),
    ("encoder.moe.router.pool.subsets", MEMBERS),
    ("encoder.moe.router.pool.modalities", MODALITIES),
    ("encoder.moe.router.pool.experts", COUNT),
    ("encoder.moe.router.pruning.experts", Range::of(0.0, 65_536.0)),
    ("encoder.moe.router.scope.decided_by", Range::of(0.0, 1_048_576.0)),
    ("encoder.moe.router.losses.weight", WEIGHT),
    ("encoder.moe.router.losses.modality", MODALITIES.optional()),
    ("encoder.moe.router.losses.loss.global-entropy.threshold", Range::of(0.0, 1_000.0).optional()),
    (
        "encoder.moe.router.losses.loss.global-entropy-of-modalities.threshold",
        Range::of(0.0, 1_000.0).optional(),
    ),
    ("head.representation", SIZE.optional()),
    ("head.classes", Range::of(0.0, 10_000_000.0)),
    ("head.embedding", COUNT),
    ("head.scale", Range::above(0.0, 1_000.0)),
    ("head.logit_bias", Range::of(-1_000.0, 1_000.0).optional()),
    ("text.vocabulary", Range::of(2.0, 10_000_000.0)),
    ("text.length", Range::of(1.0, 65_536.0)),
    ("mimo.members", MEMBERS),
    ("mimo.input_replication", Range::of(0.0, 1.0)),
    ("mimo.batch_repetition", Range::of(1.0, 1_024.0)),
];

/// Checks every number of a configuration, given as it would be written to a file.
pub(super) fn check(mut tree: Value) -> Result<(), OutOfRange> {
    if let Some(tower) = take_tower(&mut tree) {
        check_all(RANGES, &tower).map_err(|error| OutOfRange {
            key: format!("text.tower.{}", in_short(error.clone()).key),
            ..error
        })?;
    }
    check_all(RANGES, &tree).map_err(in_short)
}

/// The encoder of texts out of a configuration, as the encoder of one: its numbers have the same ranges.
fn take_tower(tree: &mut Value) -> Option<Value> {
    let tower = tree.get_mut("text")?.get_mut("tower")?.take();
    Some(json!({ "encoder": tower }))
}

#[cfg(test)]
mod tests {
    use omma_base::{Resolution, range::without_range};
    use omma_routing::{
        Capacity, Loss, LossTerm, Pool, PruneMode, Pruning, ROUTERS, RouterConfig, Scope,
        TokenChoice,
    };

    use super::*;
    use crate::config::{
        BatchEnsembleConfig, BlockPruning, ClassifierConfig, ContrastConfig, EncoderConfig,
        HeadConfig, ImageConfig, MimoConfig, ModelConfig, MoeConfig, TextConfig,
    };

    /// A model with everything that it may do without, and this router.
    fn full(router: RouterConfig) -> ModelConfig {
        let pruned = vec![BlockPruning { block: 11, experts: vec![0], mode: PruneMode::Predict }];
        let moe = MoeConfig { hidden: Some(8), pruned, ..MoeConfig::new(router) };
        let head = ClassifierConfig { representation: Some(8), ..ClassifierConfig::default() };
        ModelConfig {
            image: ImageConfig {
                position_resolution: Some(Resolution::square(8)),
                ..ImageConfig::default()
            },
            encoder: EncoderConfig {
                layer_scale: Some(0.1),
                moe: Some(moe),
                batch_ensemble: Some(BatchEnsembleConfig::default()),
                ..EncoderConfig::default()
            },
            head: HeadConfig::Classifier(head),
            mimo: Some(MimoConfig::default()),
            text: Some(TextConfig {
                tower: Some(EncoderConfig::default()),
                ..TextConfig::default()
            }),
        }
    }

    #[test]
    fn no_number_is_without_a_range() {
        let mut routers: Vec<RouterConfig> = ROUTERS.iter().map(|(_, make)| make(4, 1)).collect();
        let limited = TokenChoice {
            inference_capacity: Some(Capacity::factor(8.0)),
            ..TokenChoice::dropless(1)
        };
        let base = RouterConfig {
            scope: Scope::Image { decided_by: 0 },
            pruning: Pruning { experts: vec![1], mode: PruneMode::Drop, ..Pruning::default() },
            losses: [None, Some(1.0)]
                .into_iter()
                .flat_map(|threshold| {
                    [
                        Loss::GlobalEntropy { threshold },
                        Loss::GlobalEntropyOfModalities { threshold },
                    ]
                })
                .map(|loss| LossTerm::new(loss, 1.0).on_modality(1))
                .collect(),
            ..RouterConfig::new(4, omma_routing::Allocation::TokenChoice(limited))
        };
        let pools = [
            Pool::Members { members: 2, overlap: 0 },
            Pool::Partition { subsets: 2 },
            Pool::GatePerModality { modalities: 2 },
            Pool::ExpertsPerModality { experts: vec![2, 2] },
        ];
        routers.extend(pools.map(|pool| RouterConfig { pool, ..base.clone() }));
        for router in routers {
            let classifier = full(router);
            let contrast = ContrastConfig { logit_bias: Some(-10.0), ..ContrastConfig::default() };
            let contrast =
                ModelConfig { head: HeadConfig::Contrast(contrast), ..classifier.clone() };
            for config in [classifier, contrast] {
                let mut tree = serde_json::to_value(config).unwrap();
                let tower = take_tower(&mut tree).unwrap();
                assert_eq!(without_range(RANGES, &tree), Vec::<String>::new());
                assert_eq!(without_range(RANGES, &tower), Vec::<String>::new());
            }
        }
    }
}
