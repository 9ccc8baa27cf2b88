//! `omma routes` and `omma look` as a user types them.

use std::{fs, path::Path};

use omma_base::Resolution;
use omma_data::{
    Dataset, Split,
    text::{Tokenizer, TokenizerKind},
    world::{Variant, World},
};
use omma_testing::model_settings;
use serde_json::Value;

use crate::support::{error, omma, set, stdout};

/// Four blocks, and four experts where there are any.
const SMALL: &[&str] = &["depth=4", "moe.experts=4"];

/// A fresh model in `folder/name`.
fn fresh(folder: &Path, preset: &str, name: &str, settings: &[&str]) {
    let mut command = omma(folder, &["init", preset, name]);
    // A dense model has no experts to count.
    let own = SMALL.iter().filter(|setting| preset != "vit-tiny" || !setting.starts_with("moe."));
    let settings: Vec<&str> = own.chain(settings).copied().collect();
    command.args(set(&model_settings(&settings)));
    command.assert().success();
}

fn world(images: usize) -> World {
    World::new(1, Resolution::square(16), images, Split::Test, Variant::Usual)
}

fn reading(folder: &Path, name: &str) {
    fresh(folder, "limoe-tiny", name, &["embedding=12", "text.vocabulary=300"]);
    let captions = (0..200).map(|index| world(200).captions(index).unwrap().remove(0));
    let tokenizer = Tokenizer::learn(captions, TokenizerKind::Unigram, 300).unwrap();
    fs::write(folder.join(name).join("tokenizer.json"), tokenizer.json()).unwrap();
}

fn picture(folder: &Path, name: &str) {
    world(1).get(0).unwrap().picture.save_png(&folder.join(name)).unwrap();
}

#[test]
fn an_atlas_is_a_page_a_record_and_figures() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "vmoe-tiny", "model", &[]);
    let arguments = ["routes", "model", "--data", "world", "--limit", "40", "--out", "atlas"];
    let text = stdout(omma(at, &arguments));
    for part in
        ["peak load", "settled by class", "C(4, 2)^2", "different experts", "atlas/routes.html"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let record = fs::read_to_string(at.join("atlas/routes.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["models"][0]["images"], 40);
    assert_eq!(record["classes"].as_array().unwrap().len(), 10);
    let html = fs::read_to_string(at.join("atlas/routes.html")).unwrap();
    assert!(html.contains("What follows") && html.contains("Classes and experts"));
    for file in ["information", "load", "ways", "coverage-images"] {
        assert!(at.join(format!("atlas/figures/{file}.svg")).is_file(), "{file}");
    }
    // The same again as JSON, to the bit.
    let json = omma(at, &[&arguments[..], &["--json"]].concat());
    assert_eq!(serde_json::from_str::<Value>(&stdout(json)).unwrap(), record);
}

#[test]
fn several_models_have_sections_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "vmoe-tiny", "one", &[]);
    fresh(at, "softmoe-tiny", "soft", &["resolution=24"]);
    let text = stdout(omma(at, &["routes", "one", "soft", "--data", "world", "--limit", "20"]));
    assert!(text.contains("one:") && text.contains("soft:"), "{text}");
    let folders: Vec<_> = fs::read_dir(at.join("routes")).unwrap().collect();
    let atlas = folders[0].as_ref().unwrap().path();
    assert_eq!(folders.len(), 1, "a fresh folder");
    let html = fs::read_to_string(atlas.join("routes.html")).unwrap();
    assert!(html.contains("one: What follows") && html.contains("soft: What follows"));
    assert!(atlas.join("figures/2-experts-places-block-1.svg").is_file(), "where slots look");
    assert!(!atlas.join("figures/2-classes-dispatch-block-1.svg").exists(), "all classes alike");
}

#[test]
fn images_and_captions_are_looked_at_together() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    reading(at, "model");
    let json = ["routes", "model", "--data", "world", "--limit", "24", "--out", "atlas", "--json"];
    let found: Value = serde_json::from_str(&stdout(omma(at, &json))).unwrap();
    let model = &found["models"][0];
    assert_eq!((&model["images"], &model["texts"]), (&24.into(), &24.into()));
    assert_eq!(model["blocks"][0]["modalities"][1]["modality"], "texts");
    assert!(model["blocks"][0]["words"].as_array().is_some_and(|words| !words.is_empty()));
    picture(at, "photo.png");
    let text = "a red circle";
    let seen = stdout(omma(at, &["look", "model", "photo.png", "--text", text, "--out", "seen"]));
    assert!(seen.contains("photo.png:") && seen.contains("a red circle:"), "{seen}");
    let html = fs::read_to_string(at.join("seen/look.html")).unwrap();
    assert!(html.contains("row 1, column 1: expert ") && html.contains("“a”: expert "));
}

#[test]
fn a_look_alone_is_written_below_looks_and_as_json_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "e3-tiny", "model", &[]);
    picture(at, "photo.png");
    let json = stdout(omma(at, &["look", "model", "photo.png", "--json"]));
    let found: Value = serde_json::from_str(&json).unwrap();
    let blocks = found["inputs"][0]["blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 4, "two layers of two members");
    assert_eq!(blocks[1]["member"], 1);
    assert!(!at.join("looks").exists());
    let text = stdout(omma(at, &["look", "model", "photo.png"]));
    assert!(text.contains("member 2") && text.contains("look.html"), "{text}");
    assert!(at.join("looks").is_dir());
}

#[test]
fn what_has_no_routes_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fresh(at, "vit-tiny", "dense", &[]);
    picture(at, "photo.png");
    let no_experts = error(omma(at, &["routes", "dense", "--data", "world", "--limit", "8"]));
    assert!(no_experts.contains("omma upcycle"), "{no_experts}");
    assert!(
        fs::read_dir(at.join("routes")).map_or(0, Iterator::count) == 0,
        "nothing is left behind"
    );
    fresh(at, "vmoe-tiny", "model", &[]);
    let deaf = error(omma(at, &["look", "model", "photo.png", "--text", "a dog"]));
    assert!(deaf.contains("text"), "{deaf}");
    let no_data = error(omma(at, &["routes", "model"]));
    assert!(no_data.contains("--data"), "{no_data}");
    let few = error(omma(at, &["routes", "model", "--data", "world", "--permutations", "9"]));
    assert!(few.contains("99"), "{few}");
    let gone = error(omma(at, &["look", "model", "nowhere.png"]));
    assert!(gone.contains("nowhere.png"), "{gone}");
}
