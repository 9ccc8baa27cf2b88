//! Studies: several systems, several seeds, one table.
//!
//! | file | room for |
//! |---|---|
//! | `setup.rs` | `study.toml`, and the studies that come with the program |
//! | `norm.rs` | a study of another kind: a number that is learned from drawn tokens |
//! | `judged.rs` | which evaluations are there already |
//! | `curves.rs` | how systems learned |
//! | `scans.rs` | scores over a setting |

mod curves;
mod judged;
mod norm;
mod scans;
mod setup;

use omma_eval::metrics::Estimate;
use omma_report::Series;

pub(crate) use self::{
    curves::learning_curves,
    judged::has_looked_at,
    norm::NormStudy,
    setup::{Options, STUDIES, Study, StudySystem},
};

/// Means in their order, with standard errors where there are several seeds.
fn line(label: &str, means: impl Iterator<Item = (f64, Estimate)>) -> Series {
    let means: Vec<(f64, Estimate)> = means.collect();
    let points = means.iter().map(|(x, estimate)| (*x, estimate.mean)).collect();
    let error = means.iter().map(|(_, estimate)| estimate.standard_error).collect();
    Series { error, ..Series::new(label, points) }
}
