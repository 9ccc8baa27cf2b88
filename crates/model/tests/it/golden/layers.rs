//! MoE layers against the reference, through the fused kernels: every golden case with experts.

use burn::{
    module::Param,
    tensor::{Device, Tensor},
};
use omma_golden::{Case, Kind};
use omma_model::{Activation, ExpertStart, MlpConfig, MoeLayer, MoeLayerConfig};
use omma_routing::{
    Allocation, Capacity, Context, ExpertChoice, Grouping, Layout, Order, Pool, Rounding,
    RouterConfig, Seed, Soft, TokenChoice,
};
use serde_json::Value;

fn capacity(settings: &Value) -> Capacity {
    Capacity {
        factor: settings["capacity_factor"].as_f64().unwrap(),
        rounding: match settings["capacity_ceil_or_round"].as_str() {
            Some("round") => Rounding::Round,
            _ => Rounding::Ceil,
        },
        multiple_of: settings["capacity_multiple_of"].as_u64().unwrap_or(4).max(1) as usize,
    }
}

fn token_choice(case: &Case) -> RouterConfig {
    let settings = &case.json()["config"];
    let priority = settings["batch_priority"].as_bool().unwrap();
    let order = if priority { Order::MaxGate } else { Order::Arrival };
    let choice = TokenChoice::limited(case.size("K"), capacity(settings), order);
    let sigma = settings["sigma"].as_f64().unwrap_or(0.0);
    RouterConfig {
        noise: sigma * case.size("E") as f64,
        losses: serde_json::from_value(case.losses()).unwrap(),
        ..RouterConfig::new(case.size("E"), Allocation::TokenChoice(choice))
    }
}

/// The layer of a case, with its parameters.
fn layer(case: &Case, router: RouterConfig, weight: &str) -> MoeLayer {
    let mlp = MlpConfig {
        width: case.size("D"),
        hidden: case.size("mlp_dim"),
        activation: Activation::GeluTanh,
        dropout: 0.0,
    };
    let router = RouterConfig { grouping: Grouping::Tokens(case.size("group_size")), ..router };
    let columns = router.columns().unwrap();
    let config =
        MoeLayerConfig { router, mlp, shared_expert: false, start: ExpertStart::default() };
    let mut layer = config.init(Seed::new(0), &Device::flex().autodiff()).unwrap();
    layer.router.weight = Param::from_tensor(case.reshaped(weight, [mlp.width, columns]));
    if case.has("param/Router.scale") {
        layer.router.scale = Some(Param::from_tensor(case.reshaped("param/Router.scale", [1])));
    }
    layer.experts.up = Param::from_tensor(case.tensor("param/Mlp.Dense_0.kernel"));
    layer.experts.up_bias = Some(Param::from_tensor(case.tensor("param/Mlp.Dense_0.bias")));
    layer.experts.down = Param::from_tensor(case.tensor("param/Mlp.Dense_1.kernel"));
    layer.experts.down_bias = Some(Param::from_tensor(case.tensor("param/Mlp.Dense_1.bias")));
    layer
}

pub(crate) fn check(kind: Kind, case: &Case) {
    let layout = Layout::new(case.size("B"), case.size("T"));
    let dense = "param/Router.dense.kernel";
    match kind {
        Kind::MoeLayer => {
            run(case, &layer(case, token_choice(case), dense), dense, layout, "output")
        }
        Kind::Ensemble => {
            let members = case.size("M");
            let pool = Pool::Members { members, overlap: 0 };
            let router = RouterConfig { pool, ..token_choice(case) };
            run(case, &layer(case, router, dense), dense, layout.tiled(members), "output");
        }
        Kind::ExpertChoice => {
            for (setting, values) in case.config("capacity_settings").as_object().unwrap() {
                let choice = ExpertChoice { capacity: capacity(values) };
                let router = RouterConfig::new(case.size("E"), Allocation::ExpertChoice(choice));
                let layer = layer(case, router, dense);
                run(case, &layer, dense, layout.clone(), &format!("output/{setting}"));
            }
        }
        Kind::SoftMoe => {
            let normalised = case.config("l2_normalise").as_bool().unwrap();
            let weight = if normalised { "param/Router.mu" } else { "param/Router.phi" };
            let soft = Soft::new(case.size("slots_per_expert"), normalised);
            let router = RouterConfig::new(case.size("E"), Allocation::Soft(soft));
            run(case, &layer(case, router, weight), weight, layout, "output");
        }
        other => unreachable!("{other:?} is not a layer"),
    }
    // The routing tensors and losses of these cases are compared by the routing crate.
    let results: Vec<String> = case.names().map(str::to_owned).collect();
    results.iter().filter(|name| name.starts_with("output/")).for_each(|name| case.leave(name));
}

fn run(case: &Case, layer: &MoeLayer, weight: &str, layout: Layout, output: &str) {
    let tokens: Tensor<2> = case.matrix("input/x");
    let mut context = Context::training(layout, Seed::new(0));
    if case.has("input/noise") {
        let experts = case.size("E");
        let rows = case.floats("input/noise").len() / experts;
        context = context.with_noise(case.reshaped("input/noise", [rows, experts]).detach());
    }
    let result = layer.forward(tokens.clone(), &context, None).unwrap();
    case.expect(&format!("{output}/y"), &result.output);
    let mut objective = (result.output * case.matrix("input/cotangent")).sum();
    if let Some(total) = result.routing.losses.total() {
        objective = objective + total;
    }
    case.expect(&format!("{output}/objective"), &objective);
    if !case.config("objective").as_str().unwrap().contains(&format!("{output}/y")) {
        return;
    }
    let gradients = objective.backward();
    case.expect("grad/input/x", &tokens.grad(&gradients).unwrap());
    case.expect(&format!("grad/{weight}"), &layer.router.weight.grad(&gradients).unwrap());
    if let Some(scale) = &layer.router.scale {
        case.expect("grad/param/Router.scale", &scale.grad(&gradients).unwrap());
    }
    let experts = &layer.experts;
    case.expect("grad/param/Mlp.Dense_0.kernel", &experts.up.grad(&gradients).unwrap());
    case.expect(
        "grad/param/Mlp.Dense_0.bias",
        &experts.up_bias.as_ref().unwrap().grad(&gradients).unwrap(),
    );
    case.expect("grad/param/Mlp.Dense_1.kernel", &experts.down.grad(&gradients).unwrap());
    case.expect(
        "grad/param/Mlp.Dense_1.bias",
        &experts.down_bias.as_ref().unwrap().grad(&gradients).unwrap(),
    );
}

/// Paper 004 Algorithms 1 and 2: the experts that are chosen for every image, and what comes out.
pub(crate) fn check_subset(case: &Case) {
    let (images, tokens, experts) = (case.size("B"), case.size("m"), case.size("n"));
    let mlp = MlpConfig {
        width: case.size("d"),
        hidden: case.size("hidden"),
        activation: Activation::Relu,
        dropout: 0.0,
    };
    let layer = |subset: Option<usize>| {
        let soft = Soft { subset, ..Soft::new(1, false) };
        let router = RouterConfig {
            grouping: Grouping::Images(1),
            ..RouterConfig::new(experts, Allocation::Soft(soft))
        };
        let config =
            MoeLayerConfig { router, mlp, shared_expert: false, start: ExpertStart::default() };
        let mut layer = config.init(Seed::new(0), &Device::flex()).unwrap();
        let inner = |tensor: Tensor<2>| tensor.inner();
        layer.router.weight = Param::from_tensor(inner(case.tensor("param/phi")));
        layer.experts.up = Param::from_tensor(case.tensor::<3>("param/w1").inner());
        layer.experts.up_bias = Some(Param::from_tensor(inner(case.tensor("param/b1"))));
        layer.experts.down = Param::from_tensor(case.tensor::<3>("param/w2").inner());
        layer.experts.down_bias = Some(Param::from_tensor(inner(case.tensor("param/b2"))));
        layer
    };
    let x = case.reshaped("input/x", [images * tokens, mlp.width]).inner();
    let context = Context::inference(Layout::new(images, tokens));
    let run = |subset| layer(subset).forward(x.clone(), &context, None).unwrap();
    let shaped = |y: Tensor<2>| y.reshape([images, tokens, mlp.width]);

    let all = run(None);
    case.expect("output/all", &shaped(all.output));
    let plan = all.routing.plan.as_soft().unwrap();
    assert!(plan.run().is_none(), "all experts serve");
    case.expect("output/c_sum", &plan.combine().clone().sum_dim(1).reshape([images, experts]));
    for k in [1, 2, 4] {
        let some = run(Some(k));
        case.expect(&format!("output/y_{k}"), &shaped(some.output));
        let chosen = some.routing.plan.as_soft().unwrap().run().unwrap();
        let chosen = chosen.iter().flatten().map(|expert| *expert as i32);
        case.expect_ints(&format!("output/subset_{k}"), chosen);
        let statistics = some.routing.statistics();
        assert_eq!(statistics.load.iter().sum::<usize>(), images * k, "a slot of each");
    }
}
