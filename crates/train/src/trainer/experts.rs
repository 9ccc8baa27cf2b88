//! Experts that live on several ranks: who has which, whose gradients are summed, and how all are brought together
//! to be saved.
//!
//! Of `R` ranks, `n` after each other have all experts between them, and `R / n` such groups the same. Everything else is
//! on every rank. Shards of a rank are computed one after the other: a layer's experts are those of all ranks of a
//! group, which therefore go through the layers together.

use std::{borrow::Cow, collections::BTreeMap};

use omma_model::{
    ExpertSlice, Parameter, ParameterValues, VisionTransformer, experts_of_rank, parameter_values,
    parameters,
};
use omma_ranks::{Share, World, sum_over_shards};
use serde::{Deserialize, Serialize};

use super::{Average, Weights, lead::Order, stepper::Stepper};
use crate::{
    error::{Result, TrainError},
    optimiser::{Optimiser, sum_of_squares},
    recipe::Recipe,
    run::{Held, Whole},
};

/// How many ranks have all experts between them: as many as were asked for, or fewer where ranks cannot be cut so.
pub(crate) fn ranks_with_all_experts(ranks: usize, asked: usize) -> usize {
    (1..=asked.min(ranks)).rev().find(|few| ranks.is_multiple_of(*few)).unwrap_or(1)
}

/// Where experts are, as one rank sees it.
pub(super) struct ExpertRanks {
    world: World,
    /// The ranks that have all of them between them.
    pub(super) group: World,
    /// Those that have the same as this one.
    replicas: World,
    /// Parameters of which this rank has a part.
    pub(super) slices: BTreeMap<String, ExpertSlice>,
}

/// Something that a rank has of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// The parameter's place among all of the model.
    parameter: usize,
    of: Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kept {
    /// What a user gets of it.
    Deployed,
    /// What is trained, where that is something else.
    Trained,
    /// A vector of the optimiser's.
    Memory(usize),
}

impl ExpertRanks {
    /// The ranks that this one has experts with, and those that have the same; nothing where every rank has all.
    pub(super) fn groups(world: &World, asked: usize) -> Option<(World, World)> {
        let few = ranks_with_all_experts(world.size(), asked);
        (few > 1).then(|| (world.split(world.rank() / few), world.split(world.rank() % few)))
    }

    /// - `model`: with its experts spread over the first of the groups
    pub(super) fn new(
        world: &World,
        (group, replicas): (World, World),
        model: &VisionTransformer,
    ) -> Self {
        Self { world: world.clone(), group, replicas, slices: model.expert_slices() }
    }

    /// Whether this rank has only a part of a parameter.
    fn is_spread(&self, parameter: &Parameter) -> bool {
        self.slices.contains_key(&parameter.name)
    }

    /// Sums gradients over all shards: those of experts over the ranks that have the same, into which the others of their
    /// group have already put theirs in the backward pass.
    ///
    /// - `shards`: those of this rank
    pub(super) fn sum(
        &self,
        share: &Share,
        weights: &Weights,
        shards: Vec<Vec<Vec<f32>>>,
    ) -> Vec<Vec<f32>> {
        let spread: Vec<bool> = weights.parameters.iter().map(|p| self.is_spread(p)).collect();
        let pick = |shards: &[Vec<Vec<f32>>], wanted: bool| -> Vec<Vec<Vec<f32>>> {
            let of_shard = |shard: &Vec<Vec<f32>>| {
                let own = shard.iter().zip(&spread).filter(|(_, spread)| **spread == wanted);
                own.map(|(gradient, _)| gradient.clone()).collect()
            };
            shards.iter().map(of_shard).collect()
        };
        let (everywhere, experts) = (pick(&shards, false), pick(&shards, true));
        drop(shards);
        let everywhere = sum_over_shards(&self.world, share, everywhere);
        let replicas = Share::new(&self.replicas, share.own.len() * self.replicas.size());
        let replicas = replicas.expect("every rank has as many shards");
        let experts = sum_over_shards(&self.replicas, &replicas, experts);
        let (mut everywhere, mut experts) = (everywhere.into_iter(), experts.into_iter());
        let next = |spread: &bool| if *spread { experts.next() } else { everywhere.next() };
        spread.iter().filter_map(next).collect()
    }

    /// The norm of all gradients, those of experts elsewhere included; the same on all ranks.
    pub(super) fn norm(&self, weights: &Weights, gradients: &[Vec<f32>]) -> f64 {
        let of = |wanted: bool| -> f64 {
            let own = weights.parameters.iter().zip(gradients);
            let own = own.filter(|(parameter, _)| self.is_spread(parameter) == wanted);
            own.map(|(_, gradient)| sum_of_squares(gradient)).sum()
        };
        // As bits: JSON has no word for what is not finite.
        let experts = self.group.shared(of(true).to_bits());
        (of(false) + experts.into_iter().map(f64::from_bits).sum::<f64>()).sqrt()
    }

    /// This rank's part of what the optimiser remembers of all experts.
    pub(super) fn own_memory(
        &self,
        recipe: &Recipe,
        weights: &Weights,
        whole: &Optimiser,
    ) -> Optimiser {
        let parameters = weights.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice()));
        let mut own = Optimiser::new(recipe.optimiser, recipe.model.encoder.depth, parameters);
        let memories: BTreeMap<&str, _> =
            whole.memories().iter().map(|memory| (memory.name.as_str(), memory)).collect();
        let Ok(()) =
            own.restore::<std::convert::Infallible>(whole.steps(), |name, number, vector| {
                *vector = self.own_part(name, &memories[name].vectors[number]);
                Ok(())
            });
        own
    }

    /// This rank's part of something about a whole parameter.
    pub(super) fn own_part(&self, name: &str, whole: &[f32]) -> Vec<f32> {
        self.slices.get(name).map_or(whole, |slice| slice.part(whole)).to_vec()
    }

    /// The same of rank 0's, which has as much as `own` of what is not spread.
    pub(super) fn heard_part(&self, name: &str, own: usize) -> Vec<f32> {
        let size = self.slices.get(name).map_or(own, |slice| slice.whole_of(own));
        self.own_part(name, &self.world.broadcast(vec![0.0; size]))
    }

    /// Gives rank 0 what it has asked for, if this rank is of its group.
    pub(super) fn give(&self, piece: Piece, stepper: &Stepper, average: Option<&Average>) {
        if self.world.rank() == self.group.rank() {
            self.gather(piece.read(stepper, average), None);
        }
    }

    /// Brings the parts of all ranks of a group together on its first.
    fn gather(&self, own: Vec<f32>, slice: Option<&ExpertSlice>) -> Vec<f32> {
        let ranks = self.group.size();
        let mut sent = vec![0; ranks];
        sent[0] = own.len();
        let each = slice.map_or(0, |slice| own.len() / slice.own.len().max(1));
        let of_rank =
            |rank| slice.map_or(0, |s| each * experts_of_rank(rank, ranks, s.whole).len());
        let received: Vec<usize> = (0..ranks).map(of_rank).collect();
        self.group.all_to_all(own, &sent, &received)
    }

    /// Asks all for their parts of a parameter, on rank 0.
    fn ask(&self, piece: Piece, slice: &ExpertSlice, own: Vec<f32>) -> Vec<f32> {
        self.world.told(Some(Order::Give(piece)));
        self.gather(own, Some(slice))
    }

    fn handle(&self) -> Self {
        let Self { world, group, replicas, slices } = self;
        let (world, group, replicas) = (world.clone(), group.clone(), replicas.clone());
        Self { world, group, replicas, slices: slices.clone() }
    }

    /// All parameters of a model of which rank 0 has a part, to be saved: experts are asked for when they are read.
    pub(super) fn whole_model(&self, model: &VisionTransformer) -> Vec<ParameterValues> {
        let complete = |(parameter, own): (usize, ParameterValues)| {
            let Some(slice) = self.slices.get(&own.parameter.name).cloned() else { return own };
            let mut whole = own.parameter.clone();
            whole.shape[0] = slice.whole;
            let (all, piece) = (self.handle(), Piece { parameter, of: Kept::Deployed });
            ParameterValues::new(whole, move || all.ask(piece, &slice, own.read()))
        };
        parameter_values(model).into_iter().enumerate().map(complete).collect()
    }

    /// The same of what belongs to the state of a training.
    pub(super) fn whole_state(&self, model: &VisionTransformer) -> WholeState<'_> {
        let names = parameters(model).into_iter().enumerate();
        WholeState { ranks: self, places: names.map(|(place, p)| (p.name, place)).collect() }
    }

    /// The busiest rank's rows relative to the mean of all, in a layer whose experts have such shares of the load.
    pub(super) fn peak_load(&self, load: &[f64]) -> f64 {
        let ranks = self.group.size();
        let of_rank = |rank| load[experts_of_rank(rank, ranks, load.len())].iter().sum::<f64>();
        (0..ranks).map(of_rank).fold(0.0, f64::max) * ranks as f64
    }

    /// What ranks of a group said to each other since the last time, and those that have the same experts.
    pub(super) fn take_traffic(&self) -> [omma_ranks::Traffic; 2] {
        [self.group.take_traffic(), self.replicas.take_traffic()]
    }
}

impl Piece {
    fn read(self, stepper: &Stepper, average: Option<&Average>) -> Vec<f32> {
        let all = parameter_values(&stepper.model);
        let value = &all[self.parameter];
        let learning = &stepper.weights.parameters;
        let place = learning.iter().position(|own| own.name == value.parameter.name);
        match (self.of, place, average) {
            (Kept::Deployed, Some(place), Some(average)) => average.values[place].clone(),
            (Kept::Memory(number), Some(place), _) => {
                stepper.optimiser.memories()[place].vectors[number].clone()
            }
            (Kept::Deployed | Kept::Trained | Kept::Memory(_), ..) => value.read(),
        }
    }
}

/// A training of which rank 0 has a part.
pub(super) struct WholeState<'a> {
    ranks: &'a ExpertRanks,
    /// Places of the model's parameters, by name.
    places: BTreeMap<String, usize>,
}

impl Whole for WholeState<'_> {
    fn size(&self, parameter: &str, own: usize) -> usize {
        self.ranks.slices.get(parameter).map_or(own, |slice| slice.whole_of(own))
    }

    fn values<'a>(&self, parameter: &str, held: Held, own: &'a [f32]) -> Cow<'a, [f32]> {
        let Some(slice) = self.ranks.slices.get(parameter) else { return Cow::Borrowed(own) };
        let of = match held {
            Held::Trained => Kept::Trained,
            Held::Memory(number) => Kept::Memory(number),
        };
        let piece = Piece { parameter: self.places[parameter], of };
        Cow::Owned(self.ranks.ask(piece, slice, own.to_vec()))
    }
}

/// Why the experts of a model cannot be spread where it is.
pub(super) fn check_device(device: &burn::tensor::Device) -> Result<()> {
    match *device == burn::tensor::Device::flex() {
        true => Ok(()),
        false => Err(TrainError::BadSetting {
            key: "train.expert_parallel".to_owned(),
            value: "more than 1".to_owned(),
            why: "experts are spread over ranks on the CPU alone".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_cut_evenly() {
        let few = |ranks, asked| ranks_with_all_experts(ranks, asked);
        assert_eq!([few(1, 4), few(4, 4), few(4, 2), few(8, 4), few(4, 1)], [1, 4, 2, 4, 1]);
        assert_eq!([few(6, 4), few(5, 4), few(2, 4)], [3, 1, 2]);
    }
}
