//! `omma study` as a user types it: a folder with `study.toml` and recipes.

use std::{fs, path::Path};

use assert_cmd::{Command, cargo::cargo_bin_cmd};

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
    let mut command = cargo_bin_cmd!("omma");
    command.current_dir(folder).args(["study", "mine", "--out", "out"]).args(more);
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
