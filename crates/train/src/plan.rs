//! How long a step of many ranks takes, and what each holds, before anybody has them.
//!
//! A step on `R` ranks is four times after each other:
//!
//! - its images: `F · B / R` operations at what a rank reaches, with `F` operations per image as `omma cost` counts them;
//! - the weights, which every rank moves for itself: so many passes over memory, the same for any `R`;
//! - the sum of the gradients: `2 (R - 1) / R` times their bytes through a rank's network, and `2 (R - 1)` messages. With
//!   `train.overlap` all but what a backward pass finds last is summed beside it, as far as that takes: two thirds of
//!   the time for images. The rest is waited for;
//! - where experts are spread over `n` ranks, the rows that these take: there and back, forwards and backwards, of which
//!   `(n - 1) / n` go to another rank. A rank then has the weights of `1 / n` of the experts, and sums their gradients with
//!   the `R / n` ranks that have the same.

use omma_ranks::Share;
use serde::Serialize;

use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
    trainer::ranks_with_all_experts,
};

/// Passes over a parameter's four bytes in a step: its gradient is written, added up, divided, squared and clipped;
/// the optimiser reads and writes it with what it remembers; the model gets a copy.
const PASSES: f64 = 18.0;
/// Those of them that squares and the optimiser take: with `train.spread_optimiser` over this rank's elements alone.
const MOVING_PASSES: f64 = 8.0;
/// The part of the time for images that the backward pass takes.
const BACKWARD: f64 = 2.0 / 3.0;

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
    /// How many of them have all experts between them.
    pub experts_on: usize,
    /// Images of a step that each computes.
    pub images: usize,
    /// Seconds for these.
    pub compute: f64,
    /// Seconds for moving the weights.
    pub weights: f64,
    /// Seconds for the sum of the gradients.
    pub communication: f64,
    /// What of that is waited for, because no backward pass goes on beside it.
    pub waited: f64,
    /// Bytes that each sends for it.
    pub bytes: u64,
    /// Seconds for rows that go to experts on other ranks.
    pub rows: f64,
    /// Bytes that each sends for these.
    pub row_bytes: u64,
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
        self.compute + self.weights + self.waited + self.rows
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
    /// Those of them that routed experts have.
    experts: u64,
    /// Layers with experts.
    layers: usize,
    /// Values of an image that experts take.
    taken: u64,
    /// The part of the gradients that is summed beside the backward pass.
    beside: f64,
}

/// Weights of a rank that learn.
struct Values {
    /// Ranks that have all experts between them.
    few: usize,
    /// Weights that every rank has.
    everywhere: u64,
    /// Of its own part of the experts, where these are spread.
    of_experts: u64,
    /// Of all of these, those that it moves.
    moved: u64,
}

/// Times that a row travels in a step.
const TRIPS: u64 = 4;

impl<'a> Plan<'a> {
    /// Of ranks that all are as fast.
    pub fn new(recipe: &'a Recipe, speed: RankSpeed) -> Result<Self> {
        let cost = recipe.model.cost(recipe.model.image.resolution)?;
        let (flops, taken) = (cost.training_flops, cost.expert_values);
        let counts = recipe.parameter_counts()?;
        let (learning, [_, experts]) = (counts.learning, counts.experts);
        // A contrast is over the whole batch: its gradients are there at the end.
        let overlaps = recipe.train.overlap && recipe.model.text.is_none() && learning > 0;
        let beside = if overlaps { 1.0 - counts.found_last as f64 / learning as f64 } else { 0.0 };
        let layers = counts.expert_layers;
        Ok(Self { recipe, speed, flops, learning, experts, layers, taken, beside })
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

    /// What each of so many ranks has of the weights.
    fn values(&self, ranks: usize) -> Values {
        let few = ranks_with_all_experts(ranks, self.recipe.train.expert_parallel);
        // Of experts that are everywhere, nothing is different.
        let spread = if few > 1 { self.experts } else { 0 };
        let (everywhere, of_experts) = (self.learning - spread, spread / few as u64);
        let moved = match self.recipe.train.spread_optimiser {
            true => everywhere / ranks as u64 + of_experts / (ranks / few) as u64,
            false => everywhere + of_experts,
        };
        Values { few, everywhere, of_experts, moved }
    }

    fn timed(&self, ranks: usize) -> Layout {
        let RankSpeed { flops, bandwidth, latency, memory_bandwidth } = self.speed;
        let batch = self.recipe.train.batch;
        let images = batch / ranks;
        let compute = self.flops as f64 * images as f64 / flops;
        let Values { few, everywhere, of_experts, moved } = self.values(ranks);
        let passes = (PASSES - MOVING_PASSES) * (everywhere + of_experts) as f64;
        let weights = 4.0 * (passes + MOVING_PASSES * moved as f64) / memory_bandwidth;
        let alike = ranks / few;
        let sum = |ranks: usize, values| Share { shards: ranks, own: 0..1 }.bytes_to_send(values);
        let bytes = sum(ranks, everywhere) + sum(alike, of_experts);
        let messages = |ranks: usize| 2.0 * (ranks - 1) as f64;
        let of_sums = messages(ranks) + if few > 1 { messages(alike) } else { 0.0 };
        let communication = bytes as f64 / bandwidth + of_sums * latency;
        // Ranks that have experts of each other have something to say in the backward pass themselves.
        let beside = if few > 1 { 0.0 } else { self.beside * communication };
        let waited = communication - beside.min(BACKWARD * compute);
        let row_bytes = 4 * TRIPS * self.taken * images as u64 * (few as u64 - 1) / few as u64;
        // Ranks say how many rows there are before these travel.
        let of_rows = self.layers * (TRIPS as usize + 1) * (few - 1);
        let rows = row_bytes as f64 / bandwidth + of_rows as f64 * latency;
        let images_per_second = batch as f64 / (compute + weights + waited + rows);
        let (memory, efficiency) = (0, 1.0);
        Layout {
            ranks,
            experts_on: few,
            images,
            compute,
            weights,
            communication,
            waited,
            bytes,
            rows,
            row_bytes,
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
        let Values { few, everywhere, of_experts, moved } = self.values(ranks);
        let here = everywhere + of_experts;
        let in_a_row = if ranks > 1 { 2 * 4 * here } else { 0 };
        let elsewhere = 4 * self.recipe.optimiser.vectors_per_parameter() * (here - moved);
        // Rows that arrived, and those that came back, are kept for the backward pass.
        let rows = if few > 1 { 2 * 4 * self.taken * own.train.batch as u64 } else { 0 };
        Ok(own.step_memory_on(few)?.total() + whole + in_a_row + rows - elsewhere)
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
    fn experts_on_several_ranks_are_held_and_summed_by_fewer_and_rows_travel() {
        let (plain, spread) = (recipe(&[]), recipe(&["train.expert_parallel=4"]));
        let [plain, spread] = [&plain, &spread].map(|recipe| Plan::new(recipe, SPEED).unwrap());
        let [before, after] = [&plain, &spread].map(|plan| plan.layout(8).unwrap());
        assert_eq!((before.experts_on, after.experts_on), (1, 4));
        // V-MoE-S/16 at 384 pixels: two layers, each with two of its experts for 577 tokens of width 512.
        assert_eq!(spread.taken, 2 * 2 * 577 * 512);
        assert_eq!(after.row_bytes, 3 * 4 * 4 * spread.taken * 512 / 4);
        assert_eq!((before.rows, before.row_bytes), (0.0, 0));
        let others = spread.learning - spread.experts;
        // 7/8 of all that is everywhere, and half of a quarter of the experts, twice.
        let expected = 8 * (others - others / 8 + spread.experts / 4 / 2);
        assert!((after.bytes as f64 / expected as f64 - 1.0).abs() < 1e-6);
        assert!(2.0 * after.weights < before.weights);
        let held = |ranks| spread.recipe.step_memory_on(ranks).unwrap().weights;
        assert!(2 * held(4) < held(1));
        // On one rank, or on five, all experts are everywhere.
        assert_eq!(spread.layout(1).unwrap(), plain.layout(1).unwrap());
    }

    #[test]
    fn sums_beside_the_backward_pass_are_not_waited_for_as_far_as_it_goes() {
        let (plain, beside) = (recipe(&[]), recipe(&["train.overlap=true"]));
        let at = |recipe, bandwidth, ranks| {
            let plan = Plan::new(recipe, RankSpeed { bandwidth, ..SPEED }).unwrap();
            (plan.beside, plan.layout(ranks).unwrap())
        };
        let (none, before) = at(&plain, 25e9, 8);
        let (most, after) = at(&beside, 25e9, 8);
        assert_eq!((none, before.waited), (0.0, before.communication));
        assert!(
            most > 0.8 && most < 1.0,
            "{most}: the last is the first block, and what is in front of it"
        );
        assert!((after.waited / before.communication - (1.0 - most)).abs() < 1e-9);
        assert_eq!((after.bytes, after.communication), (before.bytes, before.communication));
        // A network so slow that the backward pass is over long before.
        let (_, slow) = at(&beside, 1e8, 8);
        assert!((slow.communication - slow.waited - BACKWARD * slow.compute).abs() < 1e-9);
        let (_, spread) = at(&recipe(&["train.overlap=true", "train.expert_parallel=4"]), 25e9, 8);
        assert_eq!(spread.waited, spread.communication);
    }

    #[test]
    fn a_spread_optimiser_remembers_less_and_sends_as_much() {
        let (plain, spread) = (recipe(&[]), recipe(&["train.spread_optimiser=true"]));
        let [plain, spread] = [&plain, &spread].map(|recipe| Plan::new(recipe, SPEED).unwrap());
        let [before, after] = [&plain, &spread].map(|plan| plan.layout(8).unwrap());
        assert_eq!((after.bytes, after.compute), (before.bytes, before.compute));
        // Two moments of four bytes, of which seven eighths are elsewhere.
        let saved = (before.memory - after.memory) as f64;
        assert!((saved / (7.0 * plain.learning as f64) - 1.0).abs() < 1e-6);
        assert!(after.weights < before.weights);
        assert_eq!(spread.layout(1).unwrap(), plain.layout(1).unwrap());
        let experts = recipe(&["train.expert_parallel=4"]);
        let both = recipe(&["train.spread_optimiser=true", "train.expert_parallel=4"]);
        let held = |recipe| Plan::new(recipe, SPEED).unwrap().layout(8).unwrap().memory;
        assert!(held(&both) < held(&experts));
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
