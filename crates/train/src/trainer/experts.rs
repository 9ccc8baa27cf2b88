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
use omma_ranks::{Share, World};
use serde::{Deserialize, Serialize};

use super::{Average, Weights, lead::Order, stepper::Stepper};
use crate::{
    error::{Result, TrainError},
    optimiser::Optimiser,
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
    pub(super) fn is_spread(&self, parameter: &Parameter) -> bool {
        self.slices.contains_key(&parameter.name)
    }

    /// The ranks that have the same experts as this one, and which of their shards are its own.
    pub(super) fn replicas(&self, share: &Share) -> (&World, Share) {
        let replicas = Share::new(&self.replicas, share.own.len() * self.replicas.size());
        (&self.replicas, replicas.expect("every rank has as many shards"))
    }

    /// The norm of all gradients, those of experts elsewhere included; the same on all ranks.
    ///
    /// - `squares`: sums of the squares of those that are here, by parameter
    pub(super) fn norm(&self, weights: &Weights, squares: &[f64]) -> f64 {
        let of = |wanted: bool| -> f64 {
            let own = weights.parameters.iter().zip(squares);
            own.filter(|(parameter, _)| self.is_spread(parameter) == wanted).map(|(_, s)| s).sum()
        };
        let experts = self.group.shared(of(true));
        (of(false) + experts.into_iter().sum::<f64>()).sqrt()
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
        let Ok(()) = own.restore::<std::convert::Infallible>(whole.steps(), |name, number, _| {
            Ok(self.own_part(name, &memories[name].vectors[number]))
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

    /// Gives rank 0 its part of a parameter's, if this rank is of its group.
    fn give(&self, own: Vec<f32>) {
        if self.world.rank() == self.group.rank() {
            self.gather(own, None);
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
    /// What ranks that have the same of a parameter have of it together, on the first of them.
    fn read(self, stepper: &Stepper, average: Option<&Average>) -> Vec<f32> {
        let all = parameter_values(&stepper.model);
        let value = &all[self.parameter];
        let learning = &stepper.weights.parameters;
        let place = learning.iter().position(|own| own.name == value.parameter.name);
        match (self.of, place, average) {
            (Kept::Deployed, Some(place), Some(average)) => average.values[place].clone(),
            (Kept::Memory(number), Some(place), _) => {
                stepper.sums.memory(&stepper.optimiser, place, number)
            }
            (Kept::Deployed | Kept::Trained | Kept::Memory(_), ..) => value.read(),
        }
    }
}

impl Stepper {
    /// Gives rank 0 this one's part of what it has asked for.
    pub(super) fn give(&self, piece: Piece, average: Option<&Average>) {
        let own = piece.read(self, average);
        let Some(experts) = &self.experts else { return };
        if experts.slices.contains_key(&parameters(&self.model)[piece.parameter].name) {
            experts.give(own);
        }
    }

    /// Who has the rest of a training of which rank 0 has a part; nothing where it has all.
    pub(super) fn whole_state(&self) -> Option<WholeState<'_>> {
        let names = || parameters(&self.model).into_iter().enumerate();
        let places = || names().map(|(place, parameter)| (parameter.name, place)).collect();
        let in_parts = self.experts.is_some() || self.sums.spread();
        in_parts.then(|| WholeState { stepper: self, places: places() })
    }
}

/// A training of which rank 0 has a part.
pub(super) struct WholeState<'a> {
    stepper: &'a Stepper,
    /// Places of the model's parameters, by name.
    places: BTreeMap<String, usize>,
}

impl WholeState<'_> {
    /// Whose experts a parameter has, where these are spread.
    fn slice(&self, parameter: &str) -> Option<(&ExpertRanks, &ExpertSlice)> {
        let experts = self.stepper.experts.as_ref()?;
        experts.slices.get(parameter).map(|slice| (experts, slice))
    }
}

impl Whole for WholeState<'_> {
    fn size(&self, parameter: &str, held: Held, own: usize) -> usize {
        let own = match held {
            Held::Memory(number) => self.stepper.optimiser.whole_length(parameter, number),
            Held::Trained => None,
        }
        .unwrap_or(own);
        self.slice(parameter).map_or(own, |(_, slice)| slice.whole_of(own))
    }

    fn values<'a>(&self, parameter: &str, held: Held, own: &'a [f32]) -> Cow<'a, [f32]> {
        let (of, in_parts) = match held {
            Held::Trained => (Kept::Trained, false),
            Held::Memory(number) => (Kept::Memory(number), self.stepper.sums.spread()),
        };
        let slice = self.slice(parameter);
        if slice.is_none() && !in_parts {
            return Cow::Borrowed(own);
        }
        let piece = Piece { parameter: self.places[parameter], of };
        self.stepper.world.told(Some(Order::Give(piece)));
        let own = match in_parts {
            true => piece.read(self.stepper, None),
            false => own.to_vec(),
        };
        Cow::Owned(match slice {
            Some((experts, slice)) => experts.gather(own, Some(slice)),
            None => own,
        })
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
