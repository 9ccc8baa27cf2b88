//! What the experts of a model did.
//!
//! | file | question |
//! |---|---|
//! | `health.rs` | are they all used, and does everybody find room? |
//! | `visits.rs` | which token of which image went to which expert, with what weight? |

mod health;
mod visits;

pub use self::{
    health::{LayerHealth, RoutingTally},
    visits::{BatchShape, Visit, visits},
};
