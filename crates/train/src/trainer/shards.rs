//! Parts of a batch that are computed side by side, as on several devices.
//!
//! Every shard has its own graph of gradients and its own threads, which keeps all cores busy where
//! the operations of a small model are too short to be cut up. As on the devices of the papers, each
//! routes its own images: capacities, priorities and auxiliary losses are those of the shard.

use std::sync::Arc;

use burn::{module::Module, tensor::Device};
use omma_base::Seed;
use omma_model::VisionTransformer;
use omma_ranks::{Share, World};
use rayon::ThreadPool;

use super::{
    Examples, Learner,
    agree::{agree, is_heard},
    early::Outlet,
    step::{GradientSum, Pass, pass},
};
use crate::{
    error::{Result, TrainError},
    freezing::Freezing,
    task::{Part, Task, WholeBatch},
};

/// Threads that shards are computed on: as many shards at a time as there are threads for.
pub(crate) struct Shards {
    /// One per shard that runs at a time; empty where they run one after the other.
    lanes: Vec<ThreadPool>,
    /// Whether they run where they are asked for: a device has a queue per thread.
    here: bool,
}

impl Shards {
    /// For so many shards at a time, with as many threads in all as the calling pool has.
    pub(crate) fn new(count: usize) -> Result<Self> {
        let threads = rayon::current_num_threads();
        let lanes = count.min(threads);
        if lanes < 2 {
            return Ok(Self { lanes: Vec::new(), here: false });
        }
        let lane = |number| {
            let name = move |_| format!("shard-{number}");
            rayon::ThreadPoolBuilder::new().num_threads(threads / lanes).thread_name(name).build()
        };
        let lanes = (0..lanes).map(lane).collect::<Result<_, _>>();
        let lanes = lanes.map_err(|error| TrainError::Threads(error.to_string()))?;
        Ok(Self { lanes, here: false })
    }

    /// One after the other, by the thread that asks for it: for devices, which need no threads of ours.
    pub(crate) fn on_device() -> Self {
        Self { lanes: Vec::new(), here: true }
    }

    /// For shards that are computed one after the other, each on all threads.
    pub(crate) fn in_turn() -> Self {
        Self { lanes: Vec::new(), here: false }
    }

    /// Runs every part forwards and backwards; what they found is in the order of the parts, and the
    /// same whatever runs at the same time.
    ///
    /// - `parts`: with where its gradients leave, if not with the rest
    /// - `scale`: of the gradients
    pub(crate) fn run<G: GradientSum>(
        &self,
        task: &dyn Task,
        (model, freezing): (&VisionTransformer, &Freezing),
        parts: Vec<(Examples, Seed, Option<Arc<Outlet>>)>,
        device: &Device,
        scale: f32,
    ) -> Vec<Result<Pass<G>>> {
        self.each(parts, |(examples, seed, outlet)| {
            let learner = Learner::of(model, freezing).leaving_by(outlet);
            let forward = task.forward(&learner, examples, seed, device);
            Ok(pass(&learner, together(learner.model(), forward)?, scale))
        })
    }

    /// The same with a loss over all parts: first what each gives to it, then each with its gradients.
    ///
    /// - `parts`: those of this rank, by round and shard
    /// - `world`: all ranks, and which shards this one has
    /// - `scale`: of the gradients
    pub(crate) fn run_whole<G: GradientSum>(
        &self,
        whole: &dyn WholeBatch,
        (model, freezing): (&VisionTransformer, &Freezing),
        parts: Result<Vec<(Examples, Seed)>>,
        (world, share): (&World, &Share),
        device: &Device,
        scale: f32,
    ) -> Result<Vec<Result<Pass<G>>>> {
        let plain = model.clone().valid();
        let without_gradients = device.clone().inner();
        let embedded = parts.and_then(|parts| {
            let embedded = self.each(parts.clone(), |(examples, seed)| {
                together(&plain, whole.embed(&plain, examples, seed, &without_gradients))
            });
            Ok((parts, embedded.into_iter().collect::<Result<Vec<_>>>()?))
        });
        // Whoever has a fault says so before the others wait for its vectors.
        let (parts, embedded) = agree(world, embedded)?;
        let pulls = whole.compare(gathered(world, share, embedded), &without_gradients);
        let pulls = pulls.into_iter().enumerate();
        let pulls = pulls.filter(|(part, _)| share.own.contains(&(part % share.shards)));
        let pulls = pulls.map(|(_, pull)| pull);
        Ok(self.each(parts.into_iter().zip(pulls).collect(), |((examples, seed), pull)| {
            let learner = Learner::of(model, freezing);
            let forward = whole.forward_part(&learner, examples, pull, seed, device);
            Ok(pass(&learner, together(learner.model(), forward)?, scale))
        }))
    }

    fn each<T: Send, R: Send>(
        &self,
        parts: Vec<T>,
        each: impl Fn(T) -> R + Send + Sync + Copy,
    ) -> Vec<R> {
        if self.here {
            return parts.into_iter().map(each).collect();
        }
        if self.lanes.is_empty() {
            // On a thread of the pool: work that is cut up then begins where it is, without waking another
            // thread and waiting for it.
            return rayon::scope(|_| parts.into_iter().map(each).collect());
        }
        let mut found = Vec::with_capacity(parts.len());
        let mut parts = parts.into_iter();
        while parts.len() > 0 {
            std::thread::scope(|scope| {
                let start = |(lane, part): (_, _)| {
                    let lane: &ThreadPool = lane;
                    scope.spawn(move || lane.install(|| each(part)))
                };
                let running: Vec<_> = self.lanes.iter().zip(&mut parts).map(start).collect();
                found.extend(running.into_iter().map(|shard| {
                    shard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }));
            });
        }
        found
    }
}

/// What came of a forward pass, if it came to its end on all ranks that have experts of the model between them.
fn together<T>(model: &VisionTransformer, own: Result<T>) -> Result<T> {
    let Some(group) = model.expert_group() else { return own };
    match own {
        Ok(own) => {
            group.ready()?;
            Ok(own)
        }
        Err(error) => {
            if !is_heard(&error) {
                group.fail();
            }
            Err(error)
        }
    }
}

/// The parts of all ranks by round and shard; all have the same number of vectors.
fn gathered(world: &World, share: &Share, own: Vec<Part>) -> Vec<Part> {
    if world.is_alone() {
        return own;
    }
    let flat: Vec<Vec<f32>> = own.iter().map(Part::values).collect();
    let (rounds, size) = (own.len() / share.own.len(), flat[0].len());
    let flat = flat.concat();
    let counts = vec![flat.len(); world.size()];
    let all = world.all_gather(flat, &counts);
    let place = |round: usize, shard: usize| {
        let (rank, shard) = (shard / share.own.len(), shard % share.own.len());
        ((rank * rounds + round) * share.own.len() + shard) * size
    };
    let rounds = (0..rounds).flat_map(|round| (0..share.shards).map(move |shard| (round, shard)));
    let places = rounds.map(|(round, shard)| place(round, shard));
    places.map(|first| own[0].with_values(&all[first..first + size])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resolved;

    /// A mixture of experts with noise and dropout, and what it learns.
    fn resolved() -> Resolved {
        let text = "model.preset = 'vmoe-tiny'\n\
            model.resolution = 16\nmodel.patch = 4\nmodel.width = 32\nmodel.depth = 2\n\
            model.heads = 2\nmodel.mlp = 64\n\
            model.moe = { placement = '1', experts = 4, hidden = 32, dropout = 0.1 }";
        let recipe = crate::Recipe::parse::<&str>(text, "test".as_ref(), &[]).unwrap();
        Resolved::new(recipe, &Device::flex()).unwrap()
    }

    /// Random images.
    fn parts(count: usize) -> Vec<(Examples, Seed, Option<Arc<Outlet>>)> {
        use omma_base::Resolution;
        use omma_data::Targets;

        use crate::trainer::Input;
        use rand::RngExt;
        let part = |number: usize| {
            let (images, side, classes) = (6, 16, 10);
            let seed = Seed::new(number as u64);
            let mut rng = seed.rng();
            let labels: Vec<usize> = (0..images).map(|image| (image + number) % classes).collect();
            let pixels =
                (0..images * side * side * 3).map(|_| rng.random_range(-1.0..1.0)).collect();
            let targets = Targets::of_classes(labels, classes, 0.0);
            let input = Input::Pixels { values: pixels, resolution: Resolution::square(side) };
            (Examples { input, targets }, seed, None)
        };
        (0..count).map(part).collect()
    }

    #[test]
    fn side_by_side_is_the_same_to_the_bit_as_one_after_the_other() {
        let device = Device::flex().autodiff();
        let Resolved { recipe, task, .. } = resolved();
        let model = recipe.model.init(Seed::new(1), &device).unwrap();
        let freezing = recipe.train.freeze.of(&model).unwrap();
        let pool = || rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let found = |lanes: usize| -> Vec<_> {
            let lanes = (0..lanes).map(|_| pool()).collect();
            let shards = Shards { lanes, here: false };
            let passes = shards
                .run::<Vec<Vec<f32>>>(task.as_ref(), (&model, &freezing), parts(5), &device, 1.0)
                .into_iter()
                .map(Result::unwrap);
            passes.map(|p| (p.gradients, p.facts)).collect()
        };
        let one_by_one = found(0);
        assert_eq!(one_by_one.len(), 5);
        assert_ne!(one_by_one[0].0, one_by_one[1].0);
        for lanes in [2, 3] {
            assert_eq!(found(lanes), one_by_one);
        }
    }

    /// Runs itself in a process whose threads ask for larger stacks than there are addresses.
    #[cfg(target_os = "linux")]
    #[test]
    fn lanes_without_threads_are_an_error() {
        const STACK: &str = "RUST_MIN_STACK";
        const TEST: &str = "trainer::shards::tests::lanes_without_threads_are_an_error";
        if std::env::var_os(STACK).is_some_and(|size| size == "1152921504606846976") {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(2).stack_size(1 << 20);
            let error = pool.build().unwrap().install(|| Shards::new(2)).err();
            assert!(matches!(error, Some(TrainError::Threads(_))), "{error:?}");
            let message = error.unwrap().to_string();
            assert!(message.starts_with("the threads of train.shards cannot be started: "));
            return;
        }
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--test-threads=1"])
            .env(STACK, "1152921504606846976")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
    }
}
