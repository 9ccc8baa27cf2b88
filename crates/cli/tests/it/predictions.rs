//! How predictions are made, set on top of a model as it was trained.

use std::{fs, path::Path};

use omma_testing::SMALL_EXPERTS;
use serde_json::Value;

use crate::support::{self, omma};

const LEARNED: &[&str] = &[
    "model.moe.start.shared=false",
    "data.test_samples=60",
    "train.steps=20",
    "optimiser.learning_rate=0.01",
];

/// A V-MoE with two experts per token in `runs/v`.
fn trained(folder: &Path) {
    support::trained(folder, "v", "vmoe", &[SMALL_EXPERTS, LEARNED].concat());
}

fn judged(folder: &Path, arguments: &[&str]) -> Value {
    let mut command = omma(folder, &[&["eval", "--json", "--no-temperature"], arguments].concat());
    serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
}

fn error(folder: &Path, arguments: &[&str]) -> String {
    let output = omma(folder, arguments).assert().failure().get_output().stderr.clone();
    String::from_utf8(output).unwrap()
}

/// Paper 000 App. L.8, Fig. 22.
#[test]
fn experts_per_token_can_be_others_than_in_training_and_the_runs_own_report_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(folder);
    let own = judged(folder, &["runs/v"]);
    assert_eq!(own["kind"]["k"], 2);
    let evals = || {
        let entries = fs::read_dir(folder.join("runs/v/evals")).unwrap();
        let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        folders.sort();
        folders
    };
    let first = evals()[0].join("eval.json");
    let saved = || fs::read(&first).unwrap();
    let before = saved();
    let one = judged(folder, &["runs/v", "--set", "moe.k=1"]);
    assert_eq!((&one["kind"]["k"], &one["label"]), (&1.into(), &"vmoe with moe.k=1".into()));
    assert_ne!((&one["nll"], &one["fingerprint"]), (&own["nll"], &own["fingerprint"]));
    assert!(one["cost"]["forward_macs"].as_u64() < own["cost"]["forward_macs"].as_u64());
    assert_eq!(saved(), before, "what was judged in another way has a folder of its own");
    let names: Vec<String> = evals().iter().map(|folder| folder.display().to_string()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.iter().any(|name| name.contains("world-set-moe.k-1-")), "{names:?}");
    let same = judged(folder, &["runs/v", "--set", "moe.k=2", "--out", "same"]);
    assert_eq!(same["nll"], own["nll"]);

    let message = error(folder, &["eval", "runs/v", "--set", "moe.noise=4"]);
    assert!(
        message.contains("moe.noise=4") && message.contains("moe.inference_noise"),
        "{message}"
    );
    assert!(error(folder, &["eval", "runs/v", "--set", "moe.experts=2"]).contains("parameters"));
    assert!(error(folder, &["fewshot", "runs/v", "--set", "moe.kk=1"]).contains("moe.k"));
    let image = folder.join("red.png");
    omma_data::Picture::filled(20, 30, [200, 10, 10]).save_png(&image).unwrap();
    let guess = |settings: &[&str]| {
        let arguments = [&["predict", "runs/v", "red.png", "--json"], settings].concat();
        let output = omma(folder, &arguments).assert().success().get_output().stdout.clone();
        serde_json::from_slice::<Value>(&output).unwrap()
    };
    assert_ne!(guess(&[])["top"], guess(&["--set", "moe.k=1"])["top"]);
}

/// Paper 000 §4.2.2 and Table 2: the copies of tiling are told apart by noise at prediction alone, and the
/// more of it the more.
#[test]
fn the_diversity_of_tiling_grows_with_noise_and_changes_with_its_seed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    trained(folder);
    let tiling = ["adapt", "runs/v", "tiling", "--to", "e3", "--set", "moe.own_experts=false"];
    omma(folder, &[&tiling[..], &["--set", "moe.k=2"]].concat()).assert().success();
    let kl = |noise: &str, more: &[&str]| {
        let noise = format!("moe.inference_noise={noise}");
        let arguments = [&["tiling", "--data", "world", "--limit", "60", "--set", &noise], more];
        judged(folder, &arguments.concat())["diversity"]["kl"].as_f64().unwrap()
    };
    let found: Vec<f64> = ["0", "1", "2", "4"].map(|noise| kl(noise, &[])).to_vec();
    assert_eq!(found[0], 0.0);
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    assert_eq!(kl("2", &["--seed", "3"]), kl("2", &["--seed", "3"]));
    assert_ne!(kl("2", &["--seed", "3"]), kl("2", &["--seed", "4"]));
    // Batches draw by themselves, so cutting the images otherwise draws otherwise.
    assert_ne!(kl("2", &["--batch", "7"]), found[2]);
    assert_eq!(kl("0", &["--batch", "7"]), 0.0);
}
