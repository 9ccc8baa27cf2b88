//! Several ranks, started by `mpirun`: the same bits as one process, and nothing lost when one of them is killed.
//! `tests/mpi/run` runs these.

mod differences;
mod evaluation;
mod experts;
mod kill;
mod same_bits;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use safetensors::SafeTensors;

/// A mixture with mixup, dropout, router noise and an average of the weights: everything that has a state or a
/// stream; four shards, each in two rounds.
const MIXTURE: &[&str] = &[
    "model.preset=vmoe-tiny",
    "model.moe.hidden=16",
    "model.moe.experts=4",
    "model.moe.placement=1",
    "model.moe.dropout=0.1",
    "model.patch=8",
    "mixing.mixup=0.2",
    "augment.operations=1",
    "train.ema=0.9",
    "train.overlap=true",
];

/// Images and texts, whose loss is over the batch of all ranks.
const PAIRS: &[&str] = &[
    "task=contrast",
    "model.preset=limoe-tiny",
    "model.moe.placement=1",
    "model.patch=8",
    "model.embedding=8",
    "model.text.vocabulary=200",
    "model.text.length=8",
];

const SMALL: &[&str] = &[
    "model.width=16",
    "model.depth=2",
    "model.heads=2",
    "model.mlp=32",
    "data.train_samples=300",
    "data.test_samples=50",
    "data.validation=0.2",
    "train.batch=16",
    "train.accumulation=2",
    "train.shards=4",
    "train.checkpoint_every=3",
    "train.evaluate_every=50",
    "train.log_every=2",
    "train.linear_baseline=false",
];

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("omma").to_owned()
}

/// `mpirun` with as many ranks, of which each has one thread, as every shard of a single process has here.
fn mpirun(ranks: usize) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-n", &ranks.to_string()]);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("RAYON_NUM_THREADS", "1").stdin(Stdio::null());
    command
}

/// What makes a run, after `mpirun`'s own.
fn train(command: &mut Command, program: &Path, run: &Path, steps: usize, settings: &[&str]) {
    command.arg(program).args(["train", "default", "--seed", "7", "--run"]).arg(run);
    let steps = format!("train.steps={steps}");
    for setting in settings.iter().chain(SMALL).chain([&steps.as_str()]) {
        command.args(["--set", setting]);
    }
}

fn start(ranks: usize, run: &Path, steps: usize, settings: &[&str]) -> Command {
    let mut command = mpirun(ranks);
    train(&mut command, &program(), run, steps, settings);
    command
}

/// A process that nobody launched.
fn alone(run: &Path, steps: usize, settings: &[&str]) {
    let mut command = Command::new("env");
    command.env("RAYON_NUM_THREADS", "1");
    train(&mut command, &program(), run, steps, settings);
    finish(&mut command);
}

fn resume(ranks: usize, run: &Path) -> Command {
    let mut command = mpirun(ranks);
    command.arg(program()).args(["train", "--resume"]).arg(run);
    command
}

/// Runs a command to its end, which must be a good one.
fn finish(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The folders of a run's checkpoints.
fn checkpoints(run: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
    };
    let mut steps: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(named).collect();
    steps.sort();
    steps
}

/// Names and bytes of a file's tensors.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec())).collect()
}

/// Two runs with the same model, to the byte, and the same checkpoints. A state also says how many seconds it took:
/// of that, tensors are compared.
fn assert_same(one: &Path, other: &Path) {
    let names = |run: &Path| -> Vec<_> {
        checkpoints(run).iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    assert_eq!(names(one), names(other));
    let mut files = vec![PathBuf::from("model.safetensors")];
    files.extend(
        names(one).iter().map(|step| Path::new("checkpoints").join(step).join("model.safetensors")),
    );
    for file in &files {
        let bytes = |run: &Path| fs::read(run.join(file)).unwrap();
        assert!(bytes(one) == bytes(other), "{} differs in {}", file.display(), other.display());
    }
    for step in names(one) {
        let state = Path::new("checkpoints").join(step).join("state.safetensors");
        let state = |run: &Path| tensors(&run.join(&state));
        assert!(state(one) == state(other), "what was remembered differs in {}", other.display());
    }
}
