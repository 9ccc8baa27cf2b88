//! Ranks that are not the same are found before anything is written.

use std::{fs, io::Write, os::unix::fs::PermissionsExt, path::Path};

use crate::ranks::{MIXTURE, mpirun, program, start, stderr, train};

/// What a job says whose second rank is another program, or was asked for something else.
fn said(run: &Path, second: &Path, settings: &[&str]) -> String {
    let mut command = mpirun(1);
    train(&mut command, &program(), run, 5, MIXTURE);
    command.args([":", "-n", "1"]);
    train(&mut command, second, run, 5, MIXTURE);
    settings.iter().for_each(|setting| _ = command.args(["--set", setting]));
    let output = command.output().unwrap();
    assert!(!output.status.success() && !run.exists());
    stderr(&output)
}

#[test]
fn another_program_another_recipe_and_uneven_shards_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = said(&run, &program(), &["optimiser.learning_rate=0.5"]);
    assert!(recipe.contains("optimiser.learning_rate is 0.5 there"), "{recipe}");
    assert_eq!(recipe.matches("rank 1 on").count(), 1, "it is said once: {recipe}");

    let other = folder.path().join("omma");
    fs::copy(program(), &other).unwrap();
    fs::OpenOptions::new().append(true).open(&other).unwrap().write_all(b" ").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let program = said(&run, &other, &[]);
    assert!(program.contains("rank 1 on") && program.contains("is another program"), "{program}");

    let uneven = stderr(&start(3, &run, 5, MIXTURE).output().unwrap());
    assert!(uneven.contains("4 shards cannot be spread evenly over 3 ranks"), "{uneven}");
    assert!(!run.exists());
}

#[test]
fn what_is_wrong_everywhere_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut command = start(2, &run, 5, MIXTURE);
    let said = stderr(&command.args(["--data", "/no/such/data"]).output().unwrap());
    assert_eq!(said.matches("there is no data at /no/such/data").count(), 1, "{said}");
    let mut command = start(2, &run, 5, MIXTURE);
    let said = stderr(&command.args(["--set", "model.wdith=3"]).output().unwrap());
    assert_eq!(said.matches("model.width").count(), 1, "{said}");
    assert!(!run.exists());
}
