//! Studies: several systems, several seeds, one table.
//!
//! | file | room for |
//! |---|---|
//! | `definition.rs` | `study.toml`, and the studies that come with the program |
//! | `jobs.rs` | trainings and evaluations as processes, a few at a time |

mod definition;
mod jobs;

pub(crate) use self::{
    definition::{Options, STUDIES, Study, SystemPlan},
    jobs::{Job, run_jobs},
};
