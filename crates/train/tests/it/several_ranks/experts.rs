//! Experts spread over ranks: the same as in one process, but for rounding; and the same files, from which any number of
//! ranks goes on.

use std::{fs, path::Path};

use omma_train::{Recipe, logs::Record};

use crate::several_ranks::{
    SMALL, assert_divergence_ends_all_ranks, recipe, records, scores, tensors, train,
};

/// How far apart the last checkpoints of two runs are: the norm of the difference of a tensor relative to the norm of the
/// tensor, of the one where that is most.
fn difference(one: &Path, other: &Path) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let of_file = |file: &str| {
        let of = |run: &Path| tensors(&run.join("checkpoints/step-00000020").join(file));
        let ((own, shapes), (others, other_shapes)) = (of(one), of(other));
        assert_eq!(shapes, other_shapes, "a checkpoint knows nothing of ranks");
        let apart = |(name, values): (&String, &Vec<f32>)| {
            let pairs = values.iter().zip(&others[name]);
            let apart = norm(&mut pairs.map(|(a, b)| f64::from(a - b)));
            let apart = apart / norm(&mut values.iter().map(|x| f64::from(*x))).max(1e-12);
            // Attention does not depend on the biases of its keys, so their gradients are nothing but rounding, which
            // AdamW makes as large as any other.
            if name.ends_with("qkv_bias") { apart / 100.0 } else { apart }
        };
        own.iter().map(apart).fold(0.0, f64::max)
    };
    of_file("model.safetensors").max(of_file("state.safetensors"))
}

fn assert_same(one: &Path, other: &Path, what: &str) {
    let apart = difference(one, other);
    let (own, others) = (scores(one), scores(other));
    assert_eq!(own.len(), others.len(), "{what}");
    let of_scores = own.iter().zip(&others).map(|(a, b)| (a - b).abs() / (1.0 + a.abs()));
    let of_scores = of_scores.fold(0.0, f64::max);
    assert!(apart < 5e-4 && of_scores < 1e-5, "{what}: {apart:.1e} {of_scores:.1e}");
}

/// Every router of paper 001, and members of an ensemble that have experts on different ranks.
#[test]
fn steps_with_spread_experts_are_those_of_one_process() {
    let systems: [&[&str]; 8] = [
        &["model.moe.k=2"],
        &["model.moe.router=sinkhorn-token-choice"],
        &["model.moe.router=softmax-expert-choice"],
        &["model.moe.router=sinkhorn-expert-choice"],
        &["model.moe.router=sparse-expert-choice"],
        &["model.moe.router=soft", "model.moe.slots=4"],
        &["model.preset=e3-tiny", "model.moe.members=2", "model.moe.placement=1"],
        &["train.accumulation=2", "train.ema=0", "optimiser.kind=sgd"],
    ];
    for (number, settings) in systems.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        train(1, settings, &at("alone"), 99);
        // All systems on two ranks; one on four, in groups of two and of four.
        let spreads: &[(usize, &str)] = match number {
            0 => &[(2, "2"), (4, "2"), (4, "4")],
            _ => &[(2, "2")],
        };
        for (ranks, experts) in spreads {
            let setting = format!("train.expert_parallel={experts}");
            let run = at(&format!("{ranks}-{experts}"));
            train(*ranks, &[settings, &[setting.as_str()]].concat(), &run, 99);
            let what = format!("{settings:?} on {ranks} ranks, experts on {experts}");
            assert_same(&at("alone"), &run, &what);
            let said = records(&run).into_iter().find_map(|record| match record {
                Record::Train(record) => record.communication,
                _ => None,
            });
            let said = said.unwrap();
            let rows = said.experts.unwrap();
            assert_eq!((said.ranks, rows.ranks), (*ranks, experts.parse().unwrap()));
            assert!(rows.bytes > 0.0 && said.bytes > rows.bytes, "{said:?}");
            assert!(rows.peak_load >= 1.0 - 1e-9 && rows.peak_load <= rows.ranks as f64 + 1e-9);
        }
    }
}

#[test]
fn a_run_goes_on_with_other_numbers_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (alone, run) = (folder.path().join("alone"), folder.path().join("run"));
    train(1, &[], &alone, 99);
    let spread = &["train.expert_parallel=4"];
    train(4, spread, &run, 6);
    train(1, spread, &run, 12);
    train(2, spread, &run, 99);
    assert_same(&alone, &run, "four ranks, one, two");
    // A run is as long in metrics as if nothing had happened.
    assert_eq!(records(&run).len(), records(&alone).len());
}

/// Evaluations and tests are computed by all ranks, a batch each; experts that choose depend on what is in a batch.
#[test]
fn ranks_judge_together_as_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["model.moe.router=softmax-expert-choice", "train.batch=8", "train.evaluate_every=4"];
    let found = [1, 2, 4].map(|ranks| {
        let run = folder.path().join(ranks.to_string());
        train(ranks, &settings, &run, 99);
        let of = |record: Record| match record {
            Record::Evaluation(record) => Some(record.scores),
            _ => None,
        };
        let evaluations: Vec<_> = records(&run).into_iter().filter_map(of).collect();
        let result = fs::read_to_string(run.join("result.json")).unwrap();
        let result: serde_json::Value = serde_json::from_str(&result).unwrap();
        let tests = ["test_accuracy", "test_nll", "routing"].map(|key| result[key].clone());
        assert!(tests.iter().all(|value| !value.is_null()), "{result}");
        (evaluations, tests)
    });
    assert_eq!(found[0].0.len(), 5);
    assert!(found[1] == found[0] && found[2] == found[0], "{found:?}");
}

#[test]
fn what_diverges_on_spread_experts_ends_all_ranks() {
    assert_divergence_ends_all_ranks("train.expert_parallel=2");
}

#[test]
fn what_cannot_be_spread_is_refused() {
    let said = |settings: &[&str]| {
        let all = [settings, &["train.expert_parallel=2"]].concat();
        Recipe::parse(SMALL, "test".as_ref(), &all).unwrap_err().to_string()
    };
    assert!(said(&["model.moe.experts=1", "model.moe.k=1"]).contains("a layer has 1 experts"));
    assert!(said(&["optimiser.kind=lamb"]).contains("all experts of a layer at once"));
    assert!(said(&["optimiser.kind=adafactor"]).contains("all experts of a layer at once"));
    assert!(said(&["model.moe=none"]).contains("the model has no experts"));
    // Means over rows and columns of single experts are their own.
    recipe(&["optimiser.kind=big-vision-adafactor", "train.expert_parallel=2"]);
}
