//! Studies: several systems, several seeds, one table.
//!
//! | file | room for |
//! |---|---|
//! | `builtin.rs` | the studies that come with the program |
//! | `setup.rs` | `study.toml` |
//! | `system.rs` | a system of it: what is trained, from what, and how it is judged |
//! | `chain.rs` | which models are trained, in which order, and where they are |
//! | `options.rs` | what a user sets beside it, and the folder that remembers that |
//! | `work.rs` | the processes that it is made of |
//! | `norm.rs` | a study of another kind: a number that is learned from drawn tokens |
//! | `judged.rs` | which evaluations are there already |
//! | `curves.rs` | how systems learned |
//! | `scans.rs` | scores over a setting |
//! | `training.rs` | what trainings took |

mod builtin;
mod chain;
mod curves;
mod judged;
mod norm;
mod options;
mod scans;
mod setup;
mod system;
mod training;
mod work;

use omma_eval::metrics::Estimate;
use omma_report::Series;

pub(crate) use self::{
    builtin::STUDIES,
    chain::Model,
    curves::learning_curves,
    judged::Asked,
    norm::NormStudy,
    options::Options,
    setup::Study,
    system::{FromSeed, StudySystem},
    training::training_figures,
    work::{Stage, Work},
};

/// Means in their order, with standard errors where there are several seeds.
fn line(label: &str, means: impl Iterator<Item = (f64, Estimate)>) -> Series {
    let means: Vec<(f64, Estimate)> = means.collect();
    let points = means.iter().map(|(x, estimate)| (*x, estimate.mean)).collect();
    let error = means.iter().map(|(_, estimate)| estimate.standard_error).collect();
    Series { error, ..Series::new(label, points) }
}
