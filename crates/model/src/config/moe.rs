//! The sparse and the soft mixtures, as a user sets them.

use omma_routing::{
    Allocation, Capacity, CombineWeights, ExpertChoice, Grouping, Loss, LossTerm, Order, Pool,
    RouterConfig, Scope, Soft, TokenChoice,
};
use serde::{Deserialize, Serialize};

use super::Placement;

/// The routers of paper 001, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterKind {
    /// Every token takes its `k` best experts (V-MoE, E³, ViMoE).
    #[default]
    SoftmaxTokenChoice,
    /// The same with a Sinkhorn plan.
    SinkhornTokenChoice,
    /// Every expert takes its best tokens.
    SoftmaxExpertChoice,
    /// The same with a Sinkhorn plan.
    SinkhornExpertChoice,
    /// The same with a sparsity-constrained plan.
    SparseExpertChoice,
    /// Every slot is a mixture of all tokens of an image.
    Soft,
}

/// Who is routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoeScope {
    /// Every token for itself.
    #[default]
    Token,
    /// The class token decides for its whole image (paper 003 §3.2).
    Image,
}

/// Everything about the MoE layers of a model. The papers' systems are points in it:
///
/// | system | settings |
/// |---|---|
/// | V-MoE | `k` |
/// | E³ (paper 000 §4.1) | `members`, `k` |
/// | E³ with overlap (§4.2.3) | and `overlap` |
/// | tiling only (§4.2.2) | `members`, `own_experts = false` |
/// | partitioning only (§4.2.1) | `partition` |
/// | multi-pred (§4.2.4) | `multi_pred` |
/// | Soft MoE (paper 001 §2.6) | `router = "soft"`, `slots` |
/// | ViMoE (paper 003) | `shared_expert`, `scope = "image"` |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MoeConfig {
    /// Which blocks have experts.
    pub placement: Placement,
    /// Experts, `E`.
    pub experts: usize,
    /// Experts per token, `K`; with `partition`, in each subset.
    pub k: usize,
    /// Which router.
    pub router: RouterKind,
    /// Slots per expert of soft routing.
    pub slots: usize,
    /// Ensemble members, `M`: how many times tokens are tiled in front of the first MoE block.
    pub members: usize,
    /// Whether every member has a subset of the experts of its own.
    pub own_experts: bool,
    /// Experts that belong to every member's subset.
    pub overlap: usize,
    /// Subsets in each of which every token chooses `k` experts; 1 for none.
    pub partition: usize,
    /// Whether the last MoE layer's `k` contributions become `k` predictions.
    pub multi_pred: bool,
    /// Whether one more expert sees every token.
    pub shared_expert: bool,
    /// Who is routed.
    pub scope: MoeScope,
    /// Places per expert while training, in units of a perfectly balanced load. Expert choice has
    /// the same at inference.
    pub capacity_ratio: f64,
    /// The same at inference for token choice; without it nothing is dropped.
    pub inference_capacity_ratio: Option<f64>,
    /// Capacities are rounded up to a multiple of this.
    pub capacity_multiple: usize,
    /// Who is served first.
    pub order: Order,
    /// Where combine weights come from.
    pub combine: CombineWeights,
    /// Images that are routed together; 0 for the whole batch.
    pub images_per_group: usize,
    /// Noise on the router's logits while training, in units of `1/E`.
    pub noise: f64,
    /// Weight of the importance loss.
    pub importance_loss: f64,
    /// Weight of the load loss; it needs noise.
    pub load_loss: f64,
    /// Weight of GShard's balance loss.
    pub balance_loss: f64,
    /// Weight of the z-loss.
    pub z_loss: f64,
    /// Hidden size of an expert; without it, that of the dense blocks.
    pub hidden: Option<usize>,
    /// Dropout of hidden values in experts, while training and for MC samples.
    pub dropout: f32,
}

impl Default for MoeConfig {
    /// V-MoE: 32 experts, K = 2, `last-2`; routing as in paper 000 App. A.
    fn default() -> Self {
        Self {
            placement: Placement::Last(2),
            experts: 32,
            k: 2,
            router: RouterKind::SoftmaxTokenChoice,
            slots: 1,
            members: 1,
            own_experts: true,
            overlap: 0,
            partition: 1,
            multi_pred: false,
            shared_expert: false,
            scope: MoeScope::Token,
            capacity_ratio: 1.5,
            inference_capacity_ratio: None,
            capacity_multiple: 1,
            order: Order::MaxGate,
            combine: CombineWeights::Gates,
            images_per_group: 0,
            noise: 1.0,
            importance_loss: 0.005,
            load_loss: 0.005,
            balance_loss: 0.0,
            z_loss: 0.0,
            hidden: None,
            dropout: 0.0,
        }
    }
}

impl MoeConfig {
    /// The router that these settings mean.
    pub fn router_config(&self) -> RouterConfig {
        let base = match self.router {
            RouterKind::SoftmaxTokenChoice => RouterConfig {
                noise: self.noise,
                losses: self.losses(),
                ..RouterConfig::new(self.experts, Allocation::TokenChoice(self.token_choice()))
            },
            RouterKind::SinkhornTokenChoice => RouterConfig {
                losses: self.losses_without_noise(),
                allocation: Allocation::TokenChoice(self.token_choice()),
                ..RouterConfig::sinkhorn_token_choice(self.experts, self.k)
            },
            RouterKind::SoftmaxExpertChoice => {
                self.experts_choose(RouterConfig::softmax_expert_choice)
            }
            RouterKind::SinkhornExpertChoice => {
                self.experts_choose(RouterConfig::sinkhorn_expert_choice)
            }
            RouterKind::SparseExpertChoice => {
                self.experts_choose(RouterConfig::sparse_expert_choice)
            }
            RouterKind::Soft => RouterConfig {
                allocation: Allocation::Soft(Soft { slots: self.slots, normalised: true }),
                ..RouterConfig::soft(self.experts, self.slots)
            },
        };
        let grouping = match (self.router, self.images_per_group) {
            (RouterKind::Soft, _) => Grouping::Images(1),
            (_, 0) => Grouping::Batch,
            (_, images) => Grouping::Images(images),
        };
        let scope = match self.scope {
            MoeScope::Token => Scope::Token,
            MoeScope::Image => Scope::Image { decided_by: 0 },
        };
        RouterConfig { grouping, scope, pool: self.pool(), combine: self.combine, ..base }
    }

    fn pool(&self) -> Pool {
        let Self { members, overlap, partition, own_experts, .. } = *self;
        match () {
            _ if members > 1 && own_experts => Pool::Members { members, overlap },
            _ if partition > 1 => Pool::Partition { subsets: partition },
            _ => Pool::All,
        }
    }

    fn capacity(&self, factor: f64) -> Capacity {
        Capacity { multiple_of: self.capacity_multiple, ..Capacity::factor(factor) }
    }

    fn token_choice(&self) -> TokenChoice {
        TokenChoice {
            k: self.k,
            capacity: Some(self.capacity(self.capacity_ratio)),
            inference_capacity: self.inference_capacity_ratio.map(|ratio| self.capacity(ratio)),
            order: self.order,
        }
    }

    fn experts_choose(&self, kind: impl Fn(usize, f64) -> RouterConfig) -> RouterConfig {
        let base = kind(self.experts, self.capacity_ratio);
        let Allocation::ExpertChoice(ExpertChoice { capacity }) = base.allocation else {
            return base;
        };
        let capacity = Capacity { multiple_of: self.capacity_multiple, ..capacity };
        RouterConfig { allocation: Allocation::ExpertChoice(ExpertChoice { capacity }), ..base }
    }

    fn losses_without_noise(&self) -> Vec<LossTerm> {
        let terms = [
            (Loss::Importance, self.importance_loss),
            (Loss::Balance, self.balance_loss),
            (Loss::Z, self.z_loss),
        ];
        let terms = terms.into_iter().filter(|(_, weight)| *weight != 0.0);
        terms.map(|(loss, weight)| LossTerm::new(loss, weight)).collect()
    }

    fn losses(&self) -> Vec<LossTerm> {
        let mut losses = self.losses_without_noise();
        if self.load_loss != 0.0 {
            losses.push(LossTerm::new(Loss::Load, self.load_loss));
        }
        losses
    }

    /// The largest capacity of training and inference, and at least a balanced load.
    pub(super) fn largest_capacity(&self) -> f64 {
        self.capacity_ratio.max(self.inference_capacity_ratio.unwrap_or(1.0)).max(1.0)
    }

    /// Experts that one token passes, the shared one not counted.
    pub fn experts_per_token(&self) -> usize {
        self.k * self.partition.max(1)
    }
}
