//! Files of earlier versions: `run-1` was written before states had an identity and configurations were
//! checked as they stand, `run-2` before models were inputs, encoder and head, with a router of its own
//! settings.

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use omma_model::{checkpoint, parameter_values};
use omma_testing::copy_folder as copy;

use crate::{kill::resume, support::omma};

const RUNS: [&str; 2] = ["run-1", "run-2"];

fn data(run: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).join(run)
}

/// All parameters of a checkpoint.
fn values(path: &Path) -> Vec<f32> {
    let model = checkpoint::load(path, &Device::flex()).unwrap();
    parameter_values(&model).iter().flat_map(|value| value.read()).collect()
}

#[test]
fn an_old_run_goes_on_to_the_end_that_it_would_have_had() {
    for old in RUNS {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        copy(&data(old).join("unfinished"), &run);
        let log = fs::read(run.join("metrics.jsonl")).unwrap();
        assert!(resume(&run).status().unwrap().success());
        let longer = fs::read(run.join("metrics.jsonl")).unwrap();
        assert!(longer.starts_with(&log), "lines keep their bytes");
        let result = fs::read(run.join("result.json")).unwrap();
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
        assert!(result["train_seconds"].is_f64());
        assert!(result["train_cpu_seconds"].is_null(), "its first steps were not counted");
        let (found, expected) = (values(&run), values(&data(old).join("finished.safetensors")));
        let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert_eq!(found.len(), expected.len());
        assert!(furthest < 1e-4, "{old}: parameters differ by up to {furthest}");
    }
}

/// What `omma eval` says of something.
fn judged(subject: &Path, more: &[&str]) -> serde_json::Value {
    let out = tempfile::tempdir().unwrap();
    let mut command = omma(out.path(), &["eval"]);
    command.arg(subject).args(more).args(["--json", "--out"]).arg(out.path());
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

#[test]
fn an_old_unfinished_run_can_be_judged() {
    for old in RUNS {
        let record = judged(&data(old).join("unfinished"), &["--limit", "20"]);
        assert_eq!(record["samples"], 20, "{old}");
    }
}

/// `judged.json` is what the version that wrote these checkpoints said of them.
#[test]
fn old_checkpoints_of_every_system_say_what_they_said() {
    let systems = data("run-2").join("systems");
    let expected = fs::read(systems.join("judged.json")).unwrap();
    let expected: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.len(), 7);
    for (system, expected) in expected {
        let arguments = ["--data", "world", "--limit", "100", "--no-temperature"];
        let found = judged(&systems.join(&system), &arguments);
        assert_eq!(found["error"], expected["error"], "{system}");
        for what in ["parameters", "forward_macs"] {
            assert_eq!(found["cost"][what], expected["cost"][what], "{system}: {what}");
        }
        // Steps of a router's solver are counted since then, for 4 tokens and 4 experts: 500 of 4 operations at most,
        // and 20 of 6.
        let flops = |record: &serde_json::Value| record["cost"]["training_flops"].as_u64().unwrap();
        let solver = match system.as_str() {
            "sinkhorn" => 4 * 4 * 500 * 4,
            "expert-choice" => 4 * 4 * 20 * 6,
            _ => 0,
        };
        assert_eq!(flops(&found), flops(&expected) + solver, "{system}");
        let nll = |record: &serde_json::Value| record["nll"].as_f64().unwrap();
        let difference = (nll(&found) - nll(&expected)).abs();
        assert!(difference < 1e-6, "{system}: the NLL differs by {difference}");
    }
}

#[test]
fn a_number_of_seventeen_digits_was_trained_for_good() {
    let path = data("run-1").join("odd-number");
    let config = checkpoint::summary(&path).unwrap().config;
    assert_eq!(config.moe().unwrap().capacity_factor(), Some(1.066_666_666_666_666_7));
    checkpoint::load(&path, &Device::flex()).unwrap();
}
