//! `omma study` as a user types it: a folder with `study.toml` and recipes.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio, time::Duration};

use assert_cmd::Command;
use serde_json::Value;

use crate::support::{omma, program};

/// A model and a data set that a second is enough for.
const RECIPE: &str = r#"
name = "tiny"
about = "as small as it gets"
[model]
preset = "vmoe-tiny"
patch = 8
width = 16
depth = 2
heads = 2
mlp = 32
moe.hidden = 32
moe.experts = 4
moe.placement = "1"
[data]
train_samples = 200
test_samples = 40
validation = 0.1
[train]
steps = 6
batch = 16
checkpoint_every = 1
linear_baseline = false
test_share = 0.0
"#;

/// The folder of a study with that recipe.
fn write(folder: &Path, study: &str) {
    fs::create_dir_all(folder.join("mine")).unwrap();
    fs::write(folder.join("mine/study.toml"), study).unwrap();
    fs::write(folder.join("mine/tiny.toml"), RECIPE).unwrap();
}

fn study(folder: &Path, more: &[&str]) -> Command {
    study_in("out", folder, more)
}

/// The same with another folder for what it makes.
fn study_in(out: &str, folder: &Path, more: &[&str]) -> Command {
    let mut command = omma(folder, &["study", "mine", "--out", out]);
    command.args(more);
    command
}

fn checkpoints(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("checkpoints")).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn runs_of_a_study_keep_the_checkpoints_that_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = "name = \"mine\"\nabout = \"x\"\nseeds = 1\nbaseline = \"a\"\nkeep = 1\n\
                [[systems]]\nlabel = \"a\"\nrecipe = \"tiny.toml\"\n";
    write(here, text);
    study(here, &[]).assert().success();
    let run = here.join("out/runs/a-0");
    assert_eq!(checkpoints(&run), ["step-00000006"]);
    assert!(run.join("model.safetensors").exists() && here.join("out/study.json").exists());
    // What was there before the study could remove it goes with the next command.
    fs::create_dir(run.join("checkpoints/step-00000003")).unwrap();
    study(here, &[]).assert().success();
    assert_eq!(checkpoints(&run), ["step-00000006"]);
}

/// Cells of the row of a system in the table that has a column of such a name.
fn cells(out: &Path, system: &str, column: &str) -> BTreeMap<String, String> {
    let text = fs::read_to_string(out.join("table.md")).unwrap();
    let row = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut lines = text.lines().skip_while(|line| !line.contains(column));
    let header = row(lines.next().unwrap_or_else(|| panic!("{column} in {text}")));
    let found = lines.map(row).find(|cells| cells[0] == system).unwrap();
    header.into_iter().zip(found).collect()
}

#[test]
fn trainings_are_told_by_the_time_of_cores_and_by_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = "name = \"mine\"\nabout = \"x\"\nseeds = 1\nbaseline = \"a\"\ntraining = true\n\
                [[systems]]\nlabel = \"a\"\nrecipe = \"tiny.toml\"\n\
                [[systems]]\nlabel = \"b\"\nrecipe = \"tiny.toml\"\nensemble = 2\n";
    write(here, text);
    let out = here.join("out");
    // Large enough for tenths of seconds.
    let paths = ["a-0", "a-1"].map(|run| out.join("runs").join(run).join("result.json"));
    let change = |path: &Path, key: &str, value: Value| {
        let mut result: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(!cfg!(unix) || result[key].as_f64() > Some(0.0), "{result}");
        result[key] = value;
        fs::write(path, result.to_string()).unwrap();
    };
    study(here, &[]).assert().success();
    for (path, (cpu, clock)) in paths.iter().zip([(2.5, 10.0), (4.0, 20.0)]) {
        change(path, "train_cpu_seconds", cpu.into());
        change(path, "train_seconds", clock.into());
    }
    study(here, &[]).assert().success();
    let cell = |system: &str, column: &str| cells(&out, system, "CPU seconds")[column].clone();
    let columns = ["CPU seconds", "seconds by the clock"];
    assert_eq!(columns.map(|column| cell("a", column)), ["2.5", "10.0"]);
    assert_eq!(columns.map(|column| cell("b", column)), ["6.5", "30.0"], "both of its models");
    let figure = || fs::read_to_string(out.join("figures/accuracy-time.svg")).unwrap();
    assert!(figure().contains("CPU seconds of training"));
    // As an earlier version left it.
    change(&paths[1], "train_cpu_seconds", Value::Null);
    study(here, &[]).assert().success();
    assert_eq!(columns.map(|column| cell("a", column)), ["2.5", "10.0"]);
    assert_eq!(columns.map(|column| cell("b", column)), ["—", "30.0"]);
    assert!(figure().contains("seconds of training by the clock"));
}

#[test]
fn a_seed_can_be_added_to_a_study_in_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text = "name = \"mine\"\nabout = \"x\"\nseeds = 2\nbaseline = \"a\"\n\
                [[systems]]\nlabel = \"a\"\nrecipe = \"tiny.toml\"\n";
    write(here, text);
    study(here, &[]).assert().success();
    let later = ["--seeds", "1", "--first-seed", "1"];
    study_in("later", here, &later).assert().success();
    let (all, one) = (models(&here.join("out")), models(&here.join("later")));
    assert_eq!(one.keys().collect::<Vec<_>>(), ["a-1"]);
    assert_eq!(one["a-1"], all["a-1"]);
    let nll = |out: &str| -> Value {
        let path = here.join(out).join("evals/a-1/eval.json");
        serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap()["nll"].clone()
    };
    assert_eq!(nll("later"), nll("out"));
    let refused = study(here, &later).assert().failure().get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&refused).contains("1 seeds from 1 on"));
}

const FINE: &str = r#"
name = "fine"
about = "what was pre-trained, on fewer scenes of another world"
[model]
moe.dropout = 0.1
[data]
train_samples = 100
test_samples = 40
world_seed = 1
validation = 0.1
[train]
steps = 4
batch = 16
checkpoint_every = 1
linear_baseline = false
test_share = 0.0
"#;

/// One training upstream; a model, an ensemble, an E³ with overlap and MC Dropout from it.
const CHAIN: &str = r#"
name = "chain"
about = "x"
seeds = 1
baseline = "V-MoE"
keep = 1
few_shot = ["others=photos"]
shots = [2]

[[systems]]
label = "upstream"
recipe = "tiny.toml"
judged = false

[[systems]]
label = "V-MoE"
recipe = "fine.toml"
from = "upstream"

[[systems]]
label = "down-DE"
recipe = "fine.toml"
from = "upstream"
ensemble = 2

[[systems]]
label = "E³"
recipe = "fine.toml"
from = "upstream"
adapt = { to = "e3", settings = ["moe.k=1", "moe.overlap=2"] }

[[systems]]
label = "MC Dropout"
recipe = "fine.toml"
from = "upstream"
judged_with = ["mc_samples=3"]
"#;

/// Six images of each of two classes.
fn photos(root: &Path) {
    for (class, color) in [("red", [200, 20, 20]), ("blue", [20, 20, 200])] {
        fs::create_dir_all(root.join(class)).unwrap();
        for number in 0..6 {
            let path = root.join(class).join(format!("{number}.png"));
            omma_data::Picture::filled(12, 10 + number, color).save_png(&path).unwrap();
        }
    }
}

/// Models by the names of their runs.
fn models(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let runs = fs::read_dir(out.join("runs")).unwrap().flatten();
    let read = |run: fs::DirEntry| {
        let name = run.file_name().to_string_lossy().into_owned();
        (name, fs::read(run.path().join("model.safetensors")).unwrap())
    };
    runs.map(read).collect()
}

fn members(study: &Value) -> Vec<(String, u64)> {
    let rows = study["rows"].as_array().unwrap().iter();
    let row = |row: &Value| {
        let label = row["label"].as_str().unwrap().to_owned();
        (label, row["kind"]["members"].as_u64().unwrap())
    };
    rows.map(row).collect()
}

#[test]
fn a_chained_study_trains_upstream_once_and_ends_alike_however_often_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write(here, CHAIN);
    photos(&here.join("photos"));
    fs::write(here.join("mine/fine.toml"), FINE).unwrap();
    let output = study(here, &["--json"]).assert().success();
    let whole: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let expected = [("V-MoE", 1), ("down-DE", 2), ("E³", 2), ("MC Dropout", 3)];
    assert_eq!(members(&whole), expected.map(|(label, members)| (label.to_owned(), members)));
    let few_shot = &whole["rows"][2]["few_shot"][0];
    assert_eq!(few_shot["shots"], 2);
    assert!((0.0..=1.0).contains(&few_shot["mean"]["mean"].as_f64().unwrap()));
    assert_eq!(whole["rows"][0]["few_shot"][0]["weighted"]["mean"], 1.0, "it is the baseline");
    let trained = models(&here.join("out"));
    let names: Vec<&str> = trained.keys().map(String::as_str).collect();
    assert_eq!(names, ["e3-0", "upstream-0", "v-moe-0", "v-moe-1"]);

    // Killed in every stage, with or without what it has started.
    let arguments = ["study", "mine", "--out", "again", "--jobs", "1"];
    let stages = [
        "runs/upstream-0/recipe.toml",
        "runs/v-moe-0/checkpoints/step-00000002",
        "runs/e3-0/model.safetensors",
        "evals/v-moe-0/eval.json",
    ];
    for (round, stage) in stages.into_iter().enumerate() {
        let mut command = program();
        command.current_dir(here).args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        while !here.join("again").join(stage).exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ends before {stage}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let started = children(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        if round % 2 == 0 {
            for process in started {
                let _ = std::process::Command::new("kill").args(["-9", &process]).status();
            }
        }
    }
    let output = study_in("again", here, &["--jobs", "1", "--json"]).assert().success();
    let again: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(models(&here.join("again")), trained);
    for (place, row) in whole["rows"].as_array().unwrap().iter().enumerate() {
        assert_eq!(again["rows"][place]["nll"], row["nll"]);
    }
}

/// Processes that a process has started; none where the system does not tell.
fn children(process: u32) -> Vec<String> {
    let path = format!("/proc/{process}/task/{process}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_plan_says_what_begins_from_what() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write(here, CHAIN);
    photos(&here.join("photos"));
    fs::write(here.join("mine/fine.toml"), FINE).unwrap();
    let output = study(here, &["--plan", "--json"]).assert().success();
    let plan: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(plan["trainings"]["jobs"], 4);
    assert_eq!(plan["evaluations"]["jobs"], 4);
    assert_eq!(plan["systems"][3]["from"], "upstream");
    assert_eq!(plan["systems"][3]["members"], 2, "what becomes of it is known before");
    let message = study(here, &["--set-upstream", "train.stepz=1"]).assert().failure();
    let message = String::from_utf8(message.get_output().stderr.clone()).unwrap();
    assert!(message.contains("train.steps"), "{message}");
    assert!(!here.join("out").exists(), "a wrong setting comes out before any training");
}
