//! This project's side of `benches/peers`: a line of its input is a number and a job, which it runs once
//! and then so many times, and answers with the mean seconds of these; or a whole model, and it answers with the
//! number of its parameters. See `benches/peers/README.md`.

#![expect(clippy::print_stdout, reason = "the times are this program's result")]

use std::{hint::black_box, io::BufRead, sync::Arc, time::Instant};

use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use omma_kernels::{Activation, layer_norm, linear, self_attention};
use omma_model::{
    ExpertStart, MlpConfig, Mode, MoeLayerConfig, Pairs, VisionTransformer, apply_settings,
    packed_weights, preset, softmax_contrast, text_tensor,
};
use omma_routing::{Allocation, Context, Layout, RouterConfig, Seed, TokenChoice};
use rand::RngExt;

#[global_allocator]
static ALLOCATOR: omma_kernels::memory::Allocator = omma_kernels::memory::Allocator;

const WIDTH: usize = 384;
const HIDDEN: usize = 1536;
const IMAGES: usize = 32;
const TOKENS: usize = 64;
const HEADS: usize = 6;
const BLOCKS: usize = 4;
const PAIRS: usize = 64;

/// Products of an expert: rows, inputs, outputs.
const PRODUCTS: [[usize; 3]; 2] = [[512, WIDTH, HIDDEN], [512, HIDDEN, WIDTH]];

/// timm's ViT-S/16, and the V-MoE of `train.py` of the same sizes, with eight experts in every other block: presets
/// and settings.
const WHOLE_MODELS: [(&str, &[&str]); 2] = [
    ("vit-dinos16", &["layer_scale=none"]),
    (
        "vmoe-dinos16",
        &[
            "layer_scale=none",
            "class_token=false",
            "position=sincos2d",
            "pooling=mean",
            "classes=10",
            "moe.experts=8",
            "moe.k=1",
            "moe.placement=every-2",
            "moe.capacity_ratio=none",
        ],
    ),
];

/// Something that is timed.
type Job = Box<dyn FnMut() + Send>;

fn main() {
    println!("threads {}", rayon::current_num_threads());
    let mut jobs: Vec<(String, Job)> = Vec::new();
    for backward in [false, true] {
        let pass = if backward { "fwd+bwd" } else { "fwd" };
        for (experts, k) in [(8, 2), (32, 2), (8, 1)] {
            let dropless = Allocation::TokenChoice(TokenChoice::dropless(k));
            let router = RouterConfig::new(experts, dropless);
            jobs.push((format!("moe E={experts} K={k} {pass}"), moe(router, backward)));
        }
        jobs.push((format!("vit {pass}"), vit(backward)));
        jobs.push((format!("soft {pass}"), moe(RouterConfig::soft(8, 8), backward)));
    }
    for [rows, inputs, outputs] in PRODUCTS {
        jobs.push((format!("product {rows}x{inputs}x{outputs}"), product(rows, inputs, outputs)));
    }
    let mut parameters: Vec<(&str, usize)> = Vec::new();
    for (name, settings) in WHOLE_MODELS {
        let model = whole_model(name, settings);
        parameters.push((name, model.num_params()));
        for batch in [1, 8] {
            jobs.push((format!("{name} B={batch}"), prediction(model.clone(), batch)));
        }
    }
    jobs.push(("contrast dense".to_owned(), contrast(false)));
    jobs.push(("contrast experts".to_owned(), contrast(true)));
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the input can be read");
        if let Some((_, count)) = parameters.iter().find(|(name, _)| *name == line.trim()) {
            println!("{count}");
            continue;
        }
        let wanted = line.trim().split_once(' ');
        let wanted = wanted.and_then(|(repeats, name)| Some((repeats.parse::<u32>().ok()?, name)));
        let job = wanted.and_then(|(repeats, wanted)| {
            let (_, job) = jobs.iter_mut().find(|(name, _)| name == wanted)?;
            Some((repeats, job))
        });
        match job {
            None => println!("unknown job"),
            // As the trainer does: on a thread of the pool.
            Some((repeats, job)) => rayon::scope(|_| {
                job();
                let start = Instant::now();
                (0..repeats).for_each(|_| job());
                println!("{}", (start.elapsed() / repeats.max(1)).as_secs_f64());
            }),
        }
    }
}

fn device(backward: bool) -> Device {
    if backward { Device::flex().autodiff() } else { Device::flex() }
}

fn random<const R: usize>(shape: [usize; R], scale: f32, device: &Device) -> Tensor<R> {
    let mut rng = Seed::new(1).named("peer").rng();
    let values = (0..shape.iter().product()).map(|_| rng.random_range(-scale..scale));
    let tensor = Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), shape), device);
    if tensor.is_autodiff() { tensor.require_grad() } else { tensor }
}

fn finish<const R: usize>(output: Tensor<R>, backward: bool) {
    if backward {
        black_box(output.sum().backward());
    } else {
        black_box(output);
    }
}

fn mlp_config(activation: Activation) -> MlpConfig {
    MlpConfig { width: WIDTH, hidden: HIDDEN, activation, dropout: 0.0 }
}

/// A product without a bias.
fn product(rows: usize, inputs: usize, outputs: usize) -> Job {
    let device = device(false);
    let (x, weight) =
        (random([rows, inputs], 1.0, &device), random([inputs, outputs], 1.0, &device));
    Box::new(move || finish(linear(x.clone(), weight.clone(), None), false))
}

/// A model for images of 224 × 224.
fn whole_model(name: &str, settings: &[&str]) -> VisionTransformer {
    let config = preset(name).expect("it is a preset");
    let config = apply_settings(&config, settings).expect("settings of that preset");
    config.init(Seed::new(2), &device(false)).expect("a model that can be built")
}

/// What a whole model says about so many images.
fn prediction(model: VisionTransformer, batch: usize) -> Job {
    let packed = Arc::new(packed_weights(std::slice::from_ref(&model)));
    let images = random([batch, 224, 224, 3], 1.0, &device(false));
    Box::new(move || {
        let forward = || model.forward(images.clone(), &Mode::Inference);
        let output = packed.using(forward).expect("finite logits");
        finish(output.predictions.logits, false);
    })
}

/// A router and its experts.
fn moe(router: RouterConfig, backward: bool) -> Job {
    let device = device(backward);
    let mlp = mlp_config(Activation::GeluTanh);
    let config =
        MoeLayerConfig { router, mlp, shared_expert: false, start: ExpertStart::default() };
    let layer = config.init(Seed::new(2), &device).expect("a router that routes");
    let tokens = random([IMAGES * TOKENS, WIDTH], 1.0, &device);
    let context = Context::inference(Layout::new(IMAGES, TOKENS));
    Box::new(move || {
        let output = layer.forward(tokens.clone(), &context, None).expect("finite logits").output;
        finish(output, backward);
    })
}

/// A training step of pairs without its optimiser: two dense towers as open_clip's, or one tower with eight
/// experts in every other block, K = 1, without a capacity.
fn contrast(experts: bool) -> Job {
    let device = device(true);
    let mut settings = vec![
        "resolution=32",
        "patch=4",
        "width=384",
        "depth=4",
        "heads=6",
        "mlp=1536",
        "embedding=256",
        "text.vocabulary=8192",
    ];
    settings.extend(match experts {
        true => vec!["moe.experts=8", "moe.capacity_ratio=none", "moe.noise=0", "moe.losses=[]"],
        false => vec![
            "moe=none",
            "class_token=true",
            "pooling=token",
            "text_pooling=last",
            "text.tower.width=384",
        ],
    });
    let config = preset("limoe-tiny").expect("it is a preset");
    let config = apply_settings(&config, &settings).expect("settings of that preset");
    let model = config.init(Seed::new(2), &device).expect("a model that can be built").train();
    let images = random([PAIRS, 32, 32, 3], 1.0, &device).detach();
    let mut rng = Seed::new(3).rng();
    let ids: Vec<i32> = (0..PAIRS * 16).map(|_| rng.random_range(1..8192)).collect();
    let ids = text_tensor(ids, 16, &device);
    Box::new(move || {
        let pairs = model
            .embed_pairs(images.clone(), ids.clone(), &Mode::Training(Seed::new(4)))
            .expect("texts of the vocabulary");
        let Pairs { images, texts, scale, bias, .. } = pairs;
        black_box(softmax_contrast(images, texts, scale, bias).backward());
    })
}

/// Pre-norm blocks of attention and MLP, as timm's.
fn vit(backward: bool) -> Job {
    let device = device(backward);
    let x = random([IMAGES, TOKENS, WIDTH], 1.0, &device);
    let mlp = mlp_config(Activation::GeluErf);
    let blocks: Vec<_> = (0..BLOCKS)
        .map(|i| {
            let scale = 0.05;
            (
                [0, 1, 2, 3].map(|_| random([WIDTH], 1.0, &device)),
                (random([WIDTH, 3 * WIDTH], scale, &device), random([3 * WIDTH], scale, &device)),
                (random([WIDTH, WIDTH], scale, &device), random([WIDTH], scale, &device)),
                mlp.init(Seed::new(i as u64), &device),
            )
        })
        .collect();
    Box::new(move || {
        let mut x = x.clone();
        for ([gamma1, beta1, gamma2, beta2], qkv, project, mlp) in &blocks {
            let normal = layer_norm(x.clone(), gamma1.clone(), beta1.clone(), 1e-6);
            let qkv = linear(normal, qkv.0.clone(), Some(qkv.1.clone()));
            let mixed = self_attention(qkv, HEADS);
            x = x + linear(mixed, project.0.clone(), Some(project.1.clone()));
            let normal = layer_norm(x.clone(), gamma2.clone(), beta2.clone(), 1e-6);
            x = x + mlp.forward(normal, None);
        }
        finish(x, backward);
    })
}
