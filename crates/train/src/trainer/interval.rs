//! Sums between two lines of the log.

use omma_base::transfer::Transfer;
use omma_eval::routing::LayerHealth;
use omma_ranks::{Traffic, World};

use super::stepper::Taken;
use crate::{
    logs::{CommunicationRecord, TrainRecord, TransferRecord},
    task::TaskScores,
};

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
    transfer: Option<Transfer>,
    pub(crate) seconds: f64,
}

impl Interval {
    pub(super) fn add(&mut self, Taken { facts, norm, transfer }: &Taken, rate: f64) {
        self.steps += 1;
        self.examples += facts.examples;
        self.scores.add(&facts.scores);
        self.loss += facts.loss;
        self.auxiliary_loss += facts.auxiliary_loss;
        self.norm += norm;
        self.rate = rate;
        if let Some(transfer) = transfer {
            self.transfer.get_or_insert_default().add(*transfer);
        }
    }

    pub(crate) fn take(
        &mut self,
        step: u64,
        epoch: f64,
        routing: Vec<LayerHealth>,
        world: &World,
    ) -> TrainRecord {
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
            communication: (!world.is_alone()).then(|| {
                let Traffic { bytes, time } = world.take_traffic();
                CommunicationRecord {
                    ranks: world.size(),
                    bytes: bytes as f64 / steps,
                    seconds: time.as_secs_f64() / steps,
                }
            }),
            transfer: sums.transfer.map(|Transfer { to_device, from_device }| TransferRecord {
                to_device: to_device as f64 / steps,
                from_device: from_device as f64 / steps,
            }),
            routing,
        }
    }
}
