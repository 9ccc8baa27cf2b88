//! What takes steps: the model, and everything that moves it. On several ranks each has one, which all stay the
//! same to the bit, but for experts that are spread over them.

use std::time::{Duration, Instant};

use burn::{module::Module, tensor::Device};
use omma_base::{Seed, transfer::Transfer};
use omma_data::{Cursor, TrainLoader, Turns};
use omma_model::{Precision, VisionTransformer};
use omma_ranks::{Share, World};
use serde::{Deserialize, Serialize};

use super::{
    Observer, Shards, Stop, Weights,
    agree::{agree, is_divergence},
    divergence::Divergence,
    early::{Left, Outlets, Summing, buckets},
    experts::ExpertRanks,
    learner::Feed,
    loss_scale::LossScale,
    on_device::OnDevice,
    step::{Facts, GradientSum, Pass, divide_gradients},
    sums::Sums,
};
use crate::{
    activations::{ActivationLoader, Source, open_or_make},
    error::{Result, TrainError},
    freezing::Freezing,
    optimiser::{Optimiser, clip},
    recipe::{Recipe, recipe_error},
    resolved::Resolved,
};

/// What takes steps.
pub(super) struct Stepper {
    /// All ranks that take them together.
    pub(super) world: World,
    /// Which parts of every batch this one computes.
    pub(super) share: Share,
    /// The device with gradients.
    pub(super) device: Device,
    pub(super) model: VisionTransformer,
    pub(super) weights: Weights,
    pub(super) optimiser: Optimiser,
    /// Of gradients that travel in `f16`.
    pub(super) loss_scale: Option<LossScale>,
    pub(super) freezing: Freezing,
    pub(super) shards: Shards,
    /// Where the experts are that are not here.
    pub(super) experts: Option<ExpertRanks>,
    /// How gradients are summed over ranks, and who moves what by them.
    pub(super) sums: Sums,
    /// Parameters whose gradients are summed over ranks together, where that is done while others are computed.
    early: Option<Vec<Vec<usize>>>,
    /// What stays on a device of its own, where it computes on one. Weights and optimiser are then as they were
    /// before the first step, or [fetched](Self::fetch).
    pub(super) on_device: Option<OnDevice>,
}

/// What a step found.
pub(super) struct Taken {
    /// Over all parts.
    pub(super) facts: Facts,
    /// Norm of the gradient before it was clipped.
    pub(super) norm: f64,
    /// Whether nothing moved, because the gradient did not fit into half precision.
    pub(super) skipped: bool,
    /// What crossed to and from a device of its own.
    pub(super) transfer: Option<Transfer>,
    /// How long sums of gradients over ranks were waited for.
    pub(super) waited: Duration,
}

/// What each part of a rank found, by its number, and the gradients of each of its shards.
type OwnParts<G> = (Vec<(usize, Facts)>, Vec<G>);

/// Where a step is.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct At {
    /// Steps taken before it.
    pub(super) step: u64,
    /// Its learning rate.
    pub(super) rate: f64,
}

impl Stepper {
    /// In a single process.
    pub(super) fn new(
        device: Device,
        (model, weights): (VisionTransformer, Weights),
        optimiser: Optimiser,
        freezing: Freezing,
        recipe: &Recipe,
    ) -> Result<Self> {
        let precision = recipe.train.precision;
        precision.check(&device)?;
        let model = model.in_precision(precision);
        let (world, shards) = (World::alone(), recipe.train.shards);
        let share = share(&world, shards)?;
        let sums = Sums::new((&world, &share), None, &weights, recipe);
        let on_device = (device != Device::flex()).then(OnDevice::default);
        let shards = lanes(on_device.is_some(), shards)?;
        let experts = None;
        Ok(Self {
            world,
            share,
            device,
            model,
            weights,
            optimiser,
            loss_scale: LossScale::of(precision, None),
            freezing,
            shards,
            experts,
            sums,
            early: None,
            on_device,
        })
    }

    /// The same as one of several ranks.
    ///
    /// - `experts`: where they are, if not all here
    pub(super) fn among(
        self,
        world: World,
        experts: Option<ExpertRanks>,
        recipe: &Recipe,
    ) -> Result<Self> {
        let share = share(&world, self.share.shards)?;
        if self.on_device.is_some() && recipe.train.spread_optimiser {
            return Err(recipe_error(
                "train.spread_optimiser spreads what the optimiser remembers over ranks on the CPU alone: use --device \
                 cpu, or set train.spread_optimiser=false"
                    .to_owned(),
            ));
        }
        let shards = match (&experts, &self.on_device) {
            (Some(_), Some(_)) => {
                return Err(recipe_error(
                    "train.expert_parallel spreads experts over ranks on the CPU alone: use --device cpu, or set \
                     train.expert_parallel=1"
                        .to_owned(),
                ));
            }
            (Some(_), None) => Shards::in_turn(),
            (None, on_device) => lanes(on_device.is_some(), share.own.len())?,
        };
        let sums = Sums::new((&world, &share), experts.as_ref(), &self.weights, recipe);
        let optimiser = self.optimiser.owning(|parameter| sums.own(parameter));
        // Ranks that have experts of each other have something to say in a backward pass themselves.
        let may = recipe.train.overlap && experts.is_none() && self.on_device.is_none();
        let early = (may && !world.is_alone()).then(|| buckets(&self.weights.parameters));
        Ok(Self { world, share, shards, experts, sums, early, optimiser, ..self })
    }

    /// Where its examples from a step on come from, if all ranks have theirs.
    pub(super) fn feed(
        &self,
        resolved: &Resolved,
        step: u64,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Feed> {
        agree(&self.world, self.own_feed(resolved, step, observer, stop))
    }

    fn own_feed(
        &self,
        resolved: &Resolved,
        step: u64,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Feed> {
        let Resolved { recipe, task, data, device, .. } = resolved;
        let Share { shards, own } = self.share.clone();
        let turns = Turns::new(own, shards);
        let cursor = Cursor { batches: step * recipe.train.parts() as u64, turns };
        let seed = Seed::new(recipe.seed).named("data");
        let options = recipe.loading(task.targets());
        let Some(blocks) = self.freezing.trunk.filter(|_| recipe.data.cache) else {
            let images = data.train.clone();
            return Ok(Feed::Images(TrainLoader::new(images, options, seed, cursor)?));
        };
        // What is kept does not depend on what a run computes in.
        let model = self.model.clone().valid().in_precision(Precision::F32);
        let source = Source { recipe, model: &model, blocks, images: &data.train };
        let store = open_or_make(&source, device, observer, stop)?;
        let loader = ActivationLoader::new(store, recipe, &data.train, options, (seed, cursor))?;
        Ok(Feed::Activations(loader))
    }

    /// Takes a step, on all ranks or on none.
    pub(super) fn step(
        &mut self,
        resolved: &Resolved,
        feed: &mut Feed,
        at: At,
        last_good: &dyn Fn() -> String,
    ) -> Result<Taken> {
        if self.on_device.is_none() {
            return self.step_on_host(resolved, feed, at, last_good);
        }
        let before = Transfer::so_far();
        let taken = self.step_on_device(resolved, feed, at, last_good)?;
        Ok(Taken { transfer: Some(Transfer::since(before)), ..taken })
    }

    /// Runs the parts of a step on all ranks: what they found together, and the gradients of this rank's shards.
    pub(super) fn computed<G: GradientSum>(
        &self,
        resolved: &Resolved,
        feed: &mut Feed,
        step: u64,
        last_good: &dyn Fn() -> String,
    ) -> Result<(Facts, Vec<G>)> {
        let found = self.own_parts(resolved, feed, step, None);
        self.found(resolved, found, step, last_good)
    }

    /// What all ranks found together, if none has failed.
    fn found<G>(
        &self,
        resolved: &Resolved,
        own: Result<OwnParts<G>>,
        step: u64,
        last_good: &dyn Fn() -> String,
    ) -> Result<(Facts, Vec<G>)> {
        let found = agree(&self.world, own);
        let (facts, shards) = found.map_err(|e| self.or_divergence(step + 1, e, last_good))?;
        let mut facts = self.all_facts(facts);
        facts.divide(resolved.recipe.train.parts());
        Ok((facts, shards))
    }

    /// The parts of a step, and their gradients summed over all ranks, while they are computed or after that; and how
    /// long these sums were waited for.
    fn summed(
        &self,
        resolved: &Resolved,
        feed: &mut Feed,
        step: u64,
        last_good: &dyn Fn() -> String,
    ) -> Result<(Facts, Vec<Vec<f32>>, Duration)> {
        let Some(buckets) = self.early.as_ref().filter(|_| resolved.task.whole_batch().is_none())
        else {
            let (facts, shards) = self.computed(resolved, feed, step, last_good)?;
            let begin = Instant::now();
            let sums = self.sums.sum(shards);
            return Ok((facts, sums, begin.elapsed()));
        };
        let passes = (self.share.own.len(), resolved.recipe.train.accumulation);
        let summing = Summing::new(&self.sums, &self.weights, buckets, passes);
        let (own, sums, waited) =
            summing.during(|outlets| self.own_parts::<Left>(resolved, feed, step, Some(outlets)));
        let (facts, _) = self.found(resolved, own, step, last_good)?;
        Ok((facts, sums, waited))
    }

    fn step_on_host(
        &mut self,
        resolved: &Resolved,
        feed: &mut Feed,
        At { step, rate }: At,
        last_good: &dyn Fn() -> String,
    ) -> Result<Taken> {
        let recipe = &resolved.recipe;
        let parts = recipe.train.parts();
        let (facts, mut gradients, waited) = self.summed(resolved, feed, step, last_good)?;
        divide_gradients(&mut gradients, parts as f64 * f64::from(self.scale()));
        let squares = self.sums.squares(&gradients);
        let norm = match &self.experts {
            Some(experts) => experts.norm(&self.weights, &squares),
            None => squares.iter().sum::<f64>().sqrt(),
        };
        if self.skips(facts.loss, norm) {
            return Ok(Taken { facts, norm, skipped: true, transfer: None, waited });
        }
        clip(&mut gradients, norm, recipe.optimiser.clip_norm);
        let limit = recipe.train.explosion * resolved.task.chance();
        if Divergence::is_one(facts.loss, norm, limit) {
            // To be shown.
            self.sums.gather(&mut gradients);
        }
        Divergence {
            step: step + 1,
            loss: facts.loss,
            gradient_norm: norm,
            limit,
            weights: &self.weights,
            gradients: &gradients,
        }
        .check(last_good)?;
        self.optimiser.step(rate, &mut self.weights.values, &gradients);
        self.sums.gather(&mut self.weights.values);
        self.model = self.weights.put(self.model.clone())?;
        Ok(Taken { facts, norm, skipped: false, transfer: None, waited })
    }

    /// How many times too large gradients are while they are computed.
    pub(super) fn scale(&self) -> f32 {
        self.loss_scale.map_or(1.0, |scale| scale.scale)
    }

    /// Whether a step is not to be taken, on any rank, because its gradient does not fit into half precision.
    pub(super) fn skips(&mut self, loss: f64, norm: f64) -> bool {
        self.loss_scale.as_mut().is_some_and(|scale| scale.skips(loss, norm))
    }

    /// Runs the parts of a step that are this rank's.
    ///
    /// - `outlets`: where gradients go before a backward pass is done, if they do
    fn own_parts<G: GradientSum>(
        &self,
        resolved: &Resolved,
        feed: &mut Feed,
        step: u64,
        outlets: Option<&Outlets>,
    ) -> Result<OwnParts<G>> {
        let Resolved { recipe, task, .. } = resolved;
        let Share { shards, own } = &self.share;
        let seed = Seed::new(recipe.seed).named("step").numbered(step);
        let whole = task.whole_batch().filter(|_| recipe.train.parts() > 1);
        let scale = self.scale();
        let numbers = |round: usize| own.clone().map(move |shard| round * shards + shard);
        let rounds = (0..recipe.train.accumulation).map(|round| numbers(round).collect());
        let rounds: Vec<Vec<usize>> = match whole {
            Some(_) => vec![rounds.flatten().collect()],
            None => rounds.collect(),
        };
        let mut facts = Vec::new();
        let mut sums: Vec<Option<G>> = own.clone().map(|_| None).collect();
        for numbers in rounds {
            let next = |part: &usize| Ok((feed.next()?, seed.numbered(*part as u64)));
            let parts = numbers.iter().map(next).collect::<Result<_>>();
            // Ranks with experts of each other go through the layers together, or not at all.
            let parts = match &self.experts {
                Some(_) => Ok(agree(&self.world, parts)?),
                None => parts,
            };
            let model = (&self.model, &self.freezing);
            let found = match whole {
                Some(whole) => {
                    let all = (&self.world, &self.share);
                    self.shards.run_whole(whole, model, parts, all, &self.device, scale)?
                }
                None => {
                    let outlet = |number: &usize| {
                        outlets.map(|outlets| outlets.of(number % shards - own.start))
                    };
                    let parts = parts?.into_iter().zip(numbers.iter().map(outlet));
                    let parts = parts.map(|((examples, seed), outlet)| (examples, seed, outlet));
                    self.shards.run(task.as_ref(), model, parts.collect(), &self.device, scale)
                }
            };
            for (number, found) in numbers.into_iter().zip(found) {
                let Pass { facts: found, gradients } = found?;
                facts.push((number, found));
                match &mut sums[number % shards - own.start] {
                    Some(sum) => sum.add(gradients),
                    none => *none = Some(gradients),
                }
            }
        }
        Ok((facts, sums.into_iter().flatten().collect()))
    }

    /// What the parts of all ranks found, in the order of the parts.
    fn all_facts(&self, own: Vec<(usize, Facts)>) -> Facts {
        let mut all: Vec<_> = self.world.shared(own).into_iter().flatten().collect();
        all.sort_by_key(|(part, _)| *part);
        let mut sum = Facts::default();
        all.into_iter().for_each(|(_, facts)| sum.add(facts));
        sum
    }

    /// An error, or what is said of a run that has diverged.
    pub(super) fn or_divergence(
        &self,
        step: u64,
        error: TrainError,
        last_good: &dyn Fn() -> String,
    ) -> TrainError {
        if !is_divergence(&error) {
            return error;
        }
        Divergence {
            step,
            loss: f64::NAN,
            gradient_norm: f64::NAN,
            limit: f64::INFINITY,
            weights: &self.host_weights(),
            gradients: &[],
        }
        .error(&format!("in step {step}, {error}"), last_good)
    }
}

/// What so many shards run on.
fn lanes(on_device: bool, shards: usize) -> Result<Shards> {
    if on_device { Ok(Shards::on_device()) } else { Shards::new(shards) }
}

/// Which shards a rank has.
pub(super) fn share(world: &World, shards: usize) -> Result<Share> {
    Share::new(world, shards).ok_or_else(|| {
        let ranks = world.size();
        let next = shards.next_multiple_of(ranks);
        recipe_error(format!(
            "a batch of {shards} shards cannot be spread evenly over {ranks} ranks: set train.shards={next}, or \
             start another number of ranks"
        ))
    })
}
