//! The checkpoints of a run: each a folder that appears whole or not at all.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use omma_base::{
    fault,
    files::{remove_leftovers, write_atomically},
};
use serde::{Deserialize, Serialize};

use super::state::Best;
use crate::error::{Result, TrainError};

/// The folder of a run's checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    run: PathBuf,
    path: PathBuf,
}

/// Names of folders that are not checkpoints: being written, or being removed.
const UNFINISHED: &str = ".unfinished-";
const BEST: &str = "best.json";
pub(super) const NEWEST: &str = "newest.json";

/// The checkpoint that was written last. It lies beside the folder of checkpoints and tells a run that has
/// lost them from one that has not come to its first.
#[derive(Serialize, Deserialize)]
struct Newest {
    step: u64,
}

/// The folder of the checkpoint after a step.
pub fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

impl Checkpoints {
    pub(super) fn new(run: &Path) -> Self {
        Self { run: run.to_owned(), path: run.join("checkpoints") }
    }

    /// The folder of the checkpoint after a step.
    pub fn at(&self, step: u64) -> PathBuf {
        self.path.join(step_name(step))
    }

    /// Names of everything there is; none where there is no folder yet.
    fn names(&self) -> Result<Vec<String>> {
        let fault = || TrainError::io(&self.path);
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fault())?,
        };
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
        let names: io::Result<Vec<Option<String>>> = entries.map(name).collect();
        Ok(names.map_err(fault())?.into_iter().flatten().collect())
    }

    /// Steps of all checkpoints, the oldest first.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let step = |name: &String| name.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> = self.names()?.iter().filter_map(step).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Whether there ever was one.
    pub fn ever(&self) -> Result<bool> {
        let known =
            |name: &String| name == BEST || name.contains("step-") && !name.starts_with(UNFINISHED);
        Ok(self.run.join(NEWEST).exists() || self.names()?.iter().any(known))
    }

    /// Which of them did best.
    pub fn best(&self) -> Result<Option<Best>> {
        let path = self.path.join(BEST);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TrainError::io(&path)(error)),
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| TrainError::Damaged { path, why: error.to_string() }),
        }
    }

    /// Removes what a killed process left behind.
    pub fn tidy(&self) -> Result<()> {
        let ours = |name: &&String| {
            let step = name.strip_prefix(UNFINISHED).and_then(|name| name.strip_prefix("step-"));
            step.is_some_and(|step| step.parse::<u64>().is_ok())
        };
        for name in self.names()?.iter().filter(ours) {
            let path = self.path.join(name);
            fs::remove_dir_all(&path).map_err(TrainError::io(&path))?;
        }
        match self.path.is_dir() {
            true => remove_leftovers(&self.path, &[BEST]).map_err(TrainError::io(&self.path)),
            false => Ok(()),
        }
    }

    /// Fills a folder by `write`, and only then gives it its name.
    pub fn add(&self, step: u64, write: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let (to, from) = (self.at(step), self.unfinished(step));
        if to.exists() {
            return Ok(to);
        }
        fs::create_dir_all(&from).map_err(TrainError::io(&from))?;
        let written = write(&from).and_then(|()| {
            fault::point("checkpoint:rename").map_err(TrainError::io(&to))?;
            fs::rename(&from, &to).map_err(TrainError::io(&to))?;
            fault::point("checkpoint:done").map_err(TrainError::io(&to))?;
            sync(&self.path);
            write_json(&self.run.join(NEWEST), &Newest { step })
        });
        if written.is_err() {
            let _ = fs::remove_dir_all(&from);
        }
        written.map(|()| to)
    }

    /// Gives a checkpoint that cannot be read another name, so that the run can write it anew.
    pub fn set_aside(&self, step: u64) -> Result<PathBuf> {
        let mut names = (1..).map(|n| self.path.join(format!("damaged-{n}-{}", step_name(step))));
        let to = names.find(|path| !path.exists()).expect("numbers do not end");
        fs::rename(self.at(step), &to).map_err(TrainError::io(&to))?;
        Ok(to)
    }

    /// Remembers which checkpoint did best.
    pub fn set_best(&self, best: &Best) -> Result<()> {
        write_json(&self.path.join(BEST), best)
    }

    /// Removes all but the last `keep` and those that stay: the best, and the ends of earlier stretches.
    pub fn keep(&self, keep: usize, stay: &[u64]) -> Result<()> {
        let steps = self.steps()?;
        let old = &steps[..steps.len().saturating_sub(keep)];
        for step in old.iter().filter(|step| !stay.contains(step)) {
            let (from, to) = (self.at(*step), self.unfinished(*step));
            fs::rename(&from, &to).map_err(TrainError::io(&from))?;
            fault::point("checkpoint:remove").map_err(TrainError::io(&from))?;
            fs::remove_dir_all(&to).map_err(TrainError::io(&to))?;
        }
        Ok(())
    }

    /// Removes all but the last `keep`, the best too if it is none of these: for a run that has come to its end,
    /// whose model is in its own folder.
    pub fn keep_only(&self, keep: usize) -> Result<()> {
        self.keep(keep, &[])?;
        match self.best()?.filter(|best| !self.at(best.step).exists()) {
            Some(_) => {
                let path = self.path.join(BEST);
                fs::remove_file(&path).map_err(TrainError::io(&path))
            }
            None => Ok(()),
        }
    }

    fn unfinished(&self, step: u64) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{}", step_name(step)))
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("it can be written");
    write_atomically(path, |temporary| fs::write(temporary, text + "\n"))
        .map_err(TrainError::io(path))
}

/// A rename must survive a power cut; not every system lets a folder be opened.
fn sync(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_stay_and_those_that_are_to() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        for step in [10, 20, 30, 40] {
            let write = |path: &Path| fs::write(path.join("x"), "x").map_err(TrainError::io(path));
            checkpoints.add(step, write).unwrap();
        }
        checkpoints.keep(2, &[10]).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [10, 30, 40]);
        fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
        assert!(checkpoints.ever().unwrap(), "a run that has lost its checkpoints had some");
    }

    #[test]
    fn of_a_run_that_has_ended_the_best_one_may_go_too() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        for step in [10, 20, 30] {
            checkpoints.add(step, |_| Ok(())).unwrap();
        }
        checkpoints.set_best(&Best { step: 20, score: 0.5 }).unwrap();
        checkpoints.keep_only(2).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [20, 30]);
        assert_eq!(checkpoints.best().unwrap().map(|best| best.step), Some(20));
        checkpoints.keep_only(1).unwrap();
        assert_eq!(checkpoints.steps().unwrap(), [30]);
        assert!(checkpoints.best().unwrap().is_none());
        checkpoints.keep_only(0).unwrap();
        assert!(checkpoints.steps().unwrap().is_empty() && checkpoints.ever().unwrap());
    }

    #[test]
    fn a_checkpoint_that_could_not_be_written_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path());
        let full = || TrainError::Recipe { what: "disk full".to_owned() };
        assert!(checkpoints.add(5, |_| Err(full())).is_err());
        assert!(checkpoints.steps().unwrap().is_empty());
        assert!(!checkpoints.ever().unwrap());
        fs::create_dir_all(checkpoints.unfinished(6)).unwrap();
        fs::create_dir_all(folder.path().join("checkpoints/.unfinished-work")).unwrap();
        checkpoints.tidy().unwrap();
        let left = fs::read_dir(folder.path().join("checkpoints")).unwrap().count();
        assert_eq!(left, 1, "what somebody else has put there stays");
    }
}
