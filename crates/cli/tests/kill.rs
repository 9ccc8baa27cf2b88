//! A run that is killed and resumed ends with the same bits as one that is not.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use burn::tensor::Device;
use omma_model::checkpoint;
use safetensors::SafeTensors;

const KILLS: usize = 20;
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
    "train.steps=400",
    "train.batch=8",
    "train.accumulation=2",
    "train.shards=2",
    "train.ema=0.9",
    "train.checkpoint_every=3",
    "train.evaluate_every=50",
    "train.linear_baseline=false",
];

fn omma() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("omma"));
    command.arg("train").stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn start(run: &Path) -> Command {
    let mut command = omma();
    command.args(["default", "--seed", "7", "--run"]).arg(run);
    SETTINGS.iter().for_each(|setting| _ = command.args(["--set", setting]));
    command
}

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

/// Names and bytes of a file's tensors.
fn tensors(path: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> =
        file.iter().map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec())).collect();
    all.sort();
    all
}

#[test]
fn killed_runs_end_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    assert!(start(&whole).status().unwrap().success());

    let mut kills = 0;
    let mut child = start(&broken).spawn().unwrap();
    let mut delay: u64 = 12345;
    while kills < KILLS {
        let last = steps(&broken).last().cloned();
        assert!(wait_for_newer(&broken, last.as_ref(), &mut child), "too fast: {kills} kills");
        delay = delay.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(delay >> 50));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let left = steps(&broken);
        assert!(!left.is_empty(), "checkpoints were lost");
        for checkpoint in left {
            checkpoint::load(&checkpoint, &Device::flex()).unwrap();
            assert!(!tensors(&checkpoint.join("state.safetensors")).is_empty());
        }
        child = omma().arg("--resume").arg(&broken).spawn().unwrap();
    }
    assert!(child.wait().unwrap().success());
    assert!(broken.join("result.json").exists() && broken.join("report.html").exists());

    let model = |run: &Path| fs::read(run.join("model.safetensors")).unwrap();
    assert!(model(&whole) == model(&broken), "the trained models differ");
    let (a, b) = (steps(&whole), steps(&broken));
    let names = |paths: &[PathBuf]| -> Vec<_> {
        paths.iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&a), names(&b));
    for (a, b) in a.iter().zip(&b) {
        let state = |path: &Path| tensors(&path.join("state.safetensors"));
        assert!(state(a) == state(b), "the states of {} differ", a.display());
    }
    let lines = |run: &Path| fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count();
    assert_eq!(lines(&whole), lines(&broken));
}

#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut child = start(&run).stderr(Stdio::piped()).spawn().unwrap();
    assert!(wait_for_newer(&run, None, &mut child));
    let signal = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signal.success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("--resume"), "{text}");
    assert!(omma().arg("--resume").arg(&run).status().unwrap().success());
    assert!(!omma().arg("--resume").arg(&run).status().unwrap().success(), "it has ended");
}
