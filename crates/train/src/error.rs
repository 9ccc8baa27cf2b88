//! What can go wrong on the way from a recipe to a trained model.

use std::{io, path::PathBuf};

use omma_data::DataError;
use omma_eval::EvalError;
use omma_kernels::PrecisionError;
use omma_model::ModelError;
use thiserror::Error;

/// A result of this crate.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum TrainError {
    #[error(
        "there is no recipe \"{name}\"{hint}; a recipe of your own is the path of a .toml file"
    )]
    UnknownRecipe { name: String, hint: String },
    #[error("{path}: {why}")]
    RecipeSyntax { path: PathBuf, why: String },
    #[error("there is no setting \"{key}\"{hint}")]
    UnknownSetting { key: String, hint: String },
    #[error("{key} is not a setting of {router}")]
    UnusedSetting { key: String, router: &'static str },
    #[error("{key} cannot be {value}: {why}")]
    BadSetting { key: String, value: String, why: String },
    #[error("\"{text}\" is not a setting: write key=value, as in train.steps=500")]
    SettingSyntax { text: String },
    #[error("{what}")]
    Recipe { what: String },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} holds a run already; go on with `--resume {path}`, or choose another folder")]
    RunExists { path: PathBuf },
    #[error("{path} is not empty: a run would write over {file}; choose another folder")]
    Occupied { path: PathBuf, file: PathBuf },
    #[error(
        "{path} is in use: {owner} is training there; wait for it or stop it, or choose another folder"
    )]
    Owned { path: PathBuf, owner: String },
    #[error("{path} has no checkpoint to go on from{why}")]
    NoCheckpoint { path: PathBuf, why: String },
    #[error(
        "{path}: {what} changed since its newest checkpoint was written ({changes}); put it back, or go on \
         with what is there now by --accept-changes"
    )]
    Changed { path: PathBuf, what: &'static str, changes: String },
    #[error("stopped before its end")]
    Interrupted,
    #[error("{path} is damaged: {why}")]
    Damaged { path: PathBuf, why: String },
    #[error("{why}\n\n{layers}\n\n{last_good}")]
    Diverged { why: String, layers: String, last_good: String },
    #[error("{what}")]
    OnRank { what: String, diverged: bool },
    #[error("the threads of train.shards cannot be started: {0}")]
    Threads(String),
    #[error(transparent)]
    Precision(#[from] PrecisionError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Judging(Box<EvalError>),
}

impl TrainError {
    /// Whether a checkpoint was read and found wrong. An error of the file system is none of its faults.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Model(error) => error.is_damage(),
            // It was looked for where it must be.
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

impl From<EvalError> for TrainError {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Interrupted => Self::Interrupted,
            EvalError::Model(error) => Self::Model(error),
            EvalError::Data(error) => Self::Data(error),
            other => Self::Judging(Box::new(other)),
        }
    }
}
