//! A rank that does what rank 0 says.

use burn::tensor::Device;
use omma_base::Seed;
use omma_data::text::Tokenizer;
use omma_model::with_values;
use omma_ranks::World;

use super::{
    Observer, Stop,
    agree::agree,
    lead::{Opening, Order, expect_data},
    stepper::Stepper,
};
use crate::{error::Result, recipe::Recipe, resolved::Resolved, run::DataIdentity, start::Begin};

/// A rank that takes the steps of a run together with rank 0, which alone reads and writes it. It has data of its own,
/// of which it reads its part.
pub struct Follower {
    resolved: Resolved,
    stepper: Stepper,
}

/// Nobody watches.
struct Nobody;

impl Observer for Nobody {}

impl Follower {
    /// Joins the run that rank 0 opens; nothing where that could not.
    pub fn join(world: World, device: &Device) -> Result<Option<Self>> {
        let Some(opening) = world.told::<Option<Opening>>(None) else { return Ok(None) };
        let prepared = Self::prepared(&opening, &world, device);
        let mut follower = agree(&world, prepared)?;
        follower.listen(&world, opening.step)?;
        world.shared(world.machine());
        Ok(Some(follower))
    }

    /// With a model and an optimiser that have the right shapes and no values yet.
    fn prepared(opening: &Opening, world: &World, device: &Device) -> Result<Self> {
        let recipe = Recipe::parse_saved(&opening.recipe, "the recipe of rank 0".as_ref())?;
        let tokenizer = opening.tokenizer.as_ref();
        let tokenizer = tokenizer.map(|json| Tokenizer::parse(json.as_bytes())).transpose()?;
        let resolved = Resolved::with_tokenizer(recipe, tokenizer, device)?;
        expect_data(&opening.data, &DataIdentity::of(&resolved.data))?;
        let recipe = &resolved.recipe;
        let device = device.clone().autodiff();
        let model = recipe.model.init(Seed::new(recipe.seed), &device)?;
        let Begin { model, weights, optimiser, freezing, .. } = Begin::with(recipe, model)?;
        let shards = recipe.train.shards;
        let stepper = Stepper::new(device, (model, weights), optimiser, freezing, shards)?;
        let stepper = stepper.among(world.clone())?;
        Ok(Self { resolved, stepper })
    }

    /// Takes over the weights of rank 0, and what its optimiser remembers.
    fn listen(&mut self, world: &World, step: u64) -> Result<()> {
        let Stepper { model, weights, optimiser, freezing, .. } = &mut self.stepper;
        *model = with_values(model.clone(), |parameter| {
            let mut values = vec![0.0; parameter.shape.iter().product()];
            world.broadcast(&mut values);
            Ok(Some(values))
        })?;
        *weights = super::Weights::learning(model, freezing);
        optimiser.restore(step, |_, _, vector| {
            world.broadcast(vector);
            Ok(())
        })
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
                    if let Err(error) = taken {
                        tracing::debug!("step {}: {error}", at.step + 1);
                    }
                }
                Order::End => return,
            }
        }
    }
}
