//! Gradients of the experts.
//!
//! A tile's rows go backwards through both products and everything between them. What remains, the
//! gradients of the weights, are products over all rows of an expert. Where there are enough experts,
//! one task does both for one expert while its hidden rows are still in cache; where there are few,
//! as in a dense layer, all tiles go first and the products of the weights are cut among the threads.

use std::cmp::Reverse;

use rayon::prelude::*;

use super::{Experts, Sizes, Tile, either, equal_rows_per_tile, split, split_or_empty};
use crate::cpu::{
    matrix::Matrix,
    product::{BLOCK_ROWS, Packed, Panels, Right, Write, multiply_into, multiply_parallel_into},
    scratch::Scratch,
    simd,
    unfilled::{Blank, filled, unfilled},
};

/// Tiles of one expert alone are so many, or a multiple of it, which two or four threads share alike.
const PARTS_OF_ONE: usize = 4;

/// Gradients of all inputs, as far as they are wanted: tokens, weights, up, its bias, down, its bias.
pub(crate) type Gradients = [Option<Vec<f32>>; 6];

/// The gradients of the parameters, empty where they are not wanted. Those of the products are written for the
/// experts that have rows.
struct Parameters {
    up: Vec<Blank>,
    up_bias: Vec<f32>,
    down: Vec<Blank>,
    down_bias: Vec<f32>,
}

/// What the two ways of a backward pass fill: gradients per row, and those of the parameters.
struct Filled<'a> {
    /// `[rows, inputs]`, empty if not wanted.
    tokens: &'a mut [f32],
    /// `[rows]`.
    weights: &'a mut [f32],
    parameters: &'a mut Parameters,
}

/// Where one tile leaves its results. The gradient of the tokens is empty if it is not wanted.
struct TileGradients<'a> {
    /// `[rows, hidden]`: gradient before the activation.
    hidden: &'a mut [f32],
    /// `[rows, hidden]`: activated rows times the rows' weights.
    activated: &'a mut [f32],
    /// `[rows, inputs]`.
    tokens: &'a mut [f32],
    /// `[rows]`.
    weights: &'a mut [f32],
    /// `[hidden]`, added to.
    up_bias: &'a mut [f32],
    /// `[outputs]`, added to.
    down_bias: &'a mut [f32],
}

impl Experts<'_> {
    /// Gradients of tokens, weights and parameters.
    ///
    /// - `tokens`: `[n_tokens, inputs]`, `before`: the hidden rows that the forward pass kept,
    ///   `doutput`: `[n_tokens, outputs]`
    pub(crate) fn backward(
        &self,
        tokens: &[f32],
        before: &[f32],
        doutput: &[f32],
        wanted: [bool; 6],
    ) -> Gradients {
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let (rows, experts) = (self.routes.n_rows(), self.routes.n_experts());
        let room = |wanted: bool, size: usize| unfilled(if wanted { experts * size } else { 0 });
        let mut parameters = Parameters {
            up: room(wanted[2], inputs * hidden),
            up_bias: vec![0.0; experts * hidden],
            down: room(wanted[4], hidden * outputs),
            down_bias: vec![0.0; experts * outputs],
        };
        let mut dtokens = Scratch::new(if wanted[0] { rows * inputs } else { 0 });
        let mut dweights = vec![0.0; rows];

        let threads = rayon::current_num_threads();
        let largest = (0..experts).map(|expert| self.routes.of_expert(expert).len()).max();
        let busy = (0..experts).filter(|expert| !self.routes.of_expert(*expert).is_empty()).count();
        let balanced = busy >= 2 * threads && largest.unwrap_or(0) <= rows.div_ceil(threads);
        let to_fill =
            Filled { tokens: &mut dtokens, weights: &mut dweights, parameters: &mut parameters };
        if balanced {
            self.by_expert(tokens, before, doutput, to_fill);
        } else {
            self.by_tile(tokens, before, doutput, to_fill);
        }
        let dtokens = wanted[0].then(|| self.routes.collect(&dtokens, inputs, false));
        let Parameters { up, up_bias, down, down_bias } = parameters;
        let all = |mut gradient: Vec<Blank>| {
            let size = gradient.len() / experts.max(1);
            for expert in (0..experts).filter(|expert| self.routes.of_expert(*expert).is_empty()) {
                gradient[expert * size..][..size].fill(Blank::new(0.0));
            }
            // SAFETY: both ways write those of the experts with rows, and the others are written here.
            unsafe { filled(gradient) }
        };
        [
            dtokens,
            wanted[1].then_some(dweights),
            wanted[2].then(|| all(up)),
            wanted[3].then_some(up_bias),
            wanted[4].then(|| all(down)),
            wanted[5].then_some(down_bias),
        ]
    }

    /// One task per expert, the largest first.
    fn by_expert(&self, tokens: &[f32], before: &[f32], doutput: &[f32], filled: Filled) {
        let Filled { tokens: dtokens, weights: dweights, parameters } = filled;
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let tiles = self.routes.tiles(usize::MAX);
        let up = stacked(&mut parameters.up, &tiles, inputs * hidden);
        let down = stacked(&mut parameters.down, &tiles, hidden * outputs);
        let up_bias = stacked(&mut parameters.up_bias, &tiles, hidden);
        let down_bias = stacked(&mut parameters.down_bias, &tiles, outputs);
        let rows =
            split_or_empty(&tiles, dtokens, inputs).into_iter().zip(split(&tiles, dweights, 1));
        let gradients = up.into_iter().zip(down).zip(up_bias.into_iter().zip(down_bias));
        let mut tasks: Vec<_> = tiles.iter().zip(rows).zip(gradients).collect();
        tasks.sort_by_key(|((tile, _), _)| Reverse(tile.rows.len()));
        tasks.into_par_iter().with_max_len(1).for_each(
            |((tile, (tokens_part, weights)), ((up, down), (up_bias, down_bias)))| {
                let Tile { expert, rows } = tile;
                let mut dhidden = Scratch::new(rows.len() * hidden);
                let mut activated = Scratch::new(rows.len() * hidden);
                let several = rows.len() > BLOCK_ROWS;
                let packed = |matrix| several.then(|| Panels::Own(Packed::new(matrix)));
                let (down_of, up_of) =
                    (self.down(*expert).transposed(), self.up(*expert).transposed());
                let (down_panels, up_panels) = (packed(down_of), packed(up_of));
                self.tile_backward(
                    tile,
                    [either(&down_panels, || down_of), either(&up_panels, || up_of)],
                    before,
                    doutput,
                    TileGradients {
                        hidden: &mut dhidden,
                        activated: &mut activated,
                        tokens: tokens_part,
                        weights,
                        up_bias,
                        down_bias,
                    },
                );
                if !down.is_empty() {
                    let activated = Matrix::new(&activated, rows.len(), hidden);
                    let doutput = self.routes.of_rows(doutput, outputs, rows);
                    multiply_into(down, activated.transposed(), doutput);
                }
                if !up.is_empty() {
                    let dhidden = Matrix::new(&dhidden, rows.len(), hidden);
                    let tokens = self.routes.of_rows(tokens, inputs, rows);
                    multiply_into(up, tokens.transposed(), dhidden);
                }
            },
        );
    }

    /// All tiles first, then the products of the weights, expert by expert on all threads.
    fn by_tile(&self, tokens: &[f32], before: &[f32], doutput: &[f32], filled: Filled) {
        let Filled { tokens: dtokens, weights: dweights, parameters } = filled;
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let rows = self.routes.n_rows();
        // Of one size on any number of threads, so that the sums over rows have the same bits. One expert alone
        // is never handled by expert, whose sums are over blocks.
        let per_tile = match self.routes.n_experts() {
            1 => equal_rows_per_tile(rows, PARTS_OF_ONE),
            _ => BLOCK_ROWS,
        };
        let tiles = self.routes.tiles(per_tile);
        let mut dhidden = Scratch::new(rows * hidden);
        let mut activated = Scratch::new(rows * hidden);
        let down = self.packed(None, per_tile, |expert| self.down(expert).transposed());
        let up = self.packed(None, per_tile, |expert| self.up(expert).transposed());
        let biases: Vec<(Vec<f32>, Vec<f32>)> = tiles
            .par_iter()
            .zip(split(&tiles, &mut dhidden, hidden))
            .zip(split(&tiles, &mut activated, hidden))
            .zip(split_or_empty(&tiles, dtokens, inputs))
            .zip(split(&tiles, dweights, 1))
            .with_max_len(1)
            .map(|((((tile, dhidden), activated), dtokens), dweights)| {
                let (mut up_bias, mut down_bias) = (vec![0.0; hidden], vec![0.0; outputs]);
                let gradients = TileGradients {
                    hidden: dhidden,
                    activated,
                    tokens: dtokens,
                    weights: dweights,
                    up_bias: &mut up_bias,
                    down_bias: &mut down_bias,
                };
                let expert = tile.expert;
                let down = either(&down[expert], || self.down(expert).transposed());
                let up = either(&up[expert], || self.up(expert).transposed());
                self.tile_backward(tile, [down, up], before, doutput, gradients);
                (up_bias, down_bias)
            })
            .collect();
        for (tile, (up_bias, down_bias)) in tiles.iter().zip(biases) {
            let Parameters { up_bias: up, down_bias: down, .. } = parameters;
            simd::add(&mut up[tile.expert * hidden..][..hidden], &up_bias);
            simd::add(&mut down[tile.expert * outputs..][..outputs], &down_bias);
        }
        for Tile { expert, rows } in self.routes.tiles(usize::MAX) {
            let hidden_rows = |values| -> Matrix {
                let values: &[f32] = values;
                Matrix::new(&values[rows.start * hidden..rows.end * hidden], rows.len(), hidden)
            };
            if !parameters.up.is_empty() {
                let tokens = self.routes.of_rows(tokens, inputs, &rows).transposed();
                let up = &mut parameters.up[expert * inputs * hidden..][..inputs * hidden];
                multiply_parallel_into(up, tokens, hidden_rows(&dhidden));
            }
            if !parameters.down.is_empty() {
                let doutput = self.routes.of_rows(doutput, outputs, &rows);
                let down = &mut parameters.down[expert * hidden * outputs..][..hidden * outputs];
                let activated = hidden_rows(&activated).transposed();
                multiply_parallel_into(down, activated, doutput);
            }
        }
    }

    /// One tile backwards, up to the gradients of the weight matrices.
    ///
    /// - `down`, `up`: the expert's matrices, transposed; `before`: the hidden rows of all tiles;
    ///   `doutput`: `[n_tokens, outputs]`
    fn tile_backward(
        &self,
        Tile { expert, rows }: &Tile,
        [down, up]: [Right; 2],
        before: &[f32],
        doutput: &[f32],
        gradients: TileGradients,
    ) {
        let Sizes { inputs, hidden, outputs } = self.sizes;
        let TileGradients { hidden: dhidden, activated, tokens, weights, up_bias, down_bias } =
            gradients;
        let doutput = self.routes.of_rows(doutput, outputs, rows);
        let bias = self.down_bias(*expert);
        down.multiply(dhidden, hidden, Write::Replace, doutput, |first, dhidden| {
            let drop_out = |values: &mut [f32]| {
                let first = rows.start + first;
                self.drop_out(values, &(first..rows.end));
            };
            drop_out(dhidden);
            let activated = &mut activated[first * hidden..][..dhidden.len()];
            let of_rows = dhidden.chunks_exact_mut(hidden).zip(activated.chunks_exact_mut(hidden));
            // Sums over the block alone, which are the same in a tile and in all rows of an expert.
            let [mut of_up, mut of_down] = [vec![0.0; hidden], vec![0.0; outputs]];
            for (i, (dhidden, activated)) in (first..).zip(of_rows) {
                let row = rows.start + i;
                let before = &before[row * hidden..][..hidden];
                let doutput = doutput.stored(i);
                let weight = self.routes.weight(row);
                let through = self.activation.backward(before, activated, dhidden);
                weights[i] = through + simd::dot(bias, doutput);
                if self.routes.weights.is_some() {
                    simd::scale(dhidden, weight);
                    simd::scale(activated, weight);
                }
                simd::add(&mut of_up, dhidden);
                simd::add_scaled(&mut of_down, weight, doutput);
            }
            simd::add(up_bias, &of_up);
            simd::add(down_bias, &of_down);
            drop_out(activated);
        });
        if !tokens.is_empty() {
            let dhidden = Matrix::new(dhidden, rows.len(), hidden);
            up.multiply(tokens, inputs, Write::Replace, dhidden, |_, _| {});
        }
    }
}

/// The tiles' experts of stacked values, `size` for each expert; empty parts of empty values.
fn stacked<'v, T>(values: &'v mut [T], tiles: &[Tile], size: usize) -> Vec<&'v mut [T]> {
    if values.is_empty() {
        return tiles.iter().map(|_| Default::default()).collect();
    }
    let mut wanted = tiles.iter().map(|tile| tile.expert).peekable();
    let experts = values.chunks_exact_mut(size).enumerate();
    experts
        .filter(|(expert, _)| wanted.next_if_eq(expert).is_some())
        .map(|(_, part)| part)
        .collect()
}
