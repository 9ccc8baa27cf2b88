//! Whole MoE layers: routing, expert MLPs, combination, and all gradients.

use burn::tensor::{Gradients, Tensor, activation::gelu_approximate};
use omma_routing::{
    Allocation, Capacity, Context, ExpertChoice, Grouping, Layout, Loss, LossTerm, Order, Plan,
    Pool, Rounding, Router, RouterConfig, Routing, Seed, Soft, TokenChoice,
};
use serde_json::Value;

use omma_golden::{Case, values};

/// The experts of a case, two dense layers with a tanh GELU between them.
struct Experts {
    parameters: [(&'static str, Tensor<3>); 4],
}

impl Experts {
    fn new(case: &Case) -> Self {
        let names =
            ["Mlp.Dense_0.kernel", "Mlp.Dense_0.bias", "Mlp.Dense_1.kernel", "Mlp.Dense_1.bias"];
        let parameters = names.map(|name| {
            let name = Box::leak(format!("param/{name}").into_boxed_str()) as &'static str;
            let parameter = match *case.shape(name) {
                [experts, width] => case.reshaped(name, [experts, 1, width]),
                _ => case.tensor(name),
            };
            (name, parameter)
        });
        Self { parameters }
    }

    fn forward(&self, expert: usize, rows: Tensor<2>) -> Tensor<2> {
        let of_expert = |i: usize| {
            let [_, rows, columns] = self.parameters[i].1.dims();
            self.parameters[i].1.clone().narrow(0, expert, 1).reshape([rows, columns])
        };
        let hidden = gelu_approximate(rows.matmul(of_expert(0)) + of_expert(1));
        hidden.matmul(of_expert(2)) + of_expert(3)
    }

    fn expect_gradients(&self, case: &Case, gradients: &Gradients) {
        for (name, parameter) in &self.parameters {
            case.expect(&format!("grad/{name}"), &parameter.grad(gradients).unwrap());
        }
    }
}

/// Runs a layer, compares its output and objective, and returns the gradients.
fn run(
    case: &Case,
    output: &str,
    tokens: &Tensor<2>,
    routing: &Routing,
    experts: &Experts,
) -> Gradients {
    let y = routing.plan.apply(tokens.clone(), |expert, rows| experts.forward(expert, rows));
    expect_definition(tokens, routing, experts, &y);
    case.expect(&format!("{output}/y"), &y);
    let mut objective = (y * case.matrix("input/cotangent")).sum();
    if let Some(total) = routing.losses.total() {
        objective = objective + total;
    }
    case.expect(&format!("{output}/objective"), &objective);
    objective.backward()
}

/// The fast way gives what the definition gives.
fn expect_definition(tokens: &Tensor<2>, routing: &Routing, experts: &Experts, y: &Tensor<2>) {
    for group in 0..routing.plan.n_groups() {
        let rows: Vec<i32> =
            routing.plan.group_tokens(group).iter().map(|token| *token as i32).collect();
        let rows = Tensor::from_data(rows.as_slice(), &tokens.device());
        let literal = routing
            .plan
            .dense(group)
            .moe(tokens.clone().select(0, rows.clone()), |expert, slots| {
                experts.forward(expert, slots)
            });
        let pairs = values(&literal).into_iter().zip(values(&y.clone().select(0, rows)));
        for (literal, fast) in pairs {
            assert!((literal - fast).abs() <= 1e-5 + 1e-4 * literal.abs(), "{literal} {fast}");
        }
    }
}

/// Compares a token-choice layer's output, gradients and drops.
fn expect_layer(case: &Case, tokens: &Tensor<2>, router: &Router, routing: &Routing) {
    let experts = Experts::new(case);
    let gradients = run(case, "output", tokens, routing, &experts);
    experts.expect_gradients(case, &gradients);
    case.expect("grad/input/x", &tokens.grad(&gradients).unwrap());
    case.expect("grad/param/Router.dense.kernel", &router.weight.grad(&gradients).unwrap());
    let dropped = routing.statistics().dropped.iter().sum::<usize>() as u64;
    let expected = case.config("dropped_choices_per_group").as_array().unwrap();
    assert_eq!(dropped, expected.iter().map(|group| group.as_u64().unwrap()).sum::<u64>());
}

pub(crate) fn capacity_of(settings: &Value) -> Capacity {
    Capacity {
        factor: settings["capacity_factor"].as_f64().unwrap(),
        rounding: match settings["capacity_ceil_or_round"].as_str() {
            Some("round") => Rounding::Round,
            _ => Rounding::Ceil,
        },
        multiple_of: settings["capacity_multiple_of"].as_u64().unwrap_or(4).max(1) as usize,
    }
}

/// What a router of the case pays for.
pub(crate) fn losses_of(case: &Case) -> Vec<LossTerm> {
    serde_json::from_value(case.losses()).unwrap()
}

pub(crate) fn order_of(batch_priority: bool) -> Order {
    if batch_priority { Order::MaxGate } else { Order::Arrival }
}

/// `(dispatch, combine)` of all groups, one after another.
pub(crate) fn dense(plan: &Plan) -> (Vec<f32>, Vec<f32>) {
    let groups = (0..plan.n_groups()).map(|group| plan.dense(group));
    let groups = groups.map(|dense| (values(&dense.dispatch), values(&dense.combine)));
    let (dispatch, combine): (Vec<_>, Vec<_>) = groups.unzip();
    (dispatch.concat(), combine.concat())
}

/// Compares the routing tensors, as far as they are stored.
pub(crate) fn expect_dense(case: &Case, prefix: &str, (dispatch, combine): &(Vec<f32>, Vec<f32>)) {
    case.expect_dispatch(&format!("{prefix}/dispatch"), dispatch);
    if case.has(&format!("{prefix}/combine")) {
        case.expect_values(&format!("{prefix}/combine"), combine);
    }
}

/// Compares every loss that the case stores, whether or not it has a weight.
fn expect_losses(case: &Case, router: &Router, tokens: &Tensor<2>, context: &Context) {
    let names = [
        ("output/importance_loss", Loss::Importance),
        ("output/gshard_loss", Loss::Balance),
        ("output/load_loss", Loss::Load),
    ];
    for (name, loss) in names.into_iter().filter(|(name, _)| case.has(name)) {
        let config =
            RouterConfig { losses: vec![LossTerm::new(loss, 1.0)], ..router.config().clone() };
        let router = router.clone().with_config(config).unwrap();
        let routing = router.route(tokens.clone(), context).unwrap();
        case.expect(name, &routing.losses.per_group().unwrap());
    }
}

pub(crate) fn context_of(case: &Case, layout: Layout, experts: usize) -> Context {
    let context = Context::training(layout, Seed::new(0));
    if case.has("input/noise") {
        let noise = case.floats("input/noise").len();
        context.with_noise(case.reshaped("input/noise", [noise / experts, experts]).detach())
    } else {
        context
    }
}

pub(crate) fn token_choice(case: &Case) {
    let experts = case.size("E");
    let sigma = case.config("sigma").as_f64().unwrap();
    let order = order_of(case.config("batch_priority").as_bool().unwrap());
    let capacity = capacity_of(&case.json()["config"]);
    let choice = TokenChoice::limited(case.size("K"), capacity, order);
    let config = RouterConfig {
        noise: sigma * experts as f64,
        losses: losses_of(case),
        grouping: Grouping::Tokens(case.size("group_size")),
        ..RouterConfig::new(experts, Allocation::TokenChoice(choice))
    };
    let router = config.init_with(case.matrix("param/Router.dense.kernel")).unwrap();
    let tokens = case.matrix("input/x");
    let context = context_of(case, Layout::new(case.size("B"), case.size("T")), experts);
    let routing = router.route(tokens.clone(), &context).unwrap();
    expect_dense(case, "output", &dense(&routing.plan));
    case.expect("output/auxiliary_loss", &routing.losses.per_group().unwrap());
    expect_losses(case, &router, &tokens, &context);

    expect_layer(case, &tokens, &router, &routing);

    assert_eq!(routing.statistics().unserved(), case.size("tokens_with_no_expert"));
}

pub(crate) fn expert_choice(case: &Case) {
    let tokens = case.matrix("input/x");
    let settings = case.config("capacity_settings").as_object().unwrap();
    for (setting, capacity) in settings {
        let capacity = capacity_of(capacity);
        let config = RouterConfig {
            grouping: Grouping::Tokens(case.size("group_size")),
            ..RouterConfig::new(case.size("E"), Allocation::ExpertChoice(ExpertChoice { capacity }))
        };
        let router = config.init_with(case.matrix("param/Router.dense.kernel")).unwrap();
        let layout = Layout::new(case.size("B"), case.size("T"));
        let routing = router.route(tokens.clone(), &Context::inference(layout)).unwrap();
        case.expect_values("output/gates", &routing.tables[0].gates);
        case.expect("output/logits", &tokens.clone().matmul(router.weight.val()));
        expect_dense(case, &format!("output/{setting}"), &dense(&routing.plan));

        let plan = routing.plan.as_sparse().unwrap();
        let (groups, size) = (plan.groups().len(), case.size("group_size"));
        let top_items = (0..groups).flat_map(|group| {
            (0..plan.n_experts()).flat_map(move |expert| {
                let tokens =
                    plan.of_expert(expert).map(|assignment| plan.tokens()[assignment] as usize);
                let tokens = tokens.filter(move |token| token / size == group);
                tokens.map(move |token| (token % size) as i32).collect::<Vec<_>>()
            })
        });
        case.expect_ints(&format!("output/{setting}/top_items"), top_items);

        let experts = Experts::new(case);
        let gradients = run(case, &format!("output/{setting}"), &tokens, &routing, &experts);
        if case.config("objective").as_str().unwrap().contains(&format!("output/{setting}/y")) {
            experts.expect_gradients(case, &gradients);
            case.expect("grad/input/x", &tokens.grad(&gradients).unwrap());
            case.expect("grad/param/Router.dense.kernel", &router.weight.grad(&gradients).unwrap());
        }
    }
}

pub(crate) fn soft(case: &Case) {
    let normalised = case.config("l2_normalise").as_bool().unwrap();
    let name = if normalised { "Router.mu" } else { "Router.phi" };
    let parameter = case.tensor::<3>(&format!("param/{name}"));
    let [width, experts, slots] = parameter.dims();
    assert_eq!(slots, case.size("slots_per_expert"));
    if let Some(factor) = case.json()["config"]["capacity_factor_arg"].as_f64() {
        assert_eq!(Soft::slots_for(case.size("group_size"), experts, factor), Ok(slots));
    }
    let config = RouterConfig {
        grouping: Grouping::Tokens(case.size("group_size")),
        ..RouterConfig::new(experts, Allocation::Soft(Soft::new(slots, normalised)))
    };
    let mut router =
        config.init_with(parameter.reshape([width, experts * slots]).detach()).unwrap();
    if normalised {
        router.scale =
            Some(burn::module::Param::from_tensor(case.reshaped("param/Router.scale", [1])));
    }
    let tokens = case.matrix("input/x");
    let layout = Layout::new(case.size("B"), case.size("T"));
    let routing = router.route(tokens.clone(), &Context::inference(layout)).unwrap();
    let Allocation::Soft(soft) = config.allocation else { unreachable!() };
    let scale = router.scale.as_ref().map(|scale| scale.val());
    case.expect("output/logits", &soft.logits(tokens.clone(), router.weight.val(), scale));
    expect_dense(case, "output", &dense(&routing.plan));
    case.expect("output/slots", &routing.plan.as_soft().unwrap().slots(tokens.clone()));

    let experts = Experts::new(case);
    let gradients = run(case, "output", &tokens, &routing, &experts);
    experts.expect_gradients(case, &gradients);
    case.expect("grad/input/x", &tokens.grad(&gradients).unwrap());
    case.expect(&format!("grad/param/{name}"), &router.weight.grad(&gradients).unwrap());
    if let Some(scale) = &router.scale {
        case.expect("grad/param/Router.scale", &scale.grad(&gradients).unwrap());
    }
}

pub(crate) fn ensemble(case: &Case) {
    let (experts, members) = (case.size("E"), case.size("M"));
    let order = order_of(case.config("batch_priority").as_bool().unwrap());
    let choice = TokenChoice::limited(case.size("K"), capacity_of(&case.json()["config"]), order);
    let config = RouterConfig {
        losses: losses_of(case),
        pool: Pool::Members { members, overlap: 0 },
        grouping: Grouping::Tokens(case.size("group_size")),
        ..RouterConfig::new(experts, Allocation::TokenChoice(choice))
    };
    let width = case.size("D");
    let weight = case.reshaped("param/Router.dense.kernel", [width, experts]);
    let router = config.init_with(weight).unwrap();
    let tokens = case.matrix("input/x");
    let layout = Layout::new(case.size("B"), case.size("T")).tiled(members);
    let context = Context::training(layout.clone(), Seed::new(0));
    let routing = router.route(tokens.clone(), &context).unwrap();

    // The gates of every member in one matrix, in routing order, zero outside the member's block.
    let plan = routing.plan.as_sparse().unwrap();
    let order = plan.groups().order();
    let place = |token: u32| order.iter().position(|other| *other == token).unwrap();
    let mut gates = vec![0.0; layout.rows() * experts];
    for table in &routing.tables {
        for (row, token) in table.tokens.iter().enumerate() {
            for (column, expert) in table.experts.iter().enumerate() {
                gates[place(*token) * experts + expert] =
                    table.gates[row * table.columns() + column];
            }
        }
    }
    case.expect_values("output/gates", &gates);
    let index: Vec<i32> = order.iter().map(|token| *token as i32).collect();
    let index = Tensor::from_data(index.as_slice(), &tokens.device());
    case.expect("output/grouped_x", &tokens.clone().select(0, index));
    expect_dense(case, "output", &dense(&routing.plan));
    case.expect("output/auxiliary_loss", &routing.losses.per_group().unwrap());
    expect_losses(case, &router, &tokens, &context);

    expect_layer(case, &tokens, &router, &routing);
}
