//! Tokens in half precision: routing itself stays in single precision.

use burn::tensor::{DType, Device, Distribution, Tensor};
use omma_routing::{Context, Layout, RouterConfig, Seed};

#[test]
fn half_precision_tokens_are_routed_and_come_back_in_half_precision() {
    let device = Device::flex();
    let layout = Layout::new(2, 8);
    for config in [
        RouterConfig::softmax_token_choice(4, 2),
        RouterConfig::softmax_expert_choice(4, 1.0),
        RouterConfig::sinkhorn_token_choice(4, 1),
        RouterConfig::soft(4, 2),
    ] {
        let mut router = config.init(6, Seed::new(1), &device).unwrap();
        router.weight = router.weight.map(|weight| weight.cast(DType::BF16));
        router.scale = router.scale.map(|scale| scale.map(|scale| scale.cast(DType::BF16)));
        let tokens = Tensor::<2>::random([16, 6], Distribution::Normal(0.0, 1.0), &device);
        let tokens = tokens.cast(DType::BF16);
        let routing = router.route(tokens.clone(), &Context::inference(layout.clone())).unwrap();
        let output = routing.plan.apply(tokens, |_, rows| rows * 2.0);
        assert_eq!(output.dtype(), DType::BF16, "{config:?}");
        if let Some(plan) = routing.plan.as_sparse() {
            assert_eq!(plan.weights().dtype(), DType::F32);
        }
    }
}
