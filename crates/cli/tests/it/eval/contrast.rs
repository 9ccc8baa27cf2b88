//! Models that compare images with texts, as a user meets them.

use std::{fs, path::Path};

use omma_base::Resolution;
use omma_data::{
    Dataset, Picture, Split,
    text::{Tokenizer, TokenizerKind},
    world::{Variant, World},
};
use omma_testing::model_settings;

use super::{error, json, number, omma};
use crate::support::{set, stdout};

/// A fresh model in `folder/NAME`, with a tokenizer.
fn fresh(folder: &Path, name: &str, seed: &str) {
    let mut command = omma(folder, &["init", "limoe-tiny", name, "--seed", seed]);
    let pairs = ["moe.experts=4", "embedding=12", "text.vocabulary=300"];
    command.args(set(&model_settings(&pairs)));
    command.assert().success();
    let world = World::new(1, Resolution::square(16), 200, Split::Test, Variant::Usual);
    let captions = (0..200).map(|index| world.captions(index).unwrap().remove(0));
    let tokenizer = Tokenizer::learn(captions, TokenizerKind::Unigram, 300).unwrap();
    fs::write(folder.join(name).join("tokenizer.json"), tokenizer.json()).unwrap();
}

/// Pictures of two colours in folders of these names.
fn pictures(folder: &Path, names: [&str; 2]) {
    for (name, colour) in names.iter().zip([[200, 30, 30], [20, 30, 200]]) {
        fs::create_dir_all(folder.join(name)).unwrap();
        for place in 0..6 {
            let [red, green, blue] = colour;
            let path = folder.join(name).join(format!("{place}.png"));
            Picture::filled(20, 20, [red, green + 9 * place, blue]).save_png(&path).unwrap();
        }
    }
}

#[test]
fn classes_and_captions_are_judged_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "model", "0");
    let evaluate = ["eval", "model", "--data", "world", "--limit", "40", "--out", "one", "--json"];
    let found = json(omma(at, &evaluate));
    assert_eq!((number(&found["samples"]), found["classes"].as_array().unwrap().len()), (40.0, 10));
    assert!(number(&found["error"]) <= 1.0 && found["contrast"]["prompts"].is_object());
    let captions = &found["contrast"]["captions"];
    assert_eq!(number(&captions["retrieval"]["text_to_image"]["candidates"]), 40.0);
    assert_eq!(number(&captions["accuracy"]["batch"]), 40.0);
    let html = fs::read_to_string(at.join("one/eval.html")).unwrap();
    assert!(html.contains("Retrieval") && html.contains("Calibration"));
    assert!(at.join("one/images.safetensors").is_file());

    fs::write(at.join("short.txt"), "a {}\n").unwrap();
    let other = omma(at, &[&evaluate[..6], &["--templates", "short.txt", "--json"]].concat());
    let other = json(other);
    assert_eq!(other["contrast"]["prompts"]["templates"], serde_json::json!(["a {}"]));
    assert_ne!(other["nll"], found["nll"]);
    let options = other["options"].as_array().unwrap();
    assert!(options.iter().any(|word| word == "--templates"), "{options:?}");

    fs::write(at.join("bad.txt"), "a {}\nno place\n").unwrap();
    let message = error(omma(at, &[&evaluate[..6], &["--templates", "bad.txt"]].concat()));
    assert!(message.contains("bad.txt: line 2 has no {}"), "{message}");
    let paper = omma(at, &[&evaluate[..6], &["--set", "moe.inference_capacity_ratio=16"]].concat());
    let text = stdout(paper);
    for part in [
        "each in 8 sentences",
        "text → image",
        "median rank",
        "pairs told apart",
        "captions: 40 texts",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn captions_alone_are_judged_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    pictures(at, ["red", "blue"]);
    let mut table = "image,caption\n".to_owned();
    for colour in ["red", "blue"] {
        for place in 0..6 {
            table += &format!("{colour}/{place}.png,a {colour} square number {place}\n");
            table += &format!("{colour}/{place}.png,there is something {colour} in here\n");
        }
    }
    fs::write(at.join("pairs.csv"), table).unwrap();
    for (name, seed) in [("a", "0"), ("b", "1")] {
        fresh(at, name, seed);
        let out = format!("judged-{name}");
        let evaluate = ["eval", name, "--data", "pairs.csv", "--out", &out, "--json"];
        let found = json(omma(at, &evaluate));
        assert!(found.get("error").is_none() && found["classes"].as_array().unwrap().is_empty());
        let captions = &found["contrast"]["captions"];
        assert_eq!((number(&captions["images"]), number(&captions["repeated"])), (12.0, 10.0));
        assert_eq!(number(&captions["texts"]["texts"]), 24.0);
    }
    let found = json(omma(at, &["compare", "judged-a", "judged-b", "--out", "both", "--json"]));
    assert!(number(&found["rows"][1]["text_to_image"]["at_10"]["mean"]) <= 1.0);
    assert!(found["rows"][0]["error"].is_null());
    let text = stdout(omma(at, &["compare", "judged-a", "judged-b"]));
    assert!(text.contains("image → text at 1 %"), "{text}");
    let message = error(omma(at, &["eval", "a", "--data", "pairs.csv", "--shift"]));
    assert!(message.contains("has no classes, only captions"), "{message}");
    let message = error(omma(at, &["fewshot", "a", "--data", "pairs.csv"]));
    assert!(message.contains("captions and no labels"), "{message}");
}

#[test]
fn classes_without_names_are_refused_and_can_be_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "model", "0");
    pictures(&at.join("photos"), ["0", "1"]);
    let evaluate = ["eval", "model", "--data", "photos"];
    let message = error(omma(at, &evaluate));
    assert!(message.contains("called 0, 1") && message.contains("--class-names"), "{message}");
    fs::write(at.join("names.txt"), "red_square\nblue square\n").unwrap();
    let named = omma(at, &[&evaluate[..], &["--class-names", "names.txt", "--json"]].concat());
    assert_eq!(json(named)["classes"], serde_json::json!(["red_square", "blue square"]));
    fs::write(at.join("names.txt"), "red\n").unwrap();
    let message = error(omma(at, &[&evaluate[..], &["--class-names", "names.txt"]].concat()));
    assert!(message.contains("names 1 classes") && message.contains("has 2"), "{message}");

    fs::remove_dir_all(at.join("photos/1")).unwrap();
    let message = error(omma(at, &evaluate));
    assert!(message.contains("no captions and less than two classes"), "{message}");
    fs::remove_file(at.join("model/tokenizer.json")).unwrap();
    let message = error(omma(at, &["eval", "model", "--data", "world", "--limit", "10"]));
    assert!(message.contains("model has no tokenizer"), "{message}");
    omma(at, &["init", "vit-tiny", "plain"]).assert().success();
    let message =
        error(omma(at, &["eval", "plain", "--data", "world", "--templates", "names.txt"]));
    assert!(message.contains("--templates is for models that compare images with texts"));
}

#[test]
fn predictions_are_made_among_any_labels() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "model", "0");
    pictures(at, ["red", "blue"]);
    let labels =
        ["predict", "model", "red/0.png", "--labels", "circle, red square,cross", "--json"];
    let found = json(omma(at, &labels));
    let names: Vec<&str> =
        found["top"].as_array().unwrap().iter().map(|one| one["class"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3);
    assert!(names.contains(&"red square"), "{names:?}");
    let message = error(omma(at, &["predict", "model", "red/0.png"]));
    assert!(message.contains("--labels cat,dog"), "{message}");
    let message = error(omma(at, &["predict", "model", "red/0.png", "--labels", "cat,"]));
    assert!(message.contains("one of the labels is empty"), "{message}");
    omma(at, &["init", "vit-tiny", "plain"]).assert().success();
    let message = error(omma(at, &["predict", "plain", "red/0.png", "--labels", "cat,dog"]));
    assert!(message.contains("plain does not compare images with texts"), "{message}");
}

#[test]
fn the_features_of_images_are_probed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "model", "0");
    pictures(&at.join("photos"), ["red", "blue"]);
    let shots = ["fewshot", "model", "--data", "photos", "--shots", "2", "--seeds", "1", "--json"];
    assert_eq!(number(&json(omma(at, &shots))["members"]), 1.0);
    let probe = ["probe", "model", "--data", "photos", "-o", "probe", "--json"];
    assert_eq!(number(&json(omma(at, &probe))["test_accuracy"]), 1.0);
    // What was kept is a classifier of images, which reads nothing.
    let found = json(omma(at, &["predict", "probe", "photos/blue/3.png", "--json"]));
    assert_eq!(found["top"][0]["class"], "blue");
    let config = fs::read_to_string(at.join("probe/config.json")).unwrap();
    assert!(config.contains("\"classifier\"") && !config.contains("vocabulary"), "{config}");
}
