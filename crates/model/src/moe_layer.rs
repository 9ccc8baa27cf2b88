//! An MoE layer: router, experts, and optionally an expert that every token passes.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use omma_routing::{Context, Plan, Result, Router, RouterConfig, Routing, Seed};

use crate::experts::{Experts, ExpertsConfig, Mlp, MlpConfig};

/// A router and the experts behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeLayerConfig {
    /// Who goes where.
    pub router: RouterConfig,
    /// What every expert is.
    pub mlp: MlpConfig,
    /// Whether one more expert sees every token, and its output is added (paper 003 §3.2).
    pub shared_expert: bool,
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
        let experts = ExpertsConfig { experts: self.router.experts, mlp: self.mlp };
        Ok(MoeLayer {
            router: self.router.init(self.mlp.width, seed, device)?,
            experts: experts.init(seed.named("experts"), device),
            shared: self.shared_expert.then(|| self.mlp.init(seed.named("shared"), device)),
        })
    }
}

impl MoeLayer {
    /// Routes the tokens and runs the experts on them.
    ///
    /// - `tokens`: `[N, D]`, with rows as `context.layout` says
    pub fn forward(&self, tokens: Tensor<2>, context: &Context) -> Result<MoeOutput> {
        let routing = self.router.route(tokens.clone(), context)?;
        let training = context.training.then_some(context.seed);
        let mut output = match &routing.plan {
            Plan::Sparse(plan) => self.experts.forward_sparse(tokens.clone(), plan, training),
            Plan::Soft(plan) => self.experts.forward_soft(tokens.clone(), plan, None, training),
        };
        if let Some(shared) = &self.shared {
            let training = training.map(|seed| seed.named("shared"));
            output = output + shared.forward(tokens, training);
        }
        Ok(MoeOutput { output, routing })
    }
}
