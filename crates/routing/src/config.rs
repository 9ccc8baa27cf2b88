//! A router as a product of independent choices.

use serde::{Deserialize, Serialize};

use crate::{
    affinity::{Affinity, CombineWeights, Sinkhorn, SparseTransport},
    allocation::{Allocation, ExpertChoice, Order, Soft, TokenChoice},
    capacity::{Capacity, Rounding},
    error::{Result, RoutingError},
    layout::{Grouping, Scope},
    losses::{Loss, LossTerm},
    pool::{Gate, Pool, PruneMode, Pruning},
};

/// Everything that defines a router but its weights.
///
/// The six routers of paper 001 are constructors; every other system is a point near one of them:
///
/// ```
/// use omma_routing::{Pool, RouterConfig};
/// // E³ with K = 1 and M = 2 (paper 000).
/// let e3 = RouterConfig {
///     pool: Pool::Members { members: 2, overlap: 0 },
///     ..RouterConfig::softmax_token_choice(32, 1)
/// };
/// e3.check()?;
/// # Ok::<(), omma_routing::RoutingError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterConfig {
    /// Experts, `E`.
    pub experts: usize,
    /// Who chooses whom.
    pub allocation: Allocation,
    /// By what.
    #[serde(default)]
    pub affinity: Affinity,
    /// Gaussian noise on the logits while training, in units of `1/E` with `E` the experts of a
    /// token's gate, pruned or not, gone or not; V-MoE trains with 1.
    #[serde(default)]
    pub noise: f64,
    /// The same at inference, in predictions that are drawn ([`Context::sampling`](crate::Context));
    /// the copies of a tiled token then choose apart (paper 000 §4.2.2 and Table 2). 0 for none.
    #[serde(default)]
    pub inference_noise: f64,
    /// Where combine weights come from.
    #[serde(default)]
    pub combine: CombineWeights,
    /// Which experts a token may choose from.
    #[serde(default)]
    pub pool: Pool,
    /// Experts that are gone.
    #[serde(default)]
    pub pruning: Pruning,
    /// What is routed together.
    #[serde(default)]
    pub grouping: Grouping,
    /// What is routed: tokens or images.
    #[serde(default)]
    pub scope: Scope,
    /// What the router pays for.
    #[serde(default)]
    pub losses: Vec<LossTerm>,
}

/// A router of `experts` experts that costs as much as `k` experts per token.
type Constructor = fn(usize, usize) -> RouterConfig;

/// The routers of paper 001 by name. Expert choice takes the capacity factor `k`, which costs what `k`
/// experts per token do (§3.1); soft routing has one slot per expert until its slots are set.
pub const ROUTERS: &[(&str, Constructor)] = &[
    ("softmax-token-choice", RouterConfig::softmax_token_choice),
    ("sinkhorn-token-choice", RouterConfig::sinkhorn_token_choice),
    ("softmax-expert-choice", |experts, k| RouterConfig::softmax_expert_choice(experts, k as f64)),
    ("sinkhorn-expert-choice", |experts, k| {
        RouterConfig::sinkhorn_expert_choice(experts, k as f64)
    }),
    ("sparse-expert-choice", |experts, k| RouterConfig::sparse_expert_choice(experts, k as f64)),
    ("soft", |experts, _| RouterConfig::soft(experts, 1)),
];

impl RouterConfig {
    /// A router by its name in [`ROUTERS`].
    pub fn named(name: &str, experts: usize, k: usize) -> Result<Self> {
        let found = ROUTERS.iter().find(|(known, _)| *known == name);
        found.map(|(_, make)| make(experts, k)).ok_or_else(|| {
            let names = ROUTERS.iter().map(|(name, _)| *name);
            let hint = match omma_base::nearest(name, names.clone()) {
                hint if hint.is_empty() => {
                    format!("; there are {}", names.collect::<Vec<_>>().join(", "))
                }
                hint => hint,
            };
            RoutingError::UnknownRouter { name: name.to_owned(), hint }
        })
    }

    /// Softmax token choice (paper 001 §2.1), V-MoE's router: noise 1, importance and load loss,
    /// capacity factor 1.5 (paper 000 App. A.3) in training, no limit at inference. Tokens are served as
    /// they stand: Algorithm 1 of paper 001 and the public configurations of V-MoE and E³ train so, and
    /// batch priority ([`Order::MaxGate`](crate::Order)) is for those who ask for it.
    pub fn softmax_token_choice(experts: usize, k: usize) -> Self {
        let capacity = Some(Capacity::factor(1.5));
        Self {
            noise: 1.0,
            losses: LossTerm::vmoe(),
            ..Self::new(
                experts,
                Allocation::TokenChoice(TokenChoice { capacity, ..TokenChoice::dropless(k) }),
            )
        }
    }

    /// LIMoE's router (paper 002): one expert per token of either modality, served by batch priority, with
    /// noise 1 (App. B.1) and the losses of [`LossTerm::limoe`]. The appendices do not name a capacity in
    /// training; it is V-MoE's 1.05 (arXiv:2106.05974), which experts that are in balance keep to. Images
    /// or texts alone are served without a limit (App. D.1 has 16 instead).
    pub fn limoe(experts: usize, text_experts: f64, image_experts: f64) -> Self {
        let choice = TokenChoice {
            capacity: Some(Capacity::factor(1.05)),
            order: Order::MaxGate,
            ..TokenChoice::dropless(1)
        };
        Self {
            noise: 1.0,
            losses: LossTerm::limoe(text_experts, image_experts),
            ..Self::new(experts, Allocation::TokenChoice(choice))
        }
    }

    /// Sinkhorn token choice (paper 001 §2.2): `C = round(k · T / E)`, no auxiliary loss.
    pub fn sinkhorn_token_choice(experts: usize, k: usize) -> Self {
        let capacity = Some(paper_capacity(1.0));
        Self {
            affinity: Affinity::Sinkhorn(Sinkhorn::default()),
            ..Self::new(
                experts,
                Allocation::TokenChoice(TokenChoice { capacity, ..TokenChoice::dropless(k) }),
            )
        }
    }

    /// Softmax expert choice (paper 001 §2.3): `C = round(factor · T / E)`.
    pub fn softmax_expert_choice(experts: usize, factor: f64) -> Self {
        let capacity = paper_capacity(factor);
        Self::new(experts, Allocation::ExpertChoice(ExpertChoice { capacity }))
    }

    /// Sinkhorn expert choice (paper 001 §2.4).
    pub fn sinkhorn_expert_choice(experts: usize, factor: f64) -> Self {
        let affinity = Affinity::Sinkhorn(Sinkhorn::default());
        Self { affinity, ..Self::softmax_expert_choice(experts, factor) }
    }

    /// Sparsity-constrained expert choice (paper 001 §2.5).
    pub fn sparse_expert_choice(experts: usize, factor: f64) -> Self {
        let affinity = Affinity::SparseTransport(SparseTransport::default());
        Self { affinity, ..Self::softmax_expert_choice(experts, factor) }
    }

    /// Soft MoE (paper 001 §2.6) in its normalised form, one image per group.
    pub fn soft(experts: usize, slots: usize) -> Self {
        Self {
            grouping: Grouping::Images(1),
            ..Self::new(experts, Allocation::Soft(Soft::new(slots, true)))
        }
    }

    /// `allocation` over `experts` experts, with the default of every other choice.
    pub fn new(experts: usize, allocation: Allocation) -> Self {
        Self {
            experts,
            allocation,
            affinity: Affinity::default(),
            noise: 0.0,
            inference_noise: 0.0,
            combine: CombineWeights::default(),
            pool: Pool::default(),
            pruning: Pruning::default(),
            grouping: Grouping::default(),
            scope: Scope::default(),
            losses: Vec::new(),
        }
    }

    /// Why the route of an image may depend on the images that it shares a batch with, in predictions that are
    /// not drawn; nothing where it does not.
    pub fn depends_on_batch(&self) -> Option<&'static str> {
        if self.grouping == Grouping::Images(1) {
            return None;
        }
        match (&self.allocation, &self.affinity) {
            (Allocation::Soft(_), _) => Some("slots are mixed of the tokens of several images"),
            (Allocation::ExpertChoice(_), _) => {
                Some("experts choose among the tokens of several images")
            }
            (Allocation::TokenChoice(choice), _) if choice.inference_capacity.is_some() => {
                Some("the tokens of several images compete for room at the experts")
            }
            (Allocation::TokenChoice(_), Affinity::Softmax) => None,
            (Allocation::TokenChoice(_), Affinity::Sinkhorn(_) | Affinity::SparseTransport(_)) => {
                Some("a transport plan is made for the tokens of several images")
            }
        }
    }

    /// Fails on a configuration that cannot route anything, or whose parts contradict each other.
    pub fn check(&self) -> Result<()> {
        let gates = self.gates()?;
        let alive = self.pruning.alive(self.experts)?;
        let choosable = |gate: &Gate| gate.experts.iter().filter(|expert| alive[**expert]).count();
        let fewest = gates.iter().map(choosable).min().unwrap_or(0);
        if fewest == 0 {
            let pruned = (0..self.experts).filter(|expert| !alive[*expert]).collect();
            return Err(RoutingError::NothingLeft { pruned });
        }
        self.allocation.check(fewest)?;
        self.affinity.check()?;
        self.grouping.check()?;
        not_negative("the noise", self.noise)?;
        not_negative("the noise at inference", self.inference_noise)?;
        self.losses
            .iter()
            .try_for_each(|term| not_negative("the weight of a loss", term.weight))?;
        self.check_combinations()
    }

    fn check_combinations(&self) -> Result<()> {
        let soft = matches!(self.allocation, Allocation::Soft(_));
        let chooses = self.token_choice().is_some();
        let weighted = || self.losses.iter().filter(|term| term.weight > 0.0).map(|term| term.loss);
        let shared = matches!(self.pool, Pool::All | Pool::GatePerModality { .. });
        let soft_sides = [
            (self.affinity != Affinity::Softmax, "a transport affinity"),
            (self.combine != CombineWeights::Gates, "combine weights from another affinity"),
            (self.pool != Pool::All, "several gates"),
            (self.scope != Scope::Token, "one decision per image"),
            (self.noise > 0.0 || self.inference_noise > 0.0, "router noise"),
            (weighted().next().is_some(), "auxiliary losses"),
        ];
        let mut clashes = vec![
            (
                weighted().any(|loss| loss.needs_choices()) && !chooses,
                "a loss that depends on k",
                "experts that choose",
            ),
            (
                weighted().any(|loss| loss == Loss::Load) && self.noise == 0.0,
                "the load loss",
                "a router without noise",
            ),
            (
                weighted().any(|loss| loss.compares_modalities()) && !shared,
                "a loss that compares modalities",
                "gates over different experts",
            ),
        ];
        clashes.extend(soft_sides.map(|(other, name)| (soft && other, "soft routing", name)));
        match clashes.into_iter().find(|(clash, ..)| *clash) {
            Some((_, left, right)) => Err(RoutingError::Incompatible { left, right }),
            None => Ok(()),
        }
    }

    /// The gates, with the columns that the router's weight has for each.
    pub fn gates(&self) -> Result<Vec<Gate>> {
        Ok(self.pruning.cut(self.pool.gates(self.experts)?))
    }

    /// The settings of token choice, if tokens choose.
    pub fn token_choice(&self) -> Option<&TokenChoice> {
        match &self.allocation {
            Allocation::TokenChoice(choice) => Some(choice),
            _ => None,
        }
    }

    /// Whether pruned experts are taken out before the softmax.
    pub(crate) fn drops_pruned(&self) -> bool {
        self.pruning.mode == PruneMode::Drop
    }
}

/// `round(factor · T / E)`, as paper 001 §3.1 sets its capacities.
fn paper_capacity(factor: f64) -> Capacity {
    Capacity { rounding: Rounding::Round, ..Capacity::factor(factor) }
}

fn not_negative(name: &'static str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(RoutingError::Negative { name, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paper 000 App. A.3 (C = 1.5 in training) and App. C.2 (importance and load, 0.01 in all); σ = 1/E
    /// (§2.1) while training only. Paper 001 Algorithm 1 goes through the tokens as they stand, and so do
    /// vmoe's configurations of V-MoE and E³ (`batch_priority: False`).
    #[test]
    fn softmax_token_choice_is_v_moes() {
        let config = RouterConfig::named("softmax-token-choice", 8, 2).unwrap();
        let choice = config.token_choice().unwrap();
        assert_eq!((choice.k, choice.capacity), (2, Some(Capacity::factor(1.5))));
        assert_eq!(choice.inference_capacity, None);
        assert_eq!(choice.order, Order::Arrival);
        assert_eq!((config.noise, config.inference_noise), (1.0, 0.0));
        assert_eq!(config.losses, LossTerm::vmoe());
        assert_eq!(LossTerm::vmoe().iter().map(|term| term.weight).sum::<f64>(), 0.01);
    }

    /// Paper 002 App. B.1, E.1: one expert per token, batch priority by the largest gate, noise, the losses of
    /// both modalities; V-MoE's capacity where the appendices name none.
    #[test]
    fn limoe_is_that_of_paper_002() {
        let config = RouterConfig::limoe(32, 9.0, 20.0);
        let choice = config.token_choice().unwrap();
        assert_eq!((choice.k, choice.capacity), (1, Some(Capacity::factor(1.05))));
        assert_eq!((choice.inference_capacity, choice.order), (None, Order::MaxGate));
        assert_eq!((config.noise, config.inference_noise), (1.0, 0.0));
        assert_eq!(config.losses, LossTerm::limoe(9.0, 20.0));
    }

    /// Paper 001 §2.2, §3.1 and Algorithm 1: no auxiliary loss, a rounded capacity, order of arrival.
    #[test]
    fn sinkhorn_token_choice_is_that_of_paper_001() {
        let config = RouterConfig::named("sinkhorn-token-choice", 8, 2).unwrap();
        let choice = config.token_choice().unwrap();
        assert_eq!((choice.k, choice.order), (2, Order::Arrival));
        assert_eq!(choice.capacity.unwrap().rounding, Rounding::Round);
        assert_eq!((config.losses.len(), config.noise), (0, 0.0));
    }

    #[test]
    fn every_name_is_a_router_and_reads_as_it_is_written() {
        for (name, make) in ROUTERS {
            let config = make(4, 1);
            config.check().unwrap_or_else(|error| panic!("{name}: {error}"));
            let text = serde_json::to_string(&config).unwrap();
            assert_eq!(serde_json::from_str::<RouterConfig>(&text).unwrap(), config, "{text}");
        }
        let message = RouterConfig::named("sinkhorn-token", 4, 1).unwrap_err().to_string();
        assert!(message.contains("\"sinkhorn-token-choice\""), "{message}");
    }

    #[test]
    fn a_setting_that_a_choice_does_not_have_is_an_error() {
        let read = |text: &str| serde_json::from_str::<RouterConfig>(text);
        let soft =
            r#"{"experts": 2, "allocation": {"kind": "soft", "slots": 1, "normalised": false}}"#;
        assert!(
            !matches!(read(soft).unwrap().allocation, Allocation::Soft(soft) if soft.normalised)
        );
        for wrong in [
            r#"{"experts": 2, "allocation": {"kind": "soft", "slots": 1, "k": 1}}"#,
            r#"{"experts": 2, "allocation": {"kind": "token-choice", "k": 1, "slots": 1}}"#,
            r#"{"experts": 2, "allocation": {"kind": "soft", "slots": 1}, "pool": {"kind": "members", "members": 2, "subsets": 1}}"#,
        ] {
            assert!(read(wrong).unwrap_err().to_string().contains("unknown field"), "{wrong}");
        }
    }
}
