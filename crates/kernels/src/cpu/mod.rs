//! Kernels on plain slices of `f32`: no tensors, no graph.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod dropout;
pub(crate) mod expert_mlp;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod matrix;
pub(crate) mod product;
pub(crate) mod scratch;
pub(crate) mod simd;
pub(crate) mod unfilled;

/// Rows that one task handles, so that every thread gets several tasks and none is tiny: whole tiles
/// of a product.
pub(crate) fn rows_per_task(rows: usize) -> usize {
    const SMALLEST: usize = 36;
    const LARGEST: usize = 516;
    let tasks = rayon::current_num_threads() * 2;
    rows.div_ceil(tasks).next_multiple_of(product::ROWS).clamp(SMALLEST, LARGEST)
}
