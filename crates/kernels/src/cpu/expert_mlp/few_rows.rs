//! One network on few rows, as a dense layer has them for one image: nothing is learned, and products are cut by
//! columns, so that every thread reads only its own part of the weights.

use super::Experts;
use crate::cpu::{
    matrix::Matrix,
    product::{Packed, has_few_rows, multiply_packed_by_columns},
    simd,
    unfilled::{filled, unfilled},
};

impl Experts<'_> {
    /// Whether this is one network on few rows, in their order.
    pub(super) fn is_one_for_few_rows(&self) -> bool {
        let routes = self.routes;
        routes.tokens.is_none() && routes.n_experts() == 1 && has_few_rows(routes.n_rows())
    }

    /// - `tokens`: `[rows, inputs]`
    /// - returns: `[rows, outputs]`
    pub(super) fn forward_by_columns(&self, tokens: &[f32], [up, down]: [&Packed; 2]) -> Vec<f32> {
        let (rows, sizes) = (self.routes.n_rows(), self.sizes);
        let mut hidden = unfilled(rows * sizes.hidden);
        let bias = self.up_bias(0);
        let tokens = Matrix::new(tokens, rows, sizes.inputs);
        multiply_packed_by_columns(&mut hidden, tokens, up, |_, columns, hidden| {
            self.activation.forward_biased_in_place(hidden, &bias[columns]);
        });
        // SAFETY: the product writes all of it.
        let mut hidden = unsafe { filled(hidden) };
        self.drop_out(&mut hidden, &(0..rows));
        let mut output = unfilled(rows * sizes.outputs);
        let bias = self.down_bias(0);
        let hidden = Matrix::new(&hidden, rows, sizes.hidden);
        multiply_packed_by_columns(&mut output, hidden, down, |_, columns, output| {
            simd::add(output, &bias[columns]);
        });
        // SAFETY: as above.
        unsafe { filled(output) }
    }
}
