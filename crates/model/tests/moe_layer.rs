//! What an MoE layer promises.

use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use omma_model::{Activation, ExpertStart, MlpConfig, MoeLayer, MoeLayerConfig};
use omma_routing::{
    Allocation, Context, Grouping, Layout, Pool, PruneMode, Pruning, RouterConfig, RoutingError,
    Scope, Seed, TokenChoice,
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
            let hidden =
                rows.matmul(of(experts.up.val())) + experts.up_bias.val().narrow(0, expert, 1);
            let hidden = burn::tensor::activation::gelu_approximate(hidden);
            hidden.matmul(of(experts.down.val())) + experts.down_bias.val().narrow(0, expert, 1)
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

/// Running some experts of a pruned soft layer means those experts, not their columns.
#[test]
fn a_soft_layer_runs_the_experts_it_is_told_to() {
    let layout = Layout::new(2, 5);
    let pruned = Pruning { experts: vec![1], mode: PruneMode::Drop, ..Pruning::default() };
    let layer = layer(RouterConfig { pruning: pruned, ..RouterConfig::soft(4, 2) }, false, 0.0);
    let x = tokens(layout.rows());
    let routing = layer.router.route(x.clone(), &Context::inference(layout.clone())).unwrap();
    let plan = routing.plan.as_soft().unwrap();
    let run = |experts: &[usize]| {
        let run = vec![experts.to_vec(); 2];
        layer.experts.forward_soft(x.clone(), plan, Some(&run), None)
    };
    let all = layer.experts.forward_soft(x.clone(), plan, None, None);
    assert_close(&(run(&[0]) + run(&[1, 2]) + run(&[3])), &all);
    assert_close(&run(&[1]), &all.zeros_like());
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
    assert_eq!(outcome.unwrap_err(), RoutingError::TooManyChoices { k: 3, experts: 2 });
}
