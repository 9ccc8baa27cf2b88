//! `--resume … --set` extends a run: a new stretch, and nothing of the old one is lost.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use omma_testing::{copy_folder, files_below as files};
use omma_train::Recipe;
use serde_json::Value;

use crate::{
    kill::{assert_same, killed_at, refusal, resume, start, step_names, steps, stopped},
    support::RUNS,
};

const FIRST: usize = 30;

fn extend(run: &Path, settings: &[&str]) -> Command {
    let mut command = resume(run);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

fn records(run: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["kind"] == kind).collect()
}

#[test]
fn a_finished_run_is_extended_and_keeps_what_it_had_reached() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    finished(&run);
    let old = files(&run);
    let (result, report) = (old[&run.join("result.json")].clone(), &old[&run.join("report.html")]);
    let log = old[&run.join("metrics.jsonl")].clone();
    let before = fs::read(run.join("checkpoints/step-00000030/state.safetensors")).unwrap();
    assert!(extend(&run, &["train.steps=60"]).status().unwrap().success());
    assert_eq!(fs::read(run.join("result-30.json")).unwrap(), result);
    assert_eq!(fs::read(run.join("report-30.html")).unwrap(), *report);
    let steps_of = |file: &str| Recipe::read_saved(&run.join(file)).unwrap().train.steps;
    assert_eq!([steps_of("recipe-30.toml"), steps_of("recipe.toml")], [30, 60]);
    // The checkpoint that the old result is of stays, though sixteen newer ones were written.
    assert_eq!(fs::read(run.join("checkpoints/step-00000030/state.safetensors")).unwrap(), before);
    let new: Value = serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    assert_eq!((&new["steps"], &new["extended_after"]), (&60.into(), &serde_json::json!([30])));
    let old: Value = serde_json::from_slice(&result).unwrap();
    for seconds in ["train_seconds", "train_cpu_seconds"] {
        let [before, after] = [&old, &new].map(|result| result[seconds].as_f64());
        assert!(before > Some(0.0) && after > before, "{seconds}: {before:?}, then {after:?}");
    }
    // The log goes on, with a line that says so.
    assert!(fs::read(run.join("metrics.jsonl")).unwrap().starts_with(&log));
    let stretches = records(&run, "stretch");
    assert_eq!(stretches.len(), 1);
    assert_eq!((&stretches[0]["step"], &stretches[0]["steps"]), (&30.into(), &60.into()));
    assert_eq!(stretches[0]["changes"], serde_json::json!(["train.steps was 30 and is 60"]));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("extended after step 30"), "the report shows where it began");
    // The schedule is that of a run of sixty steps: a cosine after a warm-up of a twentieth.
    let recipe = Recipe::read_saved(&run.join("recipe.toml")).unwrap();
    for record in records(&run, "train").iter().filter(|record| record["step"].as_u64() > Some(30))
    {
        // The mean of the two steps of the interval, or its last.
        let step = record["step"].as_u64().unwrap();
        let at = |step: u64| recipe.optimiser.learning_rate * recipe.schedule.share(step, 60);
        let found = record["learning_rate"].as_f64().unwrap();
        let (high, low) = (at(step - 2), at(step - 1));
        assert!(low * 0.999 <= found && found <= high * 1.001, "step {step}: {found}");
    }
    let [before, after] =
        ["learning_rate_before", "learning_rate"].map(|key| stretches[0][key].as_f64().unwrap());
    assert!(after > 10.0 * before, "a cosine that had come down rises again");
    // Once more.
    assert!(extend(&run, &["train.epochs=5"]).status().unwrap().success());
    let new: Value = serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    assert_eq!(new["extended_after"], serde_json::json!([30, 60]));
    assert_eq!(new["steps"], 150, "five passes over 240 images in batches of eight");
}

/// A run of [`FIRST`] steps to its end.
fn finished(to: &Path) {
    let run = RUNS.run_made_by("kill-finished", |run| {
        assert!(start(run, FIRST, &[]).status().unwrap().success());
    });
    copy_folder(&run, to);
}

#[test]
fn an_extended_run_that_is_killed_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    [&whole, &broken].iter().for_each(|run| finished(run));
    let longer = ["train.steps=60", "optimiser.learning_rate=0.002"];
    assert!(extend(&whole, &longer).status().unwrap().success());
    // The first kills come while the run is extended, before the first checkpoint of the new stretch.
    for (count, point) in [
        (1, "recipe-30.toml:rename"),
        (1, "recipe.toml:rename"),
        (1, "recipe.toml:done"),
        (1, "metrics.jsonl:append"),
        (2, "checkpoint:done"),
        (2, "checkpoint:remove"),
        (1, "result.json:rename"),
    ] {
        // Killed while it wrote down the new recipe, it is the old run still.
        let extended = Recipe::read_saved(&broken.join("recipe.toml")).unwrap().train.steps == 60;
        let mut command = if extended { resume(&broken) } else { extend(&broken, &longer) };
        killed_at(&mut command, count, point);
        let message = "the old result is there until the new one is";
        assert_eq!(
            fs::read(broken.join("result.json")).unwrap(),
            fs::read(whole.join("result-30.json")).unwrap(),
            "{message}"
        );
    }
    assert!(resume(&broken).status().unwrap().success());
    assert_same(&whole, &broken);
    assert_eq!(records(&broken, "stretch"), records(&whole, "stretch"));
}

#[test]
fn an_unfinished_run_can_be_extended_and_an_old_stretch_is_trained_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (run, whole) = (folder.path().join("run"), folder.path().join("whole"));
    stopped(&run);
    let mut before = step_names(&run);
    let (stop, earlier) = (before.pop().unwrap(), before.pop().unwrap());
    let taken: u64 = stop.trim_start_matches("step-").parse().unwrap();
    let end = format!("train.steps={}", taken + 80);
    assert!(extend(&run, &[&end, "train.keep=100"]).status().unwrap().success());
    assert_eq!(records(&run, "stretch")[0]["step"], taken);
    // With the checkpoints that are left of before its extension, and those since lost, it comes to the same.
    copy_folder(&run, &whole);
    let gone: Vec<PathBuf> = steps(&run)
        .into_iter()
        .filter(|path| !path.ends_with(&earlier) && *path > run.join("checkpoints").join(&earlier))
        .collect();
    assert!(steps(&run).iter().any(|path| path.ends_with(&earlier)), "{:?}", steps(&run));
    gone.iter().for_each(|path| fs::remove_dir_all(path).unwrap());
    fs::remove_file(run.join("result.json")).unwrap();
    assert!(resume(&run).status().unwrap().success());
    assert_same(&run, &whole);
    assert_eq!(records(&run, "stretch"), records(&whole, "stretch"));
}

#[test]
fn what_cannot_change_within_a_run_is_refused_and_nothing_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    assert!(start(&run, 6, &[]).status().unwrap().success());
    let before = files(&run);
    for (setting, parts) in [
        ("train.steps=6", ["has taken 6 steps already", "train.steps"]),
        ("train.steps=3", ["has taken 6 steps already", "would end after 3"]),
        ("train.log_every=1", ["has taken 6 steps already", "give it more"]),
        ("model.depth=3", ["model.depth cannot change within a run", "--init"]),
        ("train.batch=16", ["train.batch cannot change within a run", "--init"]),
        ("train.step=9", ["there is no setting", "train.steps"]),
        ("train.steps=x", ["train.steps cannot be x", ""]),
    ] {
        let message = refusal(&mut extend(&run, &[setting]));
        assert!(parts.iter().all(|part| message.contains(part)), "{setting}: {message}");
        assert!(files(&run) == before, "{setting} has changed something");
    }
    assert!(refusal(&mut resume(&run)).contains("--set train.steps"), "it says how to go on");
}
