//! What can go wrong between a configuration, a file and a model.

use std::{io, path::PathBuf};

use omma_base::{Resolution, range::OutOfRange};
use omma_routing::RoutingError;
use thiserror::Error;

/// A result of this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum ModelError {
    #[error(transparent)]
    Range(#[from] OutOfRange),
    #[error("the model is too large to be counted: {what}")]
    TooLarge { what: String },
    #[error(
        "the weights of {parameters} parameters take {needed:.1} GiB, and there are {available:.1}"
    )]
    Memory { parameters: u64, needed: f64, available: f64 },
    #[error("a width of {width} cannot be cut into {heads} heads")]
    Heads { width: usize, heads: usize },
    #[error("an image of {resolution} pixels has no patch of {patch} × {patch}")]
    Resolution { resolution: Resolution, patch: usize },
    #[error(
        "without a projection a token is the pixels of its patch: a patch of {patch} × {patch} has {values} \
         values, and the width is {width}"
    )]
    PatchWidth { patch: usize, values: usize, width: usize },
    #[error("{left} and {right} do not go together")]
    Incompatible { left: &'static str, right: &'static str },
    #[error("the model has no experts")]
    NoExperts,
    #[error("{experts} experts of a layer cannot be spread over {ranks} ranks")]
    TooFewExperts { experts: usize, ranks: usize },
    #[error("something went wrong on another rank that has experts of this model")]
    Elsewhere,
    #[error("the experts of block {block} cannot be pruned so: {why}")]
    Pruning { block: usize, why: String },
    #[error("placement {placement} does not fit {depth} blocks: {why}")]
    Placement { placement: String, depth: usize, why: &'static str },
    #[error(
        "\"{text}\" is not a placement: write last-2, tail-2, every-2, or a list of blocks like 1,3"
    )]
    PlacementSyntax { text: String },
    #[error("there is no preset \"{name}\"{hint}")]
    UnknownPreset { name: String, hint: String },
    #[error("there is no setting \"{key}\"{hint}")]
    UnknownSetting { key: String, hint: String },
    #[error("{key} is not a setting of {router}")]
    UnusedSetting { key: String, router: &'static str },
    #[error("{key} cannot be {value}: {why}")]
    BadSetting { key: String, value: String, why: String },
    #[error("\"{text}\" is not a setting: write key=value, as in moe.experts=8")]
    SettingSyntax { text: String },
    #[error("{what}: expected {expected:?}, found {found:?}")]
    Shape { what: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("the model reads no text; one that was trained by contrast (`omma train limoe`) does")]
    ReadsNoText,
    #[error(
        "a text has token {token}, and the model knows {vocabulary} tokens: its tokenizer is another's"
    )]
    UnknownToken { token: i32, vocabulary: usize },
    #[error(
        "an ensemble needs members that agree: {what} is {first} in the first and {other} in another"
    )]
    Ensemble { what: &'static str, first: usize, other: usize },
    #[error("an ensemble of nothing")]
    EmptyEnsemble,
    #[error("an average of nothing")]
    EmptySoup,
    #[error(
        "an average needs models of one configuration: {setting} is {first} in the first and {other} in another"
    )]
    Soup { setting: String, first: String, other: String },
    #[error(transparent)]
    Routing(#[from] RoutingError),

    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a checkpoint: {why}")]
    NotACheckpoint { path: PathBuf, why: String },
    #[error("{path} is cut off: {why}; copy it again or go back to an earlier one")]
    Truncated { path: PathBuf, why: String },
    #[error(
        "{path} is damaged: tensor \"{tensor}\" does not have its checksum; copy it again or go back to an earlier one"
    )]
    Checksum { path: PathBuf, tensor: String },
    #[error(
        "{path} does not fit its configuration: tensor \"{tensor}\" should be {expected:?} and is {found:?}"
    )]
    TensorShape { path: PathBuf, tensor: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("{path} lacks tensor \"{tensor}\"")]
    MissingTensor { path: PathBuf, tensor: String },
    #[error("{path} has tensors that the model has no place for: {}", tensors.join(", "))]
    UnusedTensors { path: PathBuf, tensors: Vec<String> },
    #[error(
        "{path}: tensor \"{tensor}\" holds {dtype}, which is not a type of floats that is read here"
    )]
    TensorType { path: PathBuf, tensor: String, dtype: String },
    #[error("{path}: {why}")]
    Import { path: PathBuf, why: String },
    #[error("a {from} cannot become a {to}: {why}")]
    Adapt { from: String, to: String, why: String },
    #[error("{setting} makes no difference to predictions: only training uses it{hint}")]
    IdleSetting { setting: String, hint: &'static str },
    #[error("these settings need other parameters than the model has (such as {parameter})")]
    OtherParameters { parameter: String },
    #[error(
        "there is nothing behind block number {asked}: the model has {depth} blocks, from 1 on"
    )]
    Depth { asked: usize, depth: usize },
}

impl ModelError {
    /// Whether a file was read and found wrong. Anything else, such as a full disk or too many open files,
    /// says nothing about the file.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::NotACheckpoint { .. }
            | Self::Truncated { .. }
            | Self::Checksum { .. }
            | Self::TensorShape { .. }
            | Self::MissingTensor { .. }
            | Self::UnusedTensors { .. }
            | Self::TensorType { .. } => true,
            // It was looked for where it must be.
            Self::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// An error of the file system, with the path it happened at.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}
