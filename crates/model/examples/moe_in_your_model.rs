//! An MoE layer inside a Burn model of your own: a step of training, then a prediction.
//!
//! `cargo run --example moe_in_your_model`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use burn::{
    module::Module,
    tensor::{Device, Distribution, Tensor},
};
use omma_model::{Activation, ExpertStart, MlpConfig, ModelError, MoeLayer, MoeLayerConfig};
use omma_routing::{Context, Layout, RouterConfig, Seed};

fn main() -> Result<(), ModelError> {
    let device = Device::flex().autodiff();
    let layer = MoeLayerConfig {
        router: RouterConfig::softmax_token_choice(8, 2),
        mlp: MlpConfig { width: 64, hidden: 256, activation: Activation::GeluTanh, dropout: 0.0 },
        shared_expert: false,
        start: ExpertStart::default(),
    }
    .init(Seed::new(1), &device)?;

    let x = Tensor::random([4, 49, 64], Distribution::Default, &device);
    for step in 0..3 {
        let loss = training_loss(&layer, x.clone(), step)?;
        println!("step {step}: loss {:.4}", loss.clone().into_scalar::<f32>());
        let gradients = loss.backward();
        let router = layer.router.weight.val().grad(&gradients);
        let norm = router.map(|gradient| gradient.square().sum().sqrt().into_scalar::<f32>());
        println!("  the router's gradient has norm {:.4}", norm.unwrap_or_default());
    }

    let y = predict(&layer.valid(), x.inner())?;
    println!("a prediction has shape {:?}", y.dims());
    Ok(())
}

/// Your block around the layer: rows in, rows out, and a residual.
///
/// - `x`: `[B, T, D]`
fn training_loss(layer: &MoeLayer, x: Tensor<3>, step: u64) -> Result<Tensor<1>, ModelError> {
    let [batch, tokens, width] = x.dims();
    // Everything random in a step comes from its seed: here the noise on the router's logits.
    let context = Context::training(Layout::new(batch, tokens), Seed::new(step));
    let result = layer.forward(x.clone().reshape([batch * tokens, width]), &context, None)?;
    let y = x + result.output.reshape([batch, tokens, width]);
    println!("  {:?}", result.routing.statistics());
    let task = y.square().mean();
    // A router pays for using its experts badly, if its configuration has such losses.
    Ok(match result.routing.losses.total() {
        Some(own) => task + own,
        None => task,
    })
}

/// Without noise and without a capacity: an image's prediction does not depend on its neighbours.
fn predict(layer: &MoeLayer, x: Tensor<3>) -> Result<Tensor<3>, ModelError> {
    let [batch, tokens, width] = x.dims();
    let context = Context::inference(Layout::new(batch, tokens));
    let result = layer.forward(x.clone().reshape([batch * tokens, width]), &context, None)?;
    Ok(x + result.output.reshape([batch, tokens, width]))
}
