//! Studies: several systems, several seeds, one table.
//!
//! | file | room for |
//! |---|---|
//! | `setup.rs` | `study.toml`, and the studies that come with the program |
//! | `jobs.rs` | trainings and evaluations as processes, a few at a time |

mod jobs;
mod setup;

pub(crate) use self::{
    jobs::{Job, run_jobs},
    setup::{Options, STUDIES, Study, StudySystem},
};
