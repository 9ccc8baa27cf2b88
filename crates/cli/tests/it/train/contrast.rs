//! Training by contrast as a user types it.

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::Value;

use crate::support::{error, omma, set, train_small};

/// Pairs of images and texts that seconds are enough for.
const PAIRS: &[&str] = &[
    "model.embedding=8",
    "model.text.length=8",
    "model.text.vocabulary=150",
    "data.train_samples=200",
    "data.test_samples=40",
];

fn train(folder: &Path, recipe: &str, settings: &[&str]) -> Command {
    train_small(folder, recipe, &[PAIRS, settings].concat())
}

fn plain(folder: &Path, recipe: &str, settings: &[&str]) -> Command {
    let mut command = omma(folder, &["train", recipe]);
    command.args(set(settings));
    command
}

fn result(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("result.json")).unwrap()).unwrap()
}

/// Train records of a run.
fn logged(run: &Path) -> Vec<Value> {
    let log = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == "train").collect()
}

/// Two classes of images without captions, in folders.
fn folders(root: &Path) {
    for (class, colour) in [("red_thing", [255, 0, 0]), ("blue_thing", [0, 0, 255])] {
        let folder = root.join(class);
        fs::create_dir_all(&folder).unwrap();
        for number in 0..12 {
            let path = folder.join(format!("{number}.png"));
            omma_data::Picture::filled(16, 16, colour).save_png(&path).unwrap();
        }
    }
}

#[test]
fn a_run_leaves_a_model_with_its_tokenizer_and_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "limoe", &["model.moe.experts=4"]).assert().success();
    let run = folder.path().join("runs/limoe-1");
    let result = result(&run);
    // Of 40 test images, by a model that has hardly begun.
    for key in ["test_zero_shot_accuracy", "test_text_to_image_recall_at_1"] {
        let right = 40.0 * result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
        assert!((right - right.round()).abs() < 1e-9 && right < 30.0, "{key}: {right}");
    }
    let tokenizer = fs::read(run.join("tokenizer.json")).unwrap();
    let checkpoint = run.join("checkpoints/step-00000006/tokenizer.json");
    assert_eq!(fs::read(checkpoint).unwrap(), tokenizer);
    let config: Value =
        serde_json::from_slice(&fs::read(run.join("config.json")).unwrap()).unwrap();
    let vocabulary = config["text"]["vocabulary"].as_u64().unwrap();
    assert!((20..=150).contains(&vocabulary), "{vocabulary}");
    let report = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("recall"), "the report shows what was found");
}

/// Routing is that of a part; without experts nothing else is.
#[test]
fn parts_of_a_batch_learn_what_the_whole_does() {
    let folder = tempfile::tempdir().unwrap();
    let steps = |parts: usize| {
        let parts = format!("train.accumulation={parts}");
        let mut command = train(folder.path(), "limoe-dense", &[&parts, "train.log_every=1"]);
        command.args(["--run", &parts]).assert().success();
        logged(&folder.path().join(parts))
    };
    let (whole, parts) = (steps(1), steps(4));
    assert_eq!((whole.len(), parts.len()), (6, 6));
    for (whole, parts) in whole.iter().zip(&parts) {
        for key in ["loss", "gradient_norm", "accuracy"] {
            let [whole, parts] = [whole, parts].map(|record| record[key].as_f64().unwrap());
            let near = (whole - parts).abs() < 1e-3 * whole.abs().max(1.0);
            assert!(near, "{key}: {whole} {parts}");
        }
    }
    assert!((whole[0]["loss"].as_f64().unwrap() - 16_f64.ln()).abs() < 1.0, "{}", whole[0]);
}

#[test]
fn class_names_are_texts_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("things");
    folders(&data);
    let named = |settings: &[&str]| {
        let mut command = train(folder.path(), "limoe-dense", settings);
        command.args(["--data", "things"]);
        command
    };
    let message = error(named(&[]));
    assert!(message.contains("no captions") && message.contains("data.captions"), "{message}");
    named(&["data.captions=classes", "data.template=a photo of a {}"]).assert().success();
    let run = folder.path().join("runs/limoe-dense-1");
    assert!(result(&run)["test_zero_shot_accuracy"].is_number());
}

#[test]
fn other_data_is_mixed_in_by_its_share() {
    let folder = tempfile::tempdir().unwrap();
    folders(&folder.path().join("things"));
    let steps = |name: &str, more: &[&str]| {
        let settings = [&["train.steps=2", "train.log_every=1", "train.test_share=0"], more];
        let mut command = train(folder.path(), "limoe-dense", &settings.concat());
        command.args(["--run", name]).assert().success();
        logged(&folder.path().join(name))
    };
    let unmixed = steps("unmixed", &[]);
    let mixed = steps("mixed", &["data.mix=[\"things=1\"]", "data.share=3"]);
    assert_eq!((unmixed.len(), mixed.len()), (2, 2));
    assert_ne!(unmixed[0]["loss"], mixed[0]["loss"], "a batch has other images");
    let message = error(train(folder.path(), "limoe-dense", &["data.mix=[\"things\"]"]));
    assert!(message.contains("photos.csv=1"), "{message}");
    let message = error(plain(folder.path(), "vit", &["data.mix=[\"things=1\"]"]));
    assert!(message.contains("contrast"), "{message}");
}

#[test]
fn what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("broken.json"), "{").unwrap();
    let refused = |settings: &[&str]| error(train(folder.path(), "limoe", settings));
    let message = refused(&["contrast.tokenizer=broken.json"]);
    assert!(message.contains("broken.json"), "{message}");
    let message = refused(&["contrast.tokenizer=none.json"]);
    assert!(message.contains("none.json"), "{message}");
    let message = refused(&["model.moe.router=soft"]);
    assert!(message.contains("one tower"), "{message}");
    let message = error(plain(folder.path(), "vit", &["task=contrast"]));
    assert!(message.contains("limoe-tiny"), "{message}");
}
