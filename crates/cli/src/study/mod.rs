//! Studies: several systems, several seeds, one table.
//!
//! | file | room for |
//! |---|---|
//! | `setup.rs` | `study.toml`, and the studies that come with the program |
//! | `judged.rs` | which evaluations are there already |

mod judged;
mod setup;

pub(crate) use self::{
    judged::has_looked_at,
    setup::{Options, STUDIES, Study, StudySystem},
};
