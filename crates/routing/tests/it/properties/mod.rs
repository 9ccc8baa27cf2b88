//! What holds for every router, whatever its parts.

mod scenario;

use std::collections::HashSet;

use burn::tensor::{Device, Int, Tensor, TensorData};
use omma_routing::{
    Affinity, Allocation, Callers, Capacity, CombineWeights, Context, ExpertChoice, Grouping,
    Layout, Order, Plan, Pool, PruneMode, Pruning, RouterConfig, Routing, Scope, Seed, Sequences,
    Sinkhorn, SparsePlan, TokenChoice,
    definition::{Matrices, RoutingTensors},
};
use proptest::prelude::*;
use scenario::{Scenario, WIDTH};

fn values<const R: usize>(tensor: &Tensor<R>) -> Vec<f32> {
    tensor.try_to_vec_as().unwrap()
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * (1.0 + b.abs()))
}

fn sparse(routing: &Routing) -> SparsePlan {
    routing.plan.as_sparse().unwrap().clone()
}

/// The rows of `tokens` that belong to a group, in routing order.
fn group_rows(plan: &Plan, group: usize, tokens: &Tensor<2>) -> Tensor<2> {
    let rows: Vec<i32> = plan.group_tokens(group).iter().map(|row| *row as i32).collect();
    tokens.clone().select(0, Tensor::from_data(rows.as_slice(), &tokens.device()))
}

/// What the definition makes of the affinities that the gates reported.
fn by_definition(scenario: &Scenario, routing: &Routing, group: usize) -> RoutingTensors {
    let RoutingTensors { dispatch, combine } = unnormalised(scenario, routing, group);
    let combine = match scenario.config.combine {
        CombineWeights::Normalised => {
            let sums = combine.clone().sum_dim(2).sum_dim(1);
            combine / sums.clamp_min(f32::MIN_POSITIVE)
        }
        CombineWeights::Gates | CombineWeights::Affinity => combine,
    };
    RoutingTensors { dispatch, combine }
}

fn unnormalised(scenario: &Scenario, routing: &Routing, group: usize) -> RoutingTensors {
    let plan = sparse(routing);
    let units = plan.groups().tokens(group);
    let (tokens, experts) = (units.len(), plan.n_experts());
    let position = |unit: u32| units.iter().position(|other| *other == unit).unwrap();
    let mut affinity = vec![f32::NEG_INFINITY; tokens * experts];
    let mut weights = vec![0.0; tokens * experts];
    for table in &routing.tables {
        for row in table.rows(group) {
            let token = position(table.tokens[row]);
            for (column, &expert) in table.experts.iter().enumerate() {
                let cell = row * table.columns() + column;
                weights[token * experts + expert] = match scenario.config.combine {
                    CombineWeights::Gates | CombineWeights::Normalised => table.gates[cell],
                    CombineWeights::Affinity => table.scores()[cell],
                };
                if table.available[column] {
                    affinity[token * experts + expert] = table.scores()[cell];
                }
            }
        }
    }
    let matrices = Matrices { tokens, experts, affinity, weights };
    let capacity = plan.capacities()[group];
    let device = Device::flex();
    match &scenario.config.allocation {
        Allocation::ExpertChoice(_) => matrices.expert_choice(capacity, &device),
        Allocation::TokenChoice(choice) => {
            let subsets = match scenario.config.pool {
                Pool::Partition { .. } => scenario
                    .config
                    .pool
                    .gates(experts)
                    .unwrap()
                    .into_iter()
                    .map(|gate| gate.experts)
                    .collect(),
                _ => vec![(0..experts).collect::<Vec<_>>()],
            };
            let order = serving_order(scenario, choice, &matrices, units, &subsets, group);
            matrices.token_choice(choice.k, capacity, &order, &subsets, &device)
        }
        Allocation::Soft(_) => unreachable!(),
    }
}

/// `[T, E, C]` with every decision repeated for `span` tokens, each with a slot of its own.
fn repeated(tensor: &Tensor<3>, span: usize) -> Vec<f32> {
    let [tokens, experts, capacity] = tensor.dims();
    let once = values(tensor);
    let mut all = vec![0.0; once.len() * span * span];
    for (cell, value) in once.into_iter().enumerate() {
        let (token, expert, slot) =
            (cell / capacity / experts, cell / capacity % experts, cell % capacity);
        for copy in 0..span {
            let row = (token * span + copy) * experts + expert;
            all[row * capacity * span + slot * span + copy] = value;
        }
    }
    assert_eq!(all.len(), tokens * span * experts * capacity * span);
    all
}

/// The order in which the tokens of a group are served, by the words of [`Order`].
fn serving_order(
    scenario: &Scenario,
    choice: &TokenChoice,
    matrices: &Matrices,
    units: &[u32],
    subsets: &[Vec<usize>],
    group: usize,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..units.len()).collect();
    let chosen = |token: usize| -> Vec<f32> {
        let of_subset = |subset: &Vec<usize>| {
            let row =
                subset.iter().map(|expert| matrices.affinity[token * matrices.experts + expert]);
            let mut row: Vec<f32> = row.collect();
            row.sort_by(|a, b| b.total_cmp(a));
            row.truncate(choice.k);
            row
        };
        subsets.iter().flat_map(of_subset).collect()
    };
    let max = |token: usize| chosen(token).into_iter().fold(f32::NEG_INFINITY, f32::max);
    let sum = |token: usize| chosen(token).into_iter().sum::<f32>();
    match choice.order {
        Order::Arrival => {}
        Order::MaxGate => order.sort_by(|a, b| max(*b).total_cmp(&max(*a))),
        Order::SumOfGates => order.sort_by(|a, b| sum(*b).total_cmp(&sum(*a))),
        Order::Shuffled => {
            use rand::seq::SliceRandom;
            let seed = Seed::new(scenario.seed).named("order").numbered(group as u64);
            order.shuffle(&mut seed.rng());
        }
        Order::ModalityFirst(first) => {
            let modality = scenario.context().modality.unwrap();
            let span = scenario.layout.rows() / sparse(&scenario.route()).n_tokens();
            let decided_by = match scenario.config.scope {
                Scope::Image { decided_by } => decided_by,
                Scope::Token => 0,
            };
            let of_unit =
                |position: &usize| modality[units[*position] as usize * span + decided_by];
            order.sort_by_key(|position| of_unit(position) != first);
        }
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..Default::default() })]

    #[test]
    fn a_plan_written_out_is_the_definition(scenario in scenario::sparse()) {
        let routing = scenario.route();
        for group in 0..routing.plan.n_groups() {
            let span = sparse(&routing).span();
            let found = routing.plan.dense(group);
            let expected = by_definition(&scenario, &routing, group);
            let dispatch = repeated(&expected.dispatch, span);
            let combine = repeated(&expected.combine, span);
            prop_assert_eq!(values(&found.dispatch), dispatch);
            prop_assert!(close(&values(&found.combine), &combine, 1e-5));
        }
    }

    #[test]
    fn the_output_and_its_gradients_are_those_of_the_definition(
        scenario in prop_oneof![3 => scenario::sparse().boxed(), 1 => scenario::soft().boxed()],
    ) {
        let device = Device::flex().autodiff();
        let expert = |e: usize, rows: Tensor<2>| (rows * (e as f64 + 1.0)).tanh() + e as f64;
        let run = |literally: bool| {
            let (router, tokens) = (scenario.router_on(&device), scenario.tokens_on(&device));
            let routing = router.route(tokens.clone(), &scenario.context()).unwrap();
            let outputs: Vec<Tensor<2>> = if literally {
                (0..routing.plan.n_groups())
                    .map(|group| {
                        let rows = group_rows(&routing.plan, group, &tokens);
                        routing.plan.dense(group).moe(rows, expert)
                    })
                    .collect()
            } else {
                let output = routing.plan.apply(tokens.clone(), expert);
                (0..routing.plan.n_groups()).map(|group| group_rows(&routing.plan, group, &output)).collect()
            };
            let output = Tensor::cat(outputs, 0);
            let gradients = output.clone().square().sum().backward();
            let of_weight = router.weight.grad(&gradients).map(|gradient| values(&gradient));
            (values(&output), values(&tokens.grad(&gradients).unwrap()), of_weight.unwrap())
        };
        let (fast, literal) = (run(false), run(true));
        prop_assert!(close(&fast.0, &literal.0, 1e-4), "output");
        prop_assert!(close(&fast.1, &literal.1, 1e-3), "gradient of the tokens");
        prop_assert!(close(&fast.2, &literal.2, 1e-3), "gradient of the weight");
    }

    /// Invariant: inside an expert, assignments are sorted by group, then by slot, and no slot of a
    /// group is used twice; and no expert is over its capacity.
    #[test]
    fn no_expert_is_over_capacity_and_no_slot_is_used_twice(scenario in scenario::sparse()) {
        let plan = sparse(&scenario.route());
        let places = plan.groups().places();
        let mut used = HashSet::new();
        for expert in 0..plan.n_experts() {
            let mut last = None;
            for assignment in plan.of_expert(expert) {
                let group = places[plan.tokens()[assignment] as usize].group;
                let slot = plan.slots()[assignment];
                prop_assert!((slot as usize) < plan.capacities()[group]);
                prop_assert!(used.insert((expert, group, slot)));
                prop_assert!(last < Some((group, slot)));
                last = Some((group, slot));
            }
        }
    }

    #[test]
    fn a_token_has_at_most_k_experts(scenario in scenario::token_choice()) {
        let plan = sparse(&scenario.route());
        let k = scenario.config.token_choice().unwrap().k * scenario.config.pool.gates_per_token();
        let mut pairs = HashSet::new();
        let mut count = vec![0; plan.n_tokens()];
        for expert in 0..plan.n_experts() {
            for assignment in plan.of_expert(expert) {
                let token = plan.tokens()[assignment];
                prop_assert!(pairs.insert((expert, token)), "an expert takes a token once");
                count[token as usize] += 1;
            }
        }
        prop_assert!(count.iter().all(|count| *count <= k));
        if scenario.config.token_choice().unwrap().capacity.is_none() {
            prop_assert!(count.iter().all(|count| *count == k), "nothing is dropped");
        }
    }

    #[test]
    fn first_choices_beat_second_choices(scenario in scenario::token_choice()) {
        let plan = sparse(&scenario.route());
        let decisions = plan.decisions().unwrap();
        for group in 0..plan.groups().len() {
            for expert in 0..plan.n_experts() as u32 {
                let wishes = plan.groups().tokens(group).iter().flat_map(|token| {
                    let first = *token as usize * decisions.per_token;
                    (0..decisions.per_token).map(move |choice| (first + choice, choice / decisions.per_rank))
                });
                let mut wishes: Vec<(u32, usize)> = wishes
                    .filter(|(wish, _)| decisions.experts[*wish] == expert)
                    .map(|(wish, rank)| (decisions.slots[wish], rank))
                    .collect();
                wishes.sort();
                prop_assert!(wishes.is_sorted_by_key(|(_, rank)| *rank), "{wishes:?}");
            }
        }
    }

    #[test]
    fn expert_choice_fills_every_expert(scenario in scenario::expert_choice()) {
        let routing = scenario.route();
        let plan = sparse(&routing);
        let alive = scenario.config.pruning.alive(scenario.config.experts).unwrap();
        let places = plan.groups().places();
        for (expert, alive) in alive.into_iter().enumerate() {
            for group in 0..plan.groups().len() {
                let eligible: usize = routing
                    .tables
                    .iter()
                    .filter(|table| table.experts.contains(&expert))
                    .map(|table| table.rows(group).len())
                    .sum();
                let eligible = if alive { eligible } else { 0 };
                let taken = plan.of_expert(expert).filter(|assignment| {
                    places[plan.tokens()[*assignment] as usize].group == group
                });
                prop_assert_eq!(taken.count(), eligible.min(plan.capacities()[group]));
            }
        }
    }

    #[test]
    fn members_and_modalities_stay_in_their_subsets(scenario in scenario::sparse()) {
        let plan = sparse(&scenario.route()).expanded().into_owned();
        let gates = scenario.config.pool.gates(scenario.config.experts).unwrap();
        let (layout, modality) = (scenario.layout.clone(), scenario.context().modality.unwrap());
        let per_image = layout.only_kind().unwrap().tokens;
        let decided_by = match scenario.config.scope {
            Scope::Image { decided_by } => Some(decided_by),
            Scope::Token => None,
        };
        for expert in 0..plan.n_experts() {
            for assignment in plan.of_expert(expert) {
                let token = plan.tokens()[assignment] as usize;
                let deciding = decided_by.map_or(token, |place| token / per_image * per_image + place);
                let allowed = gates.iter().any(|gate| {
                    gate.experts.contains(&expert) && match gate.callers {
                        Callers::Everyone => true,
                        Callers::Member(member) => layout.member(token) == member,
                        Callers::Modality(wanted) => modality[deciding] == wanted,
                    }
                });
                prop_assert!(allowed, "token {token} went to expert {expert}");
            }
        }
    }

    #[test]
    fn pruned_experts_get_nothing(
        scenario in prop_oneof![scenario::sparse().boxed(), scenario::soft().boxed()],
    ) {
        let statistics = scenario.route().statistics();
        for expert in &scenario.config.pruning.experts {
            prop_assert_eq!(statistics.load[*expert], 0);
            prop_assert!(statistics.dead.contains(expert));
        }
    }

    #[test]
    fn experts_that_are_gone_are_experts_that_are_masked(
        scenario in prop_oneof![scenario::sparse().boxed(), scenario::soft().boxed()],
    ) {
        let Pruning { experts, mode, .. } = scenario.config.pruning.clone();
        let config = RouterConfig {
            pruning: Pruning { experts: Vec::new(), mode, removed: experts.clone() },
            ..scenario.config.clone()
        };
        // The expert behind every column of the whole router.
        let owners: Vec<usize> = match &config.allocation {
            Allocation::Soft(soft) => {
                (0..config.experts).flat_map(|expert| vec![expert; soft.slots]).collect()
            }
            _ => {
                let gates = config.pool.gates(config.experts).unwrap();
                gates.into_iter().flat_map(|gate| gate.experts).collect()
            }
        };
        let stays = |expert: usize| mode == PruneMode::Predict || !experts.contains(&expert);
        let left: Vec<i32> =
            (0..owners.len() as i32).filter(|column| stays(owners[*column as usize])).collect();
        prop_assert_eq!(config.columns().unwrap(), left.len());
        let whole = scenario.router();
        let index = Tensor::<1, Int>::from_data(left.as_slice(), &Device::flex());
        let cut = config.init_with(whole.weight.val().select(1, index)).unwrap();
        let context = Context::inference(scenario.layout.clone())
            .with_modality(scenario.context().modality.unwrap());
        let masked = whole.route(scenario.tokens(), &context).unwrap();
        let gone = cut.route(scenario.tokens(), &context).unwrap();
        for group in 0..masked.plan.n_groups() {
            let (masked, gone) = (masked.plan.dense(group), gone.plan.dense(group));
            for (masked, gone) in [(masked.dispatch, gone.dispatch), (masked.combine, gone.combine)] {
                for (masked, gone) in values(&masked).into_iter().zip(values(&gone)) {
                    prop_assert!((masked - gone).abs() < 1e-4, "{} {}", masked, gone);
                }
            }
        }
    }

    #[test]
    fn soft_weights_are_two_softmaxes(mut scenario in scenario::soft()) {
        scenario.config.pruning.experts.clear();
        let plan = scenario.route().plan.as_soft().unwrap().clone();
        let sums = |tensor: &Tensor<3>, dim: usize| values(&tensor.clone().sum_dim(dim));
        prop_assert!(sums(plan.dispatch(), 1).iter().all(|sum| (sum - 1.0).abs() < 1e-5));
        prop_assert!(sums(plan.combine(), 2).iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }

    #[test]
    fn kinds_of_sequences_are_routed_as_the_rows_they_are(
        mut scenario in scenario::sparse(), texts in 1..4_usize, length in 1..4_usize
    ) {
        scenario.config.grouping = Grouping::Batch;
        scenario.config.scope = Scope::Token;
        if matches!(scenario.config.pool, Pool::Members { .. }) {
            scenario.config.pool = Pool::All;
        }
        let images = scenario.layout.only_kind().unwrap();
        let kinds = vec![
            Sequences { modality: Some(0), ..images },
            Sequences { count: texts, tokens: length, modality: Some(1) },
        ];
        scenario.layout = Layout::of(kinds);
        let (rows, modality) = (scenario.layout.rows(), scenario.layout.modalities().unwrap());
        let context = |layout| Context::training(layout, Seed::new(scenario.seed));
        let router = scenario.router();
        let tokens = scenario.tokens();
        let together = router.route(tokens.clone(), &context(scenario.layout.clone())).unwrap();
        let flat = context(Layout::new(1, rows)).with_modality(modality);
        let flat = router.route(tokens, &flat).unwrap();
        let (together, flat) = (sparse(&together), sparse(&flat));
        prop_assert_eq!(together.tokens(), flat.tokens());
        prop_assert_eq!(together.offsets(), flat.offsets());
        prop_assert_eq!(values(together.weights()), values(flat.weights()));
    }

    #[test]
    fn an_image_that_decides_as_one_goes_as_one(mut scenario in scenario::token_choice()) {
        scenario.lengthen();
        scenario.config.scope = Scope::Image { decided_by: scenario.seed as usize % 2 };
        let plan = sparse(&scenario.route());
        prop_assert_eq!(plan.span(), scenario.layout.only_kind().unwrap().tokens);
        let rows = plan.expanded();
        let mut experts = vec![Vec::new(); rows.n_tokens()];
        for expert in 0..rows.n_experts() {
            for assignment in rows.of_expert(expert) {
                experts[rows.tokens()[assignment] as usize].push(expert);
            }
        }
        prop_assert!(experts.chunks(plan.span()).all(|image| image.iter().all(|token| *token == image[0])));
        let tokens = scenario.tokens();
        let expert = |e: usize, rows: Tensor<2>| rows * (e as f64 + 1.0);
        let (whole, single) = (plan.apply(tokens.clone(), expert), rows.apply(tokens, expert));
        prop_assert!(close(&values(&whole), &values(&single), 1e-5));
    }

    #[test]
    fn contributions_add_up_to_the_output(scenario in scenario::token_choice()) {
        let plan = sparse(&scenario.route());
        let outputs = plan.expert_outputs(scenario.tokens(), |e, rows| rows * (e as f64 + 1.0));
        let apart = plan.contributions(outputs.clone()).unwrap();
        let [choices, rows, width] = apart.dims();
        prop_assert_eq!([rows, width], [scenario.layout.rows(), WIDTH]);
        prop_assert_eq!(choices, plan.decisions().unwrap().per_token);
        let sum = apart.sum_dim(0).reshape([rows, width]);
        prop_assert!(close(&values(&sum), &values(&plan.combine(outputs)), 1e-4));
    }

    /// Where nothing is limited, a token's neighbours do not matter.
    #[test]
    fn dropless_token_choice_does_not_see_the_batch(mut scenario in scenario::token_choice()) {
        let k = scenario.config.token_choice().unwrap().k;
        scenario.config.allocation = Allocation::TokenChoice(TokenChoice::dropless(k));
        scenario.config.affinity = Affinity::Softmax;
        scenario.config.noise = 0.0;
        let (router, tokens, context) = (scenario.router(), scenario.tokens(), scenario.context());
        let expert = |e: usize, rows: Tensor<2>| rows * (e as f64 + 1.0);
        let together = router.route(tokens.clone(), &context).unwrap().plan.apply(tokens.clone(), expert);
        let kind = scenario.layout.only_kind().unwrap();
        let per_image = scenario.layout.rows() / kind.count;
        for image in 0..kind.count {
            let part = tokens.clone().narrow(0, image * per_image, per_image);
            let modality = context.modality.as_ref().unwrap()[image * per_image..][..per_image].to_vec();
            let alone = Context::training(Layout::new(1, kind.tokens).tiled(scenario.layout.members()), context.seed);
            let alone = router.route(part.clone(), &alone.with_modality(modality)).unwrap();
            let expected = values(&together.clone().narrow(0, image * per_image, per_image));
            prop_assert!(close(&values(&alone.plan.apply(part, expert)), &expected, 1e-5));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_bits(scenario in scenario::sparse()) {
        let (once, again) = (scenario.route(), scenario.route());
        let (a, b) = (sparse(&once), sparse(&again));
        prop_assert_eq!(a.tokens(), b.tokens());
        prop_assert_eq!(a.slots(), b.slots());
        prop_assert_eq!(values(a.weights()), values(b.weights()));
    }

    #[test]
    fn statistics_count_what_the_plan_holds(scenario in scenario::sparse()) {
        let routing = scenario.route();
        let (plan, statistics) = (sparse(&routing), routing.statistics());
        let served: usize = statistics.load.iter().sum();
        prop_assert_eq!(served, plan.n_assignments() * plan.span());
        let histogram: usize = statistics.experts_per_token.iter().sum();
        prop_assert_eq!(histogram, scenario.layout.rows());
        let by_token: usize = statistics.experts_per_token.iter().enumerate().map(|(n, tokens)| n * tokens).sum();
        prop_assert_eq!(by_token, served);
        if let Some(choice) = scenario.config.token_choice() {
            let wishes = choice.k * scenario.config.pool.gates_per_token() * scenario.layout.rows();
            prop_assert_eq!(statistics.dropped.iter().sum::<usize>() + served, wishes);
        }
        let mass: f64 = statistics.importance.iter().sum();
        let asked = (scenario.layout.rows() * scenario.config.pool.gates_per_token()) as f64;
        prop_assert!((mass - asked).abs() < 1e-3 * asked, "every gate sums to 1: {mass} of {asked}");
        prop_assert_eq!(statistics.coverage.is_some(), !scenario.config.pruning.experts.is_empty());
    }

    #[test]
    fn sinkhorn_meets_its_marginals(
        (tokens, experts, logits) in (1..40_usize, 1..9_usize).prop_flat_map(|(t, e)| {
            (Just(t), Just(e), prop::collection::vec(-3.0..3.0_f32, t * e))
        }),
    ) {
        let solved = Sinkhorn { max_iterations: 5000, ..Default::default() }.solve(&logits, [tokens, experts]);
        prop_assert!(solved.row_error <= 1e-6);
        for row in solved.plan.chunks_exact(experts) {
            prop_assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
        for expert in 0..experts {
            let column: f32 = solved.plan.iter().skip(expert).step_by(experts).sum();
            prop_assert!((column - tokens as f32 / experts as f32).abs() < 1e-4 * tokens as f32);
        }
    }

    /// Permuting tokens permutes what they get, wherever arrival does not decide.
    #[test]
    fn routing_commutes_with_a_permutation(
        seed in any::<u64>(), tokens in 6..24_usize, experts in 2..6_usize, kind in 0..7_usize,
    ) {
        // Fewer choices than experts, and a token or more per expert: with one expert every gate is 1
        // and every priority ties, sums of all gates tie too, and so do zeros of transport plans.
        let k = 1 + seed as usize % (experts - 1);
        let capacity = Capacity::factor(1.0);
        let by_priority = |order| Allocation::TokenChoice(TokenChoice::limited(k, capacity, order));
        let config = match kind {
            0 => RouterConfig::new(experts, Allocation::TokenChoice(TokenChoice::dropless(k))),
            1 => RouterConfig::new(experts, by_priority(Order::MaxGate)),
            2 => RouterConfig::new(experts, by_priority(Order::SumOfGates)),
            3 => RouterConfig::new(experts, Allocation::ExpertChoice(ExpertChoice { capacity })),
            4 => RouterConfig::sinkhorn_expert_choice(experts, 1.0),
            5 => RouterConfig::sparse_expert_choice(experts, 1.0),
            _ => RouterConfig { grouping: Grouping::Batch, ..RouterConfig::soft(experts, 2) },
        };
        let layout = Layout::new(1, tokens);
        let scenario = Scenario { config, layout: layout.clone(), seed, ties: false };
        let permutation = {
            use rand::seq::SliceRandom;
            let mut rows: Vec<i32> = (0..tokens as i32).collect();
            rows.shuffle(&mut Seed::new(seed).named("permutation").rng());
            Tensor::from_data(TensorData::new(rows, [tokens]), &Device::flex())
        };
        let run = |tokens: Tensor<2>| {
            let routing = scenario.router().route(tokens.clone(), &Context::training(layout.clone(), Seed::new(seed)));
            routing.unwrap().plan.apply(tokens, |e, rows| rows * (e as f64 + 1.0))
        };
        let permuted_after = run(scenario.tokens()).select(0, permutation.clone());
        let permuted_before = run(scenario.tokens().select(0, permutation));
        prop_assert!(close(&values(&permuted_before), &values(&permuted_after), 1e-4));
    }
}
