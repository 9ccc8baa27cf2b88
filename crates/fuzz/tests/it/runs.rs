//! Recipes, the state of a training, logs, and the records of evaluations.

use std::{cell::RefCell, fs};

use burn::tensor::Device;
use omma_eval::{
    Evaluation,
    compare::{Comparison, read_evaluation},
    report::{comparison_page, evaluation_page},
};
use omma_fuzz::{Container, Target};
use omma_model::checkpoint;
use omma_train::{
    Recipe, Weights,
    logs::{Logs, read_records},
    optimiser::{Optimiser, OptimiserConfig},
    recipe::{BUILT_IN, Request},
    run::{Place, Progress, RunFolder, Saved, State},
};

use crate::file;

#[test]
fn recipe() {
    let seeds = BUILT_IN.iter().map(|(_, text)| text.as_bytes().to_vec());
    let saved =
        ["run-1", "run-2"].map(|run| file(&format!("cli/tests/data/{run}/unfinished/recipe.toml")));
    let target = Target {
        name: "recipe.toml",
        seeds: seeds.chain(saved).collect(),
        containers: &[],
        cases: 600,
    };
    let preset = Request::of(&["model.preset=vmoe-tiny"]);
    target.run(|path| {
        // Some take the model from elsewhere, and some were saved by earlier versions.
        let read = Recipe::read(path, &Request::default())
            .or_else(|_| Recipe::read(path, &preset))
            .or_else(|_| Recipe::read_saved(path));
        let Ok(recipe) = read else { return false };
        let again = Recipe::parse::<&str>(&recipe.to_toml(), path, &[]);
        assert_eq!(again.expect("what is saved can be read"), recipe);
        let saved = recipe.to_toml();
        fs::write(path, &saved).unwrap();
        assert_eq!(Recipe::read_saved(path).expect("a run finds its recipe"), recipe);
        let _ = recipe.check_memory();
        let _ = recipe.total_steps(1000);
        true
    });
}

/// Two states of a small model, one of them with weights of its own beside their average.
fn states() -> (Vec<Vec<u8>>, checkpoint::Identity, Optimiser) {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    fs::write(&weights, file("cli/tests/data/run-1/finished.safetensors")).unwrap();
    let (model, identity) = checkpoint::load_identified(folder.path(), &Device::flex()).unwrap();
    let weights = Weights::of(&model);
    let parameters = weights.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice()));
    let optimiser = Optimiser::new(OptimiserConfig::default(), 2, parameters);
    let state = |raw| {
        let progress = Progress { step: 30, ..Progress::default() };
        let (model, recipe) = (identity.clone(), "name = \"x\"".to_owned());
        let data = serde_json::json!({"train": 9, "held_out": 1, "test": 2, "labels": "0"});
        let data = serde_json::from_value(data).unwrap();
        State::save(
            folder.path(),
            Saved { progress, model, recipe, data, optimiser: &optimiser, raw, whole: &() },
        )
        .unwrap();
        fs::read(folder.path().join("state.safetensors")).unwrap()
    };
    let states = vec![state(None), state(Some(&weights))];
    (states, identity, optimiser)
}

#[test]
fn state() {
    let (mut seeds, identity, optimiser) = states();
    seeds.push(file("cli/tests/data/run-1/unfinished/checkpoints/step-00000030/state.safetensors"));
    let note =
        Container::Note { key: "omma-training", content: "content", checksum: "content_checksum" };
    let target = Target {
        name: "state.safetensors",
        seeds,
        containers: &[note, Container::SafetensorsHeader],
        cases: 300,
    };
    let optimiser = RefCell::new(optimiser);
    target.run(|path| {
        let folder = path.parent().unwrap();
        let Ok(state) = State::load(folder, 30, &identity) else { return false };
        assert_eq!(state.progress.step, 30);
        let mut restored = |averaged| state.restore(&mut optimiser.borrow_mut(), averaged).is_ok();
        let restored = [false, true].map(&mut restored);
        restored.contains(&true)
    });
}

#[test]
fn metrics() {
    let seeds = vec![file("cli/tests/data/run-1/unfinished/metrics.jsonl")];
    let target = Target { name: "metrics.jsonl", seeds, containers: &[], cases: 300 };
    let recipe = Recipe::find("default", &Request::default()).unwrap();
    target.run(|path| {
        let folder = path.with_file_name("run");
        let run = RunFolder::create(Place::At(&folder), &recipe).unwrap();
        fs::copy(path, run.file("metrics.jsonl")).unwrap();
        let before = read_records(&run).unwrap();
        drop(Logs::open(&run, u64::MAX).unwrap());
        let after = read_records(&run).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert!(before.starts_with(&after), "lines before the last are kept");
        assert!(after.len() + 1 >= before.len());
        before.len() > 1 && before == after
    });
}

#[test]
fn evaluation() {
    let seeds = vec![file("fuzz/tests/data/eval.json")];
    let right = seeds[0].clone();
    let target = Target { name: "eval.json", seeds, containers: &[], cases: 300 };
    target.run(|path| {
        let right = crate::beside(path, "right.json", &right);
        let (Ok(right), Ok(other)) = (read_evaluation(&right), read_evaluation(path)) else {
            return false;
        };
        let _ = evaluation_page(&other);
        let compare = |both: [Evaluation; 2]| {
            let Ok(comparison) = Comparison::new(&both, None) else { return false };
            let _ = comparison_page(&comparison, "x", "y");
            let _ = comparison.markdown();
            let _ = comparison.tables();
            true
        };
        let compared = [[right.clone(), other.clone()], [other, right]].map(compare);
        compared == [true; 2]
    });
}
