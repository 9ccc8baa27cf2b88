//! A left operand as the kernel reads it.

use std::ops::Range;

use super::{
    BLOCK_ROWS,
    kernel::{Extent, Kernel, Left, Panel, Place, ROWS},
    pack,
};
use crate::cpu::{matrix::Matrix, scratch::Scratch};

/// Some rows of a left operand over a block of the inner dimension, tile by tile.
pub(super) struct LeftBlock {
    tiles: [Left; BLOCK_ROWS / ROWS],
    rows: usize,
    /// Where rows are packed to, if they are.
    _packed: Scratch,
}

impl LeftBlock {
    /// A left operand by columns is read in place if it is as small as this.
    const COLUMNS_IN_PLACE: usize = 6 << 10;

    /// - `a`: at most [`BLOCK_ROWS`] rows
    pub(super) fn new(a: Matrix, inner: Range<usize>) -> Self {
        let rows = a.rows();
        assert!(rows <= BLOCK_ROWS, "product: rows of a block");
        let nothing = Left { rows: [std::ptr::null(); ROWS], step: 0 };
        let mut tiles = [nothing; BLOCK_ROWS / ROWS];
        let tile_rows = (0..rows).step_by(ROWS).map(|first| first..rows.min(first + ROWS));
        if !a.is_transposed() {
            for (tile, rows) in tiles.iter_mut().zip(tile_rows) {
                tile.step = 1;
                for (to, row) in tile.rows.iter_mut().zip(rows) {
                    *to = a.stored(row)[inner.clone()].as_ptr();
                }
            }
            return Self { tiles, rows, _packed: Scratch::new(0) };
        }
        if let Some(stride) = a.stride()
            && rows * inner.len() <= Self::COLUMNS_IN_PLACE
        {
            let first = a.slice_columns(inner.start, inner.len()).values();
            for (tile, rows) in tiles.iter_mut().zip(tile_rows) {
                tile.step = stride;
                for (to, row) in tile.rows.iter_mut().zip(rows) {
                    *to = first[row..].as_ptr();
                }
            }
            return Self { tiles, rows, _packed: Scratch::new(0) };
        }
        let mut packed = Scratch::new(rows.div_ceil(ROWS) * ROWS * inner.len());
        pack::left_panels(a, inner.start, inner.len(), &mut packed);
        let panels = packed.chunks_exact(ROWS * inner.len());
        for (tile, panel) in tiles.iter_mut().zip(panels) {
            tile.step = ROWS;
            for (row, to) in tile.rows.iter_mut().enumerate() {
                *to = panel[row..].as_ptr();
            }
        }
        Self { tiles, rows, _packed: packed }
    }

    /// All tiles against one panel.
    ///
    /// # Safety
    /// The kernel runs on this machine; the panel has `depth` rows of a tile's width, `depth` being the
    /// inner dimension of this block; the place has this block's rows of `columns`, at most that width.
    #[inline]
    pub(super) unsafe fn multiply(
        &self,
        kernel: Kernel,
        depth: usize,
        right: Panel,
        place: Place,
        columns: usize,
    ) {
        for (tile, left) in self.tiles[..self.rows.div_ceil(ROWS)].iter().enumerate() {
            let count = ROWS.min(self.rows - tile * ROWS);
            // SAFETY: within the place's rows.
            let first = unsafe { place.first.add(tile * ROWS * place.stride) };
            let place = Place { first, ..place };
            let extent = Extent { rows: count, columns, depth };
            // SAFETY: the left operand's rows were taken from slices of `depth` values each; the rest is the
            // caller's promise.
            unsafe { kernel(extent, left, right, place) };
        }
    }
}
