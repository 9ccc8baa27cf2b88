//! Short names of settings: what users write, and what files of earlier versions say.

use omma_base::range::OutOfRange;

/// A setting's short name, and where it is in a [`ModelConfig`](super::ModelConfig).
pub(super) const SHORT: &[(&str, &str)] = &[
    ("resolution", "image.resolution"),
    ("position_resolution", "image.position_resolution"),
    ("channels", "image.channels"),
    ("patch", "image.patch"),
    ("projection", "image.projection"),
    ("class_token", "image.class_token"),
    ("registers", "image.registers"),
    ("position", "image.position"),
    ("normalisation", "image.normalisation"),
    ("width", "encoder.width"),
    ("depth", "encoder.depth"),
    ("heads", "encoder.heads"),
    ("mlp", "encoder.mlp"),
    ("activation", "encoder.activation"),
    ("dropout", "encoder.dropout"),
    ("attention", "encoder.attention"),
    ("norm", "encoder.norm"),
    ("qk_norm", "encoder.qk_norm"),
    ("layer_scale", "encoder.layer_scale"),
    ("batch_ensemble", "encoder.batch_ensemble"),
    ("mc_samples", "encoder.mc_samples"),
    ("moe", "encoder.moe"),
    ("moe.experts", "encoder.moe.router.experts"),
    ("moe.k", "encoder.moe.router.allocation.k"),
    ("moe.slots", "encoder.moe.router.allocation.slots"),
    ("moe.subset", "encoder.moe.router.allocation.subset"),
    ("moe.subset_choice", "encoder.moe.router.allocation.subset_choice"),
    ("moe.order", "encoder.moe.router.allocation.order"),
    ("moe.capacity_ratio", "encoder.moe.router.allocation.capacity.factor"),
    ("moe.capacity_rounding", "encoder.moe.router.allocation.capacity.rounding"),
    ("moe.inference_capacity_ratio", "encoder.moe.router.allocation.inference_capacity.factor"),
    ("moe.overlap", "encoder.moe.router.pool.overlap"),
    ("moe.combine", "encoder.moe.router.combine"),
    ("moe.grouping", "encoder.moe.router.grouping"),
    ("moe.noise", "encoder.moe.router.noise"),
    ("moe.inference_noise", "encoder.moe.router.inference_noise"),
    ("moe.losses", "encoder.moe.router.losses"),
    ("pooling", "head.pooling"),
    ("representation", "head.representation"),
    ("classes", "head.classes"),
    ("embedding", "head.embedding"),
    ("text_pooling", "head.text_pooling"),
];

/// The full name of a setting that may be given by a short one: `moe.k` is
/// `encoder.moe.router.allocation.k`, and `normalisation.mean` is `image.normalisation.mean`.
pub fn full_name(key: &str) -> String {
    renamed(key, SHORT.iter().copied())
}

/// The shortest name of a setting, which is what its user has most likely written.
pub fn short_name(key: &str) -> String {
    renamed(key, SHORT.iter().map(|(short, full)| (*full, *short)))
}

/// A key with the longest beginning that has another name called by that.
fn renamed<'a>(key: &str, names: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let rest =
        |from: &str| key.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let found = names.filter_map(|(from, to)| Some((from.len(), to, rest(from)?)));
    let longest = found.max_by_key(|(length, ..)| *length);
    longest.map_or(key.to_owned(), |(_, to, rest)| format!("{to}{rest}"))
}

/// The same error about the short name.
pub(super) fn in_short(error: OutOfRange) -> OutOfRange {
    OutOfRange { key: short_name(&error.key), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_is_its_full_one_and_back() {
        for (short, full) in SHORT {
            assert_eq!((full_name(short), short_name(full)), (full.to_string(), short.to_string()));
        }
        assert_eq!(full_name("normalisation.mean"), "image.normalisation.mean");
        assert_eq!(full_name("moe.router.affinity.kind"), "encoder.moe.router.affinity.kind");
        assert_eq!(full_name("moex"), "moex");
    }
}
