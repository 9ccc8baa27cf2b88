//! How long a step of many ranks takes, and what each holds, before anybody has them.
//!
//! A step on `R` ranks is three times after each other, because nothing overlaps:
//!
//! - its images: `F · B / R` operations at what a rank reaches, with `F` operations per image as `omma cost` counts them;
//! - the weights, which every rank moves for itself: so many passes over memory, the same for any `R`;
//! - the sum of the gradients: `2 (R - 1) / R` times their bytes through a rank's network, and `2 (R - 1)` messages.

use omma_ranks::Share;
use serde::Serialize;

use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
};

/// Passes over a parameter's four bytes in a step: its gradient is written, added up, divided, squared and clipped;
/// the optimiser reads and writes it with what it remembers; the model gets a copy.
const PASSES: f64 = 18.0;

/// What one rank has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RankSpeed {
    /// Operations per second that it reaches in training.
    pub flops: f64,
    /// Bytes per second that it sends, while it receives as many.
    pub bandwidth: f64,
    /// Seconds until a message is there, however short.
    pub latency: f64,
    /// Bytes per second to and from its memory.
    pub memory_bandwidth: f64,
}

/// A number of ranks, and what a step takes on them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Layout {
    /// How many.
    pub ranks: usize,
    /// Images of a step that each computes.
    pub images: usize,
    /// Seconds for these.
    pub compute: f64,
    /// Seconds for moving the weights.
    pub weights: f64,
    /// Seconds for the sum of the gradients.
    pub communication: f64,
    /// Bytes that each sends for it.
    pub bytes: u64,
    /// Bytes that each holds.
    pub memory: u64,
    /// Images per second of all together.
    pub images_per_second: f64,
    /// The same as a share of as many ranks that each train by themselves.
    pub efficiency: f64,
}

impl Layout {
    /// Seconds of a step.
    pub fn step(&self) -> f64 {
        self.compute + self.weights + self.communication
    }
}

/// A recipe on any number of ranks.
pub struct Plan<'a> {
    recipe: &'a Recipe,
    speed: RankSpeed,
    /// Operations per image in training.
    flops: u64,
    /// Parameters that learn.
    learning: u64,
}

impl<'a> Plan<'a> {
    /// Of ranks that all are as fast.
    pub fn new(recipe: &'a Recipe, speed: RankSpeed) -> Result<Self> {
        let flops = recipe.model.cost(recipe.model.image.resolution)?.training_flops;
        Ok(Self { recipe, speed, flops, learning: recipe.parameter_counts()?.learning })
    }

    /// A step of the recipe's batch on so many ranks, with a shard on each.
    pub fn layout(&self, ranks: usize) -> Result<Layout> {
        let batch = self.recipe.train.batch;
        if ranks == 0 || !batch.is_multiple_of(ranks) {
            return Err(recipe_error(format!(
                "a batch of {batch} cannot be spread evenly over {ranks} ranks; choose another with train.batch"
            )));
        }
        let alone = self.timed(1).images_per_second;
        let timed = self.timed(ranks);
        let memory = self.memory(ranks)?;
        Ok(Layout { memory, efficiency: timed.images_per_second / (ranks as f64 * alone), ..timed })
    }

    /// The most ranks whose images take at least half of a step.
    pub fn scales_to(&self) -> usize {
        let batch = self.recipe.train.batch;
        let pays = |ranks: &usize| {
            let layout = self.timed(*ranks);
            2.0 * layout.compute >= layout.step()
        };
        let even = (1..=batch).filter(|ranks| batch.is_multiple_of(*ranks));
        even.rev().find(pays).unwrap_or(1)
    }

    fn timed(&self, ranks: usize) -> Layout {
        let RankSpeed { flops, bandwidth, latency, memory_bandwidth } = self.speed;
        let batch = self.recipe.train.batch;
        let images = batch / ranks;
        let compute = self.flops as f64 * images as f64 / flops;
        let weights = 4.0 * PASSES * self.learning as f64 / memory_bandwidth;
        let bytes = Share { shards: ranks, own: 0..1 }.bytes_to_send(self.learning);
        let communication = bytes as f64 / bandwidth + 2.0 * (ranks - 1) as f64 * latency;
        let images_per_second = batch as f64 / (compute + weights + communication);
        let (memory, efficiency) = (0, 1.0);
        Layout {
            ranks,
            images,
            compute,
            weights,
            communication,
            bytes,
            memory,
            images_per_second,
            efficiency,
        }
    }

    /// What each rank holds, with its images computed at once.
    fn memory(&self, ranks: usize) -> Result<u64> {
        let mut own = self.recipe.clone();
        own.train.batch /= ranks;
        own.train.shards = 1;
        own.train.accumulation = 1;
        // A contrast is over the images of all ranks; gradients that are sent lie in a row, before and after.
        let whole = 4 * (self.recipe.similarities() - own.similarities());
        let in_a_row = if ranks > 1 { 2 * 4 * self.learning } else { 0 };
        Ok(own.step_memory()?.total() + whole + in_a_row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: RankSpeed =
        RankSpeed { flops: 50e12, bandwidth: 25e9, latency: 1e-5, memory_bandwidth: 1e12 };

    fn recipe(settings: &[&str]) -> Recipe {
        let all = [settings, &["train.batch=4096"]].concat();
        Recipe::parse("model.preset = 'vmoe-s16'", "test".as_ref(), &all).unwrap()
    }

    #[test]
    fn images_are_divided_and_weights_are_not() {
        let recipe = recipe(&[]);
        let plan = Plan::new(&recipe, SPEED).unwrap();
        let [one, eight] = [1, 8].map(|ranks| plan.layout(ranks).unwrap());
        assert_eq!((one.efficiency, one.communication, one.bytes), (1.0, 0.0, 0));
        assert!((8.0 * eight.compute / one.compute - 1.0).abs() < 1e-9);
        assert_eq!(eight.weights, one.weights);
        // 2 · 7/8 · 4 bytes.
        assert!((eight.bytes as f64 / (7.0 * plan.learning as f64) - 1.0).abs() < 1e-6);
        assert!((eight.communication - eight.bytes as f64 / 25e9 - 14e-5).abs() < 1e-9);
        assert!(eight.memory < one.memory && eight.efficiency < 1.0);
    }

    #[test]
    fn it_stops_scaling_where_half_of_a_step_is_not_images() {
        let recipe = recipe(&[]);
        let plan = Plan::new(&recipe, SPEED).unwrap();
        let most = plan.scales_to();
        let share = |ranks| {
            let layout = plan.layout(ranks).unwrap();
            layout.compute / layout.step()
        };
        assert!(share(most) >= 0.5 && share(2 * most) < 0.5, "{most}");
        let slow = RankSpeed { bandwidth: 25e8, ..SPEED };
        assert!(Plan::new(&recipe, slow).unwrap().scales_to() < most);
    }

    #[test]
    fn what_is_frozen_is_not_sent() {
        let bytes = |settings: &[&str]| {
            let recipe = recipe(settings);
            Plan::new(&recipe, SPEED).unwrap().layout(4).unwrap().bytes
        };
        assert!(10 * bytes(&["train.freeze=embed,0-10"]) < 9 * bytes(&[]));
    }

    #[test]
    fn a_batch_that_cannot_be_spread_is_refused() {
        let recipe = recipe(&[]);
        let said = Plan::new(&recipe, SPEED).unwrap().layout(3).unwrap_err().to_string();
        assert!(said.contains("4096 cannot be spread evenly over 3"), "{said}");
    }
}
