//! A right operand, in panels or not.

use super::{BLOCK_ROWS, Packed, Write, multiply_packed, multiply_strided};
use crate::cpu::matrix::Matrix;

/// What a product multiplies by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Right<'a> {
    /// Panels that other products multiply by as well.
    Packed(&'a Packed),
    /// A matrix that one product of at most [`BLOCK_ROWS`] rows multiplies by. It is packed part by part on the
    /// way, so that panels are read while they are in cache, and not written to memory.
    Once(Matrix<'a>),
}

impl Right<'_> {
    /// As [`multiply_packed`], with the same bits.
    pub(crate) fn multiply(
        self,
        c: &mut [f32],
        stride: usize,
        write: Write,
        a: Matrix,
        mut finish: impl FnMut(usize, &mut [f32]),
    ) {
        match self {
            Self::Packed(panels) => multiply_packed(c, stride, write, a, panels, finish),
            Self::Once(b) => {
                assert!(a.rows() <= BLOCK_ROWS, "product: rows of a block");
                multiply_strided(c, stride, write, a, b);
                finish(0, c);
            }
        }
    }
}
