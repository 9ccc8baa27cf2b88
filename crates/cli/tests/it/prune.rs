//! `omma prune` and `omma thin` as a user types them.

use std::{fs, path::Path};

use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{self, omma, trained_at};

/// Six experts, one per token, in the second and the fourth of four blocks.
const SIX_EXPERTS: &[&str] = &[
    "model.resolution=32",
    "model.depth=4",
    "model.moe.experts=6",
    "model.moe.k=1",
    "model.moe.hidden=32",
    "model.moe.placement=1,3",
    "model.moe.start.shared=false",
    "data.test_samples=40",
    "data.validation=0.2",
    "train.steps=20",
    "optimiser.learning_rate=0.01",
];

fn small(folder: &Path, run: &str, settings: &[&str]) {
    trained_at(folder, run, "vmoe", &[SIX_EXPERTS, settings].concat());
}

fn error(folder: &Path, arguments: &[&str]) -> String {
    support::error(omma(folder, arguments))
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    support::stdout(omma(folder, arguments))
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(folder, &[arguments, &["--json"]].concat())).unwrap()
}

fn shape(folder: &Path, name: &str) -> Vec<usize> {
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().shape().to_vec()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|one| one.as_f64().unwrap()).collect()
}

#[test]
fn experts_that_serve_little_are_gone_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    small(here, "run", &[]);
    let found = json(here, &["prune", "run", "three", "--keep", "3"]);
    assert_eq!((&found["images"], &found["mode"]), (&Value::from(60), &Value::from("predict")));
    assert!(found["data"].as_str().unwrap().contains("held-out"), "{found}");
    for layer in found["layers"].as_array().unwrap() {
        let shares = numbers(&layer["shares"]);
        let mut busiest: Vec<usize> = (0..6).collect();
        busiest.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]).then(a.cmp(b)));
        busiest.truncate(3);
        busiest.sort_unstable();
        assert_eq!(layer["kept"], serde_json::json!(busiest));
        let coverage: f64 = busiest.iter().map(|expert| shares[*expert]).sum();
        assert!((layer["coverage"].as_f64().unwrap() - coverage).abs() < 1e-9);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert!(found["after"]["parameters"].as_u64() < found["before"]["parameters"].as_u64());
    assert!(found["after"]["per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(shape(&here.join("three"), "blocks.3.feed_forward.experts.up"), [3, 16, 32]);
    assert_eq!(shape(&here.join("three"), "blocks.3.feed_forward.router.weight"), [16, 6]);
    assert!(here.join("three/classes.json").is_file() && here.join("three/prune.html").is_file());

    // What was said of it is what every command finds.
    let eval = json(here, &["eval", "three", "--data", "world", "--limit", "30"]);
    assert_eq!(eval["cost"]["parameters"], found["after"]["parameters"]);
    let sentence = text(here, &["inspect", "three"]);
    assert!(sentence.contains("3 of 6 gone") && sentence.contains("3 of 6 experts"), "{sentence}");
    let cost = json(here, &["cost", "three"]);
    assert_eq!(cost["params_total"], found["after"]["parameters"]);

    // Columns go too, and the model is fine-tuned and judged like any other.
    omma(here, &["prune", "run", "drop", "--coverage", "0.6", "--mode", "drop", "--split", "test"])
        .assert()
        .success();
    let kept = shape(&here.join("drop"), "blocks.3.feed_forward.experts.up")[0];
    assert_eq!(shape(&here.join("drop"), "blocks.3.feed_forward.router.weight"), [16, kept]);
    for (pruned, tuned) in [("three", "tuned-three"), ("drop", "tuned-drop")] {
        let mut command = omma(here, &["train", "finetune", "--init", pruned, "--run", tuned]);
        command.args(["--data", "world", "--set", "train.steps=3", "--set", "train.batch=8"]);
        command.args(["--set", "data.train_samples=100", "--set", "data.test_samples=20"]);
        command.args(["--set", "model.resolution=32"]).assert().success();
        let up = "blocks.3.feed_forward.experts.up";
        assert_eq!(shape(&here.join(tuned), up), shape(&here.join(pruned), up));
        omma(here, &["eval", tuned, "--limit", "10"]).assert().success();
        omma(here, &["train", "--resume", tuned, "--set", "train.steps=5"]).assert().success();
    }
    // Again, from what is left of the run.
    let again = json(here, &["prune", "three", "two", "--data", "world", "--keep", "2"]);
    assert_eq!(again["layers"][0]["kept"].as_array().unwrap().len(), 2);
    assert!(
        error(here, &["prune", "drop", "x", "--data", "world", "--keep", "1"]).contains("drop")
    );
}

#[test]
fn a_curve_has_both_modes_the_busiest_and_any() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    small(here, "run", &["model.moe.members=2"]);
    let found = json(here, &["prune", "run", "curve", "--curve", "--seeds", "2", "--limit", "20"]);
    let curve = &found["curve"];
    let points = curve["points"].as_array().unwrap();
    // Each of two members keeps one at least: 2 to 6 experts, two modes, one rank and two draws.
    assert_eq!(points.len(), 5 * 2 * 3);
    assert!(found["after"].is_null() && !here.join("curve/model.safetensors").exists());
    let whole = &curve["whole"]["accuracy"];
    for point in points.iter().filter(|point| point["experts"] == 6) {
        assert_eq!(
            (&point["accuracy"], point["coverage"].as_f64().unwrap() > 0.999),
            (whole, true)
        );
    }
    // The busiest cover most.
    for group in points.chunks(3) {
        let coverage = |place: usize| group[place]["coverage"].as_f64().unwrap();
        assert_eq!(group[0]["kept_by"], "rank");
        let by_chance = coverage(1).max(coverage(2));
        // Two draws keep one of each member too, so that nothing covers more.
        assert!(coverage(0) >= by_chance - 1e-9, "{group:?}");
    }
    for file in ["prune.html", "figures/pruning-accuracy.svg", "figures/pruning-coverage.svg"] {
        assert!(here.join("curve").join(file).is_file(), "{file}");
    }
    // What the curve says of a number of experts is what a file with so many scores.
    let three = json(here, &["prune", "run", "three", "--keep", "3", "--limit", "20"]);
    let same = |point: &&Value| {
        point["experts"] == 3 && point["mode"] == "predict" && point["kept_by"] == "rank"
    };
    let point = points.iter().find(same).unwrap();
    assert_eq!(three["after"]["score"]["nll"], point["nll"]);
}

#[test]
fn a_model_that_reads_is_pruned_for_one_modality() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let settings = [
        "model.moe.hidden=16",
        "model.moe.experts=4",
        "data.test_samples=40",
        "data.validation=0.2",
        "train.steps=8",
        "train.accumulation=1",
        "train.shards=1",
    ];
    trained_at(here, "pairs", "limoe", &settings);
    let found =
        json(here, &["prune", "pairs", "texts", "--modality", "text", "--keep", "2", "--curve"]);
    assert_eq!(
        (&found["modality"], &found["measure"]),
        (&Value::from("text"), &Value::from("zero-shot accuracy"))
    );
    for layer in found["layers"].as_array().unwrap() {
        assert_eq!(layer["shares"], layer["modalities"]["text"]);
        assert_ne!(layer["shares"], layer["modalities"]["image"]);
    }
    // Texts through what is left, against images of the whole model: by the curve as by the file.
    let same = |point: &&Value| {
        point["experts"] == 2 && point["mode"] == "predict" && point["kept_by"] == "rank"
    };
    let points = found["curve"]["points"].as_array().unwrap();
    let nll = |score: &Value| score["nll"].as_f64().unwrap();
    let (point, after) = (points.iter().find(same).unwrap(), &found["after"]["score"]);
    assert!((nll(point) - nll(after)).abs() < 1e-4, "{point} {after}");
    let tokenizer = |run: &str| fs::read(here.join(run).join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer("texts"), tokenizer("pairs"));
    omma(here, &["eval", "texts", "--data", "world", "--limit", "20"]).assert().success();
    assert!(error(here, &["prune", "pairs", "x", "--keep", "4"]).contains("none would go"));
}

#[test]
fn what_cannot_be_pruned_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    small(here, "run", &["train.steps=2", "model.moe.k=2"]);
    small(here, "dense", &["train.steps=2", "model.moe=none"]);
    let fails = |more: &[&str]| error(here, &[&["prune", "run", "out"][..], more].concat());
    assert!(fails(&[]).contains("--keep or --coverage"));
    assert!(fails(&["--keep", "0"]).contains("--keep"));
    assert!(fails(&["--keep", "1"]).contains("2 to 6"), "{}", fails(&["--keep", "1"]));
    assert!(fails(&["--keep", "7"]).contains("2 to 6"));
    assert!(fails(&["--keep", "6"]).contains("none would go"));
    assert!(fails(&["--coverage", "1.5"]).contains("such as 0.99"));
    assert!(fails(&["--coverage", "0"]).contains("such as 0.99"));
    assert!(fails(&["--keep", "3", "--modality", "text"]).contains("--modality"));
    assert!(error(here, &["prune", "dense", "out", "--keep", "1"]).contains("omma upcycle"));
    assert!(error(here, &["prune", "nothing", "out", "--keep", "1"]).contains("does not exist"));
    omma(here, &["soup", "run", "-o", "plain"]).assert().success();
    assert!(error(here, &["prune", "plain", "out", "--keep", "3"]).contains("--data"));
    assert!(error(here, &["prune", "run", "plain", "--keep", "3"]).contains("--force"));
    assert!(!here.join("out").exists(), "nothing was written");
    // Slots of soft routing can go as well.
    let soft: Vec<&str> =
        SIX_EXPERTS.iter().copied().filter(|one| !one.contains("moe.k")).collect();
    let soft = [&soft[..], &["train.steps=2", "model.moe.slots=2"]].concat();
    trained_at(here, "soft", "soft-moe", &soft);
    let found = json(here, &["prune", "soft", "fewer", "--keep", "2", "--mode", "drop"]);
    assert_eq!(shape(&here.join("fewer"), "blocks.3.feed_forward.router.weight"), [16, 4]);
    assert!(found["layers"][0]["coverage"].as_f64().unwrap() < 1.0);
}

#[test]
fn layers_become_dense_by_what_scores_best() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    small(here, "run", &["model.moe.shared_expert=true"]);
    let found = json(here, &["thin", "run", "half", "--keep", "3"]);
    assert_eq!(
        (&found["kept"], &found["thinned"]),
        (&serde_json::json!([3]), &serde_json::json!([1]))
    );
    let tried = found["candidates"].as_array().unwrap();
    let names: Vec<&str> = tried.iter().map(|one| one["by"].as_str().unwrap()).collect();
    assert_eq!(names, ["shared", "busiest", "busiest", "mean", "mean"]);
    let key = |one: &Value| (one["accuracy"].as_f64().unwrap(), -one["nll"].as_f64().unwrap());
    let best =
        tried.iter().map(key).fold((0.0, f64::NEG_INFINITY), |a, b| if b > a { b } else { a });
    assert_eq!(key(&found["after"]["score"]), best);
    let same = |one: &&Value| one["by"] == found["by"] && one["weighted"] == found["weighted"];
    let taken = tried.iter().find(same).unwrap();
    assert_eq!(key(taken), best);
    assert_eq!(shape(&here.join("half"), "blocks.1.feed_forward.up"), [16, 32]);
    assert_eq!(shape(&here.join("half"), "blocks.3.feed_forward.experts.up"), [6, 16, 32]);
    let mut tuned = omma(here, &["train", "finetune", "--init", "half", "--run", "tuned"]);
    tuned.args(["--data", "world", "--set", "train.steps=2", "--set", "train.batch=8"]);
    tuned.args(["--set", "data.train_samples=100", "--set", "data.test_samples=20"]);
    tuned.args(["--set", "model.resolution=32"]).assert().success();

    let dense = text(here, &["thin", "run", "dense", "--keep", "none", "--by", "mean"]);
    assert!(dense.contains("mean") && dense.contains("a ViT"), "{dense}");
    // A checkpoint does not know its data, and its shared expert needs none.
    omma(here, &["soup", "run", "-o", "plain"]).assert().success();
    let plain = json(here, &["thin", "plain", "shared", "--keep", "1"]);
    assert_eq!((&plain["by"], plain["measure"].is_null()), (&Value::from("shared"), true));
    let fails = |more: &[&str]| error(here, &[&["thin"][..], more, &["--force"]].concat());
    assert!(fails(&["plain", "out", "--keep", "1", "--by", "mean"]).contains("--data"));
    assert!(fails(&["run", "out", "--keep", "2"]).contains("blocks 1, 3 have"));
    assert!(fails(&["run", "out", "--keep", "1,3"]).contains("nothing to do"));
    assert!(fails(&["run", "out", "--keep", "first"]).contains("last-2"));
    small(here, "unshared", &["train.steps=2"]);
    assert!(fails(&["unshared", "out", "--keep", "1", "--by", "shared"]).contains("no shared"));
    assert!(fails(&["dense", "out", "--keep", "1"]).contains("no experts"));
    assert!(!here.join("out").exists(), "nothing was written");
}
