//! Gradients that are summed over ranks while the backward pass that finds them goes on.
//!
//! A pass leaves the gradients of its blocks when it has them, the last block's first. Those of some blocks are a bucket:
//! where all shards of a rank have left theirs, they are summed over ranks, on a thread of its own, one bucket after the other
//! in an order that is the same everywhere. What is left for the end of the backward pass is the last bucket, with
//! what is in front of the blocks and behind them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender},
    },
    time::{Duration, Instant},
};

use burn::tensor::Gradients;
use omma_kernels::Listener;
use omma_model::{Parameter, VisionTransformer};

use super::{Weights, step::GradientSum, sums::Sums, weights::each_gradient};

/// Values of a bucket, at least, but for the last one.
const BUCKET: usize = 1 << 18;

/// The gradient that a pass of a shard has found.
struct Arrived {
    /// Counted from the first of this rank.
    shard: usize,
    parameter: usize,
    gradient: Vec<f32>,
}

/// Where passes leave their gradients; nothing once all have come to their end. Until then nobody knows of a pass that
/// has failed, because its graph, and with it the sender, is kept.
#[derive(Debug, Clone)]
pub(super) struct Outlets(Sender<Option<Arrived>>);

/// Where a pass of a shard leaves its gradients.
#[derive(Debug)]
pub(crate) struct Outlet {
    shard: usize,
    sender: Sender<Option<Arrived>>,
    /// Parameters whose gradients have left.
    left: Mutex<Vec<usize>>,
}

impl Outlets {
    /// For one pass of a shard.
    pub(super) fn of(&self, shard: usize) -> Arc<Outlet> {
        Arc::new(Outlet { shard, sender: self.0.clone(), left: Mutex::default() })
    }
}

impl Outlet {
    fn leave(&self, parameter: usize, gradient: Vec<f32>) {
        // Nobody takes them any more where that thread has panicked, which whoever waits for it learns.
        let _ = self.sender.send(Some(Arrived { shard: self.shard, parameter, gradient }));
    }

    /// Leaves those of a backward pass that were not heard on its way.
    pub(super) fn leave_rest(&self, model: &VisionTransformer, gradients: &Gradients) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.sort_unstable();
        each_gradient(model, |parameter, of| {
            if left.binary_search(&parameter).is_err() {
                self.leave(parameter, of.read(gradients));
            }
        });
    }
}

impl Listener for Outlet {
    fn hear(&self, parameter: usize, gradient: &[f32]) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(parameter);
        self.leave(parameter, gradient.to_vec());
    }
}

/// Gradients that have left by an outlet.
pub(super) struct Left;

impl GradientSum for Left {
    fn of(_: &VisionTransformer, _: &Gradients) -> Self {
        Self
    }

    fn add(&mut self, _: Self) {}
}

/// Parameters by the order in which backward passes find their gradients, in buckets of places.
///
/// - `parameters`: all that learn
pub(crate) fn buckets(parameters: &[Parameter]) -> Vec<Vec<usize>> {
    let block = |parameter: &Parameter| -> Option<usize> {
        parameter.name.strip_prefix("blocks.")?.split('.').next()?.parse().ok()
    };
    let places = parameters.iter().enumerate();
    let mut order: Vec<(Option<usize>, usize)> =
        places.map(|(place, parameter)| (block(parameter), place)).collect();
    // From the last block to the first, then all others.
    order.sort_by_key(|(block, place)| (std::cmp::Reverse(*block), *place));
    let mut buckets: Vec<Vec<usize>> = vec![Vec::new()];
    let mut values = 0;
    let mut before = None;
    for (block, place) in order {
        if block != before && values >= BUCKET {
            buckets.push(Vec::new());
            values = 0;
        }
        before = block;
        values += parameters[place].shape.iter().fold(1, |n: usize, side| n.saturating_mul(*side));
        buckets.last_mut().expect("there is one").push(place);
    }
    buckets
}

/// Sums gradients as they arrive.
pub(super) struct Summing<'a> {
    sums: &'a Sums,
    weights: &'a Weights,
    buckets: &'a [Vec<usize>],
    /// Gradients that are still to come, by bucket.
    missing: Vec<usize>,
    /// By shard and parameter.
    arrived: Vec<Vec<Vec<f32>>>,
    summed: Vec<Vec<f32>>,
}

impl<'a> Summing<'a> {
    /// - `shards`: those of this rank, each with so many passes
    pub(super) fn new(
        sums: &'a Sums,
        weights: &'a Weights,
        buckets: &'a [Vec<usize>],
        (shards, passes): (usize, usize),
    ) -> Self {
        let parameters = weights.parameters.len();
        Self {
            sums,
            weights,
            buckets,
            missing: buckets.iter().map(|bucket| bucket.len() * shards * passes).collect(),
            arrived: vec![vec![Vec::new(); parameters]; shards],
            summed: vec![Vec::new(); parameters],
        }
    }

    /// Sums what arrives until it is said that nothing does any more. Where a pass has failed, gradients of zero take its place: other
    /// ranks do not wait for it.
    fn run(mut self, arriving: Receiver<Option<Arrived>>) -> Vec<Vec<f32>> {
        let mut bucket_of = vec![0; self.weights.parameters.len()];
        for (bucket, parameters) in self.buckets.iter().enumerate() {
            parameters.iter().for_each(|parameter| bucket_of[*parameter] = bucket);
        }
        let mut next = 0;
        for Arrived { shard, parameter, gradient } in
            arriving.into_iter().map_while(|arrived| arrived)
        {
            let sum = &mut self.arrived[shard][parameter];
            match sum.is_empty() {
                true => *sum = gradient,
                false => sum.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g),
            }
            self.missing[bucket_of[parameter]] -= 1;
            while self.missing.get(next) == Some(&0) {
                self.sum(next);
                next += 1;
            }
        }
        (next..self.buckets.len()).for_each(|bucket| self.sum(bucket));
        self.summed
    }

    fn sum(&mut self, bucket: usize) {
        let parameters = &self.buckets[bucket];
        let take = |shard: &mut Vec<Vec<f32>>| {
            let own = parameters.iter().map(|parameter| {
                let mut gradient = std::mem::take(&mut shard[*parameter]);
                gradient.resize(self.weights.values[*parameter].len(), 0.0);
                gradient
            });
            own.collect()
        };
        let own = self.arrived.iter_mut().map(take).collect();
        let summed = self.sums.sum_some(parameters, own);
        parameters.iter().zip(summed).for_each(|(place, sum)| self.summed[*place] = sum);
    }

    /// Runs passes that leave their gradients, and sums these meanwhile: what the passes found, the sums, and how long
    /// these were waited for.
    pub(super) fn during<R>(
        self,
        passes: impl FnOnce(&Outlets) -> R,
    ) -> (R, Vec<Vec<f32>>, Duration) {
        let (sender, arriving) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let summing = scope.spawn(move || self.run(arriving));
            let outlets = Outlets(sender);
            let found = passes(&outlets);
            let _ = outlets.0.send(None);
            let begin = Instant::now();
            let sums = summing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (found, sums, begin.elapsed())
        })
    }
}

#[cfg(test)]
mod tests {
    use omma_ranks::{Share, threads};

    use super::*;
    use crate::Recipe;

    fn weights(parameters: &[(&str, usize)]) -> Weights {
        let of = |(name, size): &(&str, usize)| {
            let parameter = Parameter { name: (*name).to_owned(), shape: vec![*size] };
            (parameter, vec![0.0; *size])
        };
        let (parameters, values) = parameters.iter().map(of).unzip();
        Weights { parameters, values }
    }

    #[test]
    fn buckets_are_whole_blocks_from_the_last_one_on() {
        let weights = weights(&[
            ("patches.weight", 9),
            ("blocks.0.up", BUCKET),
            ("blocks.0.down", BUCKET),
            ("blocks.1.up", 5),
            ("blocks.2.up", BUCKET),
            ("blocks.10.up", 7),
            ("head.weight", 4),
        ]);
        assert_eq!(buckets(&weights.parameters), [vec![5, 4], vec![3, 1, 2], vec![0, 6]]);
        assert_eq!(buckets(&self::weights(&[("head.bias", 3)]).parameters), [[0]]);
    }

    /// Ranks whose backward pass waits for its first sum before it goes on.
    #[test]
    fn a_bucket_is_summed_while_others_are_computed() {
        let weights = weights(&[("blocks.0.up", 3), ("blocks.1.up", 2)]);
        let recipe =
            Recipe::parse("model.preset = 'vmoe-tiny'", "test".as_ref(), &[""; 0]).unwrap();
        let found = threads(2, |world| {
            let share = Share::new(&world, 4).unwrap();
            let sums = Sums::new((&world, &share), None, &weights, &recipe);
            let buckets = [vec![1], vec![0]];
            let summing = Summing::new(&sums, &weights, &buckets, (2, 2));
            let before = (world.rank() * 2) as f32;
            let mut early = 0;
            let (said, sums, _) = summing.during(|outlets| {
                let passes = [0, 1].map(|_| [0, 1].map(|shard| outlets.of(shard)));
                for (shard, outlet) in passes.iter().flat_map(|pass| pass.iter().enumerate()) {
                    outlet.hear(1, &[before + shard as f32; 2]);
                }
                let begin = Instant::now();
                while early == 0 && begin.elapsed() < Duration::from_secs(20) {
                    early = world.take_traffic().bytes;
                }
                for outlet in passes.iter().flatten() {
                    outlet.leave(0, vec![1.0; 3]);
                }
                "done"
            });
            assert_eq!(said, "done");
            (early > 0, sums)
        });
        // Two passes of shards 0 to 3.
        assert!(found.iter().all(|found| *found == (true, vec![vec![8.0; 3], vec![12.0; 2]])));
    }

    #[test]
    fn nobody_waits_for_gradients_of_a_pass_that_has_failed() {
        let weights = weights(&[("blocks.0.up", 3), ("blocks.1.up", 2)]);
        let recipe =
            Recipe::parse("model.preset = 'vmoe-tiny'", "test".as_ref(), &[""; 0]).unwrap();
        let found = threads(2, |world| {
            let share = Share::new(&world, 2).unwrap();
            let sums = Sums::new((&world, &share), None, &weights, &recipe);
            let buckets = [vec![1], vec![0]];
            let summing = Summing::new(&sums, &weights, &buckets, (1, 1));
            let (_, sums, _) = summing.during(|outlets| {
                if world.leads() {
                    let outlet = outlets.of(0);
                    outlet.leave(1, vec![5.0; 2]);
                    outlet.leave(0, vec![7.0; 3]);
                }
            });
            sums
        });
        assert_eq!(found, vec![vec![vec![7.0; 3], vec![5.0; 2]]; 2]);
    }
}
