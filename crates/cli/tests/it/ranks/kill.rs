//! Ranks that are killed: the job ends, nothing is half written, and the run goes on to the same bits.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use burn::tensor::Device;
use omma_model::checkpoint;
use omma_testing::by_tier;

use crate::ranks::{
    MIXTURE, alone, assert_same, checkpoints, finish, resume, start, stderr, tensors,
};

/// A job under way.
pub(crate) struct Job {
    pub(crate) mpirun: Child,
}

impl Job {
    pub(crate) fn start(mut command: Command) -> Self {
        Self { mpirun: command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap() }
    }

    /// The process of a rank.
    fn rank(&self, rank: usize) -> Option<String> {
        let own = format!("OMPI_COMM_WORLD_RANK={rank}");
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let mut found = processes.filter(|path| {
            let parent = fs::read_to_string(path.join("stat")).unwrap_or_default();
            let parent = parent.rsplit_once(')').map_or("", |(_, rest)| rest);
            let parent = parent.split_whitespace().nth(1).unwrap_or_default();
            let variables = fs::read(path.join("environ")).unwrap_or_default();
            parent == self.mpirun.id().to_string()
                && variables.split(|byte| *byte == 0).any(|text| text == own.as_bytes())
        });
        Some(found.next()?.file_name()?.to_string_lossy().into_owned())
    }

    /// Waits for a checkpoint newer than `last`.
    pub(crate) fn wait_for_newer(&mut self, run: &Path, last: Option<&PathBuf>) {
        let begin = Instant::now();
        while checkpoints(run).last() <= last {
            assert!(self.mpirun.try_wait().unwrap().is_none(), "it has ended too soon");
            assert!(begin.elapsed() < Duration::from_secs(120), "a run does not get on");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills a rank, and returns what the job says when it has ended.
    pub(crate) fn kill(mut self, rank: usize) -> String {
        let process = self.rank(rank).expect("it is running");
        assert!(Command::new("kill").args(["-9", &process]).status().unwrap().success());
        let begin = Instant::now();
        while self.mpirun.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the others go on without it");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!((0..4).all(|rank| self.rank(rank).is_none()));
        let output = self.mpirun.wait_with_output().unwrap();
        assert!(!output.status.success());
        stderr(&output)
    }
}

/// Every checkpoint that is there is whole.
pub(crate) fn assert_whole(run: &Path) {
    let left = checkpoints(run);
    assert!(!left.is_empty(), "checkpoints were lost");
    for folder in left {
        checkpoint::load(&folder, &Device::flex()).unwrap();
        assert!(!tensors(&folder.join("state.safetensors")).is_empty());
    }
}

#[test]
fn ranks_that_are_killed_end_the_job_and_it_goes_on_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, run) = (folder.path().join("whole"), folder.path().join("run"));
    let (kills, steps) = by_tier((2, 60), (20, 240));
    alone(&whole, steps, MIXTURE);
    let mut job = Job::start(start(4, &run, steps, MIXTURE));
    let mut chance: u64 = 12345;
    for _ in 0..kills {
        job.wait_for_newer(&run, checkpoints(&run).last().cloned().as_ref());
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(chance >> 50));
        let rank = (chance >> 33) as usize % 4;
        let said = job.kill(rank);
        assert!(said.contains("signal 9"), "{said}");
        assert_whole(&run);
        job = Job::start(resume(4, &run));
    }
    assert!(job.mpirun.wait().unwrap().success());
    assert_same(&whole, &run);
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, run) = (folder.path().join("whole"), folder.path().join("run"));
    alone(&whole, 90, MIXTURE);
    let mut job = Job::start(start(4, &run, 90, MIXTURE));
    job.wait_for_newer(&run, None);
    job.kill(3);
    let mut job = Job::start(resume(1, &run));
    job.wait_for_newer(&run, checkpoints(&run).last().cloned().as_ref());
    job.kill(0);
    finish(&mut resume(2, &run));
    assert_same(&whole, &run);
    let environment = fs::read_to_string(run.join("environment.json")).unwrap();
    assert!(environment.contains("\"ranks\": 2"), "{environment}");
}

/// `mpirun` passes SIGTERM on, and gives ranks some time.
#[test]
fn a_job_that_is_asked_to_stop_saves_its_last_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut command = start(2, &run, 100_000, MIXTURE);
    command.args(["--set", "train.checkpoint_every=0"]);
    let mut job = Job::start(command);
    let logged = || fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    while !logged().contains("\"step\":20") {
        assert!(job.mpirun.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let mpirun = job.mpirun.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &mpirun]).status().unwrap().success());
    let output = job.mpirun.wait_with_output().unwrap();
    assert!(!output.status.success(), "it has not come to its end");
    let step = checkpoints(&run).last().cloned().expect("it was saved");
    let step: u64 = step.file_name().unwrap().to_string_lossy()[5..].parse().unwrap();
    assert!(step >= 20, "{step}");
    assert_whole(&run);
}
