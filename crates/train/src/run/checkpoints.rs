//! The checkpoints of a run: each a folder that appears whole or not at all.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use omma_model::checkpoint::write_atomically;

use super::state::Best;
use crate::error::{Result, TrainError};

/// The folder of a run's checkpoints.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    path: PathBuf,
}

/// Names of folders that are not checkpoints: being written, or being removed.
const UNFINISHED: &str = ".unfinished-";
const BEST: &str = "best.json";

/// The folder of the checkpoint after a step.
pub fn step_name(step: u64) -> String {
    format!("step-{step:08}")
}

impl Checkpoints {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The folder of the checkpoint after a step.
    pub fn at(&self, step: u64) -> PathBuf {
        self.path.join(step_name(step))
    }

    /// Steps of all checkpoints, the oldest first.
    pub fn steps(&self) -> Vec<u64> {
        let names = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let step = |name: String| name.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> =
            names.filter_map(|entry| step(entry.file_name().into_string().ok()?)).collect();
        steps.sort_unstable();
        steps
    }

    /// Which of them did best.
    pub fn best(&self) -> Option<Best> {
        serde_json::from_slice(&fs::read(self.path.join(BEST)).ok()?).ok()
    }

    /// Removes what a killed process left behind.
    pub fn tidy(&self) -> Result<()> {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_dir_all(entry.path()).map_err(TrainError::io(entry.path()))?;
            }
        }
        Ok(())
    }

    /// Fills a folder by `write`, and only then gives it its name.
    pub fn add(&self, step: u64, write: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let (to, from) = (self.at(step), self.unfinished(step));
        if to.exists() {
            return Ok(to);
        }
        fs::create_dir_all(&from).map_err(TrainError::io(&from))?;
        let written = write(&from).and_then(|()| {
            fs::rename(&from, &to).map_err(TrainError::io(&to))?;
            sync(&self.path);
            Ok(())
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
        let text = serde_json::to_string_pretty(best).expect("it can be written");
        let path = self.path.join(BEST);
        Ok(write_atomically(&path, |temporary| fs::write(temporary, text + "\n"))?)
    }

    /// Removes all but the last `keep` and the best.
    pub fn keep(&self, keep: usize, best: Option<u64>) -> Result<()> {
        let steps = self.steps();
        let old = &steps[..steps.len().saturating_sub(keep)];
        for step in old.iter().filter(|step| Some(**step) != best) {
            let (from, to) = (self.at(*step), self.unfinished(*step));
            fs::rename(&from, &to).map_err(TrainError::io(&from))?;
            fs::remove_dir_all(&to).map_err(TrainError::io(&to))?;
        }
        Ok(())
    }

    fn unfinished(&self, step: u64) -> PathBuf {
        self.path.join(format!("{UNFINISHED}{}", step_name(step)))
    }
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
    fn the_last_ones_and_the_best_stay() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path().join("checkpoints"));
        for step in [10, 20, 30, 40] {
            let write = |path: &Path| fs::write(path.join("x"), "x").map_err(TrainError::io(path));
            checkpoints.add(step, write).unwrap();
        }
        checkpoints.keep(2, Some(10)).unwrap();
        assert_eq!(checkpoints.steps(), [10, 30, 40]);
    }

    #[test]
    fn a_checkpoint_that_could_not_be_written_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path().join("checkpoints"));
        let full = || TrainError::Recipe { what: "disk full".to_owned() };
        assert!(checkpoints.add(5, |_| Err(full())).is_err());
        assert!(checkpoints.steps().is_empty());
        fs::create_dir_all(checkpoints.unfinished(6)).unwrap();
        checkpoints.tidy().unwrap();
        assert_eq!(fs::read_dir(folder.path().join("checkpoints")).unwrap().count(), 0);
    }
}
