//! A run that is killed and resumed ends with the same bits as one that is not.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use burn::tensor::Device;
use omma_model::checkpoint;

use crate::{lines, model, resume, start, steps, tensors, wait_for_newer};

const KILLS: usize = 20;
const STEPS: usize = 400;

#[test]
fn killed_runs_end_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    assert!(start(&whole, STEPS, &[]).status().unwrap().success());

    let mut kills = 0;
    let mut child = start(&broken, STEPS, &[]).spawn().unwrap();
    let mut delay: u64 = 12345;
    while kills < KILLS {
        let last = steps(&broken).last().cloned();
        assert!(wait_for_newer(&broken, last.as_ref(), &mut child), "too fast: {kills} kills");
        delay = delay.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(delay >> 50));
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let left = steps(&broken);
        assert!(!left.is_empty(), "checkpoints were lost");
        for checkpoint in left {
            checkpoint::load(&checkpoint, &Device::flex()).unwrap();
            assert!(!tensors(&checkpoint.join("state.safetensors")).is_empty());
        }
        child = resume(&broken).spawn().unwrap();
    }
    assert!(child.wait().unwrap().success());
    assert!(broken.join("result.json").exists() && broken.join("report.html").exists());

    assert!(model(&whole) == model(&broken), "the trained models differ");
    let (a, b) = (steps(&whole), steps(&broken));
    let names = |paths: &[PathBuf]| -> Vec<_> {
        paths.iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&a), names(&b));
    for (a, b) in a.iter().zip(&b) {
        let state = |path: &Path| tensors(&path.join("state.safetensors"));
        assert!(state(a) == state(b), "the states of {} differ", a.display());
    }
    assert_eq!(lines(&whole), lines(&broken));
    let leftovers = |folder: &Path| {
        let names = std::fs::read_dir(folder).unwrap().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with('.') && name != ".lock").collect::<Vec<_>>()
    };
    assert!(leftovers(&broken).is_empty(), "{:?}", leftovers(&broken));
    assert!(leftovers(&broken.join("checkpoints")).is_empty());
}
