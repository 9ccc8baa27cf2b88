//! One owner per run.

use std::{fs, process::Command};

use omma_testing::by_tier;
use omma_train::Recipe;

use crate::{
    kill::{
        lines, model, omma, refusal, resume, start, stopped, wait_for_newer, whole, with_fault,
    },
    support::RUNS,
};

#[test]
fn the_second_is_told_who_the_first_is() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut first = start(&run, 4000, &[]).spawn().unwrap();
    assert!(wait_for_newer(&run, None, &mut first));
    let owner = format!("process {}", first.id());
    for mut second in [start(&run, 4000, &[]), resume(&run)] {
        let message = refusal(&mut second);
        assert!(message.contains(&owner) || message.contains("holds a run already"), "{message}");
    }
    assert!(refusal(&mut resume(&run)).contains(&owner));
    // Death releases it.
    first.kill().unwrap();
    first.wait().unwrap();
    let mut next = resume(&run);
    let status = with_fault(&mut next, "term:1:metrics.jsonl:append").status().unwrap();
    assert_eq!(status.code(), Some(143), "it goes on until it is stopped");
}

#[test]
fn of_two_that_start_at_once_one_has_the_folder_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..by_tier(2, 8) {
        let run = folder.path().join(format!("{round}"));
        let train = |seed: u64| start(&run, 6, &[&format!("seed={seed}")]).spawn().unwrap();
        let mut both = [1, 2].map(|seed| (seed, train(seed)));
        let won: Vec<u64> = both
            .iter_mut()
            .filter_map(|(seed, child)| child.wait().unwrap().success().then_some(*seed))
            .collect();
        assert_eq!(won.len(), 1, "round {round}: {won:?} came to their end");
        let recipe = Recipe::read_saved(&run.join("recipe.toml")).unwrap();
        assert_eq!(recipe.seed, won[0]);
        let alone = RUNS.run_made_by(&format!("kill-seed-{}", won[0]), |run| {
            let seed = format!("seed={}", won[0]);
            assert!(start(run, 6, &[&seed]).status().unwrap().success());
        });
        assert!(model(&run) == model(&alone), "one's recipe, the other's model");
    }
}

#[test]
fn of_two_resumes_one_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (run, whole) = (folder.path().join("run"), whole());
    stopped(&run);
    let mut both = [resume(&run).spawn().unwrap(), resume(&run).spawn().unwrap()];
    let ended = both.iter_mut().filter_map(|child| child.wait().unwrap().success().then_some(()));
    assert_eq!(ended.count(), 1);
    assert_eq!(lines(&run), lines(&whole));
    assert!(model(&run) == model(&whole));
}

#[test]
fn runs_without_a_folder_get_one_each() {
    let folder = tempfile::tempdir().unwrap();
    let train = || {
        let mut command: Command = omma();
        command.current_dir(folder.path()).arg("vmoe");
        for setting in
            ["train.steps=2", "train.batch=8", "data.train_samples=50", "data.test_samples=20"]
        {
            command.args(["--set", setting]);
        }
        command.args(["--set", "train.linear_baseline=false"]).spawn().unwrap()
    };
    let mut all: Vec<_> = (0..4).map(|_| train()).collect();
    assert!(all.iter_mut().all(|child| child.wait().unwrap().success()));
    assert_eq!(fs::read_dir(folder.path().join("runs")).unwrap().count(), 4);
}
