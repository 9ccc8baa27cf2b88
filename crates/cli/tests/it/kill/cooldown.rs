//! `--resume … --cooldown` makes runs of their own from checkpoints of one, which stays as it is.

use std::{fs, path::Path, process::Command};

use omma_testing::{copy_folder as copy, files_below as files};
use omma_train::Recipe;
use serde_json::Value;

use crate::{
    kill::{assert_same, killed_at, model, refusal, resume, start, steps, tensors},
    support::RUNS,
};

/// A reverse square root without an end of its own, and a checkpoint of every tenth step for good.
const TRUNK: &[&str] = &[
    "schedule.kind=reverse-sqrt",
    "schedule.cooldown=0",
    "schedule.timescale=20",
    "train.checkpoint_every=0",
    "train.checkpoint_minutes=0",
    "train.keep=1",
    "train.keep_every=10",
];

fn trunk(folder: &Path) -> std::path::PathBuf {
    let run = RUNS.run_made_by("kill-trunk", |run| {
        assert!(start(run, 34, TRUNK).status().unwrap().success());
    });
    copy(&run, &folder.join("trunk"));
    folder.join("trunk")
}

fn cooldown(run: &Path, steps: usize, more: &[&str]) -> Command {
    let mut command = resume(run);
    command.args(["--cooldown", &steps.to_string()]).args(more);
    command
}

fn names(run: &Path) -> Vec<u64> {
    let name = |path: std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let step = |name: String| name.trim_start_matches("step-").parse().unwrap();
    steps(run).into_iter().map(name).map(step).collect()
}

fn state(run: &Path, step: u64) -> Vec<(String, Vec<u8>)> {
    tensors(&run.join(format!("checkpoints/step-{step:08}/state.safetensors")))
}

fn result(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap()
}

#[test]
fn a_run_has_several_cooldowns_and_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let run = trunk(folder.path());
    assert_eq!(names(&run), [10, 20, 30, 34], "every tenth stays, and the last");
    let before = files(&run);
    assert!(cooldown(&run, 12, &["--from-step", "20"]).status().unwrap().success());
    let seed = ["--from-step", "20", "--set", "seed=8", "--set", "train.log_every=1"];
    assert!(cooldown(&run, 12, &seed).status().unwrap().success());
    assert!(cooldown(&run, 5, &[]).status().unwrap().success());
    assert!(files(&run) == before, "the run that they began with has changed");
    let [first, second, third] =
        [1, 2, 3].map(|number| folder.path().join(format!("trunk-cooldown-{number}")));
    // Weights and what the optimiser remembers are the run's own where they begin.
    assert_eq!((names(&first), names(&third)), (vec![20, 30, 32], vec![34, 39]));
    assert!(state(&first, 20) == state(&run, 20) && state(&third, 34) == state(&run, 34));
    assert!(model(&first) != model(&second), "another seed is another order of images");
    // The rate falls in a line from where the run's own was.
    let recipe = Recipe::read_saved(&run.join("recipe.toml")).unwrap();
    let log = fs::read_to_string(second.join("metrics.jsonl")).unwrap();
    let log = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let rates: Vec<f64> = log
        .filter_map(|line| line["images_per_second"].as_f64().and(line["learning_rate"].as_f64()))
        .collect();
    assert_eq!(rates.len(), 12);
    for (step, rate) in (20..32).zip(rates) {
        let left = (32 - step) as f64 / 12.0;
        let expected = left * recipe.optimiser.learning_rate * recipe.schedule.share(step, 34);
        assert!((rate / expected - 1.0).abs() < 1e-6, "step {step}: {rate} for {expected}");
    }
    let found = result(&second);
    assert_eq!((&found["steps"], &found["cooldown_of"]["step"]), (&32.into(), &20.into()));
    let page = fs::read_to_string(second.join("report.html")).unwrap();
    assert!(page.contains("A cooldown of"), "the report says what it is");
}

#[test]
fn a_cooldown_that_is_killed_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let run = trunk(folder.path());
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    let settings =
        ["--from-step", "20", "--set", "train.checkpoint_every=3", "--set", "mixing.mixup=0.4"];
    let begin = |to: &Path| {
        let mut command = cooldown(&run, 40, &settings);
        command.arg("--run").arg(to);
        command
    };
    assert!(begin(&whole).status().unwrap().success());
    // The first kill comes before it has a checkpoint of its own.
    killed_at(&mut begin(&broken), 1, "metrics.jsonl:append");
    for (count, point) in
        [(1, "state.safetensors:create"), (2, "checkpoint:done"), (2, "state.safetensors:rename")]
    {
        killed_at(&mut resume(&broken), count, point);
    }
    assert!(resume(&broken).status().unwrap().success());
    assert_same(&whole, &broken);
}

#[test]
fn a_cooldown_without_a_checkpoint_begins_at_its_origin_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let run = trunk(folder.path());
    let whole = folder.path().join("whole");
    assert!(cooldown(&run, 6, &["--run", whole.to_str().unwrap()]).status().unwrap().success());
    let again = folder.path().join("again");
    copy(&whole, &again);
    fs::remove_dir_all(again.join("checkpoints")).unwrap();
    ["result.json", "newest.json"]
        .iter()
        .for_each(|name| fs::remove_file(again.join(name)).unwrap());
    let lost = folder.path().join("lost");
    copy(&again, &lost);
    assert!(resume(&again).status().unwrap().success());
    assert!(model(&again) == model(&whole));
    // Another checkpoint in the place of the one that it began with is not taken for it.
    let checkpoints = run.join("checkpoints");
    fs::remove_dir_all(checkpoints.join("step-00000034")).unwrap();
    let message = refusal(&mut resume(&lost));
    assert!(message.contains("step-00000034"), "{message}");
}

#[test]
fn what_a_cooldown_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = trunk(folder.path());
    let before = files(folder.path());
    for (more, part) in [
        (&["--from-step", "15"][..], "10, 20, 30, 34"),
        (&["--set", "model.depth=3"], "cannot change in a cooldown"),
        (&["--set", "train.steps=60"], "--cooldown"),
        (&["--set", "data.name=world-fine"], ""),
        (&["--run", run.to_str().unwrap()], "holds a run already"),
    ] {
        let message = refusal(&mut cooldown(&run, 4, more));
        assert!(message.contains(part), "{message}");
    }
    let message = refusal(resume(&run).args(["--run", "elsewhere"]));
    assert!(message.contains("--cooldown"), "{message}");
    assert!(files(folder.path()) == before, "nothing was written");
    let cosine = folder.path().join("cosine");
    assert!(start(&cosine, 3, &[]).status().unwrap().success());
    assert!(refusal(&mut cooldown(&cosine, 4, &[])).contains("schedule.kind=reverse-sqrt"));
}
