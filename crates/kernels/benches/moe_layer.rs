//! The experts of an MoE layer against what bounds them.
//!
//! `cargo bench -p omma-kernels` times `expert_mlp`, forward and forward with backward, against the
//! raw products of the same FLOPs, against a dense MLP of the same FLOPs, and over the number of
//! experts. All figures of a line come from one run, in turn, and are medians.

#![expect(clippy::print_stdout, reason = "the table is this program's result")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use burn::tensor::{Device, Tensor, TensorData};
use gemm::{Parallelism, gemm};
use omma_kernels::{Activation, Dispatch, ExpertParameters, expert_mlp, mlp};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

#[global_allocator]
static ALLOCATOR: omma_kernels::memory::Allocator = omma_kernels::memory::Allocator;

const TOKENS: usize = 2048;

#[derive(Debug, Clone, Copy)]
struct Shape {
    width: usize,
    hidden: usize,
    experts: usize,
    k: usize,
}

fn random(count: usize) -> Vec<f32> {
    let mut rng = Pcg64::seed_from_u64(1);
    (0..count).map(|_| rng.random_range(-0.1..0.1)).collect()
}

fn tensor<const R: usize>(shape: [usize; R], device: &Device) -> Tensor<R> {
    let tensor = Tensor::from_data(TensorData::new(random(shape.iter().product()), shape), device);
    if tensor.is_autodiff() { tensor.require_grad() } else { tensor }
}

impl Shape {
    fn rows(&self) -> usize {
        TOKENS * self.k
    }

    /// Of the forward pass; the backward pass has twice as many.
    fn flops(&self) -> f64 {
        4.0 * (self.rows() * self.width * self.hidden) as f64
    }

    /// Tokens that choose at random, as an untrained router's do.
    fn dispatch(&self) -> Dispatch {
        let mut rng = Pcg64::seed_from_u64(2);
        let mut rows: Vec<(usize, u32)> = Vec::new();
        for token in 0..TOKENS as u32 {
            let first = rng.random_range(0..self.experts);
            let step = if self.experts > 1 { rng.random_range(1..self.experts) } else { 0 };
            rows.extend((0..self.k).map(|k| ((first + k * step) % self.experts, token)));
        }
        rows.sort();
        let before = |expert| rows.partition_point(|(e, _)| *e < expert);
        let offsets: Vec<usize> = (0..=self.experts).map(before).collect();
        Dispatch::new(offsets, rows.into_iter().map(|(_, token)| token).collect::<Vec<_>>(), TOKENS)
    }

    fn experts_job(&self, device: Device, backward: bool) -> Box<dyn FnMut()> {
        let Self { width, hidden, experts, .. } = *self;
        let dispatch = self.dispatch();
        let tokens = tensor([TOKENS, width], &device);
        let weights = tensor([self.rows()], &device);
        let parameters = ExpertParameters {
            up: tensor([experts, width, hidden], &device),
            up_bias: tensor([experts, hidden], &device),
            down: tensor([experts, hidden, width], &device),
            down_bias: tensor([experts, width], &device),
        };
        Box::new(move || {
            let y = expert_mlp(
                tokens.clone(),
                weights.clone(),
                parameters.clone(),
                &dispatch,
                Activation::GeluTanh,
                None,
            );
            if backward {
                black_box(y.sum().backward());
            } else {
                black_box(y);
            }
        })
    }

    fn dense_job(&self, device: Device, backward: bool) -> Box<dyn FnMut()> {
        let Self { width, hidden, .. } = *self;
        let x = tensor([self.rows(), width], &device);
        let up = (tensor([width, hidden], &device), tensor([hidden], &device));
        let down = (tensor([hidden, width], &device), tensor([width], &device));
        Box::new(move || {
            let y = mlp(x.clone(), up.clone(), down.clone(), Activation::GeluTanh, None);
            if backward {
                black_box(y.sum().backward());
            } else {
                black_box(y);
            }
        })
    }

    /// The products alone, as large as the FLOPs allow, by the library's own threads.
    fn raw_job(&self, backward: bool) -> Box<dyn FnMut()> {
        let Self { width, hidden, .. } = *self;
        let rows = self.rows();
        let (x, mut y) = (random(rows * width), vec![0.0; rows * width]);
        let (mut h, mut g) = (random(rows * hidden), random(rows * hidden));
        let (up, down) = (random(width * hidden), random(hidden * width));
        let (mut dup, mut ddown) = (random(width * hidden), random(hidden * width));
        Box::new(move || {
            product(&mut h, [rows, width, hidden], (&x, false), (&up, false));
            product(&mut y, [rows, hidden, width], (&h, false), (&down, false));
            if backward {
                product(&mut g, [rows, width, hidden], (&x, false), (&down, true));
                product(&mut y, [rows, hidden, width], (&g, false), (&up, true));
                product(&mut dup, [width, rows, hidden], (&x, true), (&g, false));
                product(&mut ddown, [hidden, rows, width], (&h, true), (&x, false));
            }
            black_box((&y, &dup, &ddown));
        })
    }
}

/// `c = a · b` for `[m, k]` and `[k, n]`, each stored as it is or transposed.
fn product(c: &mut [f32], [m, k, n]: [usize; 3], a: (&[f32], bool), b: (&[f32], bool)) {
    assert!(c.len() == m * n && a.0.len() == m * k && b.0.len() == k * n);
    let strides = |transposed: bool, rows: usize, columns: usize| match transposed {
        true => (rows as isize, 1),
        false => (1, columns as isize),
    };
    let (a_strides, b_strides) = (strides(a.1, m, k), strides(b.1, k, n));
    // SAFETY: the sizes are checked above and the strides are those of full matrices.
    unsafe {
        gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.0.as_ptr(),
            a_strides.0,
            a_strides.1,
            b.0.as_ptr(),
            b_strides.0,
            b_strides.1,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::Rayon(0),
        );
    }
}

/// Medians of jobs that run in turn, so that a noisy moment hits all of them.
fn medians(rounds: usize, jobs: &mut [Box<dyn FnMut()>]) -> Vec<Duration> {
    let mut times = vec![Vec::new(); jobs.len()];
    for round in 0..rounds + 2 {
        for (job, times) in jobs.iter_mut().zip(&mut times) {
            let start = Instant::now();
            job();
            if round >= 2 {
                times.push(start.elapsed());
            }
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    times.into_iter().map(median).collect()
}

fn main() {
    let rounds = 11;
    let (plain, graph) = (Device::flex, || Device::flex().autodiff());
    println!("{TOKENS} tokens, f32, {} threads, medians of {rounds}", rayon::current_num_threads());
    println!(
        "{:<34}{:>9}{:>12}{:>12}{:>14}{:>14}",
        "shape", "", "time", "GFLOP/s", "of raw GEMMs", "of dense MLP"
    );
    let shape = |width, experts, k| Shape { width, hidden: 4 * width, experts, k };
    for shape in [shape(384, 8, 2), shape(384, 32, 2), shape(384, 8, 1), shape(768, 8, 2)] {
        for backward in [false, true] {
            let device = if backward { graph() } else { plain() };
            let mut jobs = [
                shape.experts_job(device.clone(), backward),
                shape.raw_job(backward),
                shape.dense_job(device, backward),
            ];
            let times = medians(rounds, &mut jobs);
            let [experts, raw, dense] = [0, 1, 2].map(|i| times[i].as_secs_f64());
            let flops = shape.flops() * if backward { 3.0 } else { 1.0 };
            println!(
                "{:<34}{:>9}{:>9.1} ms{:>12.0}{:>12.0} %{:>12.2} ×",
                format!("D={} H={} E={} K={}", shape.width, shape.hidden, shape.experts, shape.k),
                if backward { "fwd+bwd" } else { "fwd" },
                experts * 1e3,
                flops / experts / 1e9,
                100.0 * raw / experts,
                experts / dense,
            );
        }
    }
    println!("\ntime over the number of experts, D=384 H=1536 K=2");
    for backward in [false, true] {
        let counts = [8, 16, 32, 64];
        let device = || if backward { graph() } else { plain() };
        let mut jobs: Vec<_> =
            counts.iter().map(|e| shape(384, *e, 2).experts_job(device(), backward)).collect();
        let times = medians(rounds, &mut jobs);
        let ratio = |time: &Duration| format!("{:.2}", time.as_secs_f64() / times[0].as_secs_f64());
        let ratios: Vec<String> =
            counts.iter().zip(&times).map(|(e, time)| format!("E={e} ×{}", ratio(time))).collect();
        println!("  {:<8} {}", if backward { "fwd+bwd" } else { "fwd" }, ratios.join("  "));
    }
}
