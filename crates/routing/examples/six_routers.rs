//! Routes one batch with the six routers of paper 001 and prints what each of them did.
//!
//! `cargo run --example six_routers`

#![expect(clippy::print_stdout, reason = "the table is this program's result")]

use burn::tensor::{Device, Tensor, TensorData};
use omma_routing::{Context, Layout, Result, RouterConfig, Seed, Soft, Statistics};
use rand::RngExt;
use rand_distr::StandardNormal;

const EXPERTS: usize = 8;
const K: usize = 2;
const WIDTH: usize = 64;

fn main() -> Result<()> {
    let (images, tokens_per_image) = (16, 64);
    let layout = Layout::new(images, tokens_per_image);
    let device = Device::flex();
    let tokens = batch(&layout, &device);
    let slots = Soft::slots_for(tokens_per_image, EXPERTS, 1.0)?;
    let routers = [
        ("softmax token choice", RouterConfig::softmax_token_choice(EXPERTS, K)),
        ("Sinkhorn token choice", RouterConfig::sinkhorn_token_choice(EXPERTS, K)),
        ("softmax expert choice", RouterConfig::softmax_expert_choice(EXPERTS, K as f64)),
        ("Sinkhorn expert choice", RouterConfig::sinkhorn_expert_choice(EXPERTS, K as f64)),
        ("sparse expert choice", RouterConfig::sparse_expert_choice(EXPERTS, K as f64)),
        ("soft", RouterConfig::soft(EXPERTS, slots)),
    ];

    println!(
        "{images} images of {tokens_per_image} tokens, {EXPERTS} experts; token choice with k = {K}, expert choice with \
         capacity factor {K}, soft with {slots} slots per expert\n"
    );
    println!(
        "{:<24}{:<44}{:>6}{:>9}{:>10}{:>15}{:>10}",
        "router", "load per expert", "peak", "dropped", "unserved", "experts/token", "entropy"
    );
    for (name, config) in routers {
        let router = config.init(WIDTH, Seed::new(7), &device)?;
        let context = Context::training(layout.clone(), Seed::new(1));
        let statistics = router.route(tokens.clone(), &context)?.statistics();
        println!("{name:<24}{}", row(&statistics));
    }
    println!(
        "\nload: tokens (soft: slots) per expert · peak: busiest expert over a balanced one · \
         dropped: choices without room\nunserved: tokens that no expert saw · entropy: of a token's \
         gates, in nats (ln {EXPERTS} = {:.3})",
        (EXPERTS as f64).ln()
    );
    Ok(())
}

fn row(statistics: &Statistics) -> String {
    let load: String = statistics.load.iter().map(|load| format!("{load:>5}")).collect();
    let served = statistics.experts_per_token.iter().enumerate().map(|(n, tokens)| n * tokens);
    format!(
        "{load:<44}{:>6.2}{:>8.1}%{:>10}{:>15.2}{:>10.3}",
        statistics.peak_load(),
        100.0 * statistics.dropped_share(),
        statistics.unserved(),
        served.sum::<usize>() as f64 / statistics.tokens as f64,
        statistics.gate_entropy,
    )
}

/// Tokens in clusters of different sizes, as patches of images are: a router that balances nothing
/// sends most of them to few experts.
fn batch(layout: &Layout, device: &Device) -> Tensor<2> {
    let mut rng = Seed::new(5).named("tokens").rng();
    let mut normal = |scale: f32| rng.sample::<f32, _>(StandardNormal) * scale;
    let centres: Vec<Vec<f32>> =
        (0..6).map(|_| (0..WIDTH).map(|_| normal(1.0)).collect()).collect();
    let mut values = Vec::with_capacity(layout.rows() * WIDTH);
    for token in 0..layout.rows() {
        let centre = &centres[[0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5][token * 7 % 12]];
        values.extend(centre.iter().map(|coordinate| coordinate + normal(0.7)));
    }
    Tensor::from_data(TensorData::new(values, [layout.rows(), WIDTH]), device)
}
