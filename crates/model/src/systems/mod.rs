//! What goes around a model: ensembles of several, and ways from one system to another.

mod adapt;
mod deep_ensemble;
mod upcycle;

pub use adapt::{Target, adapt};
pub use deep_ensemble::DeepEnsemble;
pub use upcycle::{Start, Upcycling, step_zero_difference, upcycle};
