//! Gradients that are summed over all shards of all ranks, and who moves which parameters by them.
//!
//! Every rank moves all parameters that it has, by the same sums; or, with `train.spread_optimiser` (ZeRO stage 1), some
//! elements of each, whose sums it alone needs and of which it alone remembers something, and gives them to the others
//! then. Both send as much and end with the same bits.

use std::ops::Range;

use omma_ranks::{Owners, Share, World, sum_own_parts};

use super::{Weights, experts::ExpertRanks};
use crate::{
    optimiser::{Optimiser, squares_by_part, sum_of_squares},
    recipe::Recipe,
};

/// How gradients are summed.
pub(super) struct Sums {
    /// Every parameter is of one of them.
    groups: Vec<Group>,
    /// Whether ranks move different elements.
    spread: bool,
}

/// Parameters that the same ranks have.
struct Group {
    world: World,
    share: Share,
    /// Places among all that learn.
    parameters: Vec<usize>,
    owners: Owners,
}

impl Sums {
    /// - `experts`: where they are, if not all on every rank
    pub(super) fn new(
        (world, share): (&World, &Share),
        experts: Option<&ExpertRanks>,
        weights: &Weights,
        recipe: &Recipe,
    ) -> Self {
        let spread = recipe.train.spread_optimiser && !world.is_alone();
        let group = |world: &World, share: Share, parameters: Vec<usize>| {
            let ranks = world.size();
            let vectors = parameters.iter().map(|place| {
                let shape = &weights.parameters[*place].shape;
                let grain = match spread {
                    true => recipe.optimiser.grain(shape, ranks),
                    false => Some(1),
                };
                (weights.values[*place].len(), grain)
            });
            Group { owners: Owners::cut(vectors, ranks), world: world.clone(), share, parameters }
        };
        let all = 0..weights.parameters.len();
        let groups = match experts {
            None => vec![group(world, share.clone(), all.collect())],
            Some(experts) => {
                let (spread, everywhere) =
                    all.partition(|place| experts.is_spread(&weights.parameters[*place]));
                let (replicas, of_replicas) = experts.replicas(share);
                vec![group(world, share.clone(), everywhere), group(replicas, of_replicas, spread)]
            }
        };
        Self { groups, spread }
    }

    /// Whether ranks move different elements.
    pub(super) fn spread(&self) -> bool {
        self.spread
    }

    /// The elements of a parameter that this rank moves.
    pub(super) fn own(&self, parameter: usize) -> Range<usize> {
        let (group, place) = self.group_of(parameter);
        let Group { owners, world, .. } = group;
        match self.spread {
            true => owners.range(place, world.rank()),
            false => owners.range(place, 0).start..owners.range(place, world.size() - 1).end,
        }
    }

    fn group_of(&self, parameter: usize) -> (&Group, usize) {
        let found = self.groups.iter().find_map(|group| {
            group.parameters.binary_search(&parameter).ok().map(|place| (group, place))
        });
        found.expect("every parameter is of a group")
    }

    /// Sums gradients over all shards; where ranks move different elements, this rank's alone, and the rest is of
    /// no use. Those of experts that are spread over ranks are summed over the ranks that have the same, into which
    /// the others have already put theirs in the backward pass.
    ///
    /// - `shards`: those of this rank
    pub(super) fn sum(&self, shards: Vec<Vec<Vec<f32>>>) -> Vec<Vec<f32>> {
        let mut shards = shards;
        let mut sums: Vec<Vec<f32>> = shards[0].iter().map(|_| Vec::new()).collect();
        for Group { world, share, parameters, owners } in &self.groups {
            let take = |shard: &mut Vec<Vec<f32>>| {
                parameters.iter().map(|place| std::mem::take(&mut shard[*place])).collect()
            };
            let own = shards.iter_mut().map(take).collect();
            let mut summed = sum_own_parts(world, share, owners, own);
            if !self.spread {
                owners.gather(world, &mut summed);
            }
            parameters.iter().zip(summed).for_each(|(place, sum)| sums[*place] = sum);
        }
        sums
    }

    /// The same of some of the parameters, which all ranks sum at the same time, while this one computes something else.
    ///
    /// - `shards`: those of this rank, with these parameters alone
    pub(super) fn sum_some(&self, some: &[usize], shards: Vec<Vec<Vec<f32>>>) -> Vec<Vec<f32>> {
        let [Group { world, share, owners, .. }] = &self.groups[..] else {
            unreachable!("ranks that have experts of each other go through a step together")
        };
        let (world, owners) = (world.patient(), owners.select(some));
        let mut summed = sum_own_parts(&world, share, &owners, shards);
        if !self.spread {
            owners.gather(&world, &mut summed);
        }
        summed
    }

    /// Gives all ranks what each has of its own elements.
    pub(super) fn gather(&self, values: &mut [Vec<f32>]) {
        if !self.spread {
            return;
        }
        for Group { world, parameters, owners, .. } in &self.groups {
            let take = |place: &usize| std::mem::take(&mut values[*place]);
            let mut own: Vec<Vec<f32>> = parameters.iter().map(take).collect();
            owners.gather(world, &mut own);
            parameters.iter().zip(own).for_each(|(place, all)| values[*place] = all);
        }
    }

    /// `Σ x²` of the gradient of every parameter, as one process adds them up.
    pub(super) fn squares(&self, gradients: &[Vec<f32>]) -> Vec<f64> {
        if !self.spread {
            return gradients.iter().map(|gradient| sum_of_squares(gradient)).collect();
        }
        let mut squares = vec![0.0; gradients.len()];
        for Group { world, parameters, .. } in &self.groups {
            let own = parameters
                .iter()
                .map(|place| squares_by_part(&gradients[*place][self.own(*place)]));
            let all: Vec<Vec<Vec<f64>>> = world.shared(own.collect());
            for (number, place) in parameters.iter().enumerate() {
                squares[*place] = all.iter().flat_map(|of_rank| &of_rank[number]).sum();
            }
        }
        squares
    }

    /// Brings together, on the first of the ranks that have a parameter, what they remember of it; of no use elsewhere.
    pub(super) fn memory(
        &self,
        optimiser: &Optimiser,
        parameter: usize,
        number: usize,
    ) -> Vec<f32> {
        let memory = &optimiser.memories()[parameter];
        let own = memory.vectors[number].clone();
        if !self.spread {
            return own;
        }
        let (Group { world, owners, .. }, place) = self.group_of(parameter);
        let mut sent = vec![0; world.size()];
        sent[0] = own.len();
        let whole = optimiser.whole_length(&memory.name, number).unwrap_or(0);
        let element = |element: usize| whole * element / memory.size().max(1);
        let of_rank = |rank| {
            let Range { start, end } = owners.range(place, rank);
            if world.leads() { element(end) - element(start) } else { 0 }
        };
        let received: Vec<usize> = (0..world.size()).map(of_rank).collect();
        world.all_to_all(own, &sent, &received)
    }
}

#[cfg(test)]
mod tests {
    use omma_model::Parameter;
    use omma_ranks::threads;

    use super::*;

    #[test]
    fn ranks_move_every_element_once_and_remember_about_as_much() {
        let shapes = [vec![8, 64, 256], vec![64, 64], vec![64], vec![8, 256], vec![10, 64]];
        let parameters: Vec<Parameter> = shapes
            .into_iter()
            .enumerate()
            .map(|(place, shape)| Parameter { name: format!("blocks.{place}.weight"), shape })
            .collect();
        let values = parameters.iter().map(|p| vec![0.0; p.shape.iter().product()]).collect();
        let weights = Weights { parameters, values };
        for (kind, cut) in [("adam-w", true), ("lamb", false)] {
            let kind = format!("optimiser.kind={kind}");
            let settings = [kind.as_str(), "train.spread_optimiser=true", "train.shards=2"];
            let recipe =
                Recipe::parse("model.preset = 'vmoe-tiny'", "test".as_ref(), &settings).unwrap();
            let found = threads(2, |world| {
                let share = Share::new(&world, 2).unwrap();
                let sums = Sums::new((&world, &share), None, &weights, &recipe);
                let own: Vec<_> = (0..5).map(|parameter| sums.own(parameter)).collect();
                let named = weights.parameters.iter().map(|p| (p.name.as_str(), &p.shape[..]));
                let whole = Optimiser::new(recipe.optimiser, 12, named);
                let optimiser = whole.owning(|parameter| sums.own(parameter));
                let vectors = optimiser.memories().iter().flat_map(|memory| &memory.vectors);
                (own, vectors.map(Vec::len).sum::<usize>())
            });
            let [(first, held), (second, other)] = &found[..] else { panic!("two ranks") };
            for ((one, two), values) in first.iter().zip(second).zip(&weights.values) {
                assert_eq!((one.start, one.end, two.end), (0, two.start, values.len()));
            }
            let all: usize = weights.values.iter().map(Vec::len).sum();
            assert_eq!(held + other, 2 * all);
            assert_eq!(first[0].len() == 4 * 64 * 256, cut);
            assert!(!cut || held.abs_diff(*other) < all / 20, "{held} {other}");
        }
    }
}
