//! Sparse plans: assignments sorted by expert.

use std::{borrow::Cow, ops::Range};

use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};
use omma_base::transfer;
use serde::{Deserialize, Serialize};

use crate::{
    allocation::{Assignments, Decisions},
    definition::RoutingTensors,
    error::{Result, RoutingError},
    layout::Groups,
};

/// Assignments of tokens to experts in compressed rows, one row per expert.
///
/// Invariant: inside an expert, assignments are sorted by group, then by slot, and no slot of a
/// group is used twice.
///
/// With image scope one decision moves a whole image: [`span`](Self::span) consecutive rows of the
/// token matrix are then one routed unit, and token indices count units.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SparsePlan {
    offsets: Vec<usize>,
    tokens: Vec<u32>,
    slots: Vec<u32>,
    choices: Vec<u32>,
    #[serde(with = "super::written")]
    weights: Tensor<1>,
    span: usize,
    groups: Groups,
    capacities: Vec<usize>,
    decisions: Option<Decisions>,
}

impl SparsePlan {
    /// - `weights`: the combine weight of every assignment, `[A]`
    pub(crate) fn new(
        assignments: Assignments,
        weights: Tensor<1>,
        groups: Groups,
        span: usize,
    ) -> Self {
        let Assignments { offsets, list, capacities, decisions } = assignments;
        Self {
            offsets,
            tokens: list.iter().map(|assignment| assignment.token).collect(),
            slots: list.iter().map(|assignment| assignment.slot).collect(),
            choices: list.iter().map(|assignment| assignment.choice).collect(),
            weights,
            span,
            groups,
            capacities,
            decisions,
        }
    }

    /// Every token's weights divided by their sum.
    pub(crate) fn with_normalised_weights(self) -> Self {
        let index = indices(&self.tokens, &self.weights.device());
        let zeros =
            Tensor::zeros([self.n_tokens()], (&self.weights.device(), self.weights.dtype()));
        let sums =
            zeros.select_assign(0, index.clone(), self.weights.clone(), IndexingUpdateOp::Add);
        Self { weights: self.weights / sums.select(0, index), ..self }
    }

    /// Experts, `E`.
    pub fn n_experts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Assignments, `A`.
    pub fn n_assignments(&self) -> usize {
        self.tokens.len()
    }

    /// Routed units; times [`span`](Self::span) the rows of the token matrix.
    pub fn n_tokens(&self) -> usize {
        self.groups.order().len()
    }

    /// Rows of the token matrix that one assignment moves: 1, or the tokens of an image.
    pub fn span(&self) -> usize {
        self.span
    }

    /// `[E + 1]`: the assignments of expert `e` are `offsets[e]..offsets[e + 1]`.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// The assignments of one expert.
    pub fn of_expert(&self, expert: usize) -> Range<usize> {
        self.offsets[expert]..self.offsets[expert + 1]
    }

    /// `[A]`: the token of every assignment.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// `[A]`: the slot of every assignment in its expert's buffer for the token's group.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// `[A]`: which of its token's choices an assignment is; 0 where experts choose.
    pub fn choices(&self) -> &[u32] {
        &self.choices
    }

    /// `[A]`: the combine weight of every assignment, the only part that carries gradient.
    pub fn weights(&self) -> &Tensor<1> {
        &self.weights
    }

    /// The groups that were routed independently.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Slots per expert in each group; without a limit, as many as the busiest expert needed.
    pub fn capacities(&self) -> &[usize] {
        &self.capacities
    }

    /// What tokens wished for, served or not; none where experts choose.
    pub fn decisions(&self) -> Option<&Decisions> {
        self.decisions.as_ref()
    }

    /// Copies token rows to their experts.
    ///
    /// - `tokens`: `[N, D]`
    /// - returns: `[A · span, D]`, sorted by expert
    pub fn dispatch(&self, tokens: Tensor<2>) -> Tensor<2> {
        let [_, width] = tokens.dims();
        let units = tokens.reshape([self.n_tokens(), self.span * width]);
        let index = indices(&self.tokens, &units.device());
        units.select(0, index).reshape([self.n_assignments() * self.span, width])
    }

    /// Adds weighted expert outputs back to their tokens.
    ///
    /// - `outputs`: `[A · span, D]`, as [`dispatch`](Self::dispatch) orders them
    /// - returns: `[N, D]`
    pub fn combine(&self, outputs: Tensor<2>) -> Tensor<2> {
        let [_, width] = outputs.dims();
        self.scatter(outputs, &self.tokens, self.n_tokens())
            .reshape([self.n_tokens() * self.span, width])
    }

    /// The weighted contributions of every token's choices, not summed (multi-pred, paper 000
    /// eq. 3). A dropped choice contributes zeros.
    ///
    /// - `outputs`: `[A · span, D]`, as [`dispatch`](Self::dispatch) orders them
    /// - returns: `[choices, N, D]`
    pub fn contributions(&self, outputs: Tensor<2>) -> Result<Tensor<3>> {
        let Some(decisions) = &self.decisions else {
            let (left, right) = ("a contribution per choice", "expert choice");
            return Err(RoutingError::Incompatible { left, right });
        };
        let [_, width] = outputs.dims();
        let units = self.n_tokens();
        let places: Vec<u32> =
            self.tokens.iter().zip(&self.choices).map(|(t, c)| c * units as u32 + t).collect();
        let sum = self.scatter(outputs, &places, decisions.per_token * units);
        Ok(sum.reshape([decisions.per_token, units * self.span, width]))
    }

    /// `[rows, span · D]`: the sum of `weight · output` at every assignment's row.
    fn scatter(&self, outputs: Tensor<2>, rows: &[u32], n_rows: usize) -> Tensor<2> {
        let [_, width] = outputs.dims();
        let device = outputs.device();
        let dtype = outputs.dtype();
        let outputs = outputs.reshape([self.n_assignments(), self.span * width]);
        let weighted = outputs * self.weights.clone().cast(dtype).unsqueeze_dim::<2>(1);
        Tensor::zeros([n_rows, self.span * width], (&device, dtype)).select_assign(
            0,
            indices(rows, &device),
            weighted,
            IndexingUpdateOp::Add,
        )
    }

    /// Runs each expert that has tokens on its rows and combines the outputs.
    pub fn apply(
        &self,
        tokens: Tensor<2>,
        expert: impl FnMut(usize, Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        self.combine(self.expert_outputs(tokens, expert))
    }

    /// The outputs of all experts, `[A · span, D']`, before they are weighted and summed; experts
    /// without tokens are not called.
    pub fn expert_outputs(
        &self,
        tokens: Tensor<2>,
        mut expert: impl FnMut(usize, Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let inputs = self.dispatch(tokens);
        let busy = (0..self.n_experts()).filter(|e| !self.of_expert(*e).is_empty());
        let outputs = busy.map(|e| {
            let Range { start, end } = self.of_expert(e);
            let inputs = inputs.clone().narrow(0, start * self.span, (end - start) * self.span);
            expert(e, inputs)
        });
        Tensor::cat(outputs.collect(), 0)
    }

    /// The same plan with one assignment per row of the token matrix.
    pub fn expanded(&self) -> Cow<'_, Self> {
        if self.span == 1 {
            return Cow::Borrowed(self);
        }
        let span = self.span as u32;
        let rows = |units: &[u32]| -> Vec<u32> {
            units.iter().flat_map(|unit| unit * span..(unit + 1) * span).collect()
        };
        let repeat = |values: &[u32]| -> Vec<u32> {
            values.iter().flat_map(|value| std::iter::repeat_n(*value, self.span)).collect()
        };
        let weights = self.weights.clone().unsqueeze_dim::<2>(1).repeat_dim(1, self.span);
        Cow::Owned(Self {
            offsets: self.offsets.iter().map(|offset| offset * self.span).collect(),
            tokens: rows(&self.tokens),
            slots: rows(&self.slots),
            choices: repeat(&self.choices),
            weights: weights.reshape([self.n_assignments() * self.span]),
            span: 1,
            groups: self.groups.expanded(self.span),
            capacities: self.capacities.iter().map(|capacity| capacity * self.span).collect(),
            decisions: self.decisions.as_ref().map(|decisions| decisions.expanded(self.span)),
        })
    }

    /// The routing tensors of one group, `[S, E, C]`, with tokens in routing order.
    pub fn dense(&self, group: usize) -> RoutingTensors {
        let plan = self.expanded();
        let (experts, capacity) = (plan.n_experts(), plan.capacities[group]);
        let size = plan.groups.range(group).len();
        let places = plan.groups.places();
        let (mut cells, mut members) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            for assignment in plan.of_expert(expert) {
                let place = places[plan.tokens[assignment] as usize];
                if place.group == group {
                    let row = place.position * experts + expert;
                    cells.push((row * capacity) as u32 + plan.slots[assignment]);
                    members.push(assignment as u32);
                }
            }
        }
        let device = plan.weights.device();
        let zeros = Tensor::<1>::zeros([size * experts * capacity], &device);
        if cells.is_empty() {
            let zeros = zeros.reshape([size, experts, capacity]);
            return RoutingTensors { dispatch: zeros.clone(), combine: zeros };
        }
        let fill = |values: Tensor<1>| {
            let index = indices(&cells, &device);
            let filled = zeros.clone().select_assign(0, index, values, IndexingUpdateOp::Add);
            filled.reshape([size, experts, capacity])
        };
        let weights = plan.weights.clone().select(0, indices(&members, &device));
        RoutingTensors { dispatch: fill(weights.ones_like()), combine: fill(weights) }
    }
}

/// An index tensor from plain integers.
pub(crate) fn indices(values: &[u32], device: &Device) -> Tensor<1, Int> {
    let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
    let length = values.len();
    transfer::brought(&values);
    Tensor::from_data(TensorData::new(values, [length]), device)
}
