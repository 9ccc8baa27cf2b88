//! The MLPs of many experts on ragged sets of rows.
//!
//! Work is a queue of tiles, a tile being some rows of one expert, so that an expert with many rows
//! does not idle a core and one without rows costs nothing. A tile gathers its rows, runs both
//! products and everything between them while the hidden rows are in cache, and leaves its result in
//! rows of its own; a last pass adds weighted rows up for every token, in a fixed order.

use std::ops::Range;

use rayon::prelude::*;

use super::{
    activation::Activation,
    dropout::Dropout,
    matrix::{Matrix, Write, multiply},
    scratch::Scratch,
    simd,
};

/// The sizes of the experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) inputs: usize,
    pub(crate) hidden: usize,
    pub(crate) outputs: usize,
}

/// The parameters of all experts, stacked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameters<'a> {
    /// `[E, inputs, hidden]`.
    pub(crate) up: &'a [f32],
    /// `[E, hidden]`.
    pub(crate) up_bias: &'a [f32],
    /// `[E, hidden, outputs]`.
    pub(crate) down: &'a [f32],
    /// `[E, outputs]`.
    pub(crate) down_bias: &'a [f32],
}

/// Which rows go to which expert.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Routes<'a> {
    /// Rows of expert `e` are `offsets[e]..offsets[e + 1]`.
    pub(crate) offsets: &'a [usize],
    /// The token of every row; without it row `i` is token `i`.
    pub(crate) tokens: Option<&'a [u32]>,
    /// The factor of every row's result; without it 1.
    pub(crate) weights: Option<&'a [f32]>,
    /// Tokens in all.
    pub(crate) n_tokens: usize,
}

/// What all tiles share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experts<'a> {
    pub(crate) sizes: Sizes,
    pub(crate) parameters: Parameters<'a>,
    pub(crate) routes: Routes<'a>,
    pub(crate) activation: Activation,
    pub(crate) dropout: Option<Dropout>,
}

/// Some rows of one expert.
#[derive(Debug, Clone)]
struct Tile {
    expert: usize,
    rows: Range<usize>,
}

impl<'a> Routes<'a> {
    fn n_rows(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    fn n_experts(&self) -> usize {
        self.offsets.len() - 1
    }

    fn of_expert(&self, expert: usize) -> Range<usize> {
        self.offsets[expert]..self.offsets[expert + 1]
    }

    fn weight(&self, row: usize) -> f32 {
        self.weights.map_or(1.0, |weights| weights[row])
    }

    /// Equal parts of every expert's rows, none larger than `largest`.
    fn tiles(&self, largest: usize) -> Vec<Tile> {
        let mut tiles = Vec::new();
        for expert in 0..self.n_experts() {
            let Range { start, end } = self.of_expert(expert);
            let parts = (end - start).div_ceil(largest);
            for part in 0..parts {
                let cut = |part: usize| start + (end - start) * part / parts;
                tiles.push(Tile { expert, rows: cut(part)..cut(part + 1) });
            }
        }
        tiles
    }

    /// The rows' tokens as a matrix: the tokens themselves where rows are tokens, else a copy.
    fn gather<'b>(
        &self,
        values: &'b [f32],
        width: usize,
        rows: &Range<usize>,
        copy: &'b mut [f32],
    ) -> &'b [f32] {
        match self.tokens {
            None => &values[rows.start * width..rows.end * width],
            Some(tokens) if consecutive(&tokens[rows.clone()]) => {
                let first = tokens.get(rows.start).map_or(0, |token| *token as usize);
                &values[first * width..][..rows.len() * width]
            }
            Some(_) => {
                self.copy_rows(values, width, rows, copy);
                copy
            }
        }
    }

    /// Copies the rows' tokens, if rows are not tokens themselves.
    fn copy_rows(&self, values: &[f32], width: usize, rows: &Range<usize>, copy: &mut [f32]) {
        let tokens = self.tokens.map_or(&[][..], |tokens| &tokens[rows.clone()]);
        for (row, token) in copy.chunks_exact_mut(width).zip(tokens) {
            row.copy_from_slice(&values[*token as usize * width..][..width]);
        }
    }

    /// `[n_tokens, width]`: for every token the sum of its rows, weighted if `weighted`.
    fn collect(&self, rows: Scratch, width: usize, weighted: bool) -> Vec<f32> {
        let Some(tokens) = self.tokens else { return rows.to_vec() };
        let mut starts = vec![0_usize; self.n_tokens + 1];
        tokens.iter().for_each(|token| starts[*token as usize + 1] += 1);
        (0..self.n_tokens).for_each(|token| starts[token + 1] += starts[token]);
        let mut next = starts.clone();
        let mut by_token = vec![0_u32; tokens.len()];
        for (row, token) in tokens.iter().enumerate() {
            by_token[next[*token as usize]] = row as u32;
            next[*token as usize] += 1;
        }
        let mut sums = vec![0.0; self.n_tokens * width];
        sums.par_chunks_mut(width).enumerate().with_min_len(64).for_each(|(token, sum)| {
            for &row in &by_token[starts[token]..starts[token + 1]] {
                let values = &rows[row as usize * width..][..width];
                let weight = if weighted { self.weight(row as usize) } else { 1.0 };
                simd::add_scaled(sum, weight, values);
            }
        });
        sums
    }
}

/// Whether the rows of a tile lie next to each other already, as those of one image do.
fn consecutive(tokens: &[u32]) -> bool {
    tokens.windows(2).all(|pair| pair[0] + 1 == pair[1])
}

/// Rows of a tile: large enough that a product amortises the packing of the expert's weights, small
/// enough that every thread has several tiles.
fn rows_per_tile(rows: usize) -> usize {
    const SMALLEST: usize = 64;
    const LARGEST: usize = 1024;
    (rows / (2 * rayon::current_num_threads())).clamp(SMALLEST, LARGEST)
}

/// Splits `values` into the tiles' rows, which lie one after another.
fn split<'v>(tiles: &[Tile], mut values: &'v mut [f32], width: usize) -> Vec<&'v mut [f32]> {
    let parts = tiles.iter().map(|tile| {
        let (part, rest) = std::mem::take(&mut values).split_at_mut(tile.rows.len() * width);
        values = rest;
        part
    });
    parts.collect()
}

impl Experts<'_> {
    fn up(&self, expert: usize) -> Matrix<'_> {
        let Sizes { inputs, hidden, .. } = self.sizes;
        Matrix::new(
            &self.parameters.up[expert * inputs * hidden..][..inputs * hidden],
            inputs,
            hidden,
        )
    }

    fn down(&self, expert: usize) -> Matrix<'_> {
        let Sizes { hidden, outputs, .. } = self.sizes;
        let down = &self.parameters.down[expert * hidden * outputs..][..hidden * outputs];
        Matrix::new(down, hidden, outputs)
    }

    fn up_bias(&self, expert: usize) -> &[f32] {
        &self.parameters.up_bias[expert * self.sizes.hidden..][..self.sizes.hidden]
    }

    fn down_bias(&self, expert: usize) -> &[f32] {
        &self.parameters.down_bias[expert * self.sizes.outputs..][..self.sizes.outputs]
    }

    fn drop_out(&self, hidden: &mut [f32], rows: &Range<usize>) {
        if let Some(dropout) = self.dropout {
            dropout.apply(hidden, rows.start * self.sizes.hidden);
        }
    }

    /// - `tokens`: `[n_tokens, inputs]`
    /// - returns: `[n_tokens, outputs]`, and if `keep` the hidden rows before the activation,
    ///   `[rows, hidden]`, for the backward pass
    pub(crate) fn forward(&self, tokens: &[f32], keep: bool) -> (Vec<f32>, Option<Scratch>) {
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let rows = self.routes.n_rows();
        let tiles = self.routes.tiles(rows_per_tile(rows));
        let mut results = Scratch::new(rows * outputs);
        let mut kept = keep.then(|| Scratch::new(rows * hidden));
        let mut no_rows: Vec<&mut [f32]> = Vec::new();
        let kept_tiles = match &mut kept {
            Some(kept) => split(&tiles, kept, hidden),
            None => {
                no_rows.resize_with(tiles.len(), Default::default);
                no_rows
            }
        };
        tiles
            .par_iter()
            .zip(split(&tiles, &mut results, outputs))
            .zip(kept_tiles)
            .with_max_len(1)
            .for_each(|((Tile { expert, rows }, results), kept)| {
                let mut copy = Scratch::new(if self.routes.tokens.is_some() {
                    rows.len() * inputs
                } else {
                    0
                });
                let input = self.routes.gather(tokens, inputs, rows, &mut copy);
                let input = Matrix::new(input, rows.len(), inputs);
                let mut activated = Scratch::new(rows.len() * hidden);
                let mut own = Scratch::new(if kept.is_empty() { rows.len() * hidden } else { 0 });
                let before = if kept.is_empty() { &mut *own } else { kept };
                multiply(before, Write::Replace, input, self.up(*expert));
                self.activation.forward_biased(before, self.up_bias(*expert), &mut activated);
                self.drop_out(&mut activated, rows);
                let activated = Matrix::new(&activated, rows.len(), hidden);
                multiply(results, Write::Replace, activated, self.down(*expert));
                let bias = self.down_bias(*expert);
                results.chunks_exact_mut(outputs).for_each(|row| simd::add(row, bias));
            });
        (self.routes.collect(results, outputs, true), kept)
    }

    /// Gradients of tokens, weights and parameters, as far as they are wanted.
    ///
    /// - `tokens`: `[n_tokens, inputs]`, `before`: the hidden rows that the forward pass kept,
    ///   `doutput`: `[n_tokens, outputs]`
    /// - returns: those of tokens, weights, up, its bias, down, its bias
    pub(crate) fn backward(
        &self,
        tokens: &[f32],
        before: &[f32],
        doutput: &[f32],
        wanted: [bool; 6],
    ) -> [Option<Vec<f32>>; 6] {
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let rows = self.routes.n_rows();
        let tiles = self.routes.tiles(rows_per_tile(rows));
        let gathers = self.routes.tokens.is_some();

        // Per row: gradient at the hidden rows, weighted activation, gathered output gradient,
        // gradient of the row's token, gradient of the row's weight.
        let mut dhidden = Scratch::new(rows * hidden);
        let mut activated = Scratch::new(rows * hidden);
        let mut gathered = Scratch::new(if gathers { rows * outputs } else { 0 });
        let mut dtokens = Scratch::new(if wanted[0] { rows * inputs } else { 0 });
        let mut dweights = vec![0.0; rows];
        let empty = |tiles: &[Tile]| tiles.iter().map(|_| <&mut [f32]>::default()).collect();
        let gathered_tiles: Vec<_> =
            if gathers { split(&tiles, &mut gathered, outputs) } else { empty(&tiles) };
        let dtoken_tiles: Vec<_> =
            if wanted[0] { split(&tiles, &mut dtokens, inputs) } else { empty(&tiles) };
        tiles
            .par_iter()
            .zip(split(&tiles, &mut dhidden, hidden))
            .zip(split(&tiles, &mut activated, hidden))
            .zip(gathered_tiles)
            .zip(dtoken_tiles)
            .zip(split(&tiles, &mut dweights, 1))
            .with_max_len(1)
            .for_each(
                |(
                    ((((Tile { expert, rows }, dhidden), activated), gathered), dtokens),
                    dweights,
                )| {
                    self.routes.copy_rows(doutput, outputs, rows, gathered);
                    let doutput = if gathers {
                        &*gathered
                    } else {
                        &doutput[rows.start * outputs..rows.end * outputs]
                    };
                    let gradient = Matrix::new(doutput, rows.len(), outputs);
                    multiply(dhidden, Write::Replace, gradient, self.down(*expert).transposed());
                    self.drop_out(dhidden, rows);
                    let bias = self.down_bias(*expert);
                    for (i, row) in rows.clone().enumerate() {
                        let before = &before[row * hidden..][..hidden];
                        let dhidden = &mut dhidden[i * hidden..][..hidden];
                        let activated = &mut activated[i * hidden..][..hidden];
                        let through = self.activation.backward(before, activated, dhidden);
                        dweights[i] = through + simd::dot(bias, &doutput[i * outputs..][..outputs]);
                        let weight = self.routes.weight(row);
                        if weight != 1.0 {
                            simd::scale(dhidden, weight);
                            simd::scale(activated, weight);
                        }
                    }
                    self.drop_out(activated, rows);
                    if wanted[0] {
                        let dhidden = Matrix::new(dhidden, rows.len(), hidden);
                        multiply(dtokens, Write::Replace, dhidden, self.up(*expert).transposed());
                    }
                },
            );

        let parameters =
            self.parameter_gradients(tokens, doutput, &gathered, &dhidden, &activated, wanted);
        let [dup, dup_bias, ddown, ddown_bias] = parameters;
        let dtokens = wanted[0].then(|| self.routes.collect(dtokens, inputs, false));
        [dtokens, wanted[1].then_some(dweights), dup, dup_bias, ddown, ddown_bias]
    }

    /// Rows of the weight gradients of every expert that has tokens, cut so that all threads work.
    fn matrix_parts(&self, rows: usize) -> Vec<Tile> {
        let experts = self.routes.n_experts();
        let parts = (2 * rayon::current_num_threads()).div_ceil(experts);
        let bounds = |part: usize| rows * part / parts;
        let busy = (0..experts).filter(|expert| !self.routes.of_expert(*expert).is_empty());
        let tiles = busy.flat_map(|expert| {
            (0..parts).map(move |part| Tile { expert, rows: bounds(part)..bounds(part + 1) })
        });
        tiles.filter(|tile| !tile.rows.is_empty()).collect()
    }

    fn parameter_gradients(
        &self,
        tokens: &[f32],
        doutput: &[f32],
        gathered: &[f32],
        dhidden: &[f32],
        activated: &[f32],
        wanted: [bool; 6],
    ) -> [Option<Vec<f32>>; 4] {
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let experts = self.routes.n_experts();
        let rows = self.routes.n_rows();
        let mut gathered_tokens =
            Scratch::new(if self.routes.tokens.is_some() { rows * inputs } else { 0 });
        let inputs_of_rows: &[f32] = if self.routes.tokens.is_some() && wanted[2] {
            let per_task = super::rows_per_task(rows);
            gathered_tokens.par_chunks_mut(per_task * inputs).enumerate().for_each(
                |(task, copy)| {
                    let first = task * per_task;
                    self.routes.copy_rows(
                        tokens,
                        inputs,
                        &(first..first + copy.len() / inputs),
                        copy,
                    );
                },
            );
            &gathered_tokens
        } else {
            tokens
        };
        let doutput = if self.routes.tokens.is_some() { gathered } else { doutput };
        let mut dup = vec![0.0; if wanted[2] { experts * inputs * hidden } else { 0 }];
        let mut ddown = vec![0.0; if wanted[4] { experts * hidden * outputs } else { 0 }];
        let mut dup_bias = vec![0.0; if wanted[3] { experts * hidden } else { 0 }];
        let mut ddown_bias = vec![0.0; if wanted[5] { experts * outputs } else { 0 }];

        // One queue for both weight gradients: some rows of one expert's matrix each.
        let up_jobs = disjoint(&mut dup, &self.matrix_parts(inputs), inputs, hidden);
        let down_jobs = disjoint(&mut ddown, &self.matrix_parts(hidden), hidden, outputs);
        let up_jobs = up_jobs.into_iter().map(|job| (job, inputs_of_rows, inputs, dhidden, hidden));
        let down_jobs = down_jobs.into_iter().map(|job| (job, activated, hidden, doutput, outputs));
        let jobs: Vec<_> = up_jobs.chain(down_jobs).collect();
        jobs.into_par_iter().with_max_len(1).for_each(
            |((part, gradient), left, left_width, right, right_width)| {
                let rows = self.routes.of_expert(part.expert);
                let of_expert = |values, width| -> Matrix {
                    let values: &[f32] = values;
                    Matrix::new(&values[rows.start * width..rows.end * width], rows.len(), width)
                };
                let left = of_expert(left, left_width).transposed();
                let left = left.slice_rows(part.rows.start, part.rows.len());
                multiply(gradient, Write::Replace, left, of_expert(right, right_width));
            },
        );
        if wanted[3] {
            dup_bias.par_chunks_mut(hidden).enumerate().for_each(|(expert, sum)| {
                for row in self.routes.of_expert(expert) {
                    simd::add(sum, &dhidden[row * hidden..][..hidden]);
                }
            });
        }
        if wanted[5] {
            ddown_bias.par_chunks_mut(outputs).enumerate().for_each(|(expert, sum)| {
                for row in self.routes.of_expert(expert) {
                    simd::add_scaled(
                        sum,
                        self.routes.weight(row),
                        &doutput[row * outputs..][..outputs],
                    );
                }
            });
        }
        [
            wanted[2].then_some(dup),
            wanted[3].then_some(dup_bias),
            wanted[4].then_some(ddown),
            wanted[5].then_some(ddown_bias),
        ]
    }
}

/// The parts of stacked matrices `[experts, rows, columns]` that `parts`, in increasing order, name;
/// nothing if the matrices are not wanted.
fn disjoint<'v>(
    mut values: &'v mut [f32],
    parts: &[Tile],
    rows: usize,
    columns: usize,
) -> Vec<(Tile, &'v mut [f32])> {
    if values.is_empty() {
        return Vec::new();
    }
    let mut position = 0;
    let cut = parts.iter().map(|part| {
        let start = (part.expert * rows + part.rows.start) * columns;
        let (_, rest) = std::mem::take(&mut values).split_at_mut(start - position);
        let (slice, rest) = rest.split_at_mut(part.rows.len() * columns);
        position = start + slice.len();
        values = rest;
        (part.clone(), slice)
    });
    cut.collect()
}
