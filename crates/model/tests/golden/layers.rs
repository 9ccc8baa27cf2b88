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
    layer.experts.up_bias = Param::from_tensor(case.tensor("param/Mlp.Dense_0.bias"));
    layer.experts.down = Param::from_tensor(case.tensor("param/Mlp.Dense_1.kernel"));
    layer.experts.down_bias = Param::from_tensor(case.tensor("param/Mlp.Dense_1.bias"));
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
            let soft = Soft { slots: case.size("slots_per_expert"), normalised };
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
    case.expect("grad/param/Mlp.Dense_0.bias", &experts.up_bias.grad(&gradients).unwrap());
    case.expect("grad/param/Mlp.Dense_1.kernel", &experts.down.grad(&gradients).unwrap());
    case.expect("grad/param/Mlp.Dense_1.bias", &experts.down_bias.grad(&gradients).unwrap());
}
