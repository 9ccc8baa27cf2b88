//! What can go wrong in an evaluation.

use std::{io, path::PathBuf};

use omma_data::DataError;
use omma_model::ModelError;
use thiserror::Error;

use crate::probe::ProbeError;

/// What comes of an evaluation, unless something is wrong with it.
pub type Result<T, E = EvalError> = std::result::Result<T, E>;

/// Why there is no evaluation.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum EvalError {
    #[error(
        "{model} tells {head} classes apart, but {data} has {classes}; give the data that the model \
         was trained on, judge it among these classes if they are some of its own (`omma eval \
         --class-subset`), or train a new classifier (`omma train --init`)"
    )]
    Classes { model: String, head: usize, data: String, classes: usize },
    #[error(
        "{model} has no classifier; judge its features with `omma fewshot`, or train one with `omma \
         train --init`"
    )]
    NoHead { model: String },
    #[error("rank {rank}: {what}")]
    OnRank { rank: usize, what: String, not_finite: bool },
    #[error(
        "{model} compares images with texts and has no classes of its own; name some (`omma predict \
         --labels cat,dog`), or judge it by data whose classes have names or whose images have captions"
    )]
    NoLabels { model: String },
    #[error(
        "{data} has no captions and less than two classes with names; a model that compares images with \
         texts is judged by either"
    )]
    NoTexts { data: String },
    #[error(
        "{model} labels pixels, not images; judge it by images with masks, such as folders images/ and masks/ \
         (`omma eval`), or let it write masks (`omma predict`)"
    )]
    LabelsPixels { model: String },
    #[error(
        "{model} labels images, not pixels; a model that labels pixels is trained by `omma train segment`"
    )]
    LabelsImages { model: String },
    #[error(
        "{data} has no masks, and a model that labels pixels is judged by them: folders of images and of masks \
         with the same names, such as images/ and masks/, or train/ and trainannot/"
    )]
    NoMasks { data: String },
    #[error("{data} has no classes, only captions; {what} takes classes")]
    NoClasses { data: String, what: &'static str },
    #[error(
        "the classes of {data} are called {names}, which says nothing of what they show; give their names \
         with --class-names FILE, one per line or as a JSON list"
    )]
    NoNames { data: String, names: String },
    #[error(
        "the tokenizer has {found} tokens, but the model has vectors for {vocabulary}: it is another \
         model's"
    )]
    Vocabulary { found: usize, vocabulary: usize },
    #[error("the text {text:?} has an embedding that is not a number")]
    BrokenText { text: String },
    #[error("{model} has no tokenizer, so it cannot read; it belongs beside the model's weights")]
    NoTokenizer { model: String },
    #[error(
        "{first} and {other} cannot be one ensemble: {what} is {left} for the first and {right} for \
         the second"
    )]
    Ensemble { first: String, other: String, what: &'static str, left: String, right: String },
    #[error(
        "{model} has {of} classes, numbered from 0 and each judged once; {class} is none to judge among"
    )]
    Judged { model: String, of: usize, class: usize },
    #[error("{what} is of classes of images, and {model} labels pixels")]
    NotOfPixels { model: String, what: &'static str },
    #[error("{folder} has none of the fifteen corruptions that the mean is over, such as fog.npy")]
    NoCorruption { folder: String },
    #[error(
        "{model} has no layer with experts, so that there are no routes to look at; give a model that has some, \
         or make one of a dense model with `omma upcycle`"
    )]
    NoExperts { model: String },
    #[error(
        "{model} is not one Soft MoE, and only of that can some experts serve an image; train one with `omma train \
         soft-moe`"
    )]
    NotSoft { model: String },
    #[error("{data} has no images to judge by")]
    Empty { data: String },
    #[error("{model} has an output that is not a number for image {index} of {data}")]
    NotFinite { model: String, data: String, index: usize },
    #[error("{data} has {found} training images of class {class}, but {shots} shots are asked for")]
    Shots { data: String, class: String, found: usize, shots: usize },
    #[error(
        "block {block} cannot keep {experts} of its experts: {least} to {most} can be kept, so that every token \
         finds as many as it chooses"
    )]
    Keep { block: usize, experts: usize, least: usize, most: usize },
    #[error("stopped before its end")]
    Interrupted,
    #[error("{path}: {why}")]
    Record { path: PathBuf, why: String },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{0}")]
    Compare(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Probe(ProbeError),
}

impl From<ProbeError> for EvalError {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Interrupted => Self::Interrupted,
            other => Self::Probe(other),
        }
    }
}

impl EvalError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}

impl EvalError {
    /// Whether a model's outputs, or the logits of one of its routers, are not numbers.
    pub fn is_not_finite(&self) -> bool {
        match self {
            Self::NotFinite { .. } => true,
            Self::Model(ModelError::Routing(error)) => {
                matches!(error, omma_routing::RoutingError::NonFiniteLogit { .. })
            }
            Self::OnRank { not_finite, .. } => *not_finite,
            _ => false,
        }
    }
}
