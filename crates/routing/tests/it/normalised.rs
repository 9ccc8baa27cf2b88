//! Combine weights that add up to 1 for every token that is served.

use burn::tensor::{Device, Tensor, TensorData};
use omma_routing::{CombineWeights, Context, Layout, Pool, RouterConfig, Seed};

#[test]
fn copies_of_one_network_do_what_it_did() {
    let device = Device::flex();
    let layout = Layout::new(3, 8);
    for (k, pool) in [
        (1, Pool::All),
        (2, Pool::All),
        (1, Pool::Partition { subsets: 2 }),
        (3, Pool::Members { members: 1, overlap: 0 }),
    ] {
        let base = RouterConfig::softmax_token_choice(8, k);
        let config = RouterConfig { combine: CombineWeights::Normalised, pool, ..base };
        let router = config.init(6, Seed::new(1), &device).unwrap();
        let tokens = tokens(&layout);
        let routing = router.route(tokens.clone(), &Context::inference(layout.clone())).unwrap();
        let output = routing.plan.apply(tokens.clone(), |_, rows| rows * 3.0);
        let difference = (output - tokens * 3.0).abs().max();
        let difference: f32 = difference.try_into_vec_as::<f32>().unwrap()[0];
        assert!(difference < 1e-5, "K = {k}: {difference}");
        // And not before they are normalised.
        let plain = base_sum(&RouterConfig { combine: CombineWeights::Gates, ..config }, &layout);
        assert!((plain - 1.0).abs() > 0.01, "{plain}");
    }
}

/// `[rows, 6]`: always the same.
fn tokens(layout: &Layout) -> Tensor<2> {
    let value = |place: usize| 2.0 * ((place as f32) * 12.9898).sin();
    let values: Vec<f32> = (0..layout.rows() * 6).map(value).collect();
    Tensor::from_data(TensorData::new(values, [layout.rows(), 6]), &Device::flex())
}

/// The mean of the weights' sums over tokens.
fn base_sum(config: &RouterConfig, layout: &Layout) -> f32 {
    let device = Device::flex();
    let router = config.init(6, Seed::new(1), &device).unwrap();
    let routing = router.route(tokens(layout), &Context::inference(layout.clone())).unwrap();
    let plan = routing.plan.as_sparse().unwrap();
    let sum: f32 = plan.weights().clone().sum().into_scalar();
    sum / layout.rows() as f32
}
