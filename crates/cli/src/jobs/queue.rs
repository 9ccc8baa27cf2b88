//! Jobs, a few at a time.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use anyhow::{Result, anyhow};
use omma_train::Stop;

use super::{Job, cores};
use crate::{
    screen::Activity,
    table::{clock, note},
};

/// What becomes of the others when a job fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// No further one is begun: the whole is worth nothing without it.
    Stop,
    /// They go on: each is worth something by itself.
    GoOn,
}

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// With its last words.
    Failed(String),
    /// It was not begun, or was interrupted and has saved its state.
    Left,
}

/// Jobs that run side by side.
pub(crate) struct Jobs<'a> {
    /// At most so many at a time, with the cores shared among them.
    pub(crate) at_once: usize,
    pub(crate) on_failure: OnFailure,
    pub(crate) stop: &'a Stop,
}

struct Shared<'a> {
    waiting: VecDeque<usize>,
    outcomes: Vec<Outcome>,
    ended: usize,
    failed: bool,
    watch: &'a mut (dyn FnMut(usize, &Outcome) -> String + Send),
}

impl Jobs<'_> {
    /// Runs what is not done yet, and says what became of each. `watch` is told the number and the outcome of
    /// every job that has ended, and gives back what there is to add to the line about it.
    pub(crate) fn run(
        &self,
        jobs: &[Job],
        watch: &mut (dyn FnMut(usize, &Outcome) -> String + Send),
    ) -> Vec<Outcome> {
        let (all, stop) = (jobs.len(), self.stop);
        let outcome = |job: &Job| if job.is_done() { Outcome::Done } else { Outcome::Left };
        let outcomes: Vec<Outcome> = jobs.iter().map(outcome).collect();
        let waiting: VecDeque<usize> =
            (0..all).filter(|job| outcomes[*job] != Outcome::Done).collect();
        let to_do = waiting.len();
        if to_do < all {
            note(format!("{} of {all} are done already", all - to_do));
        }
        let at_once = self.at_once.clamp(1, to_do.max(1));
        let threads = (cores() / at_once).max(1);
        let shared = Mutex::new(Shared { waiting, outcomes, ended: 0, failed: false, watch });
        let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
        let started = Instant::now();
        let activity = Activity::counted("done", "job", (all - to_do) as u64, all as u64);
        let next = || {
            let mut state = lock();
            let enough = state.failed && self.on_failure == OnFailure::Stop;
            if enough || stop.why().is_some() { None } else { state.waiting.pop_front() }
        };
        let work = || {
            while let Some(number) = next() {
                let (job, began) = (&jobs[number], Instant::now());
                let result = job.run(threads, stop);
                let outcome = match result {
                    Ok(()) if job.is_done() => Outcome::Done,
                    // It has saved its state and ended in peace, or was killed.
                    _ if stop.why().is_some() => Outcome::Left,
                    Ok(()) => Outcome::Failed(format!("it left no {}", job.leaves.display())),
                    Err(error) => Outcome::Failed(format!("{error:#}")),
                };
                let mut state = lock();
                state.outcomes[number] = outcome.clone();
                if outcome == Outcome::Left {
                    continue;
                }
                state.ended += 1;
                activity.add(1);
                state.failed |= outcome != Outcome::Done;
                let more = (state.watch)(number, &outcome);
                let left = to_do - state.ended;
                let pace = started.elapsed().as_secs_f64() / state.ended as f64;
                note(format!(
                    "{}/{all} {}: {}{}{more}, about {} left",
                    all - left,
                    job.what,
                    if outcome == Outcome::Done { "" } else { "failed after " },
                    clock(began.elapsed().as_secs_f64()),
                    clock(pace * left as f64)
                ));
            }
        };
        std::thread::scope(|scope| (0..at_once).for_each(|_| _ = scope.spawn(work)));
        shared.into_inner().unwrap_or_else(PoisonError::into_inner).outcomes
    }

    /// The same for jobs of which none may fail; whether all are done. `settle` is called for each that is, also
    /// where an earlier command has done it.
    pub(crate) fn run_all(
        &self,
        jobs: &[Job],
        settle: &(dyn Fn(&Job) -> Result<()> + Sync),
    ) -> Result<bool> {
        jobs.iter().filter(|job| job.is_done()).try_for_each(settle)?;
        let mut settled = Ok(());
        let outcomes = self.run(jobs, &mut |number, outcome| {
            if *outcome == Outcome::Done && settled.is_ok() {
                settled = settle(&jobs[number]);
            }
            String::new()
        });
        settled?;
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            if let Outcome::Failed(why) = outcome {
                return Err(anyhow!("{} failed: {why}", job.what));
            }
        }
        Ok(outcomes.iter().all(|outcome| *outcome == Outcome::Done))
    }
}
