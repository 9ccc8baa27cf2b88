//! Capacities, ties and projections: exact little tables.

use burn::tensor::{Device, Tensor};
use omma_golden::Case;
use omma_routing::{
    Allocation, Capacity, Context, ExpertChoice, Layout, Order, Plan, Rounding, RouterConfig,
    SparsePlan, TokenChoice, affinity::sparse_simplex_projection,
};

use crate::golden::layer::{dense, expect_dense};

pub(crate) fn capacity(case: &Case) {
    let rows = case.ints("input/rows").chunks_exact(4);
    let factors = case.floats("input/capacity_factor");
    let found = rows.zip(factors).map(|(row, factor)| {
        let [tokens, experts, rounding, multiple_of] = *row else { unreachable!() };
        let capacity = Capacity {
            // The stored factor is single precision; the shortest decimal is what was meant.
            factor: factor.to_string().parse().unwrap(),
            rounding: if rounding == 0 { Rounding::Ceil } else { Rounding::Round },
            multiple_of: multiple_of.max(1) as usize,
        };
        capacity.slots(tokens as usize, experts as usize).unwrap() as i32
    });
    case.expect_ints("output/capacity", found);
}

pub(crate) fn simplex(case: &Case) {
    let length = case.shape("input/v")[1];
    for k in case.config("k").as_array().unwrap() {
        let k = k.as_u64().unwrap() as usize;
        let vectors = case.floats("input/v").chunks_exact(length);
        let projected = vectors.flat_map(|vector| {
            let vector: Vec<f64> = vector.iter().map(|value| f64::from(*value)).collect();
            sparse_simplex_projection(&vector, k).unwrap()
        });
        let projected: Vec<f32> = projected.map(|value| value as f32).collect();
        case.expect_values(&format!("output/p_k{k}"), &projected);
    }
}

/// The gates are given, so capacity is the only other setting: a factor that makes exactly it.
pub(crate) fn tie_order(case: &Case) {
    let gates = case.matrix("input/gates").detach();
    let [tokens, experts] = gates.dims();
    let variants: Vec<&str> =
        case.names().filter_map(|name| name.strip_suffix("/dispatch")).collect();
    for variant in variants {
        let kind = variant.strip_prefix("output/").unwrap();
        let capacity = *case.shape(&format!("{variant}/dispatch")).last().unwrap();
        let exactly = |choices: usize| {
            Capacity::factor(capacity as f64 * experts as f64 / (tokens * choices) as f64 - 1e-9)
        };
        let allocation = match kind.strip_prefix("top") {
            None => Allocation::ExpertChoice(ExpertChoice { capacity: exactly(1) }),
            Some(kind) => {
                let (k, order) = kind.split_once('_').unwrap();
                let k = k.parse().unwrap();
                let order = if order == "bpr" { Order::MaxGate } else { Order::Arrival };
                Allocation::TokenChoice(TokenChoice::limited(k, exactly(k), order))
            }
        };
        let plan = route_given(allocation, gates.clone());
        assert_eq!(plan.capacities(), [capacity]);
        if let Some(decisions) = plan.decisions() {
            let pairs = decisions.experts.iter().zip(&decisions.slots);
            let pairs = pairs.flat_map(|(expert, slot)| [*expert as i32, *slot as i32]);
            case.expect_ints(&format!("{variant}/indices"), pairs);
        }
        expect_dense(case, variant, &dense(&Plan::Sparse(plan)));
    }
}

fn route_given(allocation: Allocation, gates: Tensor<2>) -> SparsePlan {
    let [tokens, experts] = gates.dims();
    assert_eq!(gates.device(), Device::flex());
    let config = RouterConfig::new(experts, allocation);
    config.allocate(gates.clone(), gates, &Context::inference(Layout::new(1, tokens))).unwrap()
}
