//! Experts on several ranks.

use std::{fs, path::Path};

use omma_testing::by_tier;

use crate::ranks::{
    MIXTURE, alone, assert_same, checkpoints, finish,
    kill::{Job, assert_whole},
    resume, start, tensors,
};

/// The settings of a mixture whose experts are on so many ranks.
fn spread(setting: &str) -> Vec<&str> {
    MIXTURE.iter().copied().chain([setting]).collect()
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    let four = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
    four.map(f64::from).collect()
}

/// Two runs with the same model but for rounding, and files of the same names and sizes.
fn assert_close(one: &Path, other: &Path) {
    let model = |run: &Path| tensors(&run.join("model.safetensors"));
    let (own, others) = (model(one), model(other));
    assert!(own.keys().eq(others.keys()));
    // Gradients of the keys' biases are nothing but rounding.
    for (name, own) in own.iter().filter(|(name, _)| !name.ends_with("qkv_bias")) {
        let (own, other) = (floats(own), floats(&others[name]));
        assert_eq!(own.len(), other.len(), "{name}");
        let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
        let apart: Vec<f64> = own.iter().zip(&other).map(|(a, b)| a - b).collect();
        let apart = norm(&apart) / norm(&own).max(1e-12);
        assert!(apart < 1e-3, "{name}: {apart:.1e}");
    }
}

#[test]
fn experts_on_two_and_on_four_ranks_learn_what_they_learn_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("alone");
    let steps = by_tier(16, 50);
    alone(&whole, steps, MIXTURE);
    for (ranks, experts) in [(2, 2), (4, 2), (4, 4)] {
        let run = folder.path().join(format!("{ranks}-{experts}"));
        let setting = format!("train.expert_parallel={experts}");
        finish(&mut start(ranks, &run, steps, &spread(&setting)));
        assert_close(&whole, &run);
        let log = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        assert!(log.contains("\"peak_load\"") && log.contains("\"experts\""), "{log}");
    }
}

#[test]
fn spread_experts_survive_kills_and_other_numbers_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let settings = spread("train.expert_parallel=2");
    let (kills, steps) = by_tier((1, 36), (5, 90));
    finish(&mut start(4, &at("whole"), steps, &settings));
    let run = at("killed");
    let mut job = Job::start(start(4, &run, steps, &settings));
    for kill in 0..kills {
        job.wait_for_newer(&run, checkpoints(&run).last().cloned().as_ref());
        let said = job.kill((3 * kill + 1) % 4);
        assert!(said.contains("signal 9"), "{said}");
        assert_whole(&run);
        job = Job::start(resume(4, &run));
    }
    assert!(job.mpirun.wait().unwrap().success());
    assert_same(&at("whole"), &run);

    // Four ranks, one process, two ranks.
    let run = at("moved");
    let mut job = Job::start(start(4, &run, steps, &spread("train.expert_parallel=4")));
    job.wait_for_newer(&run, None);
    job.kill(2);
    let mut job = Job::start(resume(1, &run));
    job.wait_for_newer(&run, checkpoints(&run).last().cloned().as_ref());
    job.kill(0);
    finish(&mut resume(2, &run));
    assert_close(&at("whole"), &run);
}
