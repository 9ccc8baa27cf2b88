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

#[test]
fn a_sweep_hands_the_signal_on_and_goes_on_with_the_same_command() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let sweep = |steps: &str| {
        let mut sweep = Command::new(assert_cmd::cargo::cargo_bin!("omma"));
        sweep.current_dir(here).args(["sweep", "default", "--out", "out", "--jobs", "1"]);
        for setting in crate::SETTINGS.iter().chain([&"optimiser.learning_rate=1e-3,2e-3", &steps])
        {
            sweep.args(["--set", setting]);
        }
        sweep.stdout(Stdio::null()).stderr(Stdio::null());
        sweep
    };
    let mut child = sweep("train.steps=60").spawn().unwrap();
    let [first, second] = ["001-learning-rate-1e-3", "002-learning-rate-2e-3"]
        .map(|name| here.join("out/runs").join(format!("{name}-seed-0")));
    assert!(wait_for_newer(&first, None, &mut child), "the sweep trains");
    // A second process is told who has the folder.
    let output = sweep("train.steps=60").stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("process {}", child.id())), "{text}");
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(!second.join("result.json").exists());
    let log = |name: &str| fs::read_to_string(here.join("out/logs").join(name)).unwrap();
    let began = log("train-001-learning-rate-1e-3-seed-0.txt");
    assert!(began.contains("stopped after step"), "{began}");
    assert!(sweep("train.steps=60").status().unwrap().success());
    assert!(first.join("result.json").exists() && second.join("result.json").exists());
    let went_on = log("train-001-learning-rate-1e-3-seed-0.txt");
    assert!(went_on.contains("going on after step"), "{went_on}");
    // The interrupted training ends as one that was left alone.
    let whole = here.join("whole");
    let mut alone = start(&whole, 60, &["optimiser.learning_rate=1e-3", "seed=0"]);
    assert!(alone.status().unwrap().success());
    let steps = |run: &std::path::Path| {
        fs::read_to_string(run.join("result.json")).unwrap().contains("\"steps\": 60")
    };
    assert!(steps(&first) && steps(&whole));
    assert_eq!(lines(&first), lines(&whole));
}
