//! `omma train` as a user types it.

mod contrast;
mod data;

use std::{fs, path::Path};

use assert_cmd::Command;
use omma_testing::SMALL_EXPERTS;
use serde_json::Value;

use crate::support::{error, omma, train_small};

const STEPS: &[&str] = &[
    "model.resolution=32",
    "data.train_samples=200",
    "data.test_samples=40",
    "train.steps=12",
    "train.linear_baseline=true",
];

fn train(folder: &Path, recipe: &str, settings: &[&str]) -> Command {
    train_small(folder, recipe, &[SMALL_EXPERTS, STEPS, settings].concat())
}

#[test]
fn a_run_leaves_everything_it_promises() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), "default", &[]).arg("--json").assert().success();
    let result: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let run = folder.path().join("runs/default-1");
    let saved: Value = serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap();
    assert_eq!(result, saved);
    let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
    // Of 40 test images, by a model that has hardly begun.
    let right = number("test_accuracy") * 40.0;
    assert!((right - right.round()).abs() < 1e-9 && right < 30.0, "{right}");
    assert!((number("test_nll") - 10_f64.ln()).abs() < 0.3, "{}", number("test_nll"));
    assert!((0.1..1.0).contains(&number("linear_baseline_accuracy")));
    let images = number("images_per_second") * number("train_seconds");
    assert!((images / (12.0 * 16.0) - 1.0).abs() < 1e-9, "{images} images in 12 steps of 16");
    if cfg!(unix) {
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let share = number("train_cpu_seconds") / number("train_seconds");
        assert!(share > 0.0 && share < 1.05 * cores, "{share} of {cores} cores");
    }
    let routing = result["routing"].as_array().unwrap();
    assert_eq!(routing.len(), 1);
    let load = routing[0]["load"].as_array().unwrap().iter().map(|load| load.as_f64().unwrap());
    assert_eq!(load.clone().count(), 4);
    assert!((load.sum::<f64>() - 1.0).abs() < 1e-9, "loads are shares: {routing:?}");
    let files = [
        "recipe.toml",
        "environment.json",
        "classes.json",
        "metrics.jsonl",
        "summary.csv",
        "model.safetensors",
        "config.json",
        "report.html",
        "checkpoints/best.json",
    ];
    for file in files {
        assert!(run.join(file).exists(), "{file}");
    }
    assert_run_files_agree(&run, &result);
    // TensorBoard has a series of every kind.
    let events = fs::read_dir(&run).unwrap().flatten().map(|entry| entry.path());
    let events = events.filter(|path| path.to_string_lossy().contains("tfevents"));
    let events: Vec<u8> = events.flat_map(|path| fs::read(path).unwrap()).collect();
    for series in [
        "train/loss",
        "train/learning_rate",
        "validation/accuracy",
        "routing/block1/peak_load",
        "routing/block1/dropped_share",
        "routing/block1/dead_experts",
        "routing/block1/gate_entropy",
    ] {
        let found = events.windows(series.len()).any(|part| part == series.as_bytes());
        assert!(found, "{series}");
    }
    // The folder of a run is a checkpoint to other commands.
    omma(folder.path(), &["inspect"]).arg(&run).assert().success();
    // A second run has a folder of its own.
    train(folder.path(), "default", &[]).assert().success();
    assert!(folder.path().join("runs/default-2/result.json").exists());
}

/// Asserts that the files of a finished run of 12 steps say the same of it.
fn assert_run_files_agree(run: &Path, result: &Value) {
    let read = |name: &str| fs::read(run.join(name)).unwrap();
    let parse = |name: &str| serde_json::from_slice::<Value>(&read(name)).unwrap();
    let last = "checkpoints/step-00000012";
    for name in ["model.safetensors", "config.json"] {
        assert_eq!(read(name), read(&format!("{last}/{name}")), "{name} is the last checkpoint's");
    }
    assert_eq!(parse("checkpoints/best.json"), result["best_validation"]);
    assert_eq!(parse("classes.json").as_array().unwrap().len(), 10);
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    let recipe = omma_train::Recipe::parse::<&str>(&recipe, "recipe.toml".as_ref(), &[]).unwrap();
    assert_eq!((recipe.train.steps, recipe.train.batch), (12, 16));
    assert_eq!((result["recipe"].as_str(), result["steps"].as_u64()), (Some("default"), Some(12)));
    let log = String::from_utf8(read("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let evaluations: Vec<&Value> =
        lines.iter().filter(|line| line["kind"] == "evaluation").collect();
    // A tenth of 12 steps is one.
    let steps: Vec<u64> = evaluations.iter().map(|it| it["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=12).collect::<Vec<_>>());
    let highest = evaluations.iter().map(|it| it["accuracy"].as_f64().unwrap());
    let highest = highest.fold(f64::MIN, f64::max);
    assert_eq!(result["best_validation"]["score"].as_f64(), Some(highest));
    let summary = String::from_utf8(read("summary.csv")).unwrap();
    let (head, rows) = summary.split_once('\n').unwrap();
    let column = head.split(',').position(|name| name == "validation_accuracy").unwrap();
    let found: Vec<String> =
        rows.lines().map(|row| row.split(',').nth(column).unwrap().to_owned()).collect();
    let accuracy = |it: &&Value| format!("{:.6}", it["accuracy"].as_f64().unwrap());
    assert_eq!(found, evaluations.iter().map(accuracy).collect::<Vec<_>>());
    let report = String::from_utf8(read("report.html")).unwrap();
    let accuracy = 100.0 * result["test_accuracy"].as_f64().unwrap();
    assert!(report.contains(&format!("{accuracy:.2}")), "the report has the accuracy {accuracy}");
}

#[test]
fn a_run_is_tested_by_a_share_of_the_test_images_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let result = |share: &str| -> Value {
        let settings = [&format!("train.test_share={share}"), "train.steps=2"];
        let output = train(folder.path(), "default", &settings).arg("--json").assert().success();
        serde_json::from_slice(&output.get_output().stdout).unwrap()
    };
    let right = result("0.25")["test_accuracy"].as_f64().unwrap() * 10.0;
    assert!((right - right.round()).abs() < 1e-9, "of ten images: {right}");
    let untested = result("0");
    assert!(untested["test_accuracy"].is_null() && untested["routing"] == serde_json::json!([]));
    assert!(untested["linear_baseline_accuracy"].is_null(), "nothing to hold it against");
    assert!(untested["best_validation"]["score"].is_f64());
    assert!(folder.path().join("runs/default-2/report.html").exists());
    let message = error(train(folder.path(), "default", &["train.test_share=1.5"]));
    assert!(message.contains("train.test_share cannot be 1.5"), "{message}");
}

/// Numbers of a log, as they come.
fn logged(run: &Path, key: &str) -> Vec<f64> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["kind"] == "train").filter_map(|line| line[key].as_f64()).collect()
}

/// On few images that are shown again and again, every system comes well below guessing.
#[test]
fn every_system_can_be_trained() {
    let systems: [(&str, &[&str], usize); 8] = [
        ("vit", &["model.moe=null"], 1),
        ("vmoe", &[], 1),
        ("e3", &["model.moe.members=2"], 2),
        ("soft-moe", &[], 1),
        ("sinkhorn-expert-choice", &[], 1),
        ("sparse-expert-choice", &[], 1),
        ("vit", &["model.moe=null", "model.mimo.members=2", "model.mimo.input_replication=0.9"], 2),
        ("vit", &["model.moe=null", "model.batch_ensemble.placement=1"], 2),
    ];
    for (recipe, settings, members) in systems {
        let folder = tempfile::tempdir().unwrap();
        let quick = [
            "data.limit=32",
            "train.steps=30",
            "train.log_every=1",
            "optimiser.learning_rate=0.01",
            "train.linear_baseline=false",
        ];
        let settings: Vec<&str> = settings.iter().copied().chain(quick).collect();
        train(folder.path(), recipe, &settings).assert().success();
        let run = folder.path().join(format!("runs/{recipe}-1"));
        let losses = logged(&run, "loss");
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (losses[0], mean(&losses[losses.len() - 10..]));
        assert_eq!(losses.len(), 30, "{recipe}");
        assert!((first - 10_f64.ln()).abs() < 0.2, "{recipe} starts by guessing: {first}");
        assert!(last < first - 0.3, "{recipe} with {settings:?}: from {first} to {last}");
        let model = omma_model::checkpoint::summary(&run).unwrap().config;
        assert_eq!(model.members(), members, "{recipe}");
    }
}

#[test]
fn a_folder_of_images_can_be_learned_and_a_bad_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (class, colour) in [("cat", [200, 20, 20]), ("dog", [20, 20, 200])] {
        for split in ["train", "test"] {
            let place = folder.path().join("photos").join(split).join(class);
            fs::create_dir_all(&place).unwrap();
            for number in 0..150 {
                let picture = omma_data::Picture::filled(40, 30, colour);
                picture.save_png(&place.join(format!("{number}.png"))).unwrap();
            }
        }
    }
    fs::write(folder.path().join("photos/train/cat/7.png"), "no image").unwrap();
    let mut command = train(folder.path(), "vmoe", &["data.validation=0"]);
    let output = command.args(["--data", "photos", "--json"]).assert().success();
    let text = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(text.contains("7.png"), "{text}");
    let result: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(result["linear_baseline_accuracy"], 1.0);

    for number in 10..40 {
        fs::write(folder.path().join(format!("photos/train/dog/{number}.png")), "no").unwrap();
    }
    let mut command = train(folder.path(), "vmoe", &[]);
    command.args(["--data", "photos"]);
    let text = error(command);
    assert!(text.contains("could not be read") && text.contains("1 %"), "{text}");
}

#[test]
fn wrong_input_is_answered_with_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(error(train(here, "defualt", &[])).contains("did you mean \"default\""));
    assert!(error(train(here, "nothing.toml", &[])).contains("nothing.toml"));
    assert!(error(train(here, "vmoe", &["train.stepz=3"])).contains("train.steps"));
    assert!(error(train(here, "vmoe", &["optimiser.kind=adam"])).contains("adam-w"));
    let command = omma(here, &["train", "finetune-vmoe"]);
    assert!(error(command).contains("--init"));
    let mut command = train(here, "vmoe", &[]);
    command.args(["--data", "no/such/folder"]);
    assert!(error(command).contains("no data at no/such/folder"));
    let command = omma(here, &["train", "--resume", "latest"]);
    assert!(error(command).contains("runs"));
    assert!(!here.join("runs").exists(), "nothing is written for a run that cannot start");
}

#[test]
fn a_run_that_diverges_stops_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["optimiser.learning_rate=1e6", "optimiser.clip_norm=0", "train.checkpoint_every=1"];
    let text = error(train(folder.path(), "vmoe", &settings));
    assert!(text.contains("diverged") && text.contains("blocks.1.feed_forward"), "{text}");
    assert!(text.contains("checkpoint"), "{text}");
}

#[test]
fn a_checkpoint_can_be_fine_tuned_on_other_classes_and_sizes() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "vmoe", &["model.position=learned"]).assert().success();
    let mut command = omma(folder.path(), &[]);
    command.args(["train", "finetune-vmoe", "--init", "runs/vmoe-1", "--data", "world"]);
    for setting in ["model.resolution=48", "train.steps=3", "train.batch=8", "schedule.warmup=0.1"]
    {
        command.args(["--set", setting]);
    }
    command.args(["--set", "data.train_samples=50", "--set", "data.test_samples=10"]);
    command.assert().success();
    let recipe =
        fs::read_to_string(folder.path().join("runs/finetune-vmoe-1/recipe.toml")).unwrap();
    assert!(recipe.contains("position_resolution = [32, 32]"), "{recipe}");
    let mut command = train(folder.path(), "vit", &["model.moe=null", "model.width=24"]);
    command.args(["--init", "runs/vmoe-1"]);
    assert!(error(command).contains("is not the recipe's model"));
}

#[test]
fn a_damaged_checkpoint_is_set_aside_and_the_one_before_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.checkpoint_every=4", "train.linear_baseline=false"];
    train(folder.path(), "vmoe", &settings).assert().success();
    let run = folder.path().join("runs/vmoe-1");
    fs::remove_file(run.join("result.json")).unwrap();
    let state = run.join("checkpoints/step-00000012/state.safetensors");
    let mut bytes = fs::read(&state).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&state, bytes).unwrap();
    let whole = fs::read(run.join("model.safetensors")).unwrap();
    let mut resume = omma(folder.path(), &[]);
    let output = resume.arg("train").arg("--resume").arg(&run).assert().success();
    let text = String::from_utf8(output.get_output().stderr.clone()).unwrap();
    assert!(text.contains("damaged-1-step-00000012"), "{text}");
    assert_eq!(fs::read(run.join("model.safetensors")).unwrap(), whole);
}
