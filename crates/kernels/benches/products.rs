//! Products of an expert's and of the default recipe's shapes against the `gemm` crate and against
//! what the cores can do.
//!
//! `cargo bench -p omma-kernels --bench products` prints, in turn and as medians, the speed of
//! `linear` without a bias, which packs its weight on every call, and that of the library with its own
//! threads, both beside the peak of fused multiply-adds that registers alone allow on all threads.

#![expect(clippy::print_stdout, reason = "the table is this program's result")]

use std::{hint::black_box, time::Instant};

use burn::tensor::{Device, Tensor, TensorData};
use gemm::{Parallelism, gemm};
use omma_kernels::linear;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

#[global_allocator]
static ALLOCATOR: omma_kernels::memory::Allocator = omma_kernels::memory::Allocator;

const ROUNDS: usize = 41;

fn random(count: usize) -> Vec<f32> {
    let mut rng = Pcg64::seed_from_u64(1);
    (0..count).map(|_| rng.random_range(-0.1..0.1)).collect()
}

/// Fused multiply-adds of independent registers, without memory; returns FLOPs.
macro_rules! multiply_adds {
    ($name:ident, $features:literal, $register:ty, $lanes:literal, $spread:ident, $fma:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $name(rounds: usize) -> f64 {
            use std::arch::x86_64::*;
            const CHAINS: usize = 12;
            let mut sums: [$register; CHAINS] =
                std::array::from_fn(|chain| $spread(black_box(1.0 + chain as f32)));
            let (factor, term) = ($spread(0.999), $spread(0.001));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = $fma(*sum, factor, term);
                }
            }
            black_box(sums);
            (rounds * CHAINS * $lanes * 2) as f64
        }
    };
}
multiply_adds!(with_avx2, "avx2,fma", __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps);
multiply_adds!(with_avx512, "avx512f", __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps);

/// GFLOP/s of all threads at once with the widest vectors, the best of some tries.
fn peak() -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    {
        const MULTIPLY_ADDS: usize = 2_000_000;
        let wide = is_x86_feature_detected!("avx512f");
        let narrow = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let try_once = |_| {
            let start = Instant::now();
            let run = |_: rayon::BroadcastContext| match wide {
                // SAFETY: the features were detected.
                true => unsafe { with_avx512(MULTIPLY_ADDS) },
                // SAFETY: as above.
                false => unsafe { with_avx2(MULTIPLY_ADDS) },
            };
            let flops: f64 = rayon::broadcast(run).into_iter().sum();
            flops / start.elapsed().as_secs_f64() / 1e9
        };
        if wide || narrow {
            return (0..7).map(try_once).max_by(f64::total_cmp);
        }
    }
    None
}

/// `c = a · b` by the library on all threads.
fn library(c: &mut [f32], a: &[f32], b: &[f32], [m, k, n]: [usize; 3]) {
    assert!(c.len() == m * n && a.len() == m * k && b.len() == k * n);
    let (c, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
    let (columns, inner) = (n as isize, k as isize);
    let threads = Parallelism::Rayon(0);
    // SAFETY: the sizes are checked above and the strides are those of full matrices.
    unsafe {
        gemm(
            m, n, k, c, 1, columns, false, a, 1, inner, b, 1, columns, 0.0, 1.0, false, false,
            false, threads,
        );
    }
}

fn main() {
    let device = Device::flex();
    let peak = peak();
    match peak {
        Some(peak) => {
            println!("{peak:.0} GFLOP/s at most, {} threads", rayon::current_num_threads())
        }
        None => println!("{} threads", rayon::current_num_threads()),
    }
    println!(
        "{:<22}{:>10}{:>10}{:>8}{:>14}",
        "rows × in × out", "ours", "gemm", "ratio", "of the peak"
    );
    let experts = [[512, 384, 1536], [512, 1536, 384], [4096, 384, 1536], [64, 384, 1536]];
    let default = [[4096, 96, 288], [4096, 288, 96], [1024, 96, 144], [1024, 144, 96]];
    for shape in experts.into_iter().chain(default) {
        let [m, k, n] = shape;
        let (a, b, mut c) = (random(m * k), random(k * n), vec![0.0; m * n]);
        let x = Tensor::<2>::from_data(TensorData::new(a.clone(), [m, k]), &device);
        let weight = Tensor::<2>::from_data(TensorData::new(b.clone(), [k, n]), &device);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            rayon::scope(|_| black_box(linear(x.clone(), weight.clone(), None)));
            ours.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            rayon::scope(|_| library(&mut c, &a, &b, shape));
            theirs.push(start.elapsed().as_secs_f64());
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let speed = |seconds: f64| 2.0 * (m * k * n) as f64 / seconds / 1e9;
        let (ours, theirs) = (speed(median(&mut ours)), speed(median(&mut theirs)));
        let share = peak.map_or(String::new(), |peak| format!("{:.0} %", 100.0 * ours / peak));
        let name = format!("{m} × {k} × {n}");
        println!("{name:<22}{ours:>10.0}{theirs:>10.0}{:>8.2}{share:>14}", ours / theirs);
    }
}
