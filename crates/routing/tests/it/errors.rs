//! Bad input: a typed error that names the values, never a panic.

use burn::tensor::{Device, Tensor, TensorData};
use omma_routing::{
    Affinity, Allocation, Capacity, CombineWeights, Context, Grouping, Layout, Loss, LossTerm,
    Order, Pool, Pruning, Rounding, RouterConfig, RoutingError, Scope, Seed, Sequences, Sinkhorn,
    TokenChoice,
};

fn tokens(rows: usize, width: usize, value: f32) -> Tensor<2> {
    Tensor::from_data(TensorData::new(vec![value; rows * width], [rows, width]), &Device::flex())
}

fn dropless(experts: usize, k: usize) -> RouterConfig {
    RouterConfig::new(experts, Allocation::TokenChoice(TokenChoice::dropless(k)))
}

/// The error of routing four images of three tokens with four features.
fn error(config: RouterConfig) -> String {
    route(config, tokens(12, 4, 1.0), &Context::training(Layout::new(4, 3), Seed::new(0)))
        .unwrap_err()
        .to_string()
}

fn route(config: RouterConfig, tokens: Tensor<2>, context: &Context) -> Result<(), RoutingError> {
    let router = config.init(4, Seed::new(1), &Device::flex())?;
    router.route(tokens, context).map(|_| ())
}

#[test]
fn configurations_that_cannot_route() {
    let cases = [
        (dropless(0, 1), "a router needs at least one expert"),
        (dropless(4, 0), "every token must choose at least one expert, but k is 0"),
        (
            dropless(4, 5),
            "every token chooses k = 5 experts, but its gate has only 4 to choose from",
        ),
        (
            RouterConfig { pool: Pool::Members { members: 4, overlap: 0 }, ..dropless(6, 1) },
            "6 experts cannot be cut into 4 equal subsets",
        ),
        (
            RouterConfig { pool: Pool::Members { members: 2, overlap: 0 }, ..dropless(4, 3) },
            "every token chooses k = 3 experts, but its gate has only 2 to choose from",
        ),
        (
            RouterConfig { pool: Pool::Members { members: 2, overlap: 0 }, ..dropless(4, 1) },
            "ensemble members: expected [2], found [1]",
        ),
        (
            RouterConfig {
                pruning: Pruning { experts: vec![0, 1, 2], ..Default::default() },
                ..dropless(4, 2)
            },
            "every token chooses k = 2 experts, but its gate has only 1 to choose from",
        ),
        (
            RouterConfig {
                pruning: Pruning { experts: vec![9], ..Default::default() },
                ..dropless(4, 1)
            },
            "expert 9 cannot be pruned: there are only 4",
        ),
        (
            RouterConfig::softmax_expert_choice(4, 0.0),
            "the capacity factor must be a positive number, not 0",
        ),
        (RouterConfig::soft(4, 0), "soft routing needs at least one slot per expert"),
        (
            RouterConfig { pool: Pool::Partition { subsets: 2 }, ..RouterConfig::soft(4, 1) },
            "soft routing does not go with several gates",
        ),
        (
            RouterConfig { combine: CombineWeights::Affinity, ..RouterConfig::soft(4, 1) },
            "soft routing does not go with combine weights from another affinity",
        ),
        (
            RouterConfig { grouping: Grouping::Tokens(0), ..dropless(4, 1) },
            "a group must hold at least one token",
        ),
        (
            RouterConfig { grouping: Grouping::Tokens(5), ..RouterConfig::soft(4, 1) },
            "12 tokens do not fill groups of 5; soft routing needs equal groups",
        ),
        (
            RouterConfig { noise: -1.0, ..dropless(4, 1) },
            "the noise must be zero or a positive number, not -1",
        ),
        (
            RouterConfig {
                affinity: Affinity::Sinkhorn(Sinkhorn {
                    tolerance: f64::NAN,
                    ..Default::default()
                }),
                ..dropless(4, 1)
            },
            "the Sinkhorn tolerance must be a positive number, not NaN",
        ),
        (
            RouterConfig { losses: vec![LossTerm::new(Loss::Load, 1.0)], ..dropless(4, 1) },
            "the load loss does not go with a router without noise",
        ),
        (
            RouterConfig {
                losses: vec![LossTerm::new(Loss::TargetEntropy, 1.0)],
                ..RouterConfig::softmax_expert_choice(4, 1.0)
            },
            "a loss that depends on k does not go with experts that choose",
        ),
        (
            RouterConfig { scope: Scope::Image { decided_by: 3 }, ..dropless(4, 1) },
            "token 3 cannot decide for its image: an image has only 3 tokens",
        ),
        (
            RouterConfig { pool: Pool::GatePerModality { modalities: 2 }, ..dropless(4, 1) },
            "a gate per modality needs the modality of every token",
        ),
        (
            RouterConfig {
                losses: vec![LossTerm::new(Loss::LocalEntropy, 1.0).on_modality(1)],
                ..dropless(4, 1)
            },
            "a loss on modalities needs the modality of every token",
        ),
        (
            RouterConfig::new(
                4,
                Allocation::TokenChoice(TokenChoice {
                    order: Order::ModalityFirst(1),
                    ..TokenChoice::dropless(1)
                }),
            ),
            "serving one modality first needs the modality of every token",
        ),
    ];
    for (config, message) in cases {
        assert_eq!(error(config), message);
    }
}

#[test]
fn a_capacity_of_zero() {
    let capacity = Capacity { rounding: Rounding::Round, ..Capacity::factor(0.1) };
    let choice = TokenChoice::limited(1, capacity, Order::Arrival);
    let config = RouterConfig::new(4, Allocation::TokenChoice(choice));
    assert_eq!(error(config), "12 choices over 4 experts at factor 0.1 leave a capacity of 0");
}

#[test]
fn an_empty_batch() {
    for layout in [Layout::new(0, 3), Layout::new(4, 0), Layout::new(4, 3).tiled(0)] {
        let empty = tokens(0, 4, 0.0);
        let outcome = route(dropless(4, 1), empty, &Context::inference(layout));
        assert_eq!(outcome, Err(RoutingError::EmptyBatch));
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let context = Context::inference(Layout::new(4, 3));
    let outcome = route(dropless(4, 1), tokens(11, 4, 1.0), &context).unwrap_err();
    assert_eq!(outcome.to_string(), "the tokens: expected [12, 4], found [11, 4]");
    let outcome = route(dropless(4, 1), tokens(12, 5, 1.0), &context).unwrap_err();
    assert_eq!(outcome.to_string(), "the tokens: expected [12, 4], found [12, 5]");
    let modality = context.clone().with_modality(vec![0; 5]);
    let outcome = route(dropless(4, 1), tokens(12, 4, 1.0), &modality).unwrap_err();
    assert_eq!(outcome.to_string(), "the tokens' modalities: expected [12], found [5]");
    let noisy = RouterConfig { noise: 1.0, ..dropless(4, 1) };
    let noise = Context::training(Layout::new(4, 3), Seed::new(0)).with_noise(tokens(12, 3, 0.0));
    let outcome = route(noisy, tokens(12, 4, 1.0), &noise).unwrap_err();
    assert_eq!(outcome.to_string(), "the noise: expected [12, 4], found [12, 3]");
    let outcome = dropless(4, 1).init_with(tokens(4, 3, 0.0)).unwrap_err();
    assert_eq!(outcome.to_string(), "the router's weight: expected [4, 4], found [4, 3]");
    let affinity = tokens(12, 3, 0.0);
    let outcome = dropless(4, 1).allocate(affinity.clone(), affinity, &context).unwrap_err();
    assert_eq!(outcome.to_string(), "the affinity: expected [12, 4], found [12, 3]");
}

#[test]
fn a_modality_nobody_has_heard_of() {
    let config = RouterConfig { pool: Pool::GatePerModality { modalities: 2 }, ..dropless(4, 1) };
    let mut modality = vec![0; 12];
    modality[7] = 2;
    let context = Context::inference(Layout::new(4, 3)).with_modality(modality);
    let outcome = route(config, tokens(12, 4, 1.0), &context).unwrap_err();
    assert_eq!(outcome.to_string(), "token 7 has modality 2, but the router knows only 2");
}

#[test]
fn logits_that_are_not_numbers() {
    let configs = [
        dropless(4, 1),
        RouterConfig::softmax_expert_choice(4, 1.0),
        RouterConfig::sinkhorn_token_choice(4, 1),
        RouterConfig::sparse_expert_choice(4, 1.0),
        RouterConfig::soft(4, 1),
    ];
    for config in configs {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 12 * 4];
            values[5 * 4 + 2] = bad;
            let tokens = Tensor::from_data(TensorData::new(values, [12, 4]), &Device::flex());
            let outcome = route(config.clone(), tokens, &Context::inference(Layout::new(4, 3)));
            let Err(RoutingError::NonFiniteLogit { token, .. }) = outcome else {
                panic!("{config:?} with {bad}: {outcome:?}")
            };
            assert_eq!(token, 5);
        }
    }
}

/// An image that is alone in its batch is routed, however few tokens it has.
#[test]
fn a_capacity_of_zero_is_an_error_in_training_alone() {
    let config = RouterConfig::softmax_expert_choice(8, 1.0);
    let context = Context::training(Layout::new(1, 3), Seed::new(1));
    let outcome = route(config.clone(), tokens(3, 4, 1.0), &context).unwrap_err();
    assert!(outcome.to_string().contains("capacity of 0"), "{outcome}");
    let router = config.init(4, Seed::new(1), &Device::flex()).unwrap();
    let context = Context::inference(Layout::new(1, 3));
    let routing = router.route(tokens(3, 4, 1.0), &context).unwrap();
    assert_eq!(routing.statistics().load, vec![1; 8]);
}

#[test]
fn gate_matrix_beyond_index_range_is_refused() {
    let (experts, rows) = (1 << 15, 1 << 16);
    let router = dropless(experts, 1).init_with(tokens(1, experts, 0.0)).unwrap();
    let context = Context::inference(Layout::new(rows, 1));
    let error = router.route(tokens(rows, 1, 1.0), &context).unwrap_err();
    assert_eq!(error, RoutingError::TooLarge { tokens: rows, columns: experts });
}

#[test]
fn soft_routing_and_image_decisions_refuse_several_kinds() {
    let kinds = [(2, 3), (3, 2)].map(|(count, tokens)| Sequences { count, tokens, modality: None });
    let context = Context::inference(Layout::of(kinds.to_vec()));
    let image = RouterConfig { scope: Scope::Image { decided_by: 0 }, ..dropless(4, 1) };
    for (config, what) in
        [(RouterConfig::soft(4, 1), "soft routing"), (image, "one decision per image")]
    {
        let error = route(config, tokens(12, 4, 1.0), &context).unwrap_err();
        assert_eq!(error, RoutingError::SeveralKinds { what, kinds: 2 });
    }
}
