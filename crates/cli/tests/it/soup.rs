//! `omma soup` as a user types it.

use std::{fs, path::Path};

use omma_testing::SMALL_EXPERTS;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{error, json, omma, trained_at};

/// A run without an end of its own, which keeps every tenth checkpoint.
const TRUNK: &[&str] = &[
    "model.resolution=32",
    "data.test_samples=40",
    "data.validation=0.2",
    "train.steps=40",
    "train.keep_every=10",
    "optimiser.learning_rate=0.01",
    "schedule.kind=reverse-sqrt",
    "schedule.cooldown=0",
];

fn train(folder: &Path, run: &str, settings: &[&str]) {
    trained_at(folder, run, "vmoe", &[SMALL_EXPERTS, TRUNK, settings].concat());
}

/// All values of a checkpoint by name.
fn values(path: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = fs::read(path.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |bytes: &[u8]| {
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let mut all: Vec<(String, Vec<f32>)> =
        file.iter().map(|(name, tensor)| (name.to_owned(), floats(tensor.data()))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn checkpoints_become_one_uniformly_or_as_they_score() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    train(here, "trunk", &[]);
    for seed in ["seed=1", "seed=2"] {
        omma(here, &["train", "--resume", "trunk", "--cooldown", "8", "--from-step", "30"])
            .args(["--set", seed])
            .assert()
            .success();
    }
    // Of one checkpoint, itself.
    omma(here, &["soup", "trunk/checkpoints/step-00000020", "-o", "one"]).assert().success();
    assert_eq!(values(&here.join("one")), values(&here.join("trunk/checkpoints/step-00000020")));
    // The mean of two runs, which every command takes.
    let cooldowns = ["trunk-cooldown-1", "trunk-cooldown-2"];
    omma(here, &["soup", cooldowns[0], cooldowns[1], "-o", "mean"]).assert().success();
    let [mean, a, b] = ["mean", cooldowns[0], cooldowns[1]].map(|run| values(&here.join(run)));
    for ((mean, a), b) in mean.iter().zip(&a).zip(&b) {
        for ((mean, a), b) in mean.1.iter().zip(&a.1).zip(&b.1) {
            assert_eq!(*mean, ((f64::from(*a) + f64::from(*b)) / 2.0) as f32);
        }
    }
    assert_eq!(
        fs::read(here.join("mean/classes.json")).unwrap(),
        fs::read(here.join("trunk/classes.json")).unwrap()
    );
    omma(here, &["eval", "mean", "--data", "world", "--limit", "20", "--json"]).assert().success();

    let arguments = ["soup", cooldowns[0], cooldowns[1], "--all-of", "trunk", "--greedy", "-o"];
    let greedy = json({
        let mut command = omma(here, &arguments);
        command.args(["greedy", "--max", "4", "--json"]);
        command
    });
    let saved: Value =
        serde_json::from_slice(&fs::read(here.join("greedy/soup.json")).unwrap()).unwrap();
    assert_eq!(saved, greedy);
    assert!(greedy["data"].as_str().unwrap().contains("held-out"), "{greedy}");
    assert_eq!(greedy["images"], 60);
    let ingredients = greedy["ingredients"].as_array().unwrap();
    // Its last checkpoints, and its best where that is another.
    let kept = fs::read_dir(here.join("trunk/checkpoints"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("step-"));
    let kept = kept.count();
    assert!((4..=5).contains(&kept), "{kept}");
    assert_eq!(ingredients.len(), 2 + kept, "two cooldowns and the trunk's checkpoints");
    let pair =
        |value: &Value| (value["accuracy"].as_f64().unwrap(), -value["nll"].as_f64().unwrap());
    let own: Vec<(f64, f64)> = ingredients.iter().map(pair).collect();
    let best = own.iter().copied().fold((0.0, f64::NEG_INFINITY), |a, b| if b > a { b } else { a });
    let steps: Vec<(f64, f64)> = greedy["steps"].as_array().unwrap().iter().map(pair).collect();
    assert_eq!(steps[0], best);
    assert!(steps.windows(2).all(|pair| pair[1] > pair[0]) && steps.len() <= 4, "{steps:?}");
    assert_eq!(pair(&greedy), *steps.last().unwrap());
    let taken: u64 = ingredients.iter().map(|one| one["count"].as_u64().unwrap()).sum();
    assert_eq!(taken, steps.len() as u64);
    // What was written scores what was said.
    let command = omma(
        here,
        &["soup", "greedy", "--data", "world", "--split", "test", "-o", "again", "--json"],
    );
    assert_eq!(json(command)["images"], 2000, "the world's own number of test images");
    assert_eq!(values(&here.join("again")), values(&here.join("greedy")));
}

#[test]
fn what_cannot_be_averaged_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    train(here, "a", &["train.steps=2"]);
    train(here, "b", &["train.steps=2", "model.moe.k=1"]);
    let message = error(omma(here, &["soup", "a", "b", "-o", "soup"]));
    assert!(message.contains("moe.k is 2 in the first and 1 in the second"), "{message}");
    assert!(error(omma(here, &["soup", "-o", "soup"])).contains("--all-of"));
    assert!(error(omma(here, &["soup", "a", "./a", "-o", "soup"])).contains("named twice"));
    omma(here, &["soup", "a", "-o", "plain"]).assert().success();
    fs::remove_file(here.join("plain/soup.json")).unwrap();
    // A checkpoint by itself does not know what it held out, and test images are not taken instead.
    let message =
        error(omma(here, &["soup", "plain", "--greedy", "--data", "world", "-o", "soup"]));
    assert!(message.contains("held out"), "{message}");
    fs::write(here.join("plain/classes.json"), "[\"other\"]").unwrap();
    let message = error(omma(here, &["soup", "plain", "a", "-o", "soup"]));
    assert!(message.contains("classes.json"), "{message}");
    assert!(!here.join("soup").exists(), "nothing was written");
    assert!(error(omma(here, &["soup", "a", "-o", "plain"])).contains("--force"));
}

/// A model that compares images with texts is scored by the names of classes, and its soup reads as it did.
#[test]
fn a_model_that_reads_is_scored_by_names_and_keeps_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let settings = [
        "model.moe.hidden=16",
        "model.moe.experts=4",
        "data.test_samples=40",
        "data.validation=0.2",
        "train.steps=12",
        "train.accumulation=1",
        "train.shards=1",
        "train.log_every=4",
        "train.keep_every=6",
        "schedule.kind=reverse-sqrt",
        "schedule.cooldown=0",
    ];
    trained_at(here, "pairs", "limoe", &settings);
    omma(here, &["train", "--resume", "pairs", "--cooldown", "4", "--from-step", "6"])
        .assert()
        .success();
    let arguments = ["soup", "--all-of", "pairs", "pairs-cooldown-1", "--greedy", "-o", "soup"];
    let mut command = omma(here, &arguments);
    command.arg("--json");
    let found = json(command);
    assert_eq!(found["measure"], "zero-shot accuracy", "{found}");
    assert_eq!(found["images"], 60);
    let tokenizer = |run: &str| fs::read(here.join(run).join("tokenizer.json")).unwrap();
    assert_eq!(tokenizer("soup"), tokenizer("pairs"));
    assert_eq!(tokenizer("pairs-cooldown-1"), tokenizer("pairs"));
    omma(here, &["eval", "soup", "--data", "world", "--limit", "20", "--json"]).assert().success();
    // Images and texts are logged by themselves.
    let log = fs::read_to_string(here.join("pairs/metrics.jsonl")).unwrap();
    let mut line = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = line.rfind(|line| line["kind"] == "train").unwrap();
    let modalities = last["routing"][0]["modalities"].as_array().unwrap();
    assert_eq!(modalities.iter().map(|one| &one["modality"]).collect::<Vec<_>>(), [0, 1]);
    for one in modalities {
        let number = |key: &str| one[key].as_f64().unwrap();
        assert!((number("experts") - number("global_entropy").exp()).abs() < 1e-9);
        assert!((1.0..=4.0 + 1e-9).contains(&number("experts")), "{one}");
        assert!((0.25..=1.0).contains(&number("largest_gate")), "{one}");
        assert!(
            number("local_entropy") <= number("global_entropy") + 1e-9,
            "entropy is concave: {one}"
        );
    }
    let page = fs::read_to_string(here.join("pairs/report.html")).unwrap();
    assert!(page.contains("Experts by modality"));
}
