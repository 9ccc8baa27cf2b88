//! SIGTERM at every stage of a run: it stops with an exit code of its own, and goes on to the same end.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use omma_testing::copy_folder;

use crate::{
    kill::{lines, model, resume, signal, start, steps, wait_for_newer, whole, with_fault},
    support::program,
};

/// Evaluations on the way, and a linear classifier at the end, so that signals meet all of them.
const SETTINGS: &[&str] = &["train.evaluate_every=10", "train.linear_baseline=true"];
const LENGTH: usize = 24;

/// Stages of a run in which it gets the signal, and whether it stops there or comes to its end.
const STAGES: &[(&str, bool)] = &[
    ("2:metrics.jsonl:append", true),
    ("1:evaluate", true),
    ("2:model.safetensors:create", true),
    ("3:evaluate", true),
    ("1:test", true),
    ("1:report.html:create", false),
];

#[test]
fn run_stopped_by_sigterm_in_any_stage_resumes_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    assert!(start(&whole, LENGTH, SETTINGS).status().unwrap().success());
    for (stage, stops) in STAGES {
        let run = folder.path().join(stage.replace(':', "-"));
        let mut command = start(&run, LENGTH, SETTINGS);
        let status = with_fault(&mut command, &format!("term:{stage}")).status().unwrap();
        assert_eq!(status.code(), Some(if *stops { 143 } else { 0 }), "{stage}");
        assert_eq!(run.join("result.json").exists(), !stops, "{stage}");
        if *stops {
            assert!(resume(&run).status().unwrap().success(), "{stage}");
        }
        assert!(model(&whole) == model(&run), "{stage}");
        assert_eq!(lines(&whole), lines(&run), "{stage}");
    }
}

#[test]
fn an_interrupted_run_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut child = start(&run, 4000, &[]).stderr(Stdio::piped()).spawn().unwrap();
    assert!(wait_for_newer(&run, None, &mut child));
    signal(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(text.contains("--resume") && !steps(&run).is_empty(), "{text}");
    // A run that has ended is not resumed.
    let ended = folder.path().join("ended");
    copy_folder(&whole(), &ended);
    assert!(!resume(&ended).status().unwrap().success());
}

#[test]
fn a_study_hands_the_signal_on() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::create_dir(here.join("mine")).unwrap();
    let settings: Vec<String> =
        crate::kill::SETTINGS.iter().map(|text| format!("{text:?}")).collect();
    let study = format!(
        "name = \"mine\"\nabout = \"x\"\nseeds = 1\nbaseline = \"a\"\n[[systems]]\nlabel = \"a\"\n\
         recipe = \"vmoe.toml\"\nsettings = [{}, \"train.steps=100000\"]\n",
        settings.join(", ")
    );
    fs::write(here.join("mine/study.toml"), study).unwrap();
    fs::write(here.join("mine/vmoe.toml"), "model.preset = \"vmoe-tiny\"").unwrap();
    let mut study = program();
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
        let mut sweep = program();
        sweep.current_dir(here).args(["sweep", "default", "--out", "out", "--jobs", "1"]);
        for setting in
            crate::kill::SETTINGS.iter().chain([&"optimiser.learning_rate=1e-3,2e-3", &steps])
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
