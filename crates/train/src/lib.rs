//! Training of vision mixtures of experts.
//!
//! | file | room for |
//! |---|---|
//! | `recipe/` | what makes a run, as a user writes it |
//! | `optimiser/`, `schedule.rs`, `average.rs` | how weights move |
//! | `start/` | what a run begins with, or goes on with |
//! | `step.rs`, `shards.rs`, `trainer.rs`, `stop.rs` | one pass, several side by side, and the loop around them |
//! | `run/` | a run on disk: checkpoints that appear whole or not at all |
//! | `logs/`, `health.rs` | what is written down on the way |
//! | `evaluate.rs`, `linear.rs` | how good it is, and what a linear classifier would be |
//! | `finish.rs`, `report.rs` | the end: `result.json`, `report.html` |
//!
//! Everything random in a step comes from the recipe's seed and the number of the step. So the state
//! of a run is its weights, what its optimiser remembers, and that number; a run that was killed and
//! resumed ends with the same bits as one that was not.

#![forbid(unsafe_code)]

pub mod logs;
pub mod optimiser;
pub mod recipe;
pub mod run;

mod average;
mod divergence;
mod error;
mod evaluate;
mod finish;
mod health;
mod interval;
mod linear;
mod report;
mod schedule;
mod shards;
mod splits;
mod start;
mod step;
mod stop;
mod trainer;
mod weights;

pub use average::Average;
pub use error::{Result, TrainError};
pub use evaluate::{Evaluation, Example, evaluate};
pub use finish::{TrainingResult, finish};
pub use health::{LayerHealth, RoutingTally};
pub use linear::linear_baseline;
pub use recipe::Recipe;
pub use schedule::{Schedule, ScheduleKind};
pub use splits::DataIdentity;
pub use start::Resume;
pub use step::{Pass, pass};
pub use stop::Stop;
pub use trainer::{Observer, Outcome, Plan, Trained, Trainer};
pub use weights::{Weights, gradients};
