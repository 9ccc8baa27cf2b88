//! Several ranks evaluate and look at routes as one process does, and one of them speaks.

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

use crate::ranks::{MIXTURE, alone, mpirun, program, stderr};

fn ask(mut command: Command, run: &Path, words: &[&str]) -> Output {
    command.args([words[0], "--json", "--batch", "16"]).arg(run).args(&words[1..]);
    command.output().unwrap()
}

/// What is printed, as one value, without times and memory.
fn said(command: Command, run: &Path, words: &[&str]) -> Value {
    fn without_measures(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("images_per_second");
                fields.remove("peak_rss_bytes");
                fields.values_mut().for_each(without_measures);
            }
            Value::Array(all) => all.iter_mut().for_each(without_measures),
            _ => {}
        }
    }
    let output = ask(command, run, words);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut value = serde_json::from_slice(&output.stdout).unwrap();
    without_measures(&mut value);
    value
}

fn ranks(count: usize) -> Command {
    let mut command = mpirun(count);
    command.arg(program());
    command
}

#[test]
fn several_ranks_evaluate_and_look_at_routes_as_one_process_does() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    alone(&run, 4, MIXTURE);
    let shifted =
        ["eval", "--shift", "--shift-samples", "3", "--ood", "world-far-ood", "--limit", "40"];
    for words in [&shifted[..], &["routes", "--permutations", "99"]] {
        let expected = said(Command::new(program()), &run, words);
        for count in [2, 3] {
            assert_eq!(said(ranks(count), &run, words), expected, "{words:?} on {count} ranks");
        }
    }
    assert!(run.join("evals").is_dir() && run.join("routes").is_dir());
}

#[test]
fn a_fault_is_said_once_and_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    alone(&run, 2, MIXTURE);
    let output = ask(ranks(2), &run, &["eval", "--data", "/no/such/data"]);
    let everywhere = stderr(&output);
    assert!(!output.status.success());
    assert_eq!(everywhere.matches("there is no data at /no/such/data").count(), 1, "{everywhere}");

    let mut command = ranks(1);
    command.arg("eval").arg(&run).args([":", "-n", "1"]).arg(program());
    let output = ask(command, &run, &["eval", "--data", "/no/such/data"]);
    let on_one = stderr(&output);
    assert!(!output.status.success() && on_one.contains("rank 1 on"), "{on_one}");

    let refused = stderr(&ranks(2).args(["cost", "vmoe"]).output().unwrap());
    assert!(refused.contains("omma cost runs in one process, and 2 were started"), "{refused}");
}
