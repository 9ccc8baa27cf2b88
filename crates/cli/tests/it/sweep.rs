//! `omma sweep` as a user types it.

use std::{fs, path::Path};

use assert_cmd::Command;
use omma_testing::SMALL_RUN;
use serde_json::{Value, json};

use crate::support::{error, omma, output, set};

const STEPS: &[&str] =
    &["data.train_samples=200", "data.test_samples=40", "data.validation=0.2", "train.steps=8"];

fn sweep(folder: &Path, more: &[&str]) -> Command {
    let mut command = omma(folder, &["sweep", "vit"]);
    // A sweep takes every setting once, and some tests set the resolution.
    let key = |setting: &str| setting.split('=').next().map(str::to_owned);
    let own = SMALL_RUN.iter().filter(|one| STEPS.iter().all(|other| key(one) != key(other)));
    let own = own.filter(|setting| !setting.starts_with("model.resolution"));
    command.args(set(&own.chain(STEPS).copied().collect::<Vec<_>>())).args(more);
    command
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

const RATES: &str = "optimiser.learning_rate=1e-5,1e-2";

#[test]
fn a_table_is_sorted_by_held_out_images_and_never_chosen_by_the_test() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let (text, _) = output(sweep(here, &["--set", RATES, "--seeds", "2", "--json"]));
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found, read(&here.join("sweeps/vit/sweep.json")));
    assert_eq!(found["columns"], json!(["optimiser.learning_rate"]));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        let seeds = row["seeds"].as_array().unwrap();
        assert_eq!(seeds.iter().map(|seed| &seed["seed"]).collect::<Vec<_>>(), [0, 1]);
        // What a row says is the mean of what its runs say.
        let results: Vec<Value> = seeds
            .iter()
            .map(|seed| read(&here.join(seed["run"].as_str().unwrap()).join("result.json")))
            .collect();
        let mean = |pointer: &str| {
            let value = |one: &Value| one.pointer(pointer).unwrap().as_f64().unwrap();
            results.iter().map(value).sum::<f64>() / 2.0
        };
        for (own, run) in [
            ("/held_out/mean", "/best_validation/score"),
            ("/test/accuracy/mean", "/test_accuracy"),
            ("/test/nll/mean", "/test_nll"),
            ("/seconds", "/train_seconds"),
        ] {
            let own = row.pointer(own).unwrap().as_f64().unwrap();
            assert!((own - mean(run)).abs() < 1e-9, "{run}: {own} and {}", mean(run));
        }
    }
    // The one that did worse on held-out images is given a perfect test, and the other the better score.
    for run in fs::read_dir(here.join("sweeps/vit/runs")).unwrap().flatten() {
        let slow = run.file_name().to_string_lossy().contains("1e-5");
        let path = run.path().join("result.json");
        let mut result = read(&path);
        result["test_accuracy"] = json!(if slow { 1.0 } else { 0.0 });
        result["best_validation"] = json!({"step": 4, "score": if slow { 0.25 } else { 0.5 }});
        fs::write(&path, result.to_string()).unwrap();
    }
    let (text, notes) = output(sweep(here, &["--set", RATES, "--seeds", "2"]));
    assert!(notes.contains("4 of 4 are done already"), "{notes}");
    let lines: Vec<&str> = text.lines().collect();
    let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap_or(usize::MAX);
    assert!(at(" 1e-2 ") < at(" 1e-5 "), "{text}");
    assert!(
        text.contains("best by held-out accuracy: optimiser.learning_rate=1e-2 (50.00 ±"),
        "{text}"
    );
    // Its commands can be typed.
    let commands = |what: &str| -> Vec<String> {
        let found = lines.iter().filter_map(|line| line.strip_prefix(what));
        found.map(str::to_owned).collect()
    };
    let train = commands("train it again: omma ");
    assert_eq!(train.len(), 2);
    assert!(train[0].contains("--set optimiser.learning_rate=1e-2 --seed 0"), "{}", train[0]);
    omma(here, &train[0].split_whitespace().collect::<Vec<_>>()).assert().success();
    let recipe = |run: &str| fs::read_to_string(here.join(run).join("recipe.toml")).unwrap();
    let swept = "sweeps/vit/runs/003-learning-rate-1e-2-seed-0";
    assert_eq!(recipe("runs/vit-1"), recipe(swept), "it is the same training");
    let evaluate = commands("evaluate it: omma ");
    assert!(evaluate[0].contains("/checkpoints/step-00000004 --data world"), "{}", evaluate[0]);
    let page = fs::read_to_string(here.join("sweeps/vit/sweep.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("optimiser.learning_rate"));
}

#[test]
fn a_point_that_diverges_is_a_row_and_later_values_add_to_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let rates = "optimiser.learning_rate=1e5,1e-3";
    let (text, notes) = output(sweep(here, &["--set", rates, "--out", "out", "--jobs", "1"]));
    let row = text.lines().find(|line| line.contains(" 1e5 ")).unwrap();
    assert!(row.contains("diverged: "), "{text}");
    assert!(text.contains("best by held-out accuracy: optimiser.learning_rate=1e-3"), "{text}");
    assert!(notes.contains("failed after"), "{notes}");
    let state = |sweep: &Value, rate: &str| {
        let rows = sweep["rows"].as_array().unwrap().iter();
        let mut of = rows.filter(|row| {
            row["settings"]
                .as_array()
                .unwrap()
                .contains(&json!({"key": "optimiser.learning_rate", "value": rate}))
        });
        of.next().map(|row| row["seeds"][0]["state"].as_str().unwrap().to_owned())
    };
    // Other values: what was done stays, what failed is not tried again.
    let rates = "optimiser.learning_rate=0.001,3e-3";
    let (_, notes) = output(sweep(here, &["--set", rates, "--out", "out"]));
    assert!(notes.contains("1 of 2 are done already"), "{notes}");
    let found = read(&here.join("out/sweep.json"));
    assert_eq!(found["rows"].as_array().unwrap().len(), 3);
    assert_eq!(state(&found, "1e5").as_deref(), Some("failed"));
    assert_eq!(state(&found, "1e-3").as_deref(), Some("done"));
    assert_eq!(state(&found, "3e-3").as_deref(), Some("done"));
    // Another recipe has another folder, and so has other data.
    let message = error(omma(here, &["sweep", "vmoe", "--out", "out", "--dry-run"]));
    assert!(message.contains("a sweep of vit") && message.contains("--out"), "{message}");
    // Only failures: no table to choose from.
    let none = sweep(here, &["--set", "optimiser.learning_rate=1e5", "--out", "none"]);
    assert!(error(none).contains("every training failed"));
}

#[test]
fn a_dry_run_prints_commands_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let more = ["--set", "model.resolution=[24,32],[32,32]", "--set", "seed=3,4", "--dry-run"];
    let (text, _) = output(sweep(here, &more));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[1].starts_with("omma train vit --set model.patch=8"), "{text}");
    assert!(lines[1].contains("--set 'model.resolution=[24,32]' --set seed=4 --seed 4"), "{text}");
    assert_eq!(fs::read_dir(here).unwrap().count(), 0);
    for (settings, part) in [
        (vec!["--set", "optimiser.learning_rate=1,x"], "optimiser.learning_rate cannot be x"),
        (vec!["--set", "optimizer.rate=1,2"], "there is no setting"),
        (vec!["--set", "train.ema=0,,1"], "missing"),
        (vec!["--set", "seed=1,2", "--seeds", "2"], "--seeds"),
    ] {
        let message = error(sweep(here, &settings));
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(
        fs::read_dir(here).unwrap().count(),
        0,
        "a wrong value comes out before any training"
    );
}
