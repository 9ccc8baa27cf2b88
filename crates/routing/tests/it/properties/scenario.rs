//! Any router on any batch.

use burn::tensor::{Device, Tensor, TensorData};
use omma_routing::{
    Affinity, Allocation, Capacity, CombineWeights, Context, ExpertChoice, Grouping, Layout, Order,
    Pool, PruneMode, Pruning, Router, RouterConfig, Routing, Scope, Seed, Sequences, Sinkhorn,
    Soft, SparseTransport, TokenChoice,
};
use proptest::prelude::*;
use rand::RngExt;
use rand_distr::StandardNormal;

pub(crate) const WIDTH: usize = 4;
pub(crate) const MODALITIES: usize = 2;

/// A router's configuration and a batch that suits it.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) config: RouterConfig,
    pub(crate) layout: Layout,
    pub(crate) seed: u64,
    /// Tokens are rounded to whole numbers, so that there are ties.
    pub(crate) ties: bool,
}

impl Scenario {
    /// With one more token per image.
    pub(crate) fn lengthen(&mut self) {
        let Sequences { count, tokens, .. } = self.layout.only_kind().unwrap();
        self.layout = Layout::new(count, tokens + 1).tiled(self.layout.members());
    }

    pub(crate) fn router(&self) -> Router {
        self.router_on(&Device::flex())
    }

    pub(crate) fn router_on(&self, device: &Device) -> Router {
        let columns = self.config.columns().unwrap();
        self.config.init_with(self.random("weight", [WIDTH, columns], device)).unwrap()
    }

    pub(crate) fn tokens(&self) -> Tensor<2> {
        self.tokens_on(&Device::flex())
    }

    pub(crate) fn tokens_on(&self, device: &Device) -> Tensor<2> {
        self.random("tokens", [self.layout.rows(), WIDTH], device)
    }

    pub(crate) fn context(&self) -> Context {
        let mut rng = Seed::new(self.seed).named("modality").rng();
        let modality = (0..self.layout.rows()).map(|_| rng.random_range(0..MODALITIES));
        Context::training(self.layout.clone(), Seed::new(self.seed))
            .with_modality(modality.collect())
    }

    pub(crate) fn route(&self) -> Routing {
        self.router().route(self.tokens(), &self.context()).unwrap()
    }

    fn random(&self, name: &str, shape: [usize; 2], device: &Device) -> Tensor<2> {
        let mut rng = Seed::new(self.seed).named(name).rng();
        let values = (0..shape[0] * shape[1]).map(|_| {
            let value: f32 = rng.sample(StandardNormal);
            if self.ties { value.round() } else { value }
        });
        let tensor = Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device);
        if tensor.is_autodiff() { tensor.require_grad() } else { tensor }
    }
}

/// Every sparse router of the product.
pub(crate) fn sparse() -> impl Strategy<Value = Scenario> {
    sparse_with(prop_oneof![token_choices().boxed(), expert_choices().boxed()])
}

/// Sparse routers whose allocation is token choice.
pub(crate) fn token_choice() -> impl Strategy<Value = Scenario> {
    sparse_with(token_choices())
}

/// Sparse routers whose allocation is expert choice.
pub(crate) fn expert_choice() -> impl Strategy<Value = Scenario> {
    sparse_with(expert_choices())
}

fn sparse_with(allocations: impl Strategy<Value = Allocation>) -> impl Strategy<Value = Scenario> {
    let parts = (allocations, affinities(), pools(), batch(), any::<u64>(), any::<bool>());
    parts.prop_flat_map(
        |(allocation, affinity, (experts, pool), (layout, grouping), seed, ties)| {
            let tokens = layout.only_kind().unwrap().tokens;
            let members = pool.members().unwrap_or(layout.members());
            let layout = layout.tiled(members);
            choices(experts).prop_map(move |(combine, pruning, image_scope, noise)| {
                let layout = layout.clone();
                let scope = match image_scope {
                    true => Scope::Image { decided_by: seed as usize % tokens },
                    false => Scope::Token,
                };
                let pool = pool.clone();
                let config = RouterConfig {
                    affinity,
                    combine,
                    pool,
                    pruning,
                    grouping,
                    scope,
                    noise,
                    ..RouterConfig::new(experts, allocation)
                };
                Scenario { config: repaired(config), layout, seed, ties }
            })
        },
    )
}

/// The same router with as many choices, and as few experts pruned, as its gates allow.
fn repaired(mut config: RouterConfig) -> RouterConfig {
    let fewest = |config: &RouterConfig| {
        let alive = config.pruning.alive(config.experts).unwrap();
        let gates = config.pool.gates(config.experts).unwrap();
        gates.iter().map(|gate| gate.experts.iter().filter(|e| alive[**e]).count()).min().unwrap()
    };
    if fewest(&config) == 0 {
        config.pruning.experts.clear();
    }
    let fewest = fewest(&config);
    if let Allocation::TokenChoice(choice) = &mut config.allocation {
        choice.k = choice.k.min(fewest);
    }
    config.check().unwrap();
    config
}

/// Every soft router.
pub(crate) fn soft() -> impl Strategy<Value = Scenario> {
    let soft =
        (1..4_usize, any::<bool>()).prop_map(|(slots, normalised)| Soft::new(slots, normalised));
    let grouping = prop_oneof![Just(Grouping::Images(1)), Just(Grouping::Batch)];
    (soft, 2..5_usize, batch(), grouping, any::<u64>(), any::<bool>()).prop_flat_map(
        |(soft, experts, (layout, _), grouping, seed, ties)| {
            choices(experts).prop_map(move |(_, pruning, ..)| Scenario {
                config: RouterConfig {
                    pruning,
                    grouping,
                    ..RouterConfig::new(experts, Allocation::Soft(soft))
                },
                layout: layout.clone(),
                seed,
                ties,
            })
        },
    )
}

fn capacities() -> impl Strategy<Value = Capacity> {
    let factor = prop_oneof![0.3..1.5_f64, 1.0..3.0_f64];
    (factor, 1..4_usize)
        .prop_map(|(factor, multiple_of)| Capacity { multiple_of, ..Capacity::factor(factor) })
}

fn token_choices() -> impl Strategy<Value = Allocation> {
    let order = prop_oneof![
        Just(Order::Arrival),
        Just(Order::MaxGate),
        Just(Order::SumOfGates),
        Just(Order::Shuffled),
        (0..MODALITIES).prop_map(Order::ModalityFirst),
    ];
    (1..4_usize, prop::option::of(capacities()), order).prop_map(|(k, capacity, order)| {
        Allocation::TokenChoice(TokenChoice { capacity, order, ..TokenChoice::dropless(k) })
    })
}

fn expert_choices() -> impl Strategy<Value = Allocation> {
    capacities().prop_map(|capacity| Allocation::ExpertChoice(ExpertChoice { capacity }))
}

fn affinities() -> impl Strategy<Value = Affinity> {
    prop_oneof![
        Just(Affinity::Softmax),
        Just(Affinity::Sinkhorn(Sinkhorn { max_iterations: 60, ..Default::default() })),
        Just(Affinity::SparseTransport(SparseTransport { steps: 5, ..Default::default() })),
    ]
}

/// A pool and the number of experts it divides.
fn pools() -> impl Strategy<Value = (usize, Pool)> {
    prop_oneof![
        (1..9_usize).prop_map(|experts| (experts, Pool::All)),
        (1..4_usize, 0..3_usize, 0..3_usize)
            .prop_filter("somebody has an expert", |(_, own, overlap)| own + overlap > 0)
            .prop_map(|(members, own, overlap)| {
                (members * own + overlap, Pool::Members { members, overlap })
            }),
        (1..4_usize, 1..4_usize)
            .prop_map(|(subsets, own)| (subsets * own, Pool::Partition { subsets })),
        (1..7_usize)
            .prop_map(|experts| (experts, Pool::GatePerModality { modalities: MODALITIES })),
        (1..4_usize, 1..4_usize)
            .prop_map(|(a, b)| (a + b, Pool::ExpertsPerModality { experts: vec![a, b] })),
    ]
}

fn batch() -> impl Strategy<Value = (Layout, Grouping)> {
    let layout = (1..4_usize, 1..3_usize, 1..7_usize)
        .prop_map(|(images, members, tokens)| Layout::new(images, tokens).tiled(members));
    let grouping = prop_oneof![
        Just(Grouping::Batch),
        (1..3_usize).prop_map(Grouping::Images),
        (1..9_usize).prop_map(Grouping::Tokens),
    ];
    (layout, grouping)
}

type Choices = (CombineWeights, Pruning, bool, f64);

fn choices(experts: usize) -> impl Strategy<Value = Choices> {
    let combine = prop_oneof![
        Just(CombineWeights::Gates),
        Just(CombineWeights::Affinity),
        Just(CombineWeights::Normalised)
    ];
    let pruning = (prop::collection::vec(0..experts, 0..experts), any::<bool>()).prop_map(
        |(experts, drop)| Pruning {
            experts,
            mode: if drop { PruneMode::Drop } else { PruneMode::Predict },
            removed: Vec::new(),
        },
    );
    let image_scope = prop::bool::weighted(0.25);
    let noise = prop_oneof![Just(0.0), Just(1.0)];
    (combine, pruning, image_scope, noise)
}
