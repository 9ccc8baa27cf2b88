//! Multi-head attention without a score tensor.
//!
//! Scores exist for one block of queries at a time. The forward pass keeps one number per query and
//! head, the logarithm of the softmax's denominator, from which the backward pass recomputes any
//! block of probabilities.

use rayon::prelude::*;

use super::{
    matrix::Matrix,
    product::{ROWS, Write, multiply, multiply_strided},
    scratch::Scratch,
    simd,
};

/// Queries whose scores exist at the same time.
const QUERIES_PER_BLOCK: usize = 128;

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

    /// Queries of an image that one task handles: all of them where there are images enough for all threads.
    fn queries_per_task(&self) -> usize {
        let tasks = 2 * rayon::current_num_threads();
        match self.batch >= tasks {
            true => self.queries,
            false => self.queries.div_ceil(tasks.div_ceil(self.batch)).next_multiple_of(ROWS),
        }
    }

    /// - returns: `[batch, queries, features]`, and the log denominators, `[batch, queries, heads]`
    pub(crate) fn forward(&self, [q, k, v]: [Rows; 3]) -> (Vec<f32>, Vec<f32>) {
        let Self { queries, keys, heads, width, .. } = *self;
        let features = self.features();
        let mut output = vec![0.0; self.batch * queries * features];
        let mut denominators = vec![0.0; self.batch * queries * heads];
        if output.is_empty() || keys == 0 {
            return (output, denominators);
        }
        let per_task = self.queries_per_task();
        let images = output
            .par_chunks_mut(queries * features)
            .zip(denominators.par_chunks_mut(queries * heads));
        images.enumerate().for_each(|(image, (output, denominators))| {
            let tasks = output
                .par_chunks_mut(per_task * features)
                .zip(denominators.par_chunks_mut(per_task * heads));
            tasks.enumerate().for_each(|(task, (output, denominators))| {
                let count = output.len() / features;
                for head in 0..heads {
                    let q = q.head(queries, image, head, width).slice_rows(task * per_task, count);
                    let k = k.head(keys, image, head, width);
                    let v = v.head(keys, image, head, width);
                    let logs = denominators[head..].iter_mut().step_by(heads);
                    self.head_forward([q, k, v], &mut output[head * width..], logs);
                }
            });
        });
        (output, denominators)
    }

    /// One head of some queries.
    ///
    /// - `output`: rows of all heads, of which the first `width` columns are written
    fn head_forward<'a>(
        &self,
        [q, k, v]: [Matrix; 3],
        output: &mut [f32],
        mut logs: impl Iterator<Item = &'a mut f32>,
    ) {
        let (queries, features) = (q.rows(), self.features());
        let mut scores = Scratch::new(QUERIES_PER_BLOCK.min(queries) * self.keys);
        for first in (0..queries).step_by(QUERIES_PER_BLOCK) {
            let count = QUERIES_PER_BLOCK.min(queries - first);
            let scores = &mut scores[..count * self.keys];
            multiply(scores, Write::Replace, q.slice_rows(first, count), k.transposed());
            for (row, log_sum) in scores.chunks_exact_mut(self.keys).zip(&mut logs) {
                *log_sum = simd::softmax(row, self.scale());
            }
            let output = &mut output[first * features..];
            let scores = Matrix::new(scores, count, self.keys);
            multiply_strided(output, features, Write::Replace, scores, v);
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
            let block = QUERIES_PER_BLOCK.min(queries) * keys;
            let (mut p, mut dp) = (Scratch::new(block), Scratch::new(block));
            for head in 0..heads {
                let q = q.head(queries, image, head, width);
                let k = k.head(keys, image, head, width);
                let v = v.head(keys, image, head, width);
                let all = Rows { values: doutput, stride: features, offset: 0 };
                let doutput = all.head(queries, image, head, width);
                for first in (0..queries).step_by(QUERIES_PER_BLOCK) {
                    let count = QUERIES_PER_BLOCK.min(queries - first);
                    let (p, dp) = (&mut p[..count * keys], &mut dp[..count * keys]);
                    let (q, d) = (q.slice_rows(first, count), doutput.slice_rows(first, count));
                    multiply(p, Write::Replace, q, k.transposed());
                    let logs = denominators[(image * queries + first) * heads + head..].iter();
                    for (row, log_sum) in p.chunks_exact_mut(keys).zip(logs.step_by(heads)) {
                        simd::exp_shifted(row, self.scale(), *log_sum);
                    }
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
