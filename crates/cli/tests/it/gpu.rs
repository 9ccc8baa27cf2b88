//! Commands on a device beside the same on the CPU, by `tests/gpu/run`. The device is the machine's first that wgpu
//! reaches, a software one if need be.

use std::{fs, path::Path};

use assert_cmd::Command;
use omma_data::Picture;
use serde_json::Value;

use crate::support;

/// A mixture of experts that learns something in a few steps, on a device that may be a program.
const SMALL: &[&str] = &[
    "model.resolution=16",
    "model.patch=4",
    "model.width=32",
    "model.depth=2",
    "model.heads=2",
    "model.mlp=64",
    "model.moe.hidden=32",
    "model.moe.experts=4",
    "model.moe.placement=1",
    "data.train_samples=1000",
    "data.test_samples=200",
    "data.validation=0.1",
    "train.steps=40",
    "train.batch=32",
    "train.log_every=1",
    "train.evaluate_every=20",
    "train.checkpoint_every=20",
    "train.keep_every=20",
    "train.ema=0.9",
    "train.linear_baseline=false",
    "optimiser.learning_rate=0.006",
];
const DEVICE: &str = "wgpu";

fn omma(folder: &Path, device: &str, words: &[&str]) -> Command {
    let mut command = support::omma(folder, words);
    command.args(["--device", device]);
    command
}

fn train(folder: &Path, device: &str, run: &str, recipe: &str, settings: &[&str]) {
    let mut command = omma(folder, device, &["train", recipe, "--run", run]);
    SMALL.iter().chain(settings).for_each(|setting| {
        command.args(["--set", setting]);
    });
    command.assert().success();
}

fn json(mut command: Command) -> Value {
    let output = command.arg("--json").assert().success();
    serde_json::from_slice(&output.get_output().stdout).unwrap()
}

fn result(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap()
}

fn records(run: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["kind"] == kind).collect()
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key}: {value}"))
}

/// Whether two runs have learned alike: their loss at every step, and what they score in the end.
fn assert_alike(found: &Path, expected: &Path) {
    let (losses, others) = (records(found, "train"), records(expected, "train"));
    assert_eq!((losses.len(), others.len()), (40, 40));
    assert!(number(&others[39], "loss") < number(&others[0], "loss") - 0.1, "it learns something");
    for (a, b) in losses.iter().zip(&others) {
        assert!((number(a, "loss") - number(b, "loss")).abs() < 0.02, "{a} is not {b}");
        let norms = [a, b].map(|record| number(record, "gradient_norm"));
        assert!((norms[0] / norms[1] - 1.0).abs() < 0.1, "{norms:?}");
    }
    let (a, b) = (result(found), result(expected));
    assert!((number(&a, "test_nll") - number(&b, "test_nll")).abs() < 0.02, "{a} is not {b}");
    let accuracies = [&a, &b].map(|result| number(result, "test_accuracy"));
    assert!((accuracies[0] - accuracies[1]).abs() <= 0.05, "{accuracies:?}");
}

/// A run as it was after half of its steps.
fn half(folder: &Path, run: &str, new: &str) {
    let (from, to) = (folder.join(run), folder.join(new));
    let copied = std::process::Command::new("cp").arg("-a").args([&from, &to]).status().unwrap();
    assert!(copied.success());
    for file in ["result.json", "report.html", "model.safetensors"] {
        fs::remove_file(to.join(file)).unwrap();
    }
    fs::remove_dir_all(to.join("checkpoints/step-00000040")).unwrap();
}

#[test]
fn the_device_is_listed_and_those_that_are_not_there_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let all = json(omma(folder.path(), "cpu", &["devices"]));
    let family = |name: &str| {
        let families = all.as_array().unwrap();
        families.iter().find(|family| family["family"] == name).unwrap().clone()
    };
    assert_eq!(family("cpu")["devices"][0]["device"], "cpu");
    let wgpu = family("wgpu");
    assert_eq!(
        (&wgpu["built"], &wgpu["devices"][0]["device"]),
        (&Value::Bool(true), &"wgpu:0".into())
    );
    assert_eq!(wgpu["devices"][0]["fault"], Value::Null, "{wgpu}");
    for (device, said) in [
        ("wgpu:99", "there is no wgpu:99"),
        ("cuda", "build omma with --features cuda"),
        ("gpu", "no device is called \"gpu\""),
    ] {
        let mut command = omma(folder.path(), device, &["train", "vmoe"]);
        let error = command.assert().failure().get_output().stderr.clone();
        let error = String::from_utf8(error).unwrap();
        assert!(error.contains(said) && !error.contains("panicked"), "{error}");
    }
}

#[test]
fn a_run_is_trained_evaluated_and_asked_on_a_device_as_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, "cpu", "cpu", "vmoe", &[]);
    train(folder, DEVICE, "device", "vmoe", &[]);
    assert_alike(&folder.join("device"), &folder.join("cpu"));
    assert_eq!(result(&folder.join("cpu"))["device"], "cpu");
    let said = result(&folder.join("device"))["device"].clone();
    assert!(said.as_str().unwrap().starts_with("wgpu:0 ("), "{said}");
    let steps = records(&folder.join("device"), "train");
    let (first, last) = (&steps[1]["transfer"], &steps[39]["transfer"]);
    // A batch and its plan, not the weights.
    let pixels = 32.0 * 16.0 * 16.0 * 3.0 * 4.0;
    assert!((pixels..1.5 * pixels).contains(&number(first, "to_device")), "{first}");
    assert!(number(last, "from_device") < 20_000.0, "{last}");

    // One model, the same answers.
    let judged = |device: &str| {
        let found = json(omma(folder, device, &["eval", "device", "--out", device]));
        (number(&found, "error"), number(&found, "nll"))
    };
    let (on_device, on_cpu) = (judged(DEVICE), judged("cpu"));
    assert!((on_device.0 - on_cpu.0).abs() <= 0.01, "{on_device:?} {on_cpu:?}");
    assert!((on_device.1 - on_cpu.1).abs() < 1e-3, "{on_device:?} {on_cpu:?}");
    Picture::filled(40, 30, [200, 30, 90]).save_png(&folder.join("photo.png")).unwrap();
    let asked = |device: &str| json(omma(folder, device, &["predict", "device", "photo.png"]));
    let (found, expected) = (asked(DEVICE), asked("cpu"));
    let probability = |answer: &Value| number(&answer["top"][0], "probability");
    assert!((probability(&found) - probability(&expected)).abs() < 1e-3, "{found} {expected}");
}

#[test]
fn a_run_goes_on_on_another_device() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let settings = ["optimiser.kind=big-vision-adafactor", "train.shards=2"];
    train(folder, "cpu", "cpu", "vmoe", &settings);
    train(folder, DEVICE, "device", "vmoe", &settings);
    half(folder, "cpu", "to");
    half(folder, "device", "from");
    half(folder, "device", "stays");
    let go_on = |device: &str, run: &str| {
        let output = omma(folder, device, &["train", "--resume", run]).assert().success();
        String::from_utf8(output.get_output().stderr.clone()).unwrap()
    };
    let said = go_on(DEVICE, "to");
    assert!(said.contains("was trained on cpu and goes on on wgpu:0"), "{said}");
    let said = go_on("cpu", "from");
    assert!(said.contains("and goes on on cpu"), "{said}");
    assert!(!go_on(DEVICE, "stays").contains("goes on on"));
    for run in ["to", "from", "stays"] {
        assert_alike(&folder.join(run), &folder.join("cpu"));
        let changes = records(&folder.join(run), "device");
        assert_eq!(changes.len(), usize::from(run != "stays"));
        assert!(changes.iter().all(|change| change["step"] == 20));
        let result = result(&folder.join(run));
        assert_eq!(result["device_changes"].is_null(), run == "stays", "{result}");
    }
}

/// Software Vulkan has `f16` and no `bf16`; a device that has neither is left alone.
#[test]
fn half_precision_learns_and_predicts_as_single_precision_does_where_the_device_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let all = json(omma(folder, "cpu", &["devices"]));
    let families = all.as_array().unwrap();
    let wgpu = families.iter().find(|family| family["family"] == "wgpu").unwrap();
    let has = |precision: &str| {
        let precisions = wgpu["devices"][0]["precisions"].as_array().unwrap();
        precisions.iter().any(|other| other == precision)
    };
    assert!(has("f32"), "{wgpu}");
    train(folder, "cpu", "cpu", "vmoe", &[]);
    for precision in ["f16", "bf16"] {
        let setting = format!("train.precision={precision}");
        if !has(precision) {
            let words = ["train", "vmoe", "--run", precision, "--set", &setting];
            let error = omma(folder, DEVICE, &words).assert().failure().get_output().stderr.clone();
            let error = String::from_utf8(error).unwrap();
            let said = format!("does not compute in {precision}: it has f32");
            assert!(error.contains(&said) && !error.contains("panicked"), "{error}");
            assert!(!folder.join(precision).exists());
            continue;
        }
        train(folder, DEVICE, precision, "vmoe", &[&setting]);
        assert_alike(&folder.join(precision), &folder.join("cpu"));
        let scaled = |step: &Value| step["loss_scale"]["skipped"].as_u64().is_some();
        let steps = records(&folder.join(precision), "train");
        assert!(steps.iter().all(|step| scaled(step) == (precision == "f16")), "{}", steps[0]);
        let judged = |device: &str, in_precision: &str| {
            let words = ["eval", precision, "--out", in_precision, "--precision", in_precision];
            number(&json(omma(folder, device, &words)), "nll")
        };
        let (found, expected) = (judged(DEVICE, precision), judged("cpu", "f32"));
        assert!(found != expected && (found - expected).abs() < 0.01, "{found} {expected}");
    }
}

#[test]
fn other_tasks_and_routers_train_on_a_device_as_on_the_cpu() {
    for (recipe, settings) in [
        ("soft-moe", &["optimiser.kind=lamb", "train.steps=6"][..]),
        ("e3", &["optimiser.kind=adafactor", "train.steps=4", "model.moe.dropout=0.1"]),
        ("sinkhorn-expert-choice", &["optimiser.kind=sgd", "train.steps=4"]),
        (
            "limoe",
            &[
                "train.steps=4",
                "train.accumulation=2",
                "model.embedding=8",
                "model.text.vocabulary=200",
                "model.text.length=8",
            ],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for device in ["cpu", DEVICE] {
            train(folder, device, device, recipe, settings);
        }
        let [found, expected] = [DEVICE, "cpu"].map(|run| records(&folder.join(run), "train"));
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(&expected) {
            let near = (number(a, "loss") - number(b, "loss")).abs() < 0.03;
            assert!(near, "{recipe}: {a} is not {b}");
        }
    }
}
