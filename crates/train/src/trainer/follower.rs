//! A rank that does what rank 0 says.

use burn::tensor::Device;
use omma_base::Seed;
use omma_data::text::Tokenizer;
use omma_model::with_values;
use omma_ranks::World;

use super::{
    Average, LossScale, Observer, Stop, Weights,
    agree::agree,
    deployed,
    experts::ExpertRanks,
    judging,
    lead::{Opening, Order, expect_data},
    stepper::{Stepper, share},
};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
    resolved::Resolved,
    run::{DataIdentity, Progress},
    start::Begin,
};

/// A rank that takes the steps of a run together with rank 0, which alone reads and writes it. It has data of its own,
/// of which it reads its part.
pub struct Follower {
    resolved: Resolved,
    stepper: Stepper,
    average: Option<Average>,
}

/// Nobody watches.
struct Nobody;

impl Observer for Nobody {}

impl Follower {
    /// Joins the run that rank 0 opens; nothing where that could not.
    pub fn join(world: World, device: &Device) -> Result<Option<Self>> {
        let Some(opening) = world.told::<Option<Opening>>(None) else { return Ok(None) };
        let resolved = agree(&world, Self::prepared(&opening, &world, device))?;
        let groups = ExpertRanks::groups(&world, resolved.recipe.train.expert_parallel);
        let joined = agree(&world, Self::with_room(resolved, &world, groups))?;
        let follower = joined.listening(&world, &opening.progress)?;
        world.shared(world.machine());
        Ok(Some(follower))
    }

    /// What rank 0 trains, with this rank's own images.
    fn prepared(opening: &Opening, world: &World, device: &Device) -> Result<Resolved> {
        let recipe = Recipe::parse_saved(&opening.recipe, "the recipe of rank 0".as_ref())?;
        let tokenizer = opening.tokenizer.as_ref();
        let tokenizer = tokenizer.map(|json| Tokenizer::parse(json.as_bytes())).transpose()?;
        let resolved = Resolved::with_tokenizer(recipe, tokenizer, device)?;
        expect_data(&opening.data, &DataIdentity::of(&resolved.data))?;
        share(world, resolved.recipe.train.shards)?;
        Ok(resolved)
    }

    /// With a model and an optimiser that have the right shapes and no values yet.
    ///
    /// - `groups`: whom experts are spread over, if they are
    fn with_room(
        resolved: Resolved,
        world: &World,
        groups: Option<(World, World)>,
    ) -> Result<Self> {
        let recipe = &resolved.recipe;
        let device = resolved.device.clone().autodiff();
        let model = recipe.model.init(Seed::new(recipe.seed), &device)?;
        let model = match &groups {
            Some((group, _)) => model.spread_over(group)?,
            None => model,
        };
        let experts = groups.map(|groups| ExpertRanks::new(world, groups, &model));
        let Begin { model, weights, average, optimiser, freezing, .. } =
            Begin::with(recipe, model)?;
        let stepper = Stepper::new(device, (model, weights), optimiser, freezing, recipe)?;
        let stepper = stepper.among(world.clone(), experts, recipe)?;
        Ok(Self { resolved, stepper, average })
    }

    /// Takes over the weights of rank 0, and what its optimiser remembers.
    fn listening(mut self, world: &World, progress: &Progress) -> Result<Self> {
        let precision = self.resolved.recipe.train.precision;
        self.stepper.loss_scale = LossScale::of(precision, progress.loss_scale);
        let Stepper { model, weights, optimiser, freezing, experts, .. } = &mut self.stepper;
        let heard = |name: &str, size: usize| match &*experts {
            Some(experts) => experts.heard_part(name, size),
            None => world.broadcast(vec![0.0; size]),
        };
        *model = with_values(model.clone(), |parameter| {
            Ok(Some(heard(&parameter.name, parameter.shape.iter().product())))
        })?;
        *weights = Weights::learning(model, freezing);
        optimiser.restore(progress.moved(), |name, _, length| {
            Ok::<_, TrainError>(heard(name, length))
        })?;
        if let Some(average) = &mut self.average {
            for (parameter, values) in weights.parameters.iter().zip(&mut average.values) {
                *values = heard(&parameter.name, values.len());
            }
        }
        Ok(self)
    }

    /// Takes steps until rank 0 says that it is enough. What goes wrong is rank 0's to report.
    pub fn run(mut self, stop: &Stop) {
        let world = self.stepper.world.clone();
        let mut feed = None;
        loop {
            match world.told(None) {
                Order::Feed { step } => {
                    feed = self.stepper.feed(&self.resolved, step, &mut Nobody, stop).ok();
                }
                Order::Step(at) => {
                    let Some(feed) = &mut feed else { continue };
                    let taken = self.stepper.step(&self.resolved, feed, at, &String::new);
                    // Only rank 0 says what was sent.
                    world.take_traffic();
                    match taken {
                        Ok(_) => {
                            let values = &self.stepper.weights.values;
                            let average = self.average.iter_mut();
                            average.for_each(|average| average.follow(at.step + 1, values));
                        }
                        Err(error) => tracing::debug!("step {}: {error}", at.step + 1),
                    }
                }
                Order::Judge { test } => {
                    if let Err(error) = self.help(test, stop) {
                        tracing::debug!("judging: {error}");
                    }
                }
                Order::Give(piece) => self.stepper.give(piece, self.average.as_ref()),
                Order::End => return,
            }
        }
    }

    /// Computes a part of what rank 0 judges the model by.
    fn help(&self, test: bool, stop: &Stop) -> Result<()> {
        let Resolved { recipe, task, data, .. } = &self.resolved;
        let model = deployed(&self.stepper, self.average.as_ref())?;
        let images = match test {
            true => data.with_tests(recipe.train.test_share).map(|data| data.test),
            false => Some(data.validation.clone()),
        };
        let Some(images) = images else { return Ok(()) };
        task.help(&model, &images, judging(&self.resolved, &self.stepper.world, stop))
    }
}
