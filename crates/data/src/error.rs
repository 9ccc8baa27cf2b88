//! What can go wrong with data.

use std::{io, path::PathBuf};

use omma_base::Resolution;
use thiserror::Error;

/// With what can go wrong with data.
pub type Result<T, E = DataError> = std::result::Result<T, E>;

/// Every message names the file or the sample that it is about.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum DataError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not an image that can be read: {why}")]
    NotAnImage { path: PathBuf, why: String },
    #[error("{path} is larger than any image that is read: {why}")]
    TooManyPixels { path: PathBuf, why: String },
    #[error("{path}: {why}")]
    Format { path: PathBuf, why: String },
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Options(String),
    #[error("a tokenizer: {0}")]
    Tokenizer(String),
    #[error("{path} has no {split} images")]
    EmptySplit { path: PathBuf, split: &'static str },
    #[error("sample {index} has label {label}, but there are {classes} classes")]
    Label { index: usize, label: usize, classes: usize },
    #[error("sample {index} has no {what}, and this task needs one for every image")]
    Missing { index: usize, what: &'static str },
    #[error(
        "sample {name} has no caption, and every image needs one to be paired with a text: give it one, leave \
         it out, or, where it has a class, let the name of the class be its text"
    )]
    NoCaption { name: String },
    #[error("the mask of sample {index} has {found} pixels, but its image is {resolution}")]
    MaskSize { index: usize, found: usize, resolution: Resolution },
    #[error(
        "{bad} of {seen} files could not be read, more than the {percent} % that are allowed; the first \
         was {first}"
    )]
    TooManyBad { bad: usize, seen: usize, percent: f64, first: String },
    #[error("a worker that reads images has stopped unexpectedly")]
    WorkerLost,
}

impl DataError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}
