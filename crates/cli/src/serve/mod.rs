//! What `omma serve` serves: models as users name them, and what is known of each beside its weights.
//!
//! | file | room for |
//! |---|---|
//! | `named.rs` | models and ensembles by name |
//! | `known.rs` | what a run knows of its model: a temperature, the load of its experts |
//! | `routing.rs` | the load of experts, kept in a file |

mod known;
mod named;
mod routing;

pub(crate) use self::{named::Named, routing::log_routing};
