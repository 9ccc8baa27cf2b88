//! A run on disk.
//!
//! ```text
//! RUN/
//!   recipe.toml         every setting of the run
//!   environment.json    version, commit, machine, threads
//!   classes.json        names of the classes
//!   metrics.jsonl       a line per log interval and per evaluation
//!   summary.csv         a line per evaluation
//!   events.out.tfevents TensorBoard
//!   checkpoints/
//!     step-00000500/    model.safetensors, config.json, state.safetensors
//!     best.json         which of them did best on held-out images
//!   model.safetensors   the trained model, with config.json beside it
//!   result.json         what it reached
//!   report.html         the same to look at
//! ```

mod checkpoints;
mod environment;
mod state;

use std::{
    fs,
    path::{Path, PathBuf},
};

use omma_model::checkpoint::write_atomically;
use serde::Serialize;

pub use self::{
    checkpoints::{Checkpoints, step_name},
    environment::Environment,
    state::{Best, Progress, State},
};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
};

/// The folder of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
}

const RECIPE: &str = "recipe.toml";

impl RunFolder {
    /// A new run; a folder that holds one already is left alone.
    pub fn create(path: &Path, recipe: &Recipe) -> Result<Self> {
        if path.join(RECIPE).exists() {
            return Err(TrainError::RunExists { path: path.to_owned() });
        }
        fs::create_dir_all(path).map_err(TrainError::io(path))?;
        let run = Self { path: path.to_owned() };
        run.write(RECIPE, recipe.to_toml())?;
        Ok(run)
    }

    /// A run that is there.
    pub fn open(path: &Path) -> Result<(Self, Recipe)> {
        if !path.join(RECIPE).exists() {
            let why = "; it is not the folder of a run".to_owned();
            return Err(TrainError::NoCheckpoint { path: path.to_owned(), why });
        }
        let recipe = Recipe::read::<&str>(&path.join(RECIPE), &[])?;
        Ok((Self { path: path.to_owned() }, recipe))
    }

    /// The newest run below a folder.
    pub fn latest(below: &Path) -> Result<PathBuf> {
        let entries = fs::read_dir(below).map_err(TrainError::io(below))?;
        let age = |path: &PathBuf| {
            let checkpoints = path.join("checkpoints");
            fs::metadata(checkpoints)
                .or_else(|_| fs::metadata(path))
                .and_then(|m| m.modified())
                .ok()
        };
        let runs = entries.flatten().map(|entry| entry.path());
        let newest = runs.filter(|path| path.join(RECIPE).exists()).max_by_key(age);
        newest.ok_or_else(|| TrainError::NoCheckpoint {
            path: below.to_owned(),
            why: "; there is no run in it".to_owned(),
        })
    }

    /// A folder below `below` that is not there yet: `name-1`, `name-2`, and so on.
    pub fn fresh(below: &Path, name: &str) -> PathBuf {
        let mut candidates = (1..).map(|number| below.join(format!("{name}-{number}")));
        candidates.find(|path| !path.exists()).expect("numbers do not end")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its checkpoints.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::new(self.file("checkpoints"))
    }

    /// Whether the run has come to its end.
    pub fn is_finished(&self) -> bool {
        self.file("result.json").exists()
    }

    /// Writes a file in one step.
    pub fn write(&self, name: &str, text: String) -> Result<()> {
        Ok(write_atomically(&self.file(name), |temporary| fs::write(temporary, text))?)
    }

    /// Writes a file as JSON.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value).expect("it can be written");
        self.write(name, text + "\n")
    }
}
