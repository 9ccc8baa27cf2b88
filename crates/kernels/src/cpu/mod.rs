//! Kernels on plain slices of `f32`: no tensors, no graph.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod dropout;
pub(crate) mod expert_mlp;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod matrix;
pub(crate) mod scratch;
pub(crate) mod simd;

/// Rows that one task handles, so that every thread gets several tasks and none is tiny.
pub(crate) fn rows_per_task(rows: usize) -> usize {
    const SMALLEST: usize = 32;
    const LARGEST: usize = 512;
    let tasks = rayon::current_num_threads() * 2;
    rows.div_ceil(tasks).clamp(SMALLEST, LARGEST)
}
