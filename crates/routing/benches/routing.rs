//! What routing costs.
//!
//! `cargo bench -p omma-routing` times every router over tokens and experts, then prints two
//! ratios, each measured inside the same run: how the time of softmax token choice grows from `T` to
//! `4T`, and how it compares with the raw GEMMs of the experts it routes to.

#![expect(clippy::print_stdout, reason = "the ratios are this program's result")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use burn::tensor::{Device, Tensor, TensorData};
use omma_kernels::linear;
use omma_routing::{Allocation, Context, Layout, Order, Router, RouterConfig, Seed, Soft};
use rand::RngExt;

/// The allocator that programs built from this workspace use.
#[global_allocator]
static ALLOCATOR: omma_kernels::memory::Allocator = omma_kernels::memory::Allocator;

const WIDTH: usize = 384;
const HIDDEN: usize = 1536;
const K: usize = 2;
const TOKENS_PER_IMAGE: usize = 256;
const TOKENS: [usize; 4] = [1 << 10, 1 << 12, 1 << 14, 1 << 16];
const EXPERTS: [usize; 3] = [8, 32, 128];

/// One router with a batch to route.
struct Job {
    router: Router,
    tokens: Tensor<2>,
    context: Context,
}

impl Job {
    fn new(config: &RouterConfig, tokens: usize, training: bool) -> Self {
        let device = Device::flex();
        let layout = Layout::new(tokens / TOKENS_PER_IMAGE, TOKENS_PER_IMAGE);
        let context = match training {
            true => Context::training(layout, Seed::new(1)),
            false => Context::inference(layout),
        };
        let values = TensorData::new(random(tokens * WIDTH), [tokens, WIDTH]);
        let router = config.init(WIDTH, Seed::new(2), &device).unwrap();
        Self { router, tokens: Tensor::from_data(values, &device), context }
    }

    fn run(&self) {
        black_box(self.router.route(self.tokens.clone(), &self.context).unwrap());
    }
}

fn random(length: usize) -> Vec<f32> {
    let mut rng = Seed::new(3).named("bench").rng();
    (0..length).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn routers(experts: usize) -> Vec<(&'static str, RouterConfig, bool)> {
    let slots = Soft::slots_for(TOKENS_PER_IMAGE, experts, 1.0).unwrap();
    vec![
        ("softmax token choice", RouterConfig::softmax_token_choice(experts, K), false),
        ("softmax token choice, training", by_priority(experts), true),
        ("sinkhorn token choice", RouterConfig::sinkhorn_token_choice(experts, K), true),
        ("softmax expert choice", RouterConfig::softmax_expert_choice(experts, 1.0), false),
        ("sinkhorn expert choice", RouterConfig::sinkhorn_expert_choice(experts, 1.0), false),
        ("sparse expert choice", RouterConfig::sparse_expert_choice(experts, 1.0), false),
        ("soft", RouterConfig::soft(experts, slots), false),
    ]
}

/// V-MoE's router with batch priority, which sorts the tokens: the most that token choice does.
fn by_priority(experts: usize) -> RouterConfig {
    let mut config = RouterConfig::softmax_token_choice(experts, K);
    if let Allocation::TokenChoice(choice) = &mut config.allocation {
        choice.order = Order::MaxGate;
    }
    config
}

/// Median times of all routers, in tokens per microsecond.
fn every_router() {
    for (name, ..) in routers(8) {
        println!("{name}");
        for experts in EXPERTS {
            let (_, config, training) =
                routers(experts).into_iter().find(|(other, ..)| *other == name).unwrap();
            for tokens in TOKENS {
                let job = Job::new(&config, tokens, training);
                job.run();
                let [time] = medians(15, [&mut || job.run()]);
                let speed = tokens as f64 / (time.as_secs_f64() * 1e6);
                let time = time.as_secs_f64() * 1e3;
                println!(
                    "  E={experts:<3} {tokens:>6} tokens  {time:>9.3} ms  {speed:>7.2} tokens/µs"
                );
            }
        }
    }
}

/// Medians of several jobs, run in turn so that a noisy moment hits all of them.
fn medians<const N: usize>(rounds: usize, mut jobs: [&mut dyn FnMut(); N]) -> [Duration; N] {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..rounds {
        for (job, times) in jobs.iter_mut().zip(&mut times) {
            let start = Instant::now();
            job();
            times.push(start.elapsed());
        }
    }
    times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    })
}

fn growth() {
    let config = RouterConfig::softmax_token_choice(32, K);
    let jobs = TOKENS.map(|tokens| Job::new(&config, tokens, false));
    let [a, b, c, d] = medians(
        41,
        [&mut || jobs[0].run(), &mut || jobs[1].run(), &mut || jobs[2].run(), &mut || {
            jobs[3].run()
        }],
    );
    println!("\nsoftmax token choice, E = 32, K = {K}, D = {WIDTH}");
    for (tokens, time) in TOKENS.into_iter().zip([a, b, c, d]) {
        println!("  {tokens:>6} tokens  {:>8.3} ms", time.as_secs_f64() * 1e3);
    }
    for (tokens, (less, more)) in TOKENS.into_iter().zip([(a, b), (b, c), (c, d)]) {
        let ratio = more.as_secs_f64() / less.as_secs_f64();
        println!("  {tokens:>6} → {:>6} tokens  ×{ratio:.2}", tokens * 4);
    }
}

fn share_of_experts() {
    let (tokens, experts) = (1 << 14, 32);
    let rows = tokens * K / experts;
    let matrix = |rows: usize, columns: usize| -> Tensor<2> {
        let values = TensorData::new(random(rows * columns), [rows, columns]);
        Tensor::from_data(values, &Device::flex())
    };
    let input = matrix(rows, WIDTH);
    let weights: Vec<_> =
        (0..experts).map(|_| (matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH))).collect();
    // Products alone: no bias, no activation, rows that lie together.
    let mut experts_gemms = || {
        for (up, down) in &weights {
            black_box(linear(linear(input.clone(), up.clone(), None), down.clone(), None));
        }
    };
    let config = by_priority(experts);
    let (inference, training) = (Job::new(&config, tokens, false), Job::new(&config, tokens, true));
    let [gemms, inference, training] =
        medians(15, [&mut experts_gemms, &mut || inference.run(), &mut || training.run()]);
    println!("\n{tokens} tokens, E = {experts}, K = {K}, D = {WIDTH}, hidden {HIDDEN}");
    println!("  expert GEMMs, forward    {:>8.2} ms", gemms.as_secs_f64() * 1e3);
    for (name, time) in [("routing, inference", inference), ("routing, training", training)] {
        let share = 100.0 * time.as_secs_f64() / gemms.as_secs_f64();
        println!("  {name:<22}   {:>8.2} ms  {share:.2} % of the GEMMs", time.as_secs_f64() * 1e3);
    }
}

fn main() {
    // The ratios alone: `cargo bench -p omma-routing -- ratios`.
    if !std::env::args().any(|argument| argument == "ratios") {
        every_router();
    }
    growth();
    share_of_experts();
}
