//! Token-choice routers without experts: gates, routing tensors, losses and their gradients.

use burn::tensor::{Tensor, activation::softmax};
use omma_golden::Case;
use omma_routing::{
    Allocation, Grouping, Layout, RouterConfig, TokenChoice,
    losses::{balance_loss, importance_loss, load_loss},
};

use crate::golden::layer::{capacity_of, context_of, dense, expect_dense, losses_of, order_of};

pub(crate) fn check(case: &Case) {
    let (groups, size, experts, k) =
        (case.size("G"), case.size("S"), case.size("E"), case.size("K"));
    let noisy = case.has("input/noise");
    let sigma = case.json()["config"]["sigma"].as_f64().filter(|_| noisy).unwrap_or(0.0);
    let tokens = case.matrix("input/x");
    let context = context_of(case, Layout::new(groups, size), experts);
    for (capacity_name, settings) in case.config("capacity_variants").as_object().unwrap() {
        for priority in case.config("priority_variants").as_array().unwrap() {
            let priority = priority.as_str().unwrap();
            let order = order_of(priority == "bpr");
            let choice = TokenChoice::limited(k, capacity_of(settings), order);
            let config = RouterConfig {
                noise: sigma * experts as f64,
                losses: losses_of(case).into_iter().filter(|term| term.weight > 0.0).collect(),
                grouping: Grouping::Tokens(size),
                ..RouterConfig::new(experts, Allocation::TokenChoice(choice))
            };
            let router = config.init_with(case.matrix("param/Router.dense.kernel")).unwrap();
            let routing = router.route(tokens.clone(), &context).unwrap();
            let plan = routing.plan.as_sparse().unwrap();
            let decisions = plan.decisions().unwrap();
            let table = &routing.tables[0];

            let variant = format!("output/{priority}_{capacity_name}");
            expect_dense(case, &variant, &dense(&routing.plan));
            let pairs = decisions.experts.iter().zip(&decisions.slots);
            let pairs = pairs.flat_map(|(expert, slot)| [*expert as i32, *slot as i32]);
            case.expect_ints(&format!("{variant}/indices"), pairs);
            let capacity = plan.capacities()[0];
            case.expect_ints(&format!("{variant}/capacity"), [capacity as i32]);
            let dropped = decisions.slots.chunks_exact(size * k).map(|slots| {
                slots.iter().filter(|slot| **slot as usize >= capacity).count() as i32
            });
            case.expect_ints(&format!("{variant}/num_dropped"), dropped);

            case.expect_ints("output/topk_experts", decisions.experts.iter().map(|e| *e as i32));
            let gates = decisions.experts.iter().enumerate();
            let gates = gates.map(|(i, expert)| table.gates[i / k * experts + *expert as usize]);
            case.expect_values("output/topk_gates", &gates.collect::<Vec<_>>());
            let used = if noisy { "output/gates_noisy" } else { "output/gates_clean" };
            case.expect_values(used, &table.gates);

            case.expect("output/auxiliary_loss", &routing.losses.per_group().unwrap());
            let gradients = routing.losses.total().unwrap().backward();
            case.expect("grad/param/Router.dense.kernel", &router.weight.grad(&gradients).unwrap());
        }
    }
    losses(case, k, sigma);
}

/// Every loss as a function of the logits.
fn losses(case: &Case, k: usize, sigma: f64) {
    let shape = [case.size("G"), case.size("S"), case.size("E")];
    let weight = case.matrix("param/Router.dense.kernel");
    let logits = case.matrix("input/x").matmul(weight).reshape(shape).detach().require_grad();
    case.expect("output/logits", &logits);
    case.expect("output/gates_clean", &softmax(logits.clone(), 2));
    let noise = case.has("input/noise").then(|| {
        let noise = case.reshaped("input/noise", shape).detach();
        expect_noise(case, &(case.reshaped("input/noise_unit", shape) * sigma));
        noise
    });
    // Made anew for every loss: a graph is gone once it has been differentiated.
    let routing = || match &noise {
        Some(noise) => logits.clone() + noise.clone(),
        None => logits.clone(),
    };
    if case.has("output/logits_noisy") {
        case.expect("output/logits_noisy", &routing());
    }
    let compare = |name: &str, loss: Tensor<1>| {
        case.expect(&format!("output/{name}"), &loss);
        let gradients = loss.sum().backward();
        case.expect(&format!("grad/logits.{name}"), &logits.grad(&gradients).unwrap());
    };
    compare("importance_loss", importance_loss(softmax(logits.clone(), 2)));
    compare("gshard_loss", balance_loss(softmax(routing(), 2)));
    if case.has("output/load_loss") {
        compare("load_loss", load_loss(logits.clone(), routing(), k, sigma));
    }
}

/// `σ · N(0, 1)` is the noise that was added.
fn expect_noise(case: &Case, scaled: &Tensor<3>) {
    let scaled = omma_golden::values(scaled);
    for (a, b) in scaled.iter().zip(case.floats("input/noise")) {
        assert!((a - b).abs() < 1e-6, "noise {a} {b}");
    }
}
