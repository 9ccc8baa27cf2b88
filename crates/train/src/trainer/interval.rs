//! Sums between two lines of the log.

use omma_base::transfer::Transfer;
use omma_eval::routing::{LayerHealth, RoutingTally};
use omma_ranks::Traffic;
use serde::{Deserialize, Serialize};

use super::{
    experts::ExpertRanks,
    loss_scale::LossScale,
    stepper::{Stepper, Taken},
};
use crate::{
    logs::{
        CommunicationRecord, ExpertTrafficRecord, LossScaleRecord, TrainRecord, TransferRecord,
    },
    task::TaskScores,
};

/// Sums since the last line of the log. A state holds them, so that the first line after a resume
/// is about all of its steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Interval {
    steps: u64,
    skipped: u64,
    examples: usize,
    scores: TaskScores,
    loss: f64,
    auxiliary_loss: f64,
    norm: f64,
    rate: f64,
    routing: RoutingTally,
    pub(crate) seconds: f64,
    #[serde(skip)]
    traffic: ProcessTraffic,
}

/// Sums over those steps of an interval that this process took.
#[derive(Debug, Clone, PartialEq, Default)]
struct ProcessTraffic {
    steps: u64,
    transfer: Option<Transfer>,
    waited: f64,
}

impl Interval {
    pub(super) fn add(&mut self, taken: Taken, rate: f64) {
        let Taken { facts, norm, skipped, transfer, waited } = taken;
        self.steps += 1;
        self.skipped += u64::from(skipped);
        self.examples += facts.examples;
        self.scores.add(&facts.scores);
        self.loss += facts.loss;
        self.auxiliary_loss += facts.auxiliary_loss;
        // That of a step that is skipped is not finite.
        self.norm += if skipped { 0.0 } else { norm };
        self.rate = rate;
        self.routing.add(facts.routing);
        self.traffic.steps += 1;
        self.traffic.waited += waited.as_secs_f64();
        if let Some(transfer) = transfer {
            self.traffic.transfer.get_or_insert_default().add(transfer);
        }
    }

    /// Returns whether JSON can hold all sums. The loss of a skipped step may be infinite.
    pub(crate) fn is_finite(&self) -> bool {
        let sums = [self.loss, self.auxiliary_loss, self.norm];
        sums.into_iter().chain(self.scores.iter().map(|(_, sum)| sum)).all(f64::is_finite)
    }

    pub(super) fn take(&mut self, step: u64, epoch: f64, stepper: &Stepper) -> TrainRecord {
        let mut sums = std::mem::take(self);
        let routing = sums.routing.take();
        let steps = sums.steps.max(1) as f64;
        let ProcessTraffic { steps: own_steps, transfer, waited } = sums.traffic;
        let own_steps = own_steps.max(1) as f64;
        let communication = communication(stepper, &routing, own_steps, waited);
        let moved = (sums.steps - sums.skipped).max(1) as f64;
        TrainRecord {
            step,
            epoch,
            loss: sums.loss / steps,
            auxiliary_loss: sums.auxiliary_loss / steps,
            scores: sums.scores.divided(sums.examples.max(1) as f64),
            learning_rate: sums.rate,
            gradient_norm: sums.norm / moved,
            loss_scale: stepper
                .loss_scale
                .map(|LossScale { scale, .. }| LossScaleRecord { scale, skipped: sums.skipped }),
            images_per_second: sums.examples as f64 / sums.seconds.max(1e-9),
            communication,
            transfer: transfer.map(|Transfer { to_device, from_device }| TransferRecord {
                to_device: to_device as f64 / own_steps,
                from_device: from_device as f64 / own_steps,
            }),
            routing,
        }
    }
}

/// What ranks had to say to each other in so many steps, each on average.
fn communication(
    stepper: &Stepper,
    routing: &[LayerHealth],
    steps: f64,
    waited: f64,
) -> Option<CommunicationRecord> {
    let (world, experts) = (&stepper.world, stepper.experts.as_ref());
    if world.is_alone() {
        return None;
    }
    let sums = world.take_traffic();
    let [rows, of_experts] = experts.map_or_else(Default::default, ExpertRanks::take_traffic);
    let bytes = |traffic: &[Traffic]| {
        traffic.iter().map(|traffic| traffic.bytes as f64).sum::<f64>() / steps
    };
    let seconds = |traffic: &[Traffic]| {
        traffic.iter().map(|traffic| traffic.time.as_secs_f64()).sum::<f64>() / steps
    };
    let loads = |experts: &ExpertRanks| {
        let loads = routing.iter().map(|layer| experts.peak_load(&layer.load));
        loads.fold(0.0, f64::max)
    };
    Some(CommunicationRecord {
        ranks: world.size(),
        bytes: bytes(&[sums, rows, of_experts]),
        seconds: seconds(&[sums, rows, of_experts]),
        waited: Some(waited / steps),
        experts: experts.map(|experts| ExpertTrafficRecord {
            ranks: experts.group.size(),
            bytes: bytes(&[rows]),
            seconds: seconds(&[rows]),
            peak_load: loads(experts),
        }),
    })
}
