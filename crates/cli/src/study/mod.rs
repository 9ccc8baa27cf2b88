//! Studies: several systems, several seeds, one table.
//!
//! | file | room for |
//! |---|---|
//! | `setup.rs` | `study.toml`, and the studies that come with the program |
//! | `judged.rs` | which evaluations are there already |
//! | `curves.rs` | how systems learned |

mod curves;
mod judged;
mod setup;

pub(crate) use self::{
    curves::learning_curves,
    judged::has_looked_at,
    setup::{Options, STUDIES, Study, StudySystem},
};
