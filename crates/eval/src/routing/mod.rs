//! What the experts of a model did.
//!
//! | file | question |
//! |---|---|
//! | `groups.rs` | which of them are chosen among by the same tokens? |
//! | `health.rs` | are they all used, and does everybody find room? |
//! | `modalities.rs` | is that so for images and for texts, each by themselves? |
//! | `visits.rs` | which token of which image went to which expert, with what weight? |

mod groups;
mod health;
mod modalities;
mod visits;

pub(crate) use self::{groups::Group, visits::row_visits};
pub use self::{
    health::{LayerHealth, RoutingTally},
    modalities::{CollapseWatch, ModalityHealth, modality_name},
    visits::{BatchShape, Visit, visits},
};
