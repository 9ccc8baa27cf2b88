//! The values that the numbers of a recipe may have; those of its model are in `omma-model`.

use omma_base::range::{Range, Ranges};

const SHARE: Range = Range::of(0.0, 1.0);
/// Decays of an average, and shares of which something must be left.
const BELOW_ONE: Range = Range::below(0.0, 1.0);
/// TOML, which recipes are saved as, has no larger integers.
const SEED: Range = Range::below(0.0, (1u64 << 63) as f64);
/// Steps, or images: more than any run takes.
const MANY: Range = Range::of(0.0, 1e12);
const SAMPLES: Range = Range::of(1.0, 1e9);
const PARTS: Range = Range::of(1.0, 1_048_576.0);

/// Every number of a [`Recipe`](super::Recipe) outside its model.
pub(super) const RANGES: &Ranges = &[
    ("seed", SEED),
    ("data.train_samples", SAMPLES),
    ("data.test_samples", SAMPLES),
    ("data.world_seed", SEED),
    ("data.limit", MANY),
    ("data.validation", BELOW_ONE),
    ("data.share", Range::of(1.0, 1_000_000.0)),
    ("data.bad_share", SHARE),
    ("data.cache_augmentations", Range::of(0.0, 1_000.0)),
    ("data.workers", Range::of(0.0, 256.0)),
    ("data.prefetch", Range::of(0.0, 1_024.0)),
    ("augment.smallest_crop", Range::above(0.0, 1.0)),
    ("augment.operations", Range::of(0.0, 64.0)),
    ("augment.magnitude", Range::of(0.0, 30.0)),
    ("augment.erasing", SHARE),
    ("mixing.mixup", Range::of(0.0, 1_000.0)),
    ("mixing.cutmix", Range::of(0.0, 1_000.0)),
    ("optimiser.learning_rate", Range::above(0.0, 1e6)),
    ("optimiser.weight_decay", Range::of(0.0, 1_000.0)),
    ("optimiser.clip_norm", Range::of(0.0, 1e9)),
    ("optimiser.layer_decay", Range::above(0.0, 10.0)),
    ("optimiser.fast_weight_rate", Range::above(0.0, 1_000.0)),
    ("optimiser.beta1", BELOW_ONE),
    ("optimiser.beta2", BELOW_ONE),
    ("optimiser.epsilon", Range::of(0.0, 1.0).optional()),
    ("optimiser.factor_from", Range::of(0.0, 1e9)),
    ("schedule.warmup", MANY),
    ("schedule.final_share", SHARE),
    ("schedule.timescale", Range::above(0.0, 1e12)),
    ("schedule.cooldown", MANY),
    ("train.steps", MANY),
    ("train.epochs", Range::of(0.0, 1e6)),
    ("train.batch", PARTS),
    ("train.accumulation", PARTS),
    ("train.shards", Range::of(1.0, 256.0)),
    ("train.expert_parallel", Range::of(1.0, 256.0)),
    ("train.label_smoothing", BELOW_ONE),
    ("train.ema", BELOW_ONE),
    ("train.evaluate_every", MANY),
    ("train.checkpoint_every", MANY),
    ("train.checkpoint_minutes", Range::of(0.0, 1e6)),
    ("train.keep", Range::of(1.0, 1e6)),
    ("train.keep_every", MANY),
    ("train.log_every", Range::of(1.0, 1e12)),
    ("train.explosion", Range::above(0.0, 1e12)),
    ("train.test_share", SHARE),
];

#[cfg(test)]
mod tests {
    use omma_base::range::without_range;

    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn no_number_is_without_a_range() {
        let mut recipe = Recipe::default();
        recipe.optimiser.epsilon = Some(1e-8);
        let mut tree = serde_json::to_value(&recipe).unwrap();
        tree.as_object_mut().unwrap().remove("model");
        assert_eq!(without_range(RANGES, &tree), Vec::<String>::new());
    }
}
