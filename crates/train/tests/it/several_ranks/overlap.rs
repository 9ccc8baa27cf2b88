//! Gradients that are summed while the backward pass goes on: the same bits as after it, and as in one process.

use omma_train::logs::Record;

use crate::several_ranks::{assert_divergence_ends_all_ranks, assert_same_bits, records, train};

/// Experts large enough for several buckets of gradients.
const LARGE: [&str; 3] = ["model.moe.hidden=2100", "model.moe.placement=0,1", "train.steps=2"];

#[test]
fn sums_on_the_way_are_those_at_the_end() {
    for others in [&[][..], &["train.accumulation=2"], &["train.freeze=embed,0", "train.ema=0"]] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let settings = [&LARGE[..], others].concat();
        train(1, &settings, &at("alone"), 99);
        for (name, ranks, overlap) in
            [("on the way", 2, true), ("four", 4, true), ("after", 2, false)]
        {
            let overlap = format!("train.overlap={overlap}");
            train(ranks, &[settings.as_slice(), &[overlap.as_str()]].concat(), &at(name), 99);
            assert_same_bits(&at("alone"), &at(name), &format!("{others:?}, {name}"));
            let waited = records(&at(name)).into_iter().find_map(|record| match record {
                Record::Train(record) => record.communication.and_then(|said| said.waited),
                _ => None,
            });
            assert!(waited.is_some_and(|seconds| seconds > 0.0));
        }
    }
}

#[test]
fn what_diverges_on_the_way_ends_all_ranks() {
    assert_divergence_ends_all_ranks("train.overlap=true");
}
