//! What an optimiser remembers, spread over ranks (ZeRO stage 1): the same bits as in one process.

use crate::several_ranks::{assert_same_bits, train};

const SPREAD: &str = "train.spread_optimiser=true";
/// Experts that are large enough to be cut over ranks; the other parameters are not.
const LARGE: [&str; 2] = ["model.moe.hidden=4096", "train.steps=3"];

#[test]
fn a_spread_optimiser_moves_weights_as_one_process_does() {
    for kind in ["adam-w", "sgd", "lamb", "adafactor", "big-vision-adafactor"] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let kind = format!("optimiser.kind={kind}");
        let settings = [&LARGE[..], &[kind.as_str()]].concat();
        train(1, &settings, &at("alone"), 99);
        for ranks in [2, 4] {
            let run = at(&ranks.to_string());
            train(ranks, &[settings.as_slice(), &[SPREAD]].concat(), &run, 99);
            assert_same_bits(&at("alone"), &run, &format!("{kind} on {ranks} ranks"));
        }
    }
}

#[test]
fn experts_and_the_optimiser_are_spread_together() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("experts"), folder.path().join("both"));
    let settings = [&LARGE[..], &["train.expert_parallel=2"]].concat();
    train(4, &settings, &one, 99);
    train(4, &[settings.as_slice(), &[SPREAD]].concat(), &other, 99);
    assert_same_bits(&one, &other, "experts on two of four ranks");
}

#[test]
fn a_run_with_a_spread_optimiser_goes_on_with_other_numbers_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, run) = (folder.path().join("alone"), folder.path().join("run"));
    let settings = ["model.moe.hidden=4096"];
    train(1, &settings, &alone, 99);
    let spread = [&settings[..], &[SPREAD]].concat();
    train(4, &spread, &run, 5);
    train(1, &spread, &run, 15);
    train(2, &spread, &run, 99);
    assert_same_bits(&alone, &run, "four ranks, one, two");
}
