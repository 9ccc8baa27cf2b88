//! From affinities to assignments with weights: the second half of sparse routing.

use burn::tensor::Tensor;

use super::{Context, check_finite, host};
use crate::{
    allocation::{Allocation, Arrivals, Assignments},
    capacity::Capacity,
    config::RouterConfig,
    error::{Result, RoutingError},
    gate::GateTable,
    layout::{Groups, Scope},
    plan::{SparsePlan, indices},
    pool::Pool,
};

impl RouterConfig {
    /// Allocates by an affinity of your own instead of the router's: the second half of a router,
    /// for one gate over all experts. The affinity, noise and losses of `self` are not used.
    ///
    /// - `affinity`: `Π [N, E]`, what allocation decides by
    /// - `weights`: `[N, E]`, the combine weight of every assignment that could be made
    pub fn allocate(
        &self,
        affinity: Tensor<2>,
        weights: Tensor<2>,
        context: &Context,
    ) -> Result<SparsePlan> {
        self.check()?;
        context.check(self)?;
        let clash = |left| RoutingError::Incompatible { left, right: "an affinity of your own" };
        if matches!(self.allocation, Allocation::Soft(_)) {
            return Err(clash("soft routing"));
        }
        if self.pool != Pool::All || self.scope != Scope::Token {
            return Err(clash("a pool or a scope"));
        }
        let expected = [context.layout.rows(), self.experts];
        for (what, found) in [("the affinity", affinity.dims()), ("the weights", weights.dims())] {
            if found != expected {
                let (expected, found) = (expected.to_vec(), found.to_vec());
                return Err(RoutingError::Shape { what, expected, found });
            }
        }
        let groups = Groups::new(&context.layout, &self.grouping);
        let available = self.pruning.alive(self.experts)?;
        let capacities = self.capacities(&groups, &available, context)?;
        let tokens = groups.order().to_vec();
        let index = indices(&tokens, &weights.device());
        let in_order = |values: Tensor<2>| values.select(0, index.clone());
        let (affinity, weights) = (host(&in_order(affinity)), in_order(weights));
        check_finite(&affinity, self.experts, |row| tokens[row] as usize, |expert| expert)?;
        let table = GateTable {
            experts: (0..self.experts).collect(),
            available,
            tokens,
            bounds: (0..groups.len())
                .map(|group| groups.range(group).start)
                .chain([expected[0]])
                .collect(),
            gates: host(&weights),
            affinity: Some(affinity),
        };
        let modality = context.modalities();
        let arrivals =
            Arrivals { groups: &groups, modality: modality.as_deref(), seed: context.seed };
        let weights = weights.reshape([expected[0] * expected[1]]);
        let (assignments, weights) = self.assign(&[table], vec![weights], &arrivals, capacities);
        Ok(SparsePlan::new(assignments, weights, groups, 1))
    }

    /// Runs the allocation and picks the weight of every assignment, `[A]`, from the gates' values.
    pub(super) fn assign(
        &self,
        tables: &[GateTable],
        mut values: Vec<Tensor<1>>,
        arrivals: &Arrivals,
        capacities: Option<Vec<usize>>,
    ) -> (Assignments, Tensor<1>) {
        let assignments = match &self.allocation {
            Allocation::TokenChoice(choice) => {
                let per_rank = self.pool.gates_per_token();
                choice.allocate(tables, per_rank, self.experts, arrivals, capacities)
            }
            Allocation::ExpertChoice(choice) => {
                let capacities = capacities.expect("expert choice always has a capacity");
                choice.allocate(tables, self.experts, arrivals.groups, capacities)
            }
            Allocation::Soft(_) => unreachable!("soft routing has its own way"),
        };
        let places: Vec<u32> = assignments.list.iter().map(|assignment| assignment.value).collect();
        let values = if values.len() == 1 { values.remove(0) } else { Tensor::cat(values, 0) };
        let index = indices(&places, &values.device());
        (assignments, values.select(0, index))
    }

    /// Slots per expert in every group that training would have had, at least one; nothing where tokens do not
    /// choose, or training has no limit. A choice of a plan whose [slot](crate::allocation::Decisions::slots) is
    /// not below it would have been dropped, noise aside: slots are counted in the order in which tokens are
    /// served, limit or not.
    pub fn training_capacities(&self, groups: &Groups) -> Option<Vec<usize>> {
        let choice = self.token_choice()?;
        let capacity = choice.capacity?;
        let alive = self.pruning.alive(self.experts).ok()?;
        let experts = alive.iter().filter(|alive| **alive).count();
        let choices = choice.k * self.pool.gates_per_token();
        let of_group = |group| {
            let slots = capacity.slots(groups.range(group).len() * choices, experts);
            slots.unwrap_or(capacity.multiple_of)
        };
        Some((0..groups.len()).map(of_group).collect())
    }

    /// Slots per expert in every group; none where nothing is limited.
    pub(super) fn capacities(
        &self,
        groups: &Groups,
        alive: &[bool],
        context: &Context,
    ) -> Result<Option<Vec<usize>>> {
        let (capacity, choices) = match &self.allocation {
            Allocation::TokenChoice(choice) => {
                let limit =
                    if context.training { choice.capacity } else { choice.inference_capacity };
                (limit, choice.k * self.pool.gates_per_token())
            }
            Allocation::ExpertChoice(choice) => (Some(choice.capacity), 1),
            Allocation::Soft(_) => (None, 1),
        };
        let experts = alive.iter().filter(|alive| **alive).count();
        let of_group = |capacity: Capacity, group| {
            match capacity.slots(groups.range(group).len() * choices, experts) {
                // A few tokens must not be nobody's at inference: a batch may have any size there.
                Err(RoutingError::ZeroCapacity { .. }) if !context.training => {
                    Ok(capacity.multiple_of)
                }
                slots => slots,
            }
        };
        capacity
            .map(|capacity| (0..groups.len()).map(|group| of_group(capacity, group)).collect())
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};
    use omma_base::Seed;

    use super::*;
    use crate::{Grouping, Layout, Order, Plan, TokenChoice};

    /// Slots are counted in the order of service, limit or not, so that a prediction knows what training drops.
    #[test]
    fn what_training_would_drop_is_known_without_a_limit() {
        let device = Device::flex();
        let layout = Layout::new(6, 9);
        let tokens = Tensor::<2>::random([layout.rows(), 5], Distribution::Default, &device) * 20.0;
        for (order, grouping, factor) in [
            (Order::Arrival, Grouping::Batch, 1.0),
            (Order::MaxGate, Grouping::Images(2), 1.05),
            (Order::SumOfGates, Grouping::Tokens(20), 0.5),
        ] {
            let capacity = Some(Capacity::factor(factor));
            let choice = TokenChoice { capacity, order, ..TokenChoice::dropless(2) };
            let config =
                RouterConfig { grouping, ..RouterConfig::new(4, Allocation::TokenChoice(choice)) };
            let router = config.init(5, Seed::new(1), &device).unwrap();
            let at = |context: Context| router.route(tokens.clone(), &context).unwrap();
            let training = at(Context::training(layout.clone(), Seed::new(2)));
            let free = at(Context::inference(layout.clone()));
            let Plan::Sparse(plan) = &free.plan else { panic!("token choice is sparse") };
            let (decisions, capacities) =
                (plan.decisions().unwrap(), config.training_capacities(plan.groups()).unwrap());
            assert_eq!(capacities, training.plan.as_sparse().unwrap().capacities());
            let mut dropped = 0;
            for (group, capacity) in capacities.iter().enumerate() {
                for token in plan.groups().tokens(group) {
                    let slots = &decisions.slots[*token as usize * 2..][..2];
                    dropped += slots.iter().filter(|slot| **slot as usize >= *capacity).count();
                }
            }
            assert!(dropped > 0, "{order}");
            assert_eq!(dropped, training.statistics().dropped.iter().sum::<usize>(), "{order}");
            assert_eq!(free.statistics().dropped.iter().sum::<usize>(), 0, "{order}");
        }
        let soft = RouterConfig::soft(4, 1);
        let groups = Groups::new(&layout, &Grouping::Batch);
        assert_eq!(soft.training_capacities(&groups), None);
    }
}
