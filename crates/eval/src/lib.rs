//! How good predictions are, and how much they know about that.
//!
//! | place | room for |
//! |---|---|
//! | `metrics/` | numbers from predictions: one file per question |
//! | `inputs.rs`, `system.rs` | what models take; what is judged: one model, or several as one |
//! | `stream.rs` | a data set through a system, batch by batch |
//! | `tally.rs` | a system's predictions, summed as they come: of the average, of members, how these differ |
//! | `summary.rs` | the four scores and the bins behind one of them, as records |
//! | `protocols/` | one file per question that is asked of a system, with its record and its part of the page |
//! | `confusion.rs`, `examples.rs` | which classes are taken for which; single predictions, to be shown |
//! | `gallery/` | pictures for a page: predictions, the worst corruption, what experts take |
//! | `routing/` | what the experts of a model did |
//! | `probe/` | a linear classifier in closed form |
//! | `predict.rs` | single images |
//! | `compare/` | several evaluations beside each other: gains, fronts, grids |
//! | `report/` | pages and figures |
//!
//! Scores are `f64` arithmetic over plain slices, summed as predictions come; memory does not grow with
//! the data, but for one number per image where out-of-distribution images are told.

#![forbid(unsafe_code)]

pub mod compare;
pub mod metrics;
pub mod probe;
pub mod report;
pub mod routing;

mod confusion;
mod error;
mod examples;
mod gallery;
mod inputs;
mod predict;
mod protocols;
mod stream;
mod summary;
mod system;
mod tally;

pub use confusion::Confusion;
pub use error::{EvalError, Result};
pub use examples::{Example, Examples};
pub use gallery::{Experts, Gallery};
pub use inputs::{images_of, pixels_for};
pub use predict::{Guess, Prediction, predict};
pub use protocols::{
    Evaluation, Protocol, evaluate,
    fewshot::{FewShot, FewShotProtocol, Shots, few_shot},
    linear::linear_baseline,
    ood::{OodPositive, OodProtocol, OodRecord, OodScore},
    shift::{Corrupted, Shift, ShiftOrigin, ShiftProtocol, ShiftRecord, Shifted},
    temperature::TemperatureRecord,
    test::{Test, TestProtocol, TestRecord},
};
pub use stream::{Images, Watcher};
pub use summary::{BinKind, Binning, ReliabilityBin, Summary};
pub use system::{JudgedClasses, Outputs, System, SystemCost, SystemKind};
pub use tally::DiversityRecord;
