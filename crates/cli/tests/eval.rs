//! `omma eval`, `fewshot`, `predict`, `compare` and `study` as a user types them.

#[path = "eval/subset.rs"]
mod subset;

use std::{
    fs,
    path::{Path, PathBuf},
};

use assert_cmd::{Command, cargo::cargo_bin_cmd};
use serde_json::Value;

/// A model and a data set that a second is enough for.
const SMALL: &[&str] = &[
    "model.resolution=16",
    "model.patch=8",
    "model.width=16",
    "model.depth=2",
    "model.heads=2",
    "model.mlp=32",
    "data.train_samples=300",
    "data.test_samples=50",
    "data.validation=0.1",
    "train.steps=6",
    "train.batch=16",
    "train.linear_baseline=false",
];
/// The same with experts.
const EXPERTS: &[&str] = &["model.moe.hidden=16", "model.moe.experts=4", "model.moe.placement=1"];

fn omma(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo_bin_cmd!("omma");
    command.current_dir(folder).args(arguments);
    command
}

/// Trains below `folder/runs`, and gives the run's folder.
fn trained(folder: &Path, name: &str, recipe: &str, settings: &[&str]) -> PathBuf {
    let run = folder.join("runs").join(name);
    let mut command = omma(folder, &["train", recipe, "--run", run.to_str().unwrap()]);
    for setting in SMALL.iter().chain(settings) {
        command.args(["--set", setting]);
    }
    command.assert().success();
    run
}

fn json(mut command: Command) -> Value {
    let output = command.assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

/// The message of a command that must fail: no backtrace, and nothing left behind.
fn error(mut command: Command) -> String {
    let output = command.assert().failure().get_output().stderr.clone();
    let text = String::from_utf8(output).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_evaluation_has_every_number_and_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let members = [EXPERTS, &["model.moe.members=2", "model.moe.k=1"]].concat();
    let run = trained(folder, "e3", "vmoe", &members);
    let arguments = ["eval", text(&run), "--shift", "--shift-samples", "8", "--json"];
    let mut command = omma(folder, &arguments);
    command.args(["--ood", "near=world-near-ood,world-far-ood", "--limit", "40"]);
    let found = json(command);
    for key in ["error", "nll", "brier", "ece"] {
        let all = [&found, &found["temperature"], &found["members"][1], &found["shift"]["mean"]];
        for part in all.into_iter().chain([&found["shift"]["gaussian_noise"]]) {
            assert!(part[key].as_f64().is_some_and(f64::is_finite), "{key}: {part}");
        }
    }
    assert_eq!(found["samples"], 40);
    assert_eq!(found["members"].as_array().unwrap().len(), 2);
    assert_eq!(found["shift"]["fog"]["severities"].as_array().unwrap().len(), 5);
    let bins = found["reliability"].as_array().unwrap();
    let in_bins: u64 = bins.iter().map(|bin| bin["samples"].as_u64().unwrap()).sum();
    assert_eq!(in_bins, 40, "every image is in one bin");
    assert!(bins.iter().all(|bin| (0.1..=1.0).contains(&bin["confidence"].as_f64().unwrap())));
    for key in ["kl", "cosine", "disagreement"] {
        assert!(found["diversity"][key].as_f64().is_some(), "{key}");
    }
    for name in ["near", "world-far-ood"] {
        for key in ["auroc", "aupr", "fpr95"] {
            let value = found["ood"][name][key].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&value), "{name} {key}: {value}");
        }
        for key in ["out_of_distribution", "in_distribution"] {
            let shares = found["ood"][name][key].as_array().unwrap();
            let sum: f64 = shares.iter().map(|share| share.as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{name} {key} is a histogram: {sum}");
        }
    }
    let saved: Value = serde_json::from_slice(&fs::read(run.join("eval.json")).unwrap()).unwrap();
    assert_eq!(saved, found);
    let page = fs::read_to_string(run.join("eval.html")).unwrap();
    assert!(page.contains("Out-of-distribution images") && !page.contains("<script"));
    for figure in ["reliability", "shift-nll", "ood-roc", "ood-scores-near", "members-nll"] {
        assert!(run.join(format!("figures/{figure}.svg")).exists(), "{figure}");
    }
    // The test images of training are the same, and so are the predictions.
    let whole = json(omma(folder, &["eval", text(&run), "--json", "--no-temperature"]));
    let result: Value =
        serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    let accuracy = 1.0 - whole["error"].as_f64().unwrap();
    assert!((accuracy - result["test_accuracy"].as_f64().unwrap()).abs() < 1e-9);
    assert!((whole["nll"].as_f64().unwrap() - result["test_nll"].as_f64().unwrap()).abs() < 1e-5);
    assert!(whole["temperature"].is_null());
    // Another way to cut batches changes nothing but rounding.
    let other = json(omma(folder, &["eval", text(&run), "--json", "--batch", "7"]));
    assert!((whole["nll"].as_f64().unwrap() - other["nll"].as_f64().unwrap()).abs() < 1e-5);
}

#[test]
fn every_kind_of_system_can_be_judged_alone_and_together() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let with = |more: &[&'static str]| [EXPERTS, more].concat();
    let systems: [(&str, &str, Vec<&str>, usize); 5] = [
        ("plain", "vit", vec![], 1),
        (
            "be",
            "vit",
            vec!["model.batch_ensemble.placement=1", "model.batch_ensemble.members=3"],
            3,
        ),
        ("mimo", "vmoe", with(&["model.mimo.members=2"]), 2),
        ("mc", "vmoe", with(&["model.moe.dropout=0.2", "model.mc_samples=2"]), 2),
        ("multi", "vmoe", with(&["model.moe.multi_pred=true"]), 2),
    ];
    let mut runs = Vec::new();
    for (name, recipe, settings, members) in systems {
        let run = trained(folder, name, recipe, &settings);
        let found = json(omma(folder, &["eval", text(&run), "--json"]));
        assert_eq!(found["kind"]["members"], members, "{name}");
        runs.push(run);
    }
    // A deep ensemble of all of them has all their members, and is judged in a folder of its own.
    let mut command = omma(folder, &["eval", "--json"]);
    command.args(&runs);
    let found = json(command);
    assert_eq!(found["members"].as_array().unwrap().len(), 10);
    assert_eq!(found["kind"]["models"], 5);
    assert!(folder.join("evals/vit--5-1/eval.json").exists(), "{:?}", fs::read_dir(folder));

    let mut compare = omma(folder, &["compare", "--json", "--out", "beside"]);
    let all = json({
        compare.args(&runs);
        compare
    });
    let labels: Vec<&str> =
        all["rows"].as_array().unwrap().iter().map(|row| row["label"].as_str().unwrap()).collect();
    assert_eq!(
        labels,
        ["vit (plain)", "vit (be)", "vmoe (mimo)", "vmoe (mc)", "vmoe (multi)"],
        "settings differ, so these are different systems"
    );
    assert_eq!(all["baseline"], "vit (plain)");
    assert!(folder.join("beside/compare.html").exists());
    let mut compare = omma(folder, &["compare", "--baseline", "nothing"]);
    compare.args(&runs);
    assert!(error(compare).contains("nothing"));
}

#[test]
fn features_are_judged_by_a_few_shots() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "e3", "vmoe", &[EXPERTS, &["model.moe.members=2"]].concat());
    let arguments = ["fewshot", text(&run), "--shots", "1,4", "--seeds", "2", "--json"];
    let found = json(omma(folder, &arguments));
    let results = found["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        for key in ["joint", "disjoint", "joint_best_l2"] {
            let accuracy = result[key]["mean"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&accuracy));
            assert!(result[key]["standard_error"].as_f64().is_some());
        }
        let [chosen, best] = ["joint", "joint_best_l2"].map(|key| result[key]["mean"].as_f64());
        assert!(best >= chosen);
    }
    assert_eq!(found, json(omma(folder, &arguments)));
    let many = error(omma(folder, &["fewshot", text(&run), "--shots", "500"]));
    assert!(many.contains("500 shots"), "{many}");
    assert!(error(omma(folder, &["fewshot", text(&run), "--shots", "0"])).contains("--shots"));
}

#[test]
fn images_are_named_in_words_and_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "e3", "vmoe", &[EXPERTS, &["model.moe.members=2"]].concat());
    let pictures = folder.join("pictures/inner");
    fs::create_dir_all(&pictures).unwrap();
    let picture = omma_data::Picture::filled(20, 30, [200, 10, 10]);
    picture.save_png(&pictures.join("red.png")).unwrap();
    picture.save_png(&folder.join("pictures/other.png")).unwrap();
    fs::write(pictures.join("broken.jpg"), "not a picture").unwrap();
    let output = omma(folder, &["predict", text(&run), "pictures", "--json", "--top", "3"]);
    let output = { output }.assert().success().get_output().clone();
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["top"].as_array().unwrap().len(), 3);
    assert!(lines[0]["entropy"].as_f64().is_some() && lines[0]["top"][0]["spread"].is_number());
    assert_eq!(lines[0]["top"], lines[1]["top"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("broken.jpg"));
    let glob = omma(folder, &["predict", text(&run), "pictures/*.png"]);
    let line = { glob }.assert().success().get_output().stdout.clone();
    let line = String::from_utf8(line).unwrap();
    assert!(line.starts_with("pictures/other.png: ") && line.contains(" ± "), "{line}");
    assert!(error(omma(folder, &["predict", text(&run), "nowhere/*.png"])).contains("nowhere"));
    let broken = error(omma(folder, &["predict", text(&run), "pictures/inner/broken.jpg"]));
    assert!(broken.contains("none of 1 files"), "{broken}");
}

#[test]
fn bad_input_is_named_on_both_sides_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = trained(folder, "v", "vmoe", EXPERTS);
    for class in ["ant", "bee"] {
        let images = folder.join("two/train").join(class);
        fs::create_dir_all(&images).unwrap();
        omma_data::Picture::filled(9, 9, [9; 3]).save_png(&images.join("a.png")).unwrap();
    }
    let judged = |arguments: &[&str]| {
        let message = error(omma(folder, &[&["eval", text(&run)], arguments].concat()));
        assert!(!run.join("eval.json").exists() && !run.join("eval.html").exists());
        message
    };
    let message = judged(&["--data", "two", "--split", "train"]);
    assert!(
        message.contains("10 classes") && message.contains("two (training images) has 2"),
        "{message}"
    );
    let message = judged(&["--data", "two"]);
    assert!(message.contains("two") && message.contains("no test images"), "{message}");
    assert!(judged(&["--data", "nowhere"]).contains("nowhere"));
    assert!(judged(&["--ood", "far=nowhere"]).contains("far"));
    let message = judged(&["--ood", "x=world-near-ood,x=world-far-ood"]);
    assert!(message.contains("both be called x"), "{message}");
    fs::write(folder.join("labels.csv"), "path,label\ntwo/train/ant/a.png,12\n").unwrap();
    judged(&["--data", "labels.csv"]);

    // Models of different sizes or classes are no ensemble.
    let other = trained(folder, "w", "vit", &["model.resolution=24"]);
    let message = judged(&[text(&other)]);
    assert!(message.contains("16") && message.contains("24"), "{message}");
    // A recipe without a model, and a file of another kind.
    fs::write(folder.join("x.safetensors"), "nothing").unwrap();
    let message = error(omma(folder, &["eval", "x.safetensors", "--data", "world"]));
    assert!(message.contains("x.safetensors"), "{message}");
    let message = error(omma(folder, &["eval", text(&run.join("model.safetensors"))]));
    assert!(message.contains("--data"), "{message}");
    // A backbone has no classifier.
    let backbone = ["init", "vit-tiny", "backbone", "--set", "classes=0"];
    omma(folder, &backbone).assert().success();
    let message = error(omma(folder, &["eval", "backbone", "--data", "world"]));
    assert!(message.contains("no classifier") && message.contains("fewshot"), "{message}");
}

#[test]
fn a_study_is_done_once_and_its_table_has_every_system() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("mine")).unwrap();
    let recipe = |kind: &str| {
        let settings: String =
            SMALL.iter().map(|s| s.replacen('=', " = ", 1) + "\n").collect::<String>();
        format!(
            "name = \"{kind}\"\nabout = \"small\"\ndata.name = \"world\"\nmodel.preset = \"{kind}-tiny\"\n{settings}"
        )
    };
    fs::write(folder.join("mine/vit.toml"), recipe("vit")).unwrap();
    let study = "name = \"mine\"\nabout = \"two\"\nseeds = 2\nbaseline = \"one\"\nshift_samples = 4\n\
                 [[systems]]\nlabel = \"one\"\nrecipe = \"vit.toml\"\n\
                 [[systems]]\nlabel = \"pair\"\nrecipe = \"vit.toml\"\nensemble = 2\n";
    fs::write(folder.join("mine/study.toml"), study).unwrap();
    let run = |more: &[&str]| omma(folder, &[&["study", "mine"], more].concat());
    let plan = run(&["--plan"]).assert().success().get_output().stdout.clone();
    assert!(String::from_utf8(plan).unwrap().contains("4 trainings (0 done)"));
    let found = json(run(&["--json", "--ood", "far=world-far-ood"]));
    let rows = found["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[1]["kind"]["models"], &rows[1]["runs"]), (&2.into(), &2.into()));
    assert!(rows[1]["kl"]["mean"].is_number() && rows[0]["auroc"]["far"]["mean"].is_number());
    let table = fs::read_to_string(folder.join("studies/mine/table.md")).unwrap();
    assert!(table.contains("| pair |") && table.contains("shifted NLL"), "{table}");
    // Once more: nothing is trained again.
    let again = run(&[]).assert().success().get_output().clone();
    let notes = String::from_utf8(again.stderr).unwrap();
    assert!(notes.contains("4 of 4 are done already"), "{notes}");
    let other = error(run(&["--set", "train.steps=5"]));
    assert!(other.contains("train.steps=5") && other.contains("--out"), "{other}");
    assert!(error(run(&["--ood", "far=nowhere"])).contains("nowhere"));
    // Out-of-distribution data that was not looked at yet makes for new evaluations, not for new trainings.
    let more = json(run(&["--json", "--ood", "near=world-near-ood"]));
    assert!(more["rows"][0]["auroc"]["near"]["mean"].is_number());
    fs::write(folder.join("mine/study.toml"), study.replace("seeds = 2", "seeds = 1")).unwrap();
    assert!(error(run(&[])).contains("another"));
    assert!(error(omma(folder, &["study", "nothing"])).contains("e3"));
}
