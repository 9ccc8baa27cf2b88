//! A run on disk.
//!
//! ```text
//! RUN/
//!   .lock               who is training here, held while they do
//!   recipe.toml         every setting of the run
//!   environment.json    version, commit, machine, threads
//!   classes.json        names of the classes
//!   metrics.jsonl       a line per log interval and per evaluation
//!   summary.csv         a line per evaluation
//!   events.out.tfevents TensorBoard
//!   checkpoints/
//!     step-00000500/    model.safetensors, config.json, state.safetensors
//!     best.json         which of them did best on held-out images
//!   newest.json         which of them was written last
//!   model.safetensors   the trained model, with config.json beside it
//!   result.json         what it reached
//!   report.html         the same to look at
//!   recipe-400.toml     of a run that was extended after step 400: what it was trained by until then,
//!   result-400.json     and what it had reached,
//!   report-400.html     to look at
//!   origin.json         of a cooldown: which checkpoint of which run it began with
//! ```

mod checkpoints;
mod environment;
mod identity;
mod origin;
mod state;
mod stretches;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use omma_base::files::{FolderLock, LockError, fresh_folder, remove_leftovers, write_atomically};
use serde::Serialize;

pub(crate) use self::environment::last_device;
pub use self::{
    checkpoints::{Checkpoints, step_name},
    environment::Environment,
    identity::DataIdentity,
    origin::Origin,
    state::{Best, Held, Progress, Saved, State, Whole},
    stretches::Stretch,
};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
};

/// The folder of a run. Whoever trains owns it; others only read.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    owned: Option<Arc<FolderLock>>,
}

/// Where a new run goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Into this folder.
    At(&'a Path),
    /// Into a folder of its own below this one: `NAME-1`, `NAME-2`, and so on.
    Below(&'a Path),
    /// Beside a run that it is a cooldown of: `RUN-cooldown-1`, `RUN-cooldown-2`, and so on.
    Beside(&'a Path),
}

const RECIPE: &str = "recipe.toml";

/// Everything that a run writes under a fixed name.
const FILES: &[&str] = &[
    RECIPE,
    "environment.json",
    "classes.json",
    "metrics.jsonl",
    "summary.csv",
    "checkpoints",
    checkpoints::NEWEST,
    "model.safetensors",
    "config.json",
    "result.json",
    "report.html",
    origin::ORIGIN,
];

impl RunFolder {
    /// A new run; a folder that holds one already is left alone.
    pub fn create(place: Place, recipe: &Recipe) -> Result<Self> {
        Self::create_with(place, recipe, |_| Ok(()))
    }

    /// The same with what has to be there before the recipe is.
    fn create_with(
        place: Place,
        recipe: &Recipe,
        before: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Self> {
        let path = match place {
            Place::At(path) => {
                fs::create_dir_all(path).map_err(TrainError::io(path))?;
                path.to_owned()
            }
            Place::Below(below) => {
                fresh_folder(below, &recipe.name).map_err(TrainError::io(below))?
            }
            Place::Beside(run) => {
                let whole = || fs::canonicalize(run).map_err(TrainError::io(run));
                let run = if run.file_name().is_some() { run.to_owned() } else { whole()? };
                let name = run.file_name().unwrap_or_default().to_string_lossy();
                let below = run.parent().unwrap_or(Path::new(""));
                let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
                fresh_folder(below, &format!("{name}-cooldown")).map_err(TrainError::io(below))?
            }
        };
        let run = Self { path, owned: None }.own()?;
        // Looked for by its owner: nobody else can write one now.
        if run.file(RECIPE).exists() {
            return Err(TrainError::RunExists { path: run.path });
        }
        if let Some(file) = FILES.iter().map(|name| run.file(name)).find(|file| file.exists()) {
            return Err(TrainError::Occupied { path: run.path, file });
        }
        before(&run)?;
        run.write(RECIPE, recipe.to_toml())?;
        Ok(run)
    }

    /// A run that is there, to look at.
    pub fn open(path: &Path) -> Result<(Self, Recipe)> {
        if !path.join(RECIPE).exists() {
            let why = "; it is not the folder of a run".to_owned();
            return Err(TrainError::NoCheckpoint { path: path.to_owned(), why });
        }
        let recipe = Recipe::read_saved(&path.join(RECIPE))?;
        Ok((Self { path: path.to_owned(), owned: None }, recipe))
    }

    /// The right to write into it, until this is dropped; fails while another process has it.
    pub fn own(self) -> Result<Self> {
        let lock = FolderLock::take(&self.path).map_err(|error| match error {
            LockError::Held { owner } => TrainError::Owned { path: self.path.clone(), owner },
            LockError::Io(error) => TrainError::io(&self.path)(error),
        })?;
        Ok(Self { owned: Some(Arc::new(lock)), ..self })
    }

    /// Removes what a killed process left behind; the folder must be owned.
    pub fn tidy(&self) -> Result<()> {
        debug_assert!(self.owned.is_some(), "another process may be writing");
        let names = self.names()?;
        // A leftover is called after its file: a dot, the name, a dot, letters by chance.
        let left = |name: &String| {
            name.strip_prefix('.')?.rsplit_once('.').map(|(name, _)| name.to_owned())
        };
        let earlier: Vec<String> =
            names.iter().filter_map(left).filter(|name| stretches::is_earlier(name)).collect();
        let written: Vec<&str> =
            FILES.iter().copied().chain(earlier.iter().map(String::as_str)).collect();
        remove_leftovers(&self.path, &written).map_err(TrainError::io(&self.path))?;
        self.checkpoints().tidy()
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
        Checkpoints::new(&self.path)
    }

    /// Names of everything in it.
    fn names(&self) -> Result<Vec<String>> {
        let fault = || TrainError::io(&self.path);
        let entries = fs::read_dir(&self.path).map_err(fault())?;
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
        let names: io::Result<Vec<Option<String>>> = entries.map(name).collect();
        Ok(names.map_err(fault())?.into_iter().flatten().collect())
    }

    /// Writes a file in one step.
    pub fn write(&self, name: &str, text: String) -> Result<()> {
        let path = self.file(name);
        write_atomically(&path, |temporary| fs::write(temporary, text))
            .map_err(TrainError::io(&path))
    }

    /// Writes a file as JSON.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value).expect("it can be written");
        self.write(name, text + "\n")
    }
}
