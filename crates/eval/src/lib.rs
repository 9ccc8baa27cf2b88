//! How good predictions are, and how much they know about that.
//!
//! | place | room for |
//! |---|---|
//! | `metrics/` | numbers from predictions: one file per question |
//! | `system.rs` | what is judged: one model, or several as one |
//! | `stream.rs` | a data set through a system, batch by batch |
//! | `tally.rs`, `temperature.rs` | scores of an ensemble, its members, and of both scaled |
//! | `shift.rs`, `ood.rs` | corrupted images, and images of another kind |
//! | `evaluate.rs` | all of these as one protocol, and the record of it, `eval.json` |
//! | `fewshot/` | what frozen features know |
//! | `predict.rs` | single images |
//! | `compare/` | several evaluations beside each other: gains, fronts, grids |
//! | `report/` | pages and figures |
//!
//! Scores are `f64` arithmetic over plain slices, summed as predictions come; memory does not grow with
//! the data, but for one number per image where images from outside are told.

#![forbid(unsafe_code)]

pub mod compare;
pub mod fewshot;
pub mod metrics;
pub mod report;

mod error;
mod evaluate;
mod ood;
mod predict;
mod shift;
mod stream;
mod system;
mod tally;
mod temperature;

pub use error::{EvalError, Result};
pub use evaluate::{Evaluation, Protocol, evaluate};
pub use ood::{OodRecord, OodScore, entropy};
pub use predict::{Guess, Prediction, predict};
pub use shift::{Shift, ShiftProtocol, ShiftRecord};
pub use stream::{Images, Watcher};
pub use system::{Said, System, SystemCost, SystemKind};
pub use tally::{BinKind, Binning, DiversityRecord, ReliabilityBin, Summary};
pub use temperature::TemperatureRecord;
