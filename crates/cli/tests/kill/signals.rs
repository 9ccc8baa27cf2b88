//! SIGTERM at every stage of a run: it stops with an exit code of its own, and goes on to the same end.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{lines, model, resume, signal, start, steps, wait_for_newer};

/// Long evaluations, and a linear classifier at the end, so that signals meet all of them.
const SETTINGS: &[&str] =
    &["data.test_samples=2000", "train.evaluate_every=10", "train.linear_baseline=true"];
const STEPS: usize = 40;
const MOMENTS: u32 = 16;

#[test]
fn a_run_can_be_stopped_at_every_stage() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let began = Instant::now();
    assert!(start(&whole, STEPS, SETTINGS).status().unwrap().success());
    let length = began.elapsed();
    let mut interrupted = 0;
    for moment in 0..MOMENTS {
        let run = folder.path().join(format!("{moment}"));
        let mut child = start(&run, STEPS, SETTINGS).spawn().unwrap();
        std::thread::sleep(length * moment / MOMENTS);
        signal(&child, "-TERM");
        let sent = Instant::now();
        let status = child.wait().unwrap();
        assert!(sent.elapsed() < Duration::from_secs(20), "it does not stop");
        // The first moments come before the program listens, the last ones after its end.
        let listened = run.join("recipe.toml").exists();
        match status.code() {
            Some(143) => interrupted += 1,
            Some(0) => assert!(run.join("result.json").exists()),
            other => assert!(other.is_none() && !listened, "{status}"),
        }
        if !listened {
            continue;
        }
        if !run.join("result.json").exists() {
            assert!(resume(&run).status().unwrap().success(), "stopped at moment {moment}");
        }
        assert!(model(&whole) == model(&run), "stopped at moment {moment}");
        assert_eq!(lines(&whole), lines(&run), "stopped at moment {moment}");
    }
    assert!(interrupted > 5, "only {interrupted} were interrupted");
}

#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut child = start(&run, 400, &[]).stderr(Stdio::piped()).spawn().unwrap();
    assert!(wait_for_newer(&run, None, &mut child));
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("--resume") && !steps(&run).is_empty(), "{text}");
    assert!(resume(&run).status().unwrap().success());
    assert!(!resume(&run).status().unwrap().success(), "it has ended");
}

#[test]
fn a_study_hands_the_signal_on() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::create_dir(here.join("mine")).unwrap();
    let settings: Vec<String> = crate::SETTINGS.iter().map(|text| format!("{text:?}")).collect();
    let study = format!(
        "name = \"mine\"\nabout = \"x\"\nseeds = 1\nbaseline = \"a\"\n[[systems]]\nlabel = \"a\"\n\
         recipe = \"vmoe.toml\"\nsettings = [{}, \"train.steps=100000\"]\n",
        settings.join(", ")
    );
    fs::write(here.join("mine/study.toml"), study).unwrap();
    fs::write(here.join("mine/vmoe.toml"), "model.preset = \"vmoe-tiny\"").unwrap();
    let mut study = Command::new(assert_cmd::cargo::cargo_bin!("omma"));
    study.current_dir(here).args(["study", "mine", "--out", "out", "--jobs", "1"]);
    let mut child = study.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let run = here.join("out/runs/a-0");
    assert!(wait_for_newer(&run, None, &mut child), "the study trains");
    signal(&child, "-TERM");
    let sent = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(sent.elapsed() < Duration::from_secs(15), "the training was killed, not stopped");
    let log = fs::read_to_string(here.join("out/logs/train-a-0.txt")).unwrap();
    assert!(log.contains("stopped after step"), "{log}");
}
