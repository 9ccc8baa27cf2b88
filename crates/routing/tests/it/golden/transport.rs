//! Affinities from optimal transport.

use burn::tensor::activation::softmax;
use omma_golden::{Case, values};
use omma_routing::{
    Affinity, Allocation, Capacity, CombineWeights, Context, ExpertChoice, Grouping, Layout,
    RouterConfig, Sinkhorn, SparseTransport, TokenChoice, affinity::SparseSide,
};

use crate::golden::layer::{capacity_of, dense, expect_dense, order_of};

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

pub(crate) fn sinkhorn(case: &Case) {
    let (size, experts) = (case.size("T"), case.size("E"));
    let tokens = case.matrix("input/x");
    let weight = case.matrix("param/Router.dense.kernel");
    let logits = tokens.clone().matmul(weight.clone());
    case.expect("output/logits", &logits);
    case.expect("output/softmax", &softmax(logits.clone(), 1));

    let solver = Sinkhorn {
        regularisation: case.config("regularisation").as_f64().unwrap(),
        ..Default::default()
    };
    let solved = solver.solve(&values(&logits), [size, experts]);
    case.expect_values("output/plan", &solved.plan);
    let exact = Sinkhorn { tolerance: 1e-12, ..solver }.solve(&values(&logits), [size, experts]);
    case.expect_values("output/f", &narrow(&exact.token_potential));
    case.expect_values("output/g", &narrow(&exact.expert_potential));

    let variants: Vec<&str> =
        case.names().filter_map(|name| name.strip_suffix("/dispatch")).collect();
    for variant in variants {
        let name = variant.strip_prefix("output/").unwrap();
        let allocation = match name.strip_prefix("token_choice_top") {
            Some(name) => {
                let (k, order) = name.split_once('_').unwrap();
                let capacity = capacity_of(case.config("token_choice"));
                let order = order_of(order == "bpr");
                Allocation::TokenChoice(TokenChoice::limited(k.parse().unwrap(), capacity, order))
            }
            None => {
                let capacity = capacity_of(case.config("expert_choice"));
                Allocation::ExpertChoice(ExpertChoice { capacity })
            }
        };
        let config = RouterConfig {
            affinity: Affinity::Sinkhorn(solver),
            ..RouterConfig::new(experts, allocation)
        };
        let router = config.init_with(weight.clone()).unwrap();
        let context = Context::inference(Layout::new(1, size));
        let routing = router.route(tokens.clone(), &context).unwrap();
        expect_dense(case, variant, &dense(&routing.plan));
    }
}

pub(crate) fn sparse(case: &Case) {
    let (groups, size, experts, k) =
        (case.size("G"), case.size("S"), case.size("E"), case.size("k"));
    let tokens = case.matrix("input/x");
    let weight = case.matrix("param/Router.dense.kernel");
    let logits = tokens.clone().matmul(weight.clone());
    let gates = softmax(logits.clone(), 1);
    case.expect("output/logits", &logits);
    case.expect("output/softmax", &gates);

    let solver = SparseTransport {
        steps: case.size("maxiter"),
        learning_rate: case.config("adam_lr").as_f64().unwrap(),
    };
    let row_sparse = case.config("sparse_axis").as_str().unwrap().starts_with("row");
    let side = if row_sparse { SparseSide::Tokens } else { SparseSide::Experts };
    let solved: Vec<_> = values(&gates)
        .chunks_exact(size * experts)
        .map(|gates| solver.solve(gates, [size, experts], side, k))
        .collect();
    assert_eq!(solved.len(), groups);
    let dual: Vec<f32> = solved.iter().flat_map(|solved| narrow(&solved.dual)).collect();
    case.expect_values("output/alpha", &dual);

    let dispatcher = case.config("dispatcher");
    let capacity: Capacity = capacity_of(dispatcher);
    let allocation = if row_sparse {
        let order = order_of(dispatcher["batch_priority"].as_bool().unwrap_or(false));
        Allocation::TokenChoice(TokenChoice::limited(k, capacity, order))
    } else {
        Allocation::ExpertChoice(ExpertChoice { capacity })
    };
    let sources = [
        (CombineWeights::Gates, "output/combine_softmax_combine"),
        (CombineWeights::Affinity, "output/combine_plan_combine"),
    ];
    for (combine, name) in sources {
        let config = RouterConfig {
            affinity: Affinity::SparseTransport(solver),
            combine,
            grouping: Grouping::Tokens(size),
            ..RouterConfig::new(experts, allocation)
        };
        let router = config.init_with(weight.clone()).unwrap();
        let context = Context::inference(Layout::new(groups, size));
        let routing = router.route(tokens.clone(), &context).unwrap();
        let table = &routing.tables[0];
        case.expect_values("output/gates_ot", table.affinity.as_ref().unwrap());
        let (dispatch, combine): (Vec<f32>, Vec<f32>) = dense(&routing.plan);
        case.expect_dispatch("output/dispatch", &dispatch);
        case.expect_values(name, &combine);
    }
}
