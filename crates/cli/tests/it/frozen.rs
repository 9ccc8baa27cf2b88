//! Frozen backbones as a user types them: `train.freeze`, `data.cache`, `omma probe`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use assert_cmd::Command;
use omma_testing::SMALL_RUN;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{self, error, json, set, stderr};

/// A deeper model with more tokens than the small one, trained for longer.
const DEEPER: &[&str] =
    &["model.patch=4", "model.depth=3", "data.test_samples=60", "train.steps=12"];

fn omma(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = support::omma(folder, arguments);
    command.env("OMMA_CACHE", folder.join("cache"));
    command
}

fn train(folder: &Path, run: &str, recipe: &str, settings: &[&str]) -> Command {
    let mut command = omma(folder, &["train", recipe, "--run", run]);
    command.args(set(&[SMALL_RUN, DEEPER, settings].concat()));
    command
}

/// All values of a run's model by name.
fn values(folder: &Path, run: &str) -> Vec<(String, Vec<f32>)> {
    let bytes = fs::read(folder.join(run).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |data: &[u8]| -> Vec<f32> {
        data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let mut all: Vec<_> =
        file.tensors().into_iter().map(|(name, tensor)| (name, floats(tensor.data()))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// The largest difference between two runs' values.
fn difference(folder: &Path, a: &str, b: &str) -> f32 {
    let (a, b) = (values(folder, a), values(folder, b));
    let pairs = a.iter().flat_map(|(_, v)| v).zip(b.iter().flat_map(|(_, v)| v));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The only folder of activations.
fn cache(folder: &Path) -> PathBuf {
    let mut all = fs::read_dir(folder.join("cache")).unwrap();
    let one = all.next().unwrap().unwrap().path();
    assert!(all.next().is_none(), "one folder of activations");
    one
}

#[test]
fn what_is_frozen_keeps_its_bits_and_the_rest_learns() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, "start", "vit", &["train.steps=2"]).assert().success();
    let more = ["train.freeze=embed,0,blocks.2.attention", "train.ema=0.9"];
    let text = stderr({
        let mut command = train(folder, "run", "vit", &more);
        command.args(["--init", "start"]);
        command
    });
    assert!(text.contains("learn"), "how many learn is said: {text}");
    for ((name, before), (_, after)) in
        values(folder, "start").into_iter().zip(values(folder, "run"))
    {
        let frozen = ["embed.", "blocks.0.", "blocks.2.attention."];
        let frozen = frozen.iter().any(|part| name.starts_with(part));
        assert_eq!(before == after, frozen, "{name}");
    }
    // Nothing is remembered of what does not learn.
    let state = fs::read(folder.join("run/checkpoints/step-00000012/state.safetensors")).unwrap();
    let state = SafeTensors::deserialize(&state).unwrap();
    assert!(state.names().iter().any(|name| name.contains("blocks.1.")));
    assert!(
        !state.names().iter().any(|name| name.contains("blocks.0.") || name.contains("embed."))
    );
}

#[test]
fn kept_activations_train_the_same_model_and_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let freeze = ["train.freeze=all-but-1"];
    let cached = ["train.freeze=all-but-1", "data.cache=true"];
    train(folder, "plain", "vit", &freeze).assert().success();
    let first = stderr(train(folder, "first", "vit", &cached));
    assert!(first.contains("made activations") && first.contains("16 × 16 each"), "{first}");
    let again = stderr(train(folder, "again", "vit", &cached));
    assert!(!again.contains("made activations"), "they were kept: {again}");
    assert_eq!(difference(folder, "first", "again"), 0.0);
    assert!(difference(folder, "plain", "first") < 1e-5);
    // A learning rate is not what they depend on, and neither is the part above; the images are.
    let other = ["optimiser.learning_rate=1e-4", "model.head.representation=8"];
    assert!(
        !stderr(train(folder, "rate", "vit", &[&cached[..], &other].concat())).contains("making")
    );
    let folder_of_all = cache(folder);
    let other =
        stderr(train(folder, "world", "vit", &[&cached[..], &["data.world_seed=5"]].concat()));
    assert!(other.contains("made activations"), "{other}");
    // Draws of the augmentation are kept too, and make another model.
    let drawn = [&cached[..], &["data.cache_augmentations=2", "augment.flip=true"]].concat();
    assert!(stderr(train(folder, "drawn", "vit", &drawn)).contains("2 draws"));
    assert!(difference(folder, "first", "drawn") > 0.0);
    // Damage is found, a file that is cut off is made again.
    let rows = folder_of_all.join("activations.f32");
    let mut bytes = fs::read(&rows).unwrap();
    bytes[40] ^= 1;
    fs::write(&rows, &bytes).unwrap();
    let message = error(train(folder, "damaged", "vit", &cached));
    assert!(message.contains("checksum") && message.contains("activations.f32"), "{message}");
    fs::write(&rows, &bytes[..100]).unwrap();
    assert!(stderr(train(folder, "cut", "vit", &cached)).contains("made activations"));
    assert_eq!(difference(folder, "first", "cut"), 0.0);
}

#[test]
fn an_interrupted_run_on_activations_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let settings = ["train.freeze=all-but-1", "data.cache=true", "train.checkpoint_every=4"];
    train(folder, "whole", "vit", &settings).assert().success();
    train(folder, "part", "vit", &settings).assert().success();
    for file in ["result.json", "model.safetensors", "checkpoints/step-00000012/model.safetensors"]
    {
        fs::remove_file(folder.join("part").join(file)).unwrap();
    }
    fs::remove_dir_all(folder.join("cache")).unwrap();
    omma(folder, &["train", "--resume", "part"]).assert().success();
    assert_eq!(difference(folder, "whole", "part"), 0.0);
}

#[test]
fn what_cannot_be_frozen_or_kept_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let message = |settings: &[&str]| error(train(folder.path(), "run", "vit", settings));
    assert!(message(&["train.freeze=7"]).contains("blocks 0-2"));
    assert!(message(&["data.cache=true"]).contains("train.freeze"));
    assert!(message(&["data.cache_augmentations=2"]).contains("data.cache=true"));
    let mixed = ["data.cache=true", "train.freeze=backbone", "mixing.mixup=0.2"];
    assert!(message(&mixed).contains("mixing.mixup"));
    assert!(!folder.path().join("run").exists(), "nothing is left behind");
}

#[test]
fn a_probe_is_a_model_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let world = ["data.train_samples=1000", "data.test_samples=200", "train.steps=60"];
    train(folder, "run", "vit", &world).assert().success();
    for (head, out) in [("ridge", "ridge"), ("linear", "linear")] {
        let mut probe = omma(folder, &["probe", "run", "-o", out, "--head", head, "--json"]);
        probe.args(["--blocks", "1-3"]);
        let record = json(probe);
        let number = |key: &str| record[key].as_f64().unwrap();
        assert_eq!(record["trials"].as_array().unwrap().len(), 3);
        assert_eq!((number("fitted_on"), number("chosen_on")), (900.0, 100.0));
        assert_eq!(number("test_images"), 200.0);
        // Three standard deviations above chance.
        assert!(number("test_accuracy") > 0.165, "{}", number("test_accuracy"));
        assert!(number("test_nll") < 10_f64.ln(), "its confidence is worth something");
        let config: Value =
            serde_json::from_slice(&fs::read(folder.join(out).join("config.json")).unwrap())
                .unwrap();
        let depth = record["chosen"]["depth"].clone();
        assert_eq!(find(&config, "depth"), Some(&depth), "{config}");
        let mut predict = omma(folder, &["predict", out, "picture.png", "--json", "--top", "1"]);
        image::RgbImage::new(16, 16).save(folder.join("picture.png")).unwrap();
        let output = predict.assert().success();
        let line: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        let class = line["top"][0]["class"].as_str().unwrap();
        let names: Vec<String> =
            serde_json::from_slice(&fs::read(folder.join(out).join("classes.json")).unwrap())
                .unwrap();
        assert!(names.iter().any(|name| name == class), "classes have names: {class}");
    }
    let again = omma(folder, &["probe", "run", "-o", "ridge"]);
    assert!(error(again).contains("--force"));
    let message = error(omma(folder, &["probe", "run", "-o", "x", "--blocks", "4"]));
    assert!(message.contains("1-3"), "{message}");
    let few = json(omma(folder, &["probe", "run", "-o", "few", "--shots", "5", "--json"]));
    assert_eq!(few["fitted_on"].as_f64(), Some(50.0));
    let message = error(omma(folder, &["probe", "run", "-o", "many", "--shots", "900"]));
    assert!(message.contains("--shots 900"), "{message}");
    // Fine-tuning goes on from it.
    let mut tune = omma(folder, &["train", "finetune", "--init", "ridge", "--data", "world"]);
    tune.args(["--run", "tuned", "--set", "model.resolution=16", "--set", "train.steps=2"]);
    tune.args(["--set", "data.train_samples=200", "--set", "data.test_samples=20"]);
    tune.assert().success();
}

/// The value of a key, however deep it lies.
fn find<'a>(tree: &'a Value, key: &str) -> Option<&'a Value> {
    let fields = tree.as_object()?;
    fields.get(key).or_else(|| fields.values().find_map(|value| find(value, key)))
}
