//! An MoE layer: router, experts, and optionally an expert that every token passes.

use burn::{
    module::Module,
    tensor::{Device, IndexingUpdateOp, Int, Tensor},
};
use omma_base::transfer;
use omma_kernels::Precision;
use omma_routing::{Context, Plan, Router, RouterConfig, Routing, RoutingError, Seed};

use super::experts::{Experts, ExpertsConfig, Mlp, MlpConfig};
use crate::{config::ExpertStart, error::Result};

/// A router and the experts behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeLayerConfig {
    /// Who goes where.
    pub router: RouterConfig,
    /// What every expert is.
    pub mlp: MlpConfig,
    /// Whether one more expert sees every token, and its output is added (paper 003 §3.2).
    pub shared_expert: bool,
    /// What the routed experts start from.
    pub start: ExpertStart,
}

/// An MoE layer in place of a transformer block's feed-forward network.
#[derive(Module, Debug)]
pub struct MoeLayer {
    /// Who goes where.
    pub router: Router,
    /// The routed experts.
    pub experts: Experts,
    /// The expert that every token passes, if there is one.
    pub shared: Option<Mlp>,
    /// What experts compute in; the router computes in single precision.
    #[module(skip)]
    pub precision: Precision,
}

/// What an MoE layer gives back.
#[derive(Debug, Clone)]
pub struct MoeOutput {
    /// `[N, D]`.
    pub output: Tensor<2>,
    /// The plan, the auxiliary losses, and the statistics for whoever asks.
    pub routing: Routing,
}

impl MoeLayerConfig {
    /// Fails on a router that cannot route.
    pub fn init(&self, seed: Seed, device: &Device) -> Result<MoeLayer> {
        let Self { mlp, start, .. } = *self;
        let RouterConfig { experts, pruning, .. } = &self.router;
        let experts = ExpertsConfig { experts: pruning.present(*experts)?, mlp, start };
        Ok(MoeLayer {
            router: self.router.init(self.mlp.width, seed, device)?,
            experts: experts.init(seed.named("experts"), device),
            shared: self.shared_expert.then(|| self.mlp.init(seed.named("shared"), device)),
            precision: Precision::default(),
        })
    }
}

impl MoeLayer {
    /// The same layer, whose routed experts have no biases.
    pub(crate) fn without_biases(self) -> Self {
        Self { experts: self.experts.without_biases(), ..self }
    }

    /// Routes the tokens and runs the experts on them. Rows that hold no token get nothing.
    ///
    /// - `tokens`: `[N, D]`, with rows as `context.layout` says
    /// - `dropout`: the seed of dropout inside experts, where values are dropped
    pub fn forward(
        &self,
        tokens: Tensor<2>,
        context: &Context,
        dropout: Option<Seed>,
    ) -> Result<MoeOutput> {
        if let Some((rows, layout)) = context.layout.present() {
            let rows: Vec<i32> = rows.into_iter().map(|row| row as i32).collect();
            transfer::brought(&rows);
            let rows = Tensor::<1, Int>::from_data(rows.as_slice(), &tokens.device());
            let context = Context { layout, ..context.clone() };
            let present =
                self.forward(tokens.clone().select(0, rows.clone()), &context, dropout)?;
            let nothing = tokens.zeros_like();
            let output = nothing.select_assign(0, rows, present.output, IndexingUpdateOp::Add);
            return Ok(MoeOutput { output, ..present });
        }
        let routing = self.router.route(tokens.clone(), context)?;
        let inputs = self.precision.cast(tokens.clone());
        let output = match &routing.plan {
            Plan::Sparse(plan) => self.experts.forward_sparse(inputs, plan, dropout)?,
            Plan::Soft(plan) => self.experts.forward_soft(inputs, plan, dropout)?,
        };
        let output = Precision::F32.cast(output);
        let output = match self.shared_output(tokens, dropout) {
            Some(shared) => output + shared,
            None => output,
        };
        Ok(MoeOutput { output, routing })
    }

    /// The same with the contributions of a token's choices kept apart (multi-pred, paper 000 eq. 3);
    /// the shared expert is added to each of them. The plan must be sparse.
    ///
    /// - returns: `choices` outputs, and what [`forward`](Self::forward) gives besides
    pub fn forward_choices(
        &self,
        tokens: Tensor<2>,
        context: &Context,
        choices: usize,
        dropout: Option<Seed>,
    ) -> Result<(Vec<Tensor<2>>, Routing)> {
        let routing = self.router.route(tokens.clone(), context)?;
        let Plan::Sparse(plan) = &routing.plan else {
            let (left, right) = ("separate contributions", "soft routing");
            return Err(RoutingError::Incompatible { left, right }.into());
        };
        let inputs = self.precision.cast(tokens.clone());
        let outputs = self.experts.forward_choices(inputs, plan, choices, dropout)?;
        let outputs = match self.shared_output(tokens, dropout) {
            Some(shared) => outputs.into_iter().map(|output| output + shared.clone()).collect(),
            None => outputs,
        };
        Ok((outputs, routing))
    }

    fn shared_output(&self, tokens: Tensor<2>, dropout: Option<Seed>) -> Option<Tensor<2>> {
        let dropout = dropout.map(|seed| seed.named("shared"));
        let shared = self.shared.as_ref()?;
        Some(self.precision.within(tokens, |tokens| shared.forward(tokens, dropout)))
    }
}
