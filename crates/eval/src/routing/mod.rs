//! What the experts of a model did.
//!
//! | file | question |
//! |---|---|
//! | `health.rs` | are they all used, and does everybody find room? |

mod health;

pub use self::health::{LayerHealth, RoutingTally};
