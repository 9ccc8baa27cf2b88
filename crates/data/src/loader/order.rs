//! In which order a run sees its samples.

use std::sync::Arc;

use omma_base::Seed;
use rand::seq::SliceRandom;

use crate::error::{DataError, Result};

/// Every epoch a new shuffle of all samples, cut into batches; a short last one is left out. All of it
/// follows from the seed.
pub struct Order {
    samples: u32,
    batch: usize,
    seed: Seed,
    /// The shuffle that was looked at last, and its epoch.
    last: Option<(u64, Arc<Vec<u32>>)>,
}

impl Order {
    /// Of so many samples, `batch` at a time.
    pub fn new(samples: usize, batch: usize, seed: Seed) -> Result<Self> {
        let Ok(samples) = u32::try_from(samples) else {
            return Err(DataError::Options(format!("{samples} images are too many")));
        };
        Ok(Self { samples, batch: batch.max(1), seed, last: None })
    }

    /// The epoch that a batch is in. A data set smaller than a batch is repeated inside it.
    pub fn epoch(&self, batch: u64) -> u64 {
        batch / self.per_epoch()
    }

    /// The order of all samples in the epoch of a batch, and where in it the batch begins.
    pub fn of(&mut self, batch: u64) -> (Arc<Vec<u32>>, usize) {
        let epoch = self.epoch(batch);
        let first = (batch % self.per_epoch()) as usize * self.batch;
        if let Some((_, order)) = self.last.as_ref().filter(|(of, _)| *of == epoch) {
            return (order.clone(), first);
        }
        let mut order: Vec<u32> = (0..self.samples).collect();
        order.shuffle(&mut self.seed.named("epoch").numbered(epoch).rng());
        let order = Arc::new(order);
        self.last = Some((epoch, order.clone()));
        (order, first)
    }

    fn per_epoch(&self) -> u64 {
        (u64::from(self.samples) / self.batch as u64).max(1)
    }
}
