//! Trainings and evaluations as processes of this program, a few at a time.
//!
//! Small models leave cores idle between their products, so several with one thread each get more done
//! than one after the other with all threads.

use std::{
    collections::VecDeque,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use omma_eval::{Evaluation, OodPositive, compare::read_evaluation};
use omma_train::Stop;

use crate::{
    screen::Activity,
    table::{clock, note},
};

/// A process that leaves a file behind when it is done.
pub(crate) struct Job {
    /// In words.
    pub(crate) what: String,
    /// Arguments of this program.
    pub(crate) arguments: Vec<String>,
    /// The file that is there when it is done.
    pub(crate) leaves: PathBuf,
    /// Where its messages go.
    pub(crate) log: PathBuf,
    /// Out-of-distribution data sets that an evaluation must have looked at to be done.
    pub(crate) ood: Vec<String>,
}

/// How long processes have to save their state after an interruption.
const PATIENCE: Duration = Duration::from_secs(20);

impl Job {
    pub(crate) fn is_done(&self) -> bool {
        if self.ood.is_empty() || !self.leaves.exists() {
            return self.leaves.exists();
        }
        // One that found the other side, as earlier versions did, cannot stand beside new ones.
        let has_all = |found: Evaluation| {
            found.ood_positive == OodPositive::default()
                && self.ood.iter().all(|name| found.ood.contains_key(name))
        };
        read_evaluation(&self.leaves).is_ok_and(has_all)
    }

    /// Waits for its process. After an interruption it is asked to save and end, and killed if it does not;
    /// what it has saved stays.
    fn run(&self, threads: usize, stop: &Stop) -> Result<()> {
        if let Some(folder) = self.log.parent() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let log = File::create(&self.log).with_context(|| self.log.display().to_string())?;
        let mut command = Command::new(std::env::current_exe()?);
        apart(&mut command);
        let mut process = command
            .args(&self.arguments)
            .env("RAYON_NUM_THREADS", threads.to_string())
            .envs(crate::limits::environment())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start another process of this program")?;
        let mut stopped = None;
        let status = loop {
            if let Some(status) = process.try_wait()? {
                break status;
            }
            if stop.why().is_some() {
                let since: &mut Instant = stopped.get_or_insert_with(|| {
                    ask_to_end(process.id());
                    Instant::now()
                });
                if since.elapsed() > PATIENCE {
                    process.kill()?;
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        match status.success() {
            true => Ok(()),
            false => bail!("{} failed: {}", self.what, last_words(&self.log)),
        }
    }
}

/// Keeps signals of the terminal from a process: it is asked to end once, by us, and a second signal would
/// end it before it has saved.
fn apart(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

fn ask_to_end(process: u32) {
    if cfg!(unix) {
        // Without the program `kill`, patience runs out.
        let _ = Command::new("kill").args(["-TERM", &process.to_string()]).status();
    }
}

/// The end of a log.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(|| format!("see {}", log.display()), str::to_owned)
}

struct Shared {
    waiting: VecDeque<Job>,
    finished: usize,
    failed: Option<anyhow::Error>,
}

/// Runs what is not done yet, `at_once` processes at a time, with the cores shared among them. Stops early
/// when one fails or when `stop` is set, and says whether everything is done.
pub(crate) fn run_jobs(jobs: Vec<Job>, at_once: usize, stop: &Stop) -> Result<bool> {
    let all = jobs.len();
    let waiting: VecDeque<Job> = jobs.into_iter().filter(|job| !job.is_done()).collect();
    let to_do = waiting.len();
    if to_do < all {
        note(format!("{} of {all} are done already", all - to_do));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = at_once.clamp(1, to_do.max(1));
    let threads = (cores / at_once).max(1);
    let shared = Mutex::new(Shared { waiting, finished: 0, failed: None });
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    let started = Instant::now();
    let activity = Activity::counted("done", "job", (all - to_do) as u64, all as u64);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let job = match lock() {
                        state if state.failed.is_some() || stop.why().is_some() => None,
                        mut state => state.waiting.pop_front(),
                    };
                    let Some(job) = job else { break };
                    let began = Instant::now();
                    let result = job.run(threads, stop);
                    let mut state = lock();
                    match result {
                        Ok(()) if job.is_done() => {
                            state.finished += 1;
                            activity.add(1);
                            let (done, left) = (state.finished, to_do - state.finished);
                            let pace = started.elapsed().as_secs_f64() / done as f64;
                            note(format!(
                                "{}/{all} {}: {}, about {} left",
                                all - left,
                                job.what,
                                clock(began.elapsed().as_secs_f64()),
                                clock(pace * left as f64)
                            ));
                        }
                        // Interrupted: it has saved its state and ended in peace.
                        Ok(()) if stop.why().is_some() => {}
                        Ok(()) => {
                            let error = anyhow!("{} left no {}", job.what, job.leaves.display());
                            state.failed.get_or_insert(error);
                        }
                        Err(error) => {
                            if stop.why().is_none() {
                                state.failed.get_or_insert(error);
                            }
                        }
                    }
                }
            });
        }
    });
    let state = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.failed {
        Some(error) => Err(error),
        None => Ok(state.finished == to_do),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_done_once_it_has_all_data_and_finds_the_side_that_new_ones_find() {
        let folder = tempfile::tempdir().unwrap();
        let leaves = folder.path().join("eval.json");
        let done = |record: &str, ood: &[&str]| {
            std::fs::write(&leaves, record).unwrap();
            let (arguments, log) = (Vec::new(), folder.path().join("log"));
            let ood = ood.iter().map(|name| (*name).to_owned()).collect();
            Job { what: String::new(), arguments, leaves: leaves.clone(), log, ood }.is_done()
        };
        let earlier = include_str!("../../../eval/tests/data/eval-1.json");
        let now = earlier
            .replace("\"ood_score\"", "\"ood_positive\": \"in-distribution\", \"ood_score\"");
        assert!(done(&now, &["world-far-ood"]));
        assert!(!done(&now, &["world-far-ood", "kmnist"]));
        assert!(!done(earlier, &["world-far-ood"]));
        assert!(done(earlier, &[]), "no detection is asked for");
    }
}
