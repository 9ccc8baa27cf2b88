//! Which experts, and which layers of experts, a model can do without.
//!
//! | file | question |
//! |---|---|
//! | `usage.rs` | which share of the tokens does each expert serve? |
//! | `order.rs` | which are kept first, and how many cover a share of the tokens? (paper 002 Fig. 13) |
//! | `judge.rs` | what does a model score that has less in it? |
//! | `pace.rs` | how much faster is it? |
//! | `curve.rs` | what does each number of experts score, in both modes, by rank and at random? (Fig. 14, 15) |
//! | `report.rs` | the record of it, and a page |

mod curve;
mod judge;
mod order;
mod pace;
mod report;
mod usage;

pub use self::{
    curve::{CurvePoint, CurveProtocol, KeptBy, PruningCurve, pruning_curve},
    judge::{Judge, ModelScore},
    order::{KeepOrder, Wish},
    pace::{Pace, pace},
    report::{LayerRecord, ModelRecord, PruningRecord, pruning_page},
    usage::{LayerUsage, expert_usage},
};

use crate::stream::Watcher;

/// Tells a watcher what is looked at in words of its own.
struct Named<'a> {
    name: &'a str,
    watcher: &'a mut dyn Watcher,
}

impl Watcher for Named<'_> {
    fn begins(&mut self, _: &str, images: usize) {
        self.watcher.begins(self.name, images);
    }

    fn done(&mut self, images: usize) {
        self.watcher.done(images);
    }

    fn stopped(&self) -> bool {
        self.watcher.stopped()
    }
}
