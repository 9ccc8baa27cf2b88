//! Training of vision mixtures of experts.
//!
//! | place | room for |
//! |---|---|
//! | `recipe/` | what makes a run, as a user writes it |
//! | `resolved.rs` | the same with data opened, classes known, device chosen |
//! | `freezing.rs` | which parameters do not learn |
//! | `activations/` | what a frozen part makes of images, kept on disk |
//! | `memory.rs` | how much memory a step takes, before the first one |
//! | `plan.rs` | how long a step of many ranks would take |
//! | `task/` | what a model is trained for: targets, loss, scores, what a report shows |
//! | `start/` | what a run begins with, or goes on with |
//! | `trainer/` | one pass, several side by side or on several ranks, the loop around them, and its end |
//! | `optimiser/` | how weights move |
//! | `run/` | a run on disk: checkpoints that appear whole or not at all |
//! | `norm.rs` | a number that is learned from drawn tokens (paper 004 App. C) |
//! | `logs/`, `report.rs` | what is written down on the way, and what is shown at the end |
//!
//! Everything random in a step comes from the recipe's seed and the number of the step. So the state
//! of a run is its weights, what its optimiser remembers, and that number; a run that was killed and
//! resumed ends with the same bits as one that was not.

#![forbid(unsafe_code)]

pub mod logs;
pub mod norm;
pub mod optimiser;
pub mod recipe;
pub mod run;

mod activations;
mod error;
mod freezing;
mod memory;
mod plan;
mod report;
mod resolved;
mod start;
mod task;
mod trainer;

pub use error::{Result, TrainError};
pub use freezing::Freeze;
pub use memory::StepMemory;
pub use plan::{Layout, Plan, RankSpeed};
pub use recipe::{Captions, ContrastRecipe, Recipe};
pub use resolved::Resolved;
pub use start::Resume;
pub use task::{ContrastLoss, Fact, Measure, TaskKind, TaskScores, Unit};
pub use trainer::{
    Cooldown, Ended, Follower, LossScale, Observer, Outline, Stop, Trainer, TrainingResult,
    Weights, lead, meet, same_data,
};
