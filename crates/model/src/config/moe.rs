//! The MoE layers of an encoder.

use omma_routing::{Allocation, Capacity, Pool, PruneMode, Pruning, RouterConfig};
use serde::{Deserialize, Serialize};

use super::Placement;
use crate::error::{ModelError, Result};

/// Where experts are, who goes to them, and what they are. The papers' systems are points in it:
///
/// | system | settings |
/// |---|---|
/// | V-MoE | the default |
/// | E³ (paper 000 §4.1, eq. 2) | `router.pool`: members |
/// | E³ with overlap (§4.2.3) | and its `overlap` |
/// | tiling only (§4.2.2) | `tiling` |
/// | partitioning only (§4.2.1) | `router.pool`: a partition |
/// | multi-pred (§4.2.4) | `multi_pred` |
/// | Soft MoE (paper 001 §2.6) | [`RouterConfig::soft`] |
/// | ViMoE (paper 003) | `shared_expert`, `router.scope`: images |
/// | Soft MoE of paper 004 E.2 | `residual` |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MoeConfig {
    /// Which blocks have experts.
    pub placement: Placement,
    /// Who goes where.
    pub router: RouterConfig,
    /// How many times tokens are tiled in front of the first MoE block for members that share all
    /// experts. Members with experts of their own are the router's pool, and tiled for that.
    pub tiling: usize,
    /// Whether the last MoE layer's contributions of a token's choices become predictions of their own.
    pub multi_pred: bool,
    /// Whether one more expert sees every token (paper 003 §3.2).
    pub shared_expert: bool,
    /// Whether tokens skip the experts as well, and what these give is added to them; paper 004 E.2 does without
    /// where a model would rely on that alone.
    pub residual: bool,
    /// Whether experts have biases; paper 004 counts their parameters without (App. C, §4.4.1).
    pub bias: bool,
    /// Hidden size of an expert; without it, that of the dense blocks.
    pub hidden: Option<usize>,
    /// Dropout of hidden values in experts, while training and for MC samples.
    pub dropout: f32,
    /// What fresh experts start from.
    pub start: ExpertStart,
    /// Experts that single blocks have lost, with their parameters (paper 002 App. E.4).
    pub pruned: Vec<BlockPruning>,
}

/// Experts that a block has lost. They keep their numbers, and the others theirs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockPruning {
    /// Which block.
    pub block: usize,
    /// Those that are gone, in increasing order.
    pub experts: Vec<usize>,
    /// Whether the router still predicts gates for them.
    #[serde(default)]
    pub mode: PruneMode,
}

/// What the experts of a layer start from, where they do not come from a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExpertStart {
    /// Whether all experts of a layer start with the same matrices, as vmoe's do (`split_rngs: False`);
    /// their router then makes them different. Biases are near zero either way.
    pub shared: bool,
    /// Standard deviation of Gaussian noise on the matrices of every expert (paper 000 App. H.2).
    pub noise: f32,
}

impl Default for ExpertStart {
    fn default() -> Self {
        Self { shared: true, noise: 0.0 }
    }
}

impl Default for MoeConfig {
    /// V-MoE: 32 experts, K = 2, `last-2`.
    fn default() -> Self {
        Self::new(RouterConfig::softmax_token_choice(32, 2))
    }
}

impl MoeConfig {
    /// Experts behind a router in the last two of every other block.
    pub fn new(router: RouterConfig) -> Self {
        Self {
            placement: Placement::Last(2),
            router,
            tiling: 1,
            multi_pred: false,
            shared_expert: false,
            residual: true,
            bias: true,
            hidden: None,
            dropout: 0.0,
            start: ExpertStart::default(),
            pruned: Vec::new(),
        }
    }

    /// The router of a block, which knows what that has lost.
    pub fn router_of(&self, block: usize) -> RouterConfig {
        let mut router = self.router.clone();
        if let Some(own) = self.pruned.iter().find(|own| own.block == block) {
            let Pruning { experts, removed, .. } = router.pruning;
            let removed = removed.into_iter().chain(own.experts.iter().copied()).collect();
            router.pruning = Pruning { experts, mode: own.mode, removed };
        }
        router
    }

    /// Experts that a block has parameters of.
    pub fn experts_in(&self, block: usize) -> usize {
        let router = self.router_of(block);
        router.pruning.present(router.experts).map_or(router.experts, |present| present.len())
    }

    /// Fails on a router that cannot route, in any block of an encoder of `depth` blocks.
    pub(super) fn check(&self, depth: usize) -> Result<()> {
        self.router.check()?;
        let blocks = self.placement.blocks(depth)?;
        for (place, own) in self.pruned.iter().enumerate() {
            let block = own.block;
            let fault = |why: &str| ModelError::Pruning { block, why: why.to_owned() };
            if !blocks.contains(&block) {
                return Err(fault("it has no experts"));
            }
            if self.pruned[..place].iter().any(|other| other.block == block) {
                return Err(fault("it is named twice"));
            }
            let masked = &self.router.pruning;
            if !masked.experts.is_empty() && masked.mode != own.mode {
                return Err(fault("moe.router.pruning.mode says something else of other experts"));
            }
            let check = self.router_of(block).check();
            check.map_err(|error| fault(&error.to_string()))?;
        }
        Ok(())
    }

    /// Copies of every token, `M`.
    pub fn members(&self) -> usize {
        self.router.pool.members().unwrap_or(self.tiling)
    }

    /// Experts of a gate that a token chooses, `K`, where tokens choose.
    pub fn k(&self) -> Option<usize> {
        self.router.token_choice().map(|choice| choice.k)
    }

    /// Experts that one copy of a token passes, the shared one not counted; 1 where experts choose.
    pub fn experts_per_token(&self) -> usize {
        self.k().unwrap_or(1) * self.router.pool.gates_per_token()
    }

    /// Experts that one gate chooses from.
    pub fn experts_per_gate(&self) -> usize {
        let experts = self.router.experts;
        match self.router.pool {
            Pool::Members { members, overlap } => {
                experts.saturating_sub(overlap) / members.max(1) + overlap
            }
            _ => experts,
        }
    }

    /// Experts of a block that one gate has columns for, on average over gates.
    pub(crate) fn columns_per_gate(&self, block: usize) -> usize {
        let router = self.router_of(block);
        match (&router.pool, router.gates()) {
            (_, Err(_)) => self.experts_per_gate(),
            (Pool::Members { .. }, Ok(gates)) => {
                let columns: usize = gates.iter().map(|gate| gate.experts.len()).sum();
                columns.div_ceil(gates.len().max(1))
            }
            (_, Ok(_)) if router.pruning.mode == PruneMode::Predict => router.experts,
            (_, Ok(_)) => self.experts_in(block),
        }
    }

    /// Slots of an expert in soft routing.
    pub fn slots(&self) -> Option<usize> {
        match &self.router.allocation {
            Allocation::Soft(soft) => Some(soft.slots),
            _ => None,
        }
    }

    /// The limits of training and of inference.
    pub(super) fn capacities(&self) -> impl Iterator<Item = Capacity> {
        let (training, inference) = match &self.router.allocation {
            Allocation::TokenChoice(choice) => (choice.capacity, choice.inference_capacity),
            Allocation::ExpertChoice(choice) => (Some(choice.capacity), None),
            Allocation::Soft(_) => (None, None),
        };
        training.into_iter().chain(inference)
    }

    /// Places per expert while training, in units of a perfectly balanced load.
    pub fn capacity_factor(&self) -> Option<f64> {
        match &self.router.allocation {
            Allocation::TokenChoice(choice) => choice.capacity.map(|capacity| capacity.factor),
            Allocation::ExpertChoice(choice) => Some(choice.capacity.factor),
            Allocation::Soft(_) => None,
        }
    }
}
