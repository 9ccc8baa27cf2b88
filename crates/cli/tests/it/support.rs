//! Helpers for the tests of all commands: the program, trained runs, and the output of commands.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use assert_cmd::Command;
use omma_testing::{RunCache, SMALL_RUN};
use serde_json::Value;

/// Trained runs of this build of the program.
pub(crate) static RUNS: LazyLock<RunCache> =
    LazyLock::new(|| RunCache::new(assert_cmd::cargo::cargo_bin!("omma")));

/// `omma ARGUMENTS` in a folder.
pub(crate) fn omma(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::from_std(program());
    command.current_dir(folder).args(arguments);
    command
}

/// The program as the standard library starts it, for tests that signal or kill it.
pub(crate) fn program() -> std::process::Command {
    std::process::Command::new(assert_cmd::cargo::cargo_bin!("omma"))
}

/// `omma train RECIPE` in a folder with the small settings and then `settings`, which win.
pub(crate) fn train_small(folder: &Path, recipe: &str, settings: &[&str]) -> Command {
    let mut command = omma(folder, &["train", recipe]);
    command.args(set(&[SMALL_RUN, settings].concat()));
    command
}

/// Copies a small run to `folder/name`; it is trained once for all tests with the same settings.
pub(crate) fn trained_at(folder: &Path, name: &str, recipe: &str, settings: &[&str]) -> PathBuf {
    let settings = set(&[SMALL_RUN, settings].concat());
    let arguments: Vec<&str> =
        [recipe].into_iter().chain(settings.iter().map(String::as_str)).collect();
    let run = folder.join(name);
    RUNS.copy(&arguments, &run);
    run
}

/// [`trained_at`] in `folder/runs/name`.
pub(crate) fn trained(folder: &Path, name: &str, recipe: &str, settings: &[&str]) -> PathBuf {
    trained_at(&folder.join("runs"), name, recipe, settings)
}

/// `--set` before each setting.
pub(crate) fn set(settings: &[&str]) -> Vec<String> {
    settings.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]).collect()
}

/// Standard output and standard error of a command that must succeed.
pub(crate) fn output(mut command: Command) -> (String, String) {
    let output = command.assert().success().get_output().clone();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

pub(crate) fn stdout(command: Command) -> String {
    output(command).0
}

pub(crate) fn stderr(command: Command) -> String {
    output(command).1
}

/// The JSON that a command that must succeed prints.
pub(crate) fn json(command: Command) -> Value {
    serde_json::from_str(&output(command).0).unwrap()
}

/// The message of a command that must fail without a panic.
pub(crate) fn error(mut command: Command) -> String {
    let output = command.assert().failure().get_output().stderr.clone();
    let text = String::from_utf8(output).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    text
}
