//! What an MoE layer promises.

use burn::{
    module::{Module, Param},
    tensor::{DType, Device, Tensor, TensorData},
};
use omma_model::{
    Activation, ExpertStart, MlpConfig, ModelError, MoeLayer, MoeLayerConfig, MoeOutput, Precision,
};
use omma_routing::{
    Allocation, Context, Grouping, Layout, Plan, Pool, PruneMode, Pruning, RouterConfig,
    RoutingError, Scope, Seed, Soft, SubsetChoice, TokenChoice,
};
use rand::RngExt;

const WIDTH: usize = 12;

fn layer(router: RouterConfig, shared_expert: bool, dropout: f32) -> MoeLayer {
    let mlp = MlpConfig { width: WIDTH, hidden: 20, activation: Activation::GeluTanh, dropout };
    let config = MoeLayerConfig {
        router,
        mlp,
        shared_expert,
        start: ExpertStart { shared: false, noise: 0.0 },
    };
    config.init(Seed::new(3), &Device::flex()).unwrap()
}

fn dropless(experts: usize, k: usize) -> RouterConfig {
    RouterConfig::new(experts, Allocation::TokenChoice(TokenChoice::dropless(k)))
}

fn tokens(rows: usize) -> Tensor<2> {
    let mut rng = Seed::new(5).rng();
    let values: Vec<f32> = (0..rows * WIDTH).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_data(TensorData::new(values, [rows, WIDTH]), &Device::flex())
}

fn values<const R: usize>(tensor: &Tensor<R>) -> Vec<f32> {
    tensor.try_to_vec_as().unwrap()
}

fn assert_close(a: &Tensor<2>, b: &Tensor<2>) {
    for (a, b) in values(a).iter().zip(values(b)) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} {b}");
    }
}

/// Experts compute in half precision; who goes where, and with which weight, is what it is in single precision.
#[test]
fn routing_does_not_see_half_precision() {
    let layout = Layout::new(6, 7);
    for router in [
        RouterConfig::softmax_token_choice(4, 2),
        RouterConfig::softmax_expert_choice(4, 1.5),
        RouterConfig::soft(4, 2),
    ] {
        let whole = layer(router, true, 0.2);
        let run = |precision| {
            let layer = MoeLayer { precision, ..whole.clone() };
            let context = Context::training(layout.clone(), Seed::new(1));
            layer.forward(tokens(layout.rows()), &context, Some(Seed::new(2))).unwrap()
        };
        let expected = run(Precision::F32);
        for (precision, tolerance) in [(Precision::Bf16, 0.03), (Precision::F16, 0.004)] {
            let found = run(precision);
            let losses = |output: &MoeOutput| output.routing.losses.total().map(|x| values(&x));
            assert_eq!(losses(&found), losses(&expected));
            match (&found.routing.plan, &expected.routing.plan) {
                (Plan::Sparse(found), Plan::Sparse(expected)) => {
                    assert_eq!(found.tokens(), expected.tokens());
                    assert_eq!(found.offsets(), expected.offsets());
                    assert_eq!(values(found.weights()), values(expected.weights()));
                }
                (Plan::Soft(found), Plan::Soft(expected)) => {
                    assert_eq!(values(found.dispatch()), values(expected.dispatch()));
                    assert_eq!(values(found.combine()), values(expected.combine()));
                }
                _ => panic!("another plan"),
            }
            assert_eq!(found.output.dtype(), DType::F32);
            let (found, expected) = (values(&found.output), values(&expected.output));
            let size = expected.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / size);
            let off = off.fold(0.0, f32::max);
            assert!(off > 1e-5 && off < tolerance, "{precision}: {off}");
        }
    }
}

#[test]
fn the_fused_layer_is_the_plan_applied_expert_by_expert() {
    let layout = Layout::new(6, 7);
    let routers = [
        RouterConfig::softmax_token_choice(4, 2),
        RouterConfig::sinkhorn_token_choice(4, 1),
        RouterConfig::softmax_expert_choice(4, 1.5),
        RouterConfig::sparse_expert_choice(4, 1.0),
        RouterConfig::soft(4, 2),
        RouterConfig { scope: Scope::Image { decided_by: 0 }, ..dropless(4, 2) },
        RouterConfig {
            grouping: Grouping::Images(1),
            ..RouterConfig::softmax_expert_choice(4, 1.0)
        },
    ];
    for router in routers {
        let layer = layer(router, false, 0.0);
        let x = tokens(layout.rows());
        let result = layer
            .forward(x.clone(), &Context::training(layout.clone(), Seed::new(1)), None)
            .unwrap();
        let literal = result.routing.plan.apply(x, |expert, rows| {
            let of = |stack: Tensor<3>| {
                let [_, rows, columns] = stack.dims();
                stack.narrow(0, expert, 1).reshape([rows, columns])
            };
            let experts = &layer.experts;
            let bias = |stack: &Option<Param<Tensor<2>>>| {
                stack.as_ref().unwrap().val().narrow(0, expert, 1)
            };
            let hidden = rows.matmul(of(experts.up.val())) + bias(&experts.up_bias);
            let hidden = burn::tensor::activation::gelu_approximate(hidden);
            hidden.matmul(of(experts.down.val())) + bias(&experts.down_bias)
        });
        assert_close(&result.output, &literal);
        assert_eq!(result.routing.statistics().tokens, layout.rows());
    }
}

#[test]
fn a_shared_expert_sees_every_token() {
    let layout = Layout::new(2, 5);
    let layer = layer(dropless(4, 1), true, 0.0);
    let x = tokens(layout.rows());
    let context = Context::inference(layout.clone());
    let with = layer.forward(x.clone(), &context, None).unwrap().output;
    let mut without = layer.clone();
    let shared = without.shared.take().unwrap();
    let routed = without.forward(x.clone(), &context, None).unwrap().output;
    assert_close(&with, &(routed + shared.forward(x, None)));
}

/// Some experts of a soft layer, pruned or not: as many as asked for, and those that do not serve give
/// nothing. Training runs all.
#[test]
fn a_soft_layer_runs_some_of_its_experts() {
    let layout = Layout::new(3, 5);
    let x = tokens(layout.rows());
    for gone in [vec![], vec![1]] {
        let live = 4 - gone.len();
        let pruning =
            Pruning { experts: gone.clone(), mode: PruneMode::Drop, ..Pruning::default() };
        let all = RouterConfig { pruning, ..RouterConfig::soft(4, 2) };
        let some = |subset, subset_choice| {
            let Allocation::Soft(soft) = all.allocation else { panic!("it is soft") };
            let soft = Soft { subset: Some(subset), subset_choice, ..soft };
            RouterConfig { allocation: Allocation::Soft(soft), ..all.clone() }
        };
        let whole = layer(all.clone(), false, 0.0);
        let inference = Context::inference(layout.clone());
        let output = whole.forward(x.clone(), &inference, None).unwrap().output;
        // Best and least share no expert, so their outputs add up to that of all.
        let best = layer(some(live - 1, SubsetChoice::Best), false, 0.0);
        let least = layer(some(1, SubsetChoice::Least), false, 0.0);
        let [best, least] = [best, least].map(|layer| {
            let trained = Context::training(layout.clone(), Seed::new(1));
            let trained = layer.forward(x.clone(), &trained, None).unwrap();
            assert!(trained.routing.plan.as_soft().unwrap().run().is_none());
            layer.forward(x.clone(), &inference, None).unwrap()
        });
        let serving = |output: &MoeOutput| -> Vec<Vec<usize>> {
            output.routing.plan.as_soft().unwrap().run().unwrap().to_vec()
        };
        for (best, least) in serving(&best).iter().zip(&serving(&least)) {
            let mut both = [best.as_slice(), least].concat();
            both.sort_unstable();
            let there: Vec<usize> = (0..4).filter(|expert| !gone.contains(expert)).collect();
            assert_eq!(both, there);
        }
        assert_close(&(best.output + least.output), &output);
        // As many as there are are all.
        let most = layer(some(live, SubsetChoice::Best), false, 0.0);
        assert_close(&most.forward(x.clone(), &inference, None).unwrap().output, &output);
    }
}

#[test]
fn neighbours_do_not_matter_at_inference() {
    for (k, members) in [(1, 1), (2, 1), (1, 2)] {
        let pool = if members == 1 { Pool::All } else { Pool::Members { members, overlap: 0 } };
        let router = RouterConfig { pool, ..RouterConfig::softmax_token_choice(4, k) };
        let layer = layer(router, false, 0.0);
        let (images, per_image) = (64, 3 * members);
        let x = tokens(images * per_image);
        let layout = |images| Layout::new(images, 3).tiled(members);
        let together =
            layer.forward(x.clone(), &Context::inference(layout(images)), None).unwrap().output;
        for image in [0, 17, 63] {
            let rows = |x: &Tensor<2>| x.clone().narrow(0, image * per_image, per_image);
            let alone =
                layer.forward(rows(&x), &Context::inference(layout(1)), None).unwrap().output;
            assert_close(&alone, &rows(&together));
        }
    }
}

#[test]
fn dropout_follows_the_seed_and_stops_at_inference() {
    let layout = Layout::new(2, 5);
    let layer = layer(dropless(4, 2), true, 0.5);
    let x = tokens(layout.rows());
    let train = |seed| {
        let context = Context::training(layout.clone(), Seed::new(seed));
        values(&layer.forward(x.clone(), &context, Some(context.seed)).unwrap().output)
    };
    let infer = || {
        values(&layer.forward(x.clone(), &Context::inference(layout.clone()), None).unwrap().output)
    };
    assert_eq!(train(1), train(1));
    assert_ne!(train(1), train(2));
    assert_eq!(infer(), infer());
    assert_ne!(train(1), infer());
}

#[test]
fn the_same_seed_makes_the_same_layer() {
    let config = RouterConfig::softmax_token_choice(4, 2);
    let (a, b) = (layer(config.clone(), true, 0.0), layer(config, true, 0.0));
    assert_eq!(values(&a.experts.up.val()), values(&b.experts.up.val()));
    assert_eq!(values(&a.router.weight.val()), values(&b.router.weight.val()));
    let of_mlp = WIDTH * 20 * 2 + 20 + WIDTH;
    assert_eq!(a.num_params(), WIDTH * 4 + 5 * of_mlp);
}

#[test]
fn a_router_that_cannot_route_is_an_error() {
    let mlp = MlpConfig { width: 4, hidden: 8, activation: Activation::GeluErf, dropout: 0.0 };
    let config = MoeLayerConfig {
        router: dropless(2, 3),
        mlp,
        shared_expert: false,
        start: ExpertStart::default(),
    };
    let outcome = config.init(Seed::new(0), &Device::flex());
    let expected = RoutingError::TooManyChoices { k: 3, experts: 2 };
    assert!(matches!(outcome.unwrap_err(), ModelError::Routing(error) if error == expected));
}
