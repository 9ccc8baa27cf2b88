//! Files that were written before states had an identity and configurations were checked as they stand.

use std::{fs, path::Path};

use assert_cmd::cargo::cargo_bin_cmd;
use burn::tensor::Device;
use omma_model::{checkpoint, parameter_values};

use crate::resume;

fn data() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/run-1"))
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy(&path, &to),
            false => _ = fs::copy(&path, &to).unwrap(),
        }
    }
}

/// All parameters of a checkpoint.
fn values(path: &Path) -> Vec<f32> {
    let model = checkpoint::load(path, &Device::flex()).unwrap();
    parameter_values(&model).iter().flat_map(|value| value.read()).collect()
}

#[test]
fn an_old_run_goes_on_to_the_end_that_it_would_have_had() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    copy(&data().join("unfinished"), &run);
    let old = fs::read(run.join("metrics.jsonl")).unwrap();
    assert!(resume(&run).status().unwrap().success());
    let log = fs::read(run.join("metrics.jsonl")).unwrap();
    assert!(log.starts_with(&old), "lines keep their bytes");
    let (found, expected) = (values(&run), values(&data().join("finished.safetensors")));
    let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert_eq!(found.len(), expected.len());
    assert!(furthest < 1e-4, "parameters differ by up to {furthest}");
}

#[test]
fn an_old_unfinished_run_can_be_judged() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    copy(&data().join("unfinished"), &run);
    let mut command = cargo_bin_cmd!("omma");
    let out = folder.path().join("out");
    command.arg("eval").arg(&run).args(["--limit", "20", "--json", "--out"]).arg(&out);
    let output = command.assert().success().get_output().stdout.clone();
    let record: serde_json::Value = serde_json::from_slice(&output).unwrap();
    assert_eq!(record["samples"], 20);
}

#[test]
fn a_number_of_seventeen_digits_was_trained_for_good() {
    let path = data().join("odd-number");
    let config = checkpoint::summary(&path).unwrap().config;
    assert_eq!(config.moe().unwrap().capacity_factor().unwrap(), 1.066_666_666_666_666_7);
    checkpoint::load(&path, &Device::flex()).unwrap();
}
