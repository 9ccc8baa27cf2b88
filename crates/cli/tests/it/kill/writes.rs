//! A run that is killed and resumed ends with the same bits as one that is not.

use std::{path::Path, time::Duration};

use burn::tensor::Device;
use omma_model::checkpoint;
use omma_testing::is_nightly;

use crate::kill::{
    STEPS, assert_same, killed_at, resume, start, steps, tensors, wait_for_newer, whole,
};

/// Every kind of write of a run, and how often a process gets there before it is killed.
const WRITES: &[(usize, &str)] = &[
    (1, "recipe.toml:done"),
    (3, "state.safetensors:create"),
    (2, "state.safetensors:rename"),
    (3, "model.safetensors:rename"),
    (2, "checkpoint:rename"),
    (2, "checkpoint:done"),
    (2, "newest.json:rename"),
    (5, "metrics.jsonl:append"),
    (1, "checkpoint:remove"),
    (1, "best.json:rename"),
    (1, "summary.csv:rename"),
    (1, "report.html:rename"),
    (1, "result.json:rename"),
];

/// Asserts that whatever is there after a kill can be read.
fn assert_checkpoints_load(run: &Path) {
    for checkpoint in steps(run) {
        checkpoint::load(&checkpoint, &Device::flex()).unwrap();
        assert!(!tensors(&checkpoint.join("state.safetensors")).is_empty());
    }
}

fn assert_nothing_left_over(run: &Path) {
    for folder in [run, &run.join("checkpoints")] {
        let names = std::fs::read_dir(folder).unwrap().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let left: Vec<_> = names.filter(|name| name.starts_with('.') && name != ".lock").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn run_killed_at_every_kind_of_write_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    for (place, (count, point)) in WRITES.iter().enumerate() {
        let mut command = if place == 0 { start(&run, STEPS, &[]) } else { resume(&run) };
        killed_at(&mut command, *count, point);
        assert_checkpoints_load(&run);
    }
    assert!(!run.join("result.json").exists());
    assert!(resume(&run).status().unwrap().success());
    assert!(run.join("report.html").exists());
    assert_same(&whole(), &run);
    assert_nothing_left_over(&run);
}

/// Kills at moments that nobody has chosen.
#[test]
fn run_killed_at_random_moments_ends_with_the_same_bits() {
    let (kills, length) = if is_nightly() { (20, 400) } else { (3, STEPS) };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let alone = if is_nightly() {
        let alone = folder.path().join("whole");
        assert!(start(&alone, length, &[]).status().unwrap().success());
        alone
    } else {
        whole()
    };
    let mut child = start(&run, length, &[]).spawn().unwrap();
    let mut delay: u64 = 12345;
    for _ in 0..kills {
        let last = steps(&run).pop();
        if !wait_for_newer(&run, last.as_ref(), &mut child) {
            break; // It was faster.
        }
        delay = delay.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(delay >> 50));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!steps(&run).is_empty(), "checkpoints were lost");
        assert_checkpoints_load(&run);
        child = resume(&run).spawn().unwrap();
    }
    child.wait().unwrap();
    assert_same(&alone, &run);
    assert_nothing_left_over(&run);
}
