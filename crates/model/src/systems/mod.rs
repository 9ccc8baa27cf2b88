//! What goes around a model: ensembles of several, and ways from one system to another.

mod adapt;
mod deep_ensemble;
mod permute;
mod prune;
mod reconfigure;
mod soup;
mod thin;
mod truncate;
mod upcycle;

pub use adapt::{Target, adapt};
pub use deep_ensemble::DeepEnsemble;
pub use permute::permute_experts;
pub use prune::{KeptExperts, prune};
pub use reconfigure::reconfigure;
pub use soup::{first_difference, soup};
pub use thin::{DenseBlock, DenseFrom, thin};
pub use truncate::truncated;
pub use upcycle::{Start, Upcycling, step_zero_difference, upcycle};
