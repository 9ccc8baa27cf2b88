//! Multi-head attention without a score tensor.
//!
//! Scores exist for one block of queries at a time. The forward pass keeps one number per query and
//! head, the logarithm of the softmax's denominator, from which the backward pass recomputes any
//! block of probabilities.

use rayon::prelude::*;

use super::{
    matrix::Matrix,
    product::{ROWS, Shared, Write, multiply, multiply_strided, multiply_to},
    scratch::Scratch,
    simd,
    unfilled::{filled, unfilled},
};

/// Scores that exist at the same time: with their gradients they stay in the second cache.
const SCORES_PER_BLOCK: usize = 48 << 10;

/// The shapes of one attention: `[batch, tokens, heads · width]` for each of queries, keys, values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    /// Features of one head.
    pub(crate) width: usize,
}

/// Queries, keys or values: rows of all heads, `stride` apart, starting at `offset`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) offset: usize,
}

impl<'a> Rows<'a> {
    /// `[tokens, width]` of one image and head.
    fn head(self, tokens: usize, image: usize, head: usize, width: usize) -> Matrix<'a> {
        let first = image * tokens * self.stride + self.offset + head * width;
        Matrix::strided(&self.values[first..], tokens, width, self.stride)
    }
}

impl Shape {
    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }

    /// Features of all heads.
    pub(crate) fn features(&self) -> usize {
        self.heads * self.width
    }

    /// Queries of a head whose scores exist at the same time.
    fn queries_per_block(&self) -> usize {
        (SCORES_PER_BLOCK / self.keys).next_multiple_of(ROWS).min(self.queries)
    }

    /// Queries of a head that one task handles: all of them where there are heads enough for all threads.
    fn queries_per_task(&self) -> usize {
        let (tasks, heads) = (2 * rayon::current_num_threads(), self.batch * self.heads);
        match heads >= tasks {
            true => self.queries,
            false => self.queries.div_ceil(tasks.div_ceil(heads)).next_multiple_of(ROWS),
        }
    }

    /// - returns: `[batch, queries, features]`, and the log denominators, `[batch, heads, queries]`
    pub(crate) fn forward(&self, [q, k, v]: [Rows; 3]) -> (Vec<f32>, Vec<f32>) {
        let Self { queries, keys, heads, width, .. } = *self;
        let features = self.features();
        let mut denominators = vec![0.0; self.batch * heads * queries];
        if denominators.is_empty() || features * keys == 0 {
            return (vec![0.0; self.batch * queries * features], denominators);
        }
        let mut output = unfilled(self.batch * queries * features);
        let result = Shared::new(&mut output);
        let per_task = self.queries_per_task();
        denominators.par_chunks_mut(queries).enumerate().for_each(|(place, logs)| {
            let (image, head) = (place / heads, place % heads);
            logs.par_chunks_mut(per_task).enumerate().for_each(|(task, logs)| {
                let first = task * per_task;
                let q = q.head(queries, image, head, width).slice_rows(first, logs.len());
                let k = k.head(keys, image, head, width);
                let v = v.head(keys, image, head, width);
                let place = (image * queries + first) * features + head * width;
                // SAFETY: these rows of this head's columns are within the output, and belong to this task.
                unsafe { self.head_forward([q, k, v], result.at(place), logs) };
            });
        });
        // SAFETY: the tasks' rows and columns are all of it, and every one is written by its products.
        (unsafe { filled(output) }, denominators)
    }

    /// One head of some queries.
    ///
    /// - `logs`: their log denominators
    ///
    /// # Safety
    /// `output` points to as many rows as there are queries, `features` apart, of the head's width, which nobody
    /// else uses.
    unsafe fn head_forward(&self, [q, k, v]: [Matrix; 3], output: *mut f32, logs: &mut [f32]) {
        let (per_block, features) = (self.queries_per_block(), self.features());
        let mut scores = Scratch::new(per_block.min(q.rows()) * self.keys);
        for (block, logs) in logs.chunks_mut(per_block).enumerate() {
            let (first, count) = (block * per_block, logs.len());
            let scores = &mut scores[..count * self.keys];
            multiply(scores, Write::Replace, q.slice_rows(first, count), k.transposed());
            simd::softmax(scores, self.keys, self.scale(), logs);
            let scores = Matrix::new(scores, count, self.keys);
            // SAFETY: the caller's promise about these rows.
            unsafe { multiply_to(output.add(first * features), features, scores, v) };
        }
    }

    /// Writes the gradients of queries, keys and values into the sinks, one per image.
    ///
    /// - `output`, `doutput`: `[batch, queries, features]`
    pub(crate) fn backward<S: Sink>(
        &self,
        [q, k, v]: [Rows; 3],
        denominators: &[f32],
        output: &[f32],
        doutput: &[f32],
        sinks: Vec<S>,
    ) {
        let Self { queries, keys, heads, width, .. } = *self;
        let features = self.features();
        if queries == 0 || keys == 0 {
            return;
        }
        sinks.into_par_iter().enumerate().for_each(|(image, mut sink)| {
            let per_block = self.queries_per_block();
            let (mut p, mut dp) = (Scratch::new(per_block * keys), Scratch::new(per_block * keys));
            for head in 0..heads {
                let q = q.head(queries, image, head, width);
                let k = k.head(keys, image, head, width);
                let v = v.head(keys, image, head, width);
                let all = Rows { values: doutput, stride: features, offset: 0 };
                let doutput = all.head(queries, image, head, width);
                for first in (0..queries).step_by(per_block) {
                    let count = per_block.min(queries - first);
                    let (p, dp) = (&mut p[..count * keys], &mut dp[..count * keys]);
                    let (q, d) = (q.slice_rows(first, count), doutput.slice_rows(first, count));
                    multiply(p, Write::Replace, q, k.transposed());
                    let logs = &denominators[(image * heads + head) * queries + first..];
                    simd::exp_shifted(p, keys, self.scale(), &logs[..count]);
                    multiply(dp, Write::Replace, d, v.transposed());
                    let write = if first == 0 { Write::Replace } else { Write::Add };
                    let probabilities = Matrix::new(p, count, keys);
                    sink.write(Part::Values, 0, head * width, write, probabilities.transposed(), d);
                    for row in 0..count {
                        // Σ p · dp over the keys is the product of output and its gradient.
                        let place = (image * queries + first + row) * features + head * width;
                        let mean =
                            simd::dot(&output[place..][..width], &all.values[place..][..width]);
                        let (p, dp) = (&p[row * keys..][..keys], &mut dp[row * keys..][..keys]);
                        score_gradient(p, dp, mean, self.scale());
                    }
                    let dscores = Matrix::new(dp, count, keys);
                    sink.write(Part::Queries, first, head * width, Write::Replace, dscores, k);
                    sink.write(Part::Keys, 0, head * width, write, dscores.transposed(), q);
                }
            }
        });
    }
}

simd::multiversion! {
    fn score_gradient(p: &[f32], dp: &mut [f32], mean: f32, scale: f32) {
        for (p, dp) in p.iter().zip(dp) {
            *dp = p * (*dp - mean) * scale;
        }
    }
}

/// One of the three inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Queries,
    Keys,
    Values,
}

/// Where one image's gradients go.
pub(crate) trait Sink: Send {
    /// Writes `a · b` at `row` and `column` of the gradient of `part`.
    fn write(&mut self, part: Part, row: usize, column: usize, write: Write, a: Matrix, b: Matrix);
}

/// `[tokens, 3 · features]`: queries, keys and values side by side.
pub(crate) struct Packed<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) features: usize,
}

impl Sink for Packed<'_> {
    fn write(&mut self, part: Part, row: usize, column: usize, write: Write, a: Matrix, b: Matrix) {
        let stride = 3 * self.features;
        let start = row * stride + part as usize * self.features + column;
        multiply_strided(&mut self.values[start..], stride, write, a, b);
    }
}

/// `[tokens, features]` each.
pub(crate) struct Separate<'a> {
    pub(crate) values: [&'a mut [f32]; 3],
    pub(crate) features: usize,
}

impl Sink for Separate<'_> {
    fn write(&mut self, part: Part, row: usize, column: usize, write: Write, a: Matrix, b: Matrix) {
        let start = row * self.features + column;
        multiply_strided(&mut self.values[part as usize][start..], self.features, write, a, b);
    }
}
