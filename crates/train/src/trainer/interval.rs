//! Sums between two lines of the log.

use omma_eval::routing::LayerHealth;

use super::step::Pass;
use crate::{logs::TrainRecord, task::TaskScores};

/// Sums since the last line of the log.
#[derive(Debug, Default)]
pub(crate) struct Interval {
    steps: u64,
    examples: usize,
    scores: TaskScores,
    loss: f64,
    auxiliary_loss: f64,
    norm: f64,
    rate: f64,
    pub(crate) seconds: f64,
}

impl Interval {
    pub(crate) fn add(&mut self, pass: &Pass, norm: f64, rate: f64) {
        self.steps += 1;
        self.examples += pass.examples;
        self.scores.add(&pass.scores);
        self.loss += pass.loss;
        self.auxiliary_loss += pass.auxiliary_loss;
        self.norm += norm;
        self.rate = rate;
    }

    pub(crate) fn take(&mut self, step: u64, epoch: f64, routing: Vec<LayerHealth>) -> TrainRecord {
        let sums = std::mem::take(self);
        let steps = sums.steps.max(1) as f64;
        TrainRecord {
            step,
            epoch,
            loss: sums.loss / steps,
            auxiliary_loss: sums.auxiliary_loss / steps,
            scores: sums.scores.divided(sums.examples.max(1) as f64),
            learning_rate: sums.rate,
            gradient_norm: sums.norm / steps,
            images_per_second: sums.examples as f64 / sums.seconds.max(1e-9),
            routing,
        }
    }
}
