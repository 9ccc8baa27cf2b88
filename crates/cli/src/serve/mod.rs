//! What `omma serve` serves: models as users name them, and what is known of each beside its weights.
//!
//! | file | room for |
//! |---|---|
//! | `named.rs` | models and ensembles by name |
//! | `known.rs` | what a run knows of its model: a temperature, the load of its experts |
//! | `routing.rs` | the load of experts, kept in a file |
//! | `routing_history.rs` | such a file, read again: load over time |

mod known;
mod named;
mod routing;
mod routing_history;

pub(crate) use self::{named::Named, routing::log_routing, routing_history::RoutingHistory};
