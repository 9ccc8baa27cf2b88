//! The MLPs of many experts on ragged sets of rows.
//!
//! Work is a queue of tiles, a tile being some rows of one expert, so that an expert with many rows
//! does not idle a core and one without rows costs nothing. The weights of an expert with several tiles are
//! packed once for all of them; one tile alone packs them on the way. A tile reads its rows where they lie,
//! runs both products and everything between them while the hidden rows are near, and leaves its result in
//! rows of its own; a last pass adds weighted rows up for every token, in a fixed order. The backward pass is
//! in `backward.rs`.

mod backward;
mod few_rows;

use std::{ops::Range, sync::Arc};

use rayon::prelude::*;

use super::{
    activation::Activation,
    dropout::{Dropout, Origin},
    matrix::Matrix,
    product::{BLOCK_ROWS, Kept, Panels, ROWS, Right, Write},
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
    /// Where rows come from that others have sent here, for their dropout.
    pub(crate) origins: Option<&'a [Origin]>,
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

    /// Parts of every expert's rows, `size` each but the last.
    fn tiles(&self, size: usize) -> Vec<Tile> {
        let mut tiles = Vec::new();
        for expert in 0..self.n_experts() {
            let Range { start, end } = self.of_expert(expert);
            let firsts = (start..end).step_by(size);
            let part = |first: usize| first..end.min(first.saturating_add(size));
            tiles.extend(firsts.map(|first| Tile { expert, rows: part(first) }));
        }
        tiles
    }

    /// `values` of the tokens of some rows, `[rows, width]`, where they lie.
    fn of_rows<'b>(&self, values: &'b [f32], width: usize, rows: &Range<usize>) -> Matrix<'b>
    where
        'a: 'b,
    {
        match self.tokens {
            None => Matrix::new(&values[rows.start * width..rows.end * width], rows.len(), width),
            Some(tokens) => Matrix::picked(values, width, &tokens[rows.clone()]),
        }
    }

    /// `[n_tokens, width]`: for every token the sum of its rows, weighted if `weighted`.
    pub(crate) fn collect(&self, rows: &[f32], width: usize, weighted: bool) -> Vec<f32> {
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
        sums.par_chunks_mut(width.max(1)).enumerate().with_min_len(64).for_each(|(token, sum)| {
            for &row in &by_token[starts[token]..starts[token + 1]] {
                let values = &rows[row as usize * width..][..width];
                let weight = if weighted { self.weight(row as usize) } else { 1.0 };
                simd::add_scaled(sum, weight, values);
            }
        });
        sums
    }
}

/// Rows of a tile: few enough that hidden rows stay in cache between the products, and that every
/// thread has some.
fn rows_per_tile(rows: usize) -> usize {
    const SMALLEST: usize = 4 * ROWS;
    let tasks = 2 * rayon::current_num_threads();
    rows.div_ceil(tasks).next_multiple_of(ROWS).clamp(SMALLEST, BLOCK_ROWS)
}

/// The same where all rows are one expert's: `parts` tiles, or a multiple of it, of about equal sizes.
fn equal_rows_per_tile(rows: usize, parts: usize) -> usize {
    let tiles = rows.div_ceil(BLOCK_ROWS).next_multiple_of(parts);
    rows.div_ceil(tiles.max(1)).next_multiple_of(ROWS).max(ROWS)
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

/// [`split`], or empty parts of empty values.
fn split_or_empty<'v>(tiles: &[Tile], values: &'v mut [f32], width: usize) -> Vec<&'v mut [f32]> {
    if values.is_empty() {
        tiles.iter().map(|_| Default::default()).collect()
    } else {
        split(tiles, values, width)
    }
}

/// Panels, or the matrix itself where there are none.
fn either<'m>(panels: &'m Option<Panels>, matrix: impl FnOnce() -> Matrix<'m>) -> Right<'m> {
    match panels {
        Some(panels) => Right::Packed(panels),
        None => Right::Once(matrix()),
    }
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
            dropout.apply_to_rows(hidden, self.sizes.hidden, rows.start, self.routes.origins);
        }
    }

    /// A matrix of every expert in panels; none of experts whose rows are one tile, unless somebody keeps them.
    fn packed<'m>(
        &self,
        kept: Option<&Arc<Kept>>,
        rows_per_tile: usize,
        matrix: impl Fn(usize) -> Matrix<'m> + Sync,
    ) -> Vec<Option<Panels>> {
        let experts = 0..self.routes.n_experts();
        let of_expert = |expert: usize| {
            let rows = self.routes.of_expert(expert).len();
            let often = rows > rows_per_tile || rows > 0 && kept.is_some();
            often.then(|| Panels::of(kept, expert, matrix(expert)))
        };
        experts.into_par_iter().map(of_expert).collect()
    }

    /// - `tokens`: `[n_tokens, inputs]`
    /// - `up`, `down`: who keeps the panels of these, if anybody
    /// - returns: `[n_tokens, outputs]`, and if `keep` the hidden rows before the activation,
    ///   `[rows, hidden]`, for the backward pass
    pub(crate) fn forward(
        &self,
        tokens: &[f32],
        [up, down]: [Option<Arc<Kept>>; 2],
        keep: bool,
    ) -> (Vec<f32>, Option<Scratch>) {
        let Sizes { hidden, outputs, .. } = self.sizes;
        let rows = self.routes.n_rows();
        if !keep && self.is_one_for_few_rows() {
            let up = Panels::of(up.as_ref(), 0, self.up(0));
            let down = Panels::of(down.as_ref(), 0, self.down(0));
            return (self.forward_by_columns(tokens, [&up, &down]), None);
        }
        let per_tile = match self.routes.n_experts() {
            1 => equal_rows_per_tile(rows, rayon::current_num_threads()),
            _ => rows_per_tile(rows),
        };
        let tiles = self.routes.tiles(per_tile);
        let up = self.packed(up.as_ref(), per_tile, |expert| self.up(expert));
        let down = self.packed(down.as_ref(), per_tile, |expert| self.down(expert));
        let mut kept = Scratch::new(if keep { rows * hidden } else { 0 });
        let mut run = |results: &mut [f32]| {
            tiles
                .par_iter()
                .zip(split(&tiles, results, outputs))
                .zip(split_or_empty(&tiles, &mut kept, hidden))
                .with_max_len(1)
                .for_each(|((tile, results), kept)| {
                    let expert = tile.expert;
                    let up = either(&up[expert], || self.up(expert));
                    let down = either(&down[expert], || self.down(expert));
                    self.tile_forward(tile, tokens, [up, down], kept, results);
                });
        };
        let output = if self.routes.tokens.is_none() {
            let mut output = vec![0.0; rows * outputs];
            run(&mut output);
            output
        } else {
            let mut results = Scratch::new(rows * outputs);
            run(&mut results);
            self.routes.collect(&results, outputs, true)
        };
        (output, keep.then_some(kept))
    }

    /// One tile: `results` are its outputs, `kept` its hidden rows before the activation, if there is
    /// room for them.
    fn tile_forward(
        &self,
        Tile { expert, rows }: &Tile,
        tokens: &[f32],
        [up, down]: [Right; 2],
        kept: &mut [f32],
        results: &mut [f32],
    ) {
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let input = self.routes.of_rows(tokens, inputs, rows);
        let mut activated = Scratch::new(rows.len() * hidden);
        let bias = self.up_bias(*expert);
        if kept.is_empty() {
            up.multiply(&mut activated, hidden, Write::Replace, input, |_, activated| {
                self.activation.forward_biased_in_place(activated, bias);
            });
        } else {
            up.multiply(kept, hidden, Write::Replace, input, |first, kept| {
                let activated = &mut activated[first * hidden..][..kept.len()];
                self.activation.forward_biased(kept, bias, activated);
            });
        }
        self.drop_out(&mut activated, rows);
        let activated = Matrix::new(&activated, rows.len(), hidden);
        let bias = self.down_bias(*expert);
        down.multiply(results, outputs, Write::Replace, activated, |_, results| {
            results.chunks_exact_mut(outputs).for_each(|row| simd::add(row, bias));
        });
    }
}
