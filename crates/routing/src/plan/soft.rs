//! Soft plans: dispatch and combine matrices.

use burn::tensor::{Tensor, TensorData};
use omma_base::transfer;
use serde::{Deserialize, Serialize};

use crate::definition::RoutingTensors;

/// Mixtures of tokens for every slot, and mixtures of slots for every token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SoftPlan {
    #[serde(with = "super::written")]
    dispatch: Tensor<3>,
    #[serde(with = "super::written")]
    combine: Tensor<3>,
    experts: Vec<usize>,
    n_experts: usize,
    run: Option<Vec<Vec<usize>>>,
}

impl SoftPlan {
    /// - `dispatch`, `combine`: `[G, S, L · P]`
    /// - `experts`: the `L` experts behind the columns, out of `n_experts`
    pub(crate) fn new(
        dispatch: Tensor<3>,
        combine: Tensor<3>,
        experts: Vec<usize>,
        n_experts: usize,
    ) -> Self {
        Self { dispatch, combine, experts, n_experts, run: None }
    }

    /// The same with some experts of every group alone: the weights of the others are 0.
    ///
    /// - `columns`: for every group, places among [`experts`](Self::experts), increasing
    pub(crate) fn only(self, columns: &[Vec<usize>]) -> Self {
        let (live, slots) = (self.experts.len(), self.n_slots());
        let mut mask = vec![0.0_f32; columns.len() * live * slots];
        for (group, columns) in columns.iter().enumerate() {
            for column in columns {
                mask[(group * live + column) * slots..][..slots].fill(1.0);
            }
        }
        let options = (&self.dispatch.device(), self.dispatch.dtype());
        transfer::brought(&mask);
        let mask = TensorData::new(mask, [columns.len(), 1, live * slots]);
        let mask = Tensor::<3>::from_data(mask, options);
        let named = |columns: &Vec<usize>| columns.iter().map(|c| self.experts[*c]).collect();
        let run = Some(columns.iter().map(named).collect());
        Self {
            dispatch: self.dispatch * mask.clone(),
            combine: self.combine * mask,
            experts: self.experts,
            n_experts: self.n_experts,
            run,
        }
    }

    /// The experts that serve every group, in increasing order, where these are not all (paper 004
    /// Algorithm 1).
    pub fn run(&self) -> Option<&[Vec<usize>]> {
        self.run.as_deref()
    }

    /// `[G, S, L · P]`: column `l · P + p` mixes the tokens of a group into slot `p` of the `l`-th
    /// of [`experts`](Self::experts); columns sum to 1.
    pub fn dispatch(&self) -> &Tensor<3> {
        &self.dispatch
    }

    /// `[G, S, L · P]`: a row mixes the slots' outputs into a token. Rows sum to 1, unless experts
    /// were masked after the softmax or do not serve their group.
    pub fn combine(&self) -> &Tensor<3> {
        &self.combine
    }

    /// The experts that have slots: all but the pruned ones.
    pub fn experts(&self) -> &[usize] {
        &self.experts
    }

    /// Experts with and without slots, `E`.
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Slots per expert, `P`.
    pub fn n_slots(&self) -> usize {
        self.dispatch.dims()[2] / self.experts.len()
    }

    /// Groups, `G`.
    pub fn n_groups(&self) -> usize {
        self.dispatch.dims()[0]
    }

    /// The rows of group `group` in the token matrix.
    pub fn group_tokens(&self, group: usize) -> Vec<u32> {
        let size = self.dispatch.dims()[1] as u32;
        let group = group as u32;
        (group * size..(group + 1) * size).collect()
    }

    /// The experts' inputs, `Dᵀ X`.
    ///
    /// - `tokens`: `[N, D]`
    /// - returns: `[G, L · P, D]`
    pub fn slots(&self, tokens: Tensor<2>) -> Tensor<3> {
        let [groups, size, _] = self.dispatch.dims();
        let [_, width] = tokens.dims();
        let dispatch = self.dispatch.clone().cast(tokens.dtype());
        dispatch.swap_dims(1, 2).matmul(tokens.reshape([groups, size, width]))
    }

    /// Runs each expert on its slots of all groups and mixes the outputs into the tokens.
    pub fn apply(
        &self,
        tokens: Tensor<2>,
        mut expert: impl FnMut(usize, Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let [groups, size, _] = self.dispatch.dims();
        let [_, width] = tokens.dims();
        let n_slots = self.n_slots();
        let slots = self.slots(tokens);
        let outputs = self.experts.iter().enumerate().map(|(l, &e)| {
            let slots = slots.clone().narrow(1, l * n_slots, n_slots);
            let outputs = expert(e, slots.reshape([groups * n_slots, width]));
            let [_, width] = outputs.dims();
            outputs.reshape([groups, n_slots, width])
        });
        let outputs = Tensor::cat(outputs.collect(), 1);
        let outputs = self.combine.clone().cast(outputs.dtype()).matmul(outputs);
        let [_, _, width] = outputs.dims();
        outputs.reshape([groups * size, width])
    }

    /// The routing tensors of one group, `[S, E, P]`.
    pub fn dense(&self, group: usize) -> RoutingTensors {
        let [_, size, _] = self.dispatch.dims();
        let n_slots = self.n_slots();
        let fill = |weights: &Tensor<3>| {
            let weights = weights.clone().narrow(0, group, 1);
            let blocks = (0..self.n_experts).map(|expert| {
                match self.experts.iter().position(|live| *live == expert) {
                    Some(l) => weights.clone().narrow(2, l * n_slots, n_slots),
                    None => Tensor::zeros([1, size, n_slots], &weights.device()),
                }
            });
            Tensor::cat(blocks.collect(), 2).reshape([size, self.n_experts, n_slots])
        };
        RoutingTensors { dispatch: fill(&self.dispatch), combine: fill(&self.combine) }
    }
}
