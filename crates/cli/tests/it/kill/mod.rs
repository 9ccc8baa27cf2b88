//! Runs that are killed, stopped, starved or damaged: nothing is lost, and what goes on ends with the same
//! bits.

mod before;
mod cooldown;
mod damage;
mod disk;
mod extend;
mod owners;
mod signals;
mod writes;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use omma_testing::{copy_folder, files_below as files};
use safetensors::SafeTensors;

use crate::support::{self, RUNS};

/// Mixup, dropout, router noise and an average of the weights: everything that has a state or a stream;
/// in parts, one after the other and side by side.
const SETTINGS: &[&str] = &[
    "model.preset=vmoe-tiny",
    "model.patch=8",
    "model.width=16",
    "model.depth=2",
    "model.heads=2",
    "model.mlp=32",
    "model.moe.hidden=16",
    "model.moe.experts=4",
    "model.moe.placement=1",
    "model.moe.dropout=0.1",
    "mixing.mixup=0.2",
    "augment.operations=1",
    "data.train_samples=300",
    "data.test_samples=50",
    "data.validation=0.2",
    "train.batch=8",
    "train.accumulation=2",
    "train.shards=2",
    "train.ema=0.9",
    "train.checkpoint_every=3",
    "train.evaluate_every=50",
    "train.log_every=2",
    "train.linear_baseline=false",
];

/// `omma train`, of which nothing is to be seen.
fn omma() -> Command {
    let mut command = support::program();
    command.arg("train").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A run of so many steps in a folder.
fn start(run: &Path, steps: usize, settings: &[&str]) -> Command {
    let mut command = omma();
    command.args(["default", "--seed", "7", "--run"]).arg(run);
    let steps = format!("train.steps={steps}");
    for setting in SETTINGS.iter().chain(settings).chain([&steps.as_str()]) {
        command.args(["--set", setting]);
    }
    command
}

fn resume(run: &Path) -> Command {
    let mut command = omma();
    command.arg("--resume").arg(run);
    command
}

/// What a command that must fail says, in one line, with exit code 1.
fn refusal(command: &mut Command) -> String {
    let output = said(command);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

fn said(command: &mut Command) -> Output {
    command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

/// The folders of a run's checkpoints.
fn steps(run: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let mut steps: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")))
        .collect();
    steps.sort();
    steps
}

/// Waits until there is a checkpoint newer than `last`, or the process has ended.
fn wait_for_newer(run: &Path, last: Option<&PathBuf>, child: &mut Child) -> bool {
    let begin = Instant::now();
    while steps(run).last() <= last {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "a run does not get on");
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Checkpoints and what is in them.
fn checkpoints(run: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(&run.join("checkpoints"))
}

/// Names and bytes of a file's tensors.
fn tensors(path: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> =
        file.iter().map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec())).collect();
    all.sort();
    all
}

fn model(run: &Path) -> Vec<u8> {
    fs::read(run.join("model.safetensors")).unwrap()
}

fn lines(run: &Path) -> usize {
    fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count()
}

fn signal(child: &Child, name: &str) {
    // It may have ended by itself.
    let _ = Command::new("kill")
        .args([name, &child.id().to_string()])
        .stderr(Stdio::null())
        .status()
        .unwrap();
}

/// Names of the folders of a run's checkpoints.
fn step_names(run: &Path) -> Vec<String> {
    let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    steps(run).into_iter().map(name).collect()
}

/// Asserts that two runs have the same model, checkpoints and number of log lines, bit for bit.
fn assert_same(a: &Path, b: &Path) {
    assert!(model(a) == model(b), "the trained models differ");
    assert_eq!(step_names(a), step_names(b));
    for (a, b) in steps(a).iter().zip(&steps(b)) {
        let state = |path: &Path| tensors(&path.join("state.safetensors"));
        assert!(state(a) == state(b), "the states of {} differ", a.display());
    }
    assert_eq!(lines(a), lines(b));
}

/// Steps of the runs that several tests share.
const STEPS: usize = 60;

/// A run of [`STEPS`] steps to its end. Tests only read it.
fn whole() -> PathBuf {
    RUNS.run_made_by("kill-whole", |run| {
        assert!(start(run, STEPS, &[]).status().unwrap().success());
    })
}

/// Copies a run that was stopped by a signal after a few of its [`STEPS`] steps.
fn stopped(to: &Path) {
    let run = RUNS.run_made_by("kill-stopped", |run| {
        let mut command = start(run, STEPS, &[]);
        let status = with_fault(&mut command, "term:4:metrics.jsonl:append").status().unwrap();
        assert_eq!(status.code(), Some(143));
        assert!(steps(run).len() > 1 && !run.join("result.json").exists());
    });
    copy_folder(&run, to);
}

/// Injects a fault into a command (`omma_base::fault`).
fn with_fault<'a>(command: &'a mut Command, fault: &str) -> &'a mut Command {
    command.env("OMMA_FAULT", fault)
}

/// Runs a command that kills itself when it reaches a point for the `count`th time.
fn killed_at(command: &mut Command, count: usize, point: &str) {
    let status = with_fault(command, &format!("kill:{count}:{point}")).status().unwrap();
    assert_eq!(status.signal(), Some(9), "{point} is not reached {count} times: {status}");
}
