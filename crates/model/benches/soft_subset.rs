//! A Soft MoE layer that asks some of its experts (paper 004 Table 3).
//!
//! `cargo bench --workspace --bench soft_subset` times the forward pass of one layer of eight large
//! experts, 768 → 30,720 → 768 with one slot each, for one image and for a hundred, with all experts and
//! with three quarters, half and a quarter of them, in turn; the figures are medians. Weights are packed once,
//! as by all programs that predict. It takes 4 GB.

#![expect(clippy::print_stdout, reason = "the table is this program's result")]

use std::{hint::black_box, sync::Arc, time::Instant};

use burn::tensor::{Device, Tensor, TensorData};
use omma_kernels::PackedWeights;
use omma_model::{Activation, ExpertStart, MlpConfig, MoeLayer, MoeLayerConfig};
use omma_routing::{Allocation, Context, Grouping, Layout, RouterConfig, Seed, Soft};
use rand::RngExt;

#[global_allocator]
static ALLOCATOR: omma_kernels::memory::Allocator = omma_kernels::memory::Allocator;

const WIDTH: usize = 768;
const HIDDEN: usize = 40 * WIDTH;
const EXPERTS: usize = 8;
const TOKENS: usize = 196;
const ROUNDS: usize = 9;

/// The layer with so many experts that serve an image; all share one set of parameters.
fn layers(subsets: &[usize]) -> Vec<MoeLayer> {
    let config = |subset: usize| {
        let soft = Soft { subset: Some(subset), ..Soft::new(1, false) };
        let router = RouterConfig {
            grouping: Grouping::Images(1),
            ..RouterConfig::new(EXPERTS, Allocation::Soft(soft))
        };
        let mlp = MlpConfig {
            width: WIDTH,
            hidden: HIDDEN,
            activation: Activation::GeluErf,
            dropout: 0.0,
        };
        MoeLayerConfig { router, mlp, shared_expert: false, start: ExpertStart::default() }
    };
    let init = |subset: &usize| config(*subset).init(Seed::new(1), &Device::flex());
    let first = init(&subsets[0]).expect("a router that routes");
    let mut layers = vec![first];
    for subset in &subsets[1..] {
        // Parameters are drawn when they are first used, so these never are.
        let mut layer = init(subset).expect("a router that routes");
        layer.experts.up = layers[0].experts.up.clone();
        layer.experts.up_bias = layers[0].experts.up_bias.clone();
        layer.experts.down = layers[0].experts.down.clone();
        layer.experts.down_bias = layers[0].experts.down_bias.clone();
        layers.push(layer);
    }
    layers
}

fn main() {
    let subsets = [EXPERTS, EXPERTS * 3 / 4, EXPERTS / 2, EXPERTS / 4];
    let layers = layers(&subsets);
    let mut packed = PackedWeights::default();
    packed.add(&layers[0].experts.up.val());
    packed.add(&layers[0].experts.down.val());
    let packed = Arc::new(packed);
    println!("{} threads, medians of {ROUNDS}", rayon::current_num_threads());
    for images in [1, 100] {
        let mut rng = Seed::new(2).rng();
        let values = (0..images * TOKENS * WIDTH).map(|_| rng.random_range(-1.0..1.0));
        let values = TensorData::new(values.collect::<Vec<f32>>(), [images * TOKENS, WIDTH]);
        let tokens: Tensor<2> = Tensor::from_data(values, &Device::flex());
        let context = Context::inference(Layout::new(images, TOKENS));
        let mut times = vec![Vec::new(); layers.len()];
        for round in 0..=ROUNDS {
            for (layer, times) in layers.iter().zip(&mut times) {
                let start = Instant::now();
                let forward = || layer.forward(tokens.clone(), &context, None);
                let output = rayon::scope(|_| packed.using(forward));
                black_box(output.expect("finite logits"));
                if round > 0 {
                    times.push(start.elapsed().as_secs_f64());
                }
            }
        }
        let medians = times.iter_mut().map(|times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let medians: Vec<f64> = medians.collect();
        for (subset, median) in subsets.iter().zip(&medians) {
            let share = median / medians[0];
            println!("batch {images:>3}, k = {subset}: {:>8.1} ms, {share:.2}", median * 1e3);
        }
    }
}
