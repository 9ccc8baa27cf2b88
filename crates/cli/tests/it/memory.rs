//! How much memory a run takes, as it is estimated before the first step and as it turns out.

#![cfg(target_os = "linux")]

use std::{fs, path::Path};

use assert_cmd::Command;
use omma_testing::is_nightly;
use serde_json::Value;

use crate::support::omma;

fn train(folder: &Path, recipe: &str, run: &str, settings: &[&str]) -> Command {
    let mut command = omma(folder, &[]);
    command.env("OMMA_CACHE", folder.join("cache"));
    command.args(["train", recipe, "--run", run, "--set", "train.linear_baseline=false"]);
    for setting in COMMON.iter().chain(settings) {
        command.args(["--set", setting]);
    }
    command
}

const COMMON: &[&str] = &[
    "data.train_samples=600",
    "data.test_samples=20",
    "data.workers=1",
    "train.steps=3",
    "train.evaluate_every=99",
];

/// GiB that the command says a step takes, and MiB that its process held.
fn estimated_and_held(folder: &Path, recipe: &str, run: &str, settings: &[&str]) -> (f64, f64) {
    let output = train(folder, recipe, run, settings).assert().success();
    let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    let before = said.split(" GiB (weights").next().unwrap();
    let estimate: f64 = before.rsplit("about ").next().unwrap().parse().unwrap();
    let result: Value =
        serde_json::from_slice(&fs::read(folder.join(run).join("result.json")).unwrap()).unwrap();
    (estimate, result["peak_rss_bytes"].as_f64().unwrap() / f64::from(1 << 30))
}

/// Models of several kinds, each with hundreds of megabytes. All of them take minutes.
#[test]
fn memory_estimate_is_within_a_quarter_of_what_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let vit = ["model.resolution=64", "model.patch=8", "model.width=192", "model.depth=6"];
    let vit = [&vit[..], &["model.heads=3", "model.mlp=768"]].concat();
    let moe = ["model.moe.experts=8", "model.moe.k=2", "model.moe.placement=every-2"];
    let wide = ["model.resolution=32", "model.patch=16", "model.width=512", "model.depth=8"];
    let wide = [&wide[..], &["model.heads=8", "model.mlp=2048", "train.batch=16"]].concat();
    // The usual tier takes one step of the models that compute least for what they hold.
    let usual: [(&str, Vec<&str>); 2] = [
        ("wide", [&wide[..], &["train.steps=1"]].concat()),
        ("sparse", [&vit[..], &moe, &["train.batch=48", "train.steps=1"]].concat()),
    ];
    let soft = ["model.moe.router=soft", "model.moe.slots=8", "train.batch=96"];
    // What is held is mostly the similarities of a batch, or the maps of its pixels.
    let contrast = ["model.resolution=16", "model.patch=8", "model.width=32", "model.depth=2"];
    let contrast = [&contrast[..], &["model.heads=2", "model.mlp=64", "train.steps=1"]].concat();
    let pairs = ["data.train_samples=5200", "data.validation=0", "train.batch=5120"];
    let contrast = [&contrast[..], &pairs, &["train.accumulation=8"]].concat();
    let segment = ["model.resolution=128", "model.patch=16", "train.batch=96", "train.shards=1"];
    let segment = [&segment[..], &["train.steps=1"]].concat();
    let nightly: [(&str, Vec<&str>); 8] = [
        ("dense", [&vit[..], &["train.batch=96"]].concat()),
        ("wide", wide.to_vec()),
        ("sparse", [&vit[..], &moe, &["train.batch=96"]].concat()),
        ("soft", [&vit[..], &soft].concat()),
        ("members", [&vit[..], &moe, &["model.moe.members=2", "train.batch=48"]].concat()),
        ("frozen", [&vit[..], &["train.freeze=all-but-2", "train.batch=192"]].concat()),
        ("limoe-dense", contrast),
        ("segment", segment),
    ];
    let cases = if is_nightly() { nightly.to_vec() } else { usual.to_vec() };
    let mut wrong = Vec::new();
    for (name, settings) in cases {
        let recipe = if ["limoe-dense", "segment"].contains(&name) { name } else { "vit" };
        let (estimate, held) = estimated_and_held(folder.path(), recipe, name, &settings);
        let ratio = estimate / held;
        println!("{name}: about {estimate:.2} GiB, held {held:.2} GiB: {ratio:.2}");
        if !(0.75..=1.25).contains(&ratio) {
            wrong.push(format!("{name}: {estimate:.2} against {held:.2} GiB"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What killed a machine: images of 384 pixels in batches of 512.
#[test]
fn a_batch_that_does_not_fit_is_computed_in_parts_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["model.resolution=64", "model.patch=8", "model.width=96", "model.heads=3"];
    let settings = [&settings[..], &["model.mlp=384", "train.batch=256", "train.steps=1"]].concat();
    let mut command = train(folder.path(), "vit", "parts", &settings);
    let output = command.args(["--max-memory", "400M"]).assert().success();
    let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(said.contains("train.accumulation="), "{said}");
    let recipe = fs::read_to_string(folder.path().join("parts/recipe.toml")).unwrap();
    let parts = recipe.lines().find_map(|line| line.strip_prefix("accumulation = ")).unwrap();
    assert!(parts.parse::<usize>().unwrap() > 1, "the run remembers its parts: {parts}");
    let result: Value =
        serde_json::from_slice(&fs::read(folder.path().join("parts/result.json")).unwrap())
            .unwrap();
    let held = result["peak_rss_bytes"].as_f64().unwrap() / f64::from(1 << 20);
    assert!(held < 400.0, "{held} MiB");
    let mut command = train(folder.path(), "vit", "refused", &settings);
    let output = command.args(["--max-memory", "60M"]).assert().failure();
    let said = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(said.contains("train.freeze") && !folder.path().join("refused").exists(), "{said}");
}
