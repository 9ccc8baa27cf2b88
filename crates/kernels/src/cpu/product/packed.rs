//! A right operand that is packed once for many products.

use std::ops::Range;

use rayon::prelude::*;

use super::{
    BLOCK_ROWS, Engine, Shared, Write, check_room, clear, depth_blocks,
    kernel::{Panel, Place},
    left::LeftBlock,
    library,
    pack::{self, Part},
};
use crate::cpu::{matrix::Matrix, scratch::Scratch, unfilled::Blank};

/// A right operand in panels, for many products.
#[derive(Debug)]
pub(crate) struct Packed {
    /// For every block of the inner dimension its panels, `[panels, depth, width]`.
    values: Scratch,
    depth: usize,
    columns: usize,
    /// Who packed it, and multiplies by it.
    engine: Engine,
    /// Columns of a panel: a tile's, or all for the library.
    width: usize,
}

impl Packed {
    /// Panels that one task packs.
    const PANELS_PER_TASK: usize = 8;

    /// Packs on one thread.
    pub(crate) fn new(right: Matrix) -> Self {
        Self::with(Engine::best(), right, usize::MAX)
    }

    /// Packs on all threads.
    pub(crate) fn in_parallel(right: Matrix) -> Self {
        Self::with(Engine::best(), right, Self::PANELS_PER_TASK)
    }

    pub(super) fn with(engine: Engine, right: Matrix, panels_per_task: usize) -> Self {
        let (depth, columns) = (right.rows(), right.columns());
        let width = match engine {
            Engine::Tiles { columns, .. } => columns,
            Engine::Library => columns,
        };
        let padded = if columns == 0 { 0 } else { columns.next_multiple_of(width) };
        let values = Scratch::new(depth * padded);
        let mut packed = Self { values, depth, columns, engine, width };
        if depth * columns == 0 {
            return packed;
        }
        let mut rest = &mut *packed.values;
        for rows in depth_blocks(depth) {
            let (block, others) = rest.split_at_mut(rows.len() * padded);
            rest = others;
            let pack = |first_panel: usize, panels: &mut [f32]| {
                let part = Part { rows: rows.clone(), column: first_panel * width, width };
                pack::right_panels(right, part, panels);
            };
            if padded / width <= panels_per_task {
                pack(0, block);
            } else {
                let parts = block.par_chunks_mut(panels_per_task * rows.len() * width);
                parts.enumerate().for_each(|(part, panels)| pack(part * panels_per_task, panels));
            }
        }
        packed
    }

    /// The blocks of the inner dimension with their panels.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, &[f32])> {
        let padded = self.columns.next_multiple_of(self.width);
        depth_blocks(self.depth)
            .map(move |rows| (rows.clone(), &self.values[rows.start * padded..rows.end * padded]))
    }
}

/// `c = a · b` or `c += a · b` on one thread, with rows of `c` `stride` apart. Blocks of rows go to
/// `finish` as soon as they are done, with the number of their first row, while they are in cache.
pub(crate) fn multiply_packed(
    c: &mut [f32],
    stride: usize,
    write: Write,
    a: Matrix,
    b: &Packed,
    finish: impl FnMut(usize, &mut [f32]),
) {
    assert_eq!(a.columns(), b.depth, "product: inner sizes");
    if check_room(c.len(), stride, a.rows(), b.columns) {
        // SAFETY: the result has room for all rows, and its values are there.
        unsafe { multiply_packed_at(c.as_mut_ptr(), stride, write, a, b, finish) };
    }
}

/// [`multiply_packed`] into memory that nothing was written to: all of `c`, whose rows have no gaps, is
/// written.
pub(crate) fn multiply_packed_into(
    c: &mut [Blank],
    a: Matrix,
    b: &Packed,
    finish: impl FnMut(usize, &mut [f32]),
) {
    let (m, n) = (a.rows(), b.columns);
    assert_eq!(a.columns(), b.depth, "product: inner sizes");
    assert_eq!(c.len(), m * n, "product: room for the result");
    if !c.is_empty() {
        let c = c.as_mut_ptr().cast();
        // SAFETY: the result has room for all rows, and what replaces does not read.
        unsafe { multiply_packed_at(c, n, Write::Replace, a, b, finish) };
    }
}

/// [`multiply_packed_into`] on all threads, columns cut among them, for few rows: every thread passes only its own
/// panels, and all have as much to do. What is done goes to `finish` row by row, a part of its columns at a time.
pub(crate) fn multiply_packed_by_columns(
    c: &mut [Blank],
    a: Matrix,
    b: &Packed,
    finish: impl Fn(usize, Range<usize>, &mut [f32]) + Sync,
) {
    let (m, n) = (a.rows(), b.columns);
    assert_eq!(a.columns(), b.depth, "product: inner sizes");
    assert_eq!(c.len(), m * n, "product: room for the result");
    if c.is_empty() {
        return;
    }
    let result = Shared::new(c);
    let panels = n.div_ceil(b.width);
    let part = panels.div_ceil(rayon::current_num_threads());
    (0..panels.div_ceil(part)).into_par_iter().with_max_len(1).for_each(|task| {
        let own = task * part..panels.min((task + 1) * part);
        let columns = own.start * b.width..n.min(own.end * b.width);
        for first in (0..m).step_by(BLOCK_ROWS) {
            let a = a.slice_rows(first, BLOCK_ROWS.min(m - first));
            // SAFETY: within the result, whose columns belong to one task each.
            let c = unsafe { result.at(first * n + columns.start) };
            // SAFETY: as above, and what replaces does not read.
            unsafe { multiply_block(c, n, Write::Replace, a, b, own.clone()) };
            for row in 0..a.rows() {
                // SAFETY: as above, and these columns of this row are written now.
                let done = unsafe { std::slice::from_raw_parts_mut(c.add(row * n), columns.len()) };
                finish(first + row, columns.clone(), done);
            }
        }
    });
}

/// # Safety
/// `c` points to as many rows as `a` has, `stride` apart, of as many values as `b` has columns; at
/// least one each, and nobody else uses them. To be added to, or where there are gaps between rows, all
/// of it has values.
unsafe fn multiply_packed_at(
    c: *mut f32,
    stride: usize,
    write: Write,
    a: Matrix,
    b: &Packed,
    mut finish: impl FnMut(usize, &mut [f32]),
) {
    let (m, n) = (a.rows(), b.columns);
    for first in (0..m).step_by(BLOCK_ROWS) {
        let count = BLOCK_ROWS.min(m - first);
        // SAFETY: within the rows that the caller promises.
        let c = unsafe { c.add(first * stride) };
        let panels = 0..n.div_ceil(b.width);
        // SAFETY: as above.
        unsafe { multiply_block(c, stride, write, a.slice_rows(first, count), b, panels) };
        // SAFETY: the rows of this block are written now, and gaps between them have values.
        let done = unsafe { std::slice::from_raw_parts_mut(c, (count - 1) * stride + n) };
        finish(first, done);
    }
}

/// Some panels of a product of at most [`BLOCK_ROWS`] rows.
///
/// # Safety
/// `c` points to as many rows as `a` has, `stride` apart, of as many values as these panels have columns; at
/// least one each, and nobody else uses them. To be added to, they have values.
unsafe fn multiply_block(
    c: *mut f32,
    stride: usize,
    write: Write,
    a: Matrix,
    b: &Packed,
    panels: Range<usize>,
) {
    let count = a.rows();
    let columns = b.columns.min(panels.end * b.width) - panels.start * b.width;
    if b.depth == 0 {
        // SAFETY: the caller's promise.
        unsafe { clear(c, stride, count, columns, write) };
    }
    for (inner, all) in b.blocks() {
        let add = write == Write::Add || inner.start > 0;
        let depth = inner.len();
        let values = &all[panels.start * depth * b.width..panels.end * depth * b.width];
        match b.engine {
            Engine::Library => {
                let right = Matrix::new(values, depth, columns);
                let left = a.slice_columns(inner.start, depth);
                // SAFETY: the caller's promise.
                unsafe { library::multiply_at(c, stride, add, left, right) };
            }
            Engine::Tiles { kernel, .. } => {
                let left = LeftBlock::new(a, inner);
                for (panel, values) in values.chunks_exact(depth * b.width).enumerate() {
                    let right = Panel { first: values.as_ptr(), stride: b.width };
                    let column = panel * b.width;
                    let columns = b.width.min(columns - column);
                    // SAFETY: within the columns that the caller promises.
                    let place = Place { first: unsafe { c.add(column) }, stride, add };
                    // SAFETY: the engine is this machine's; the panel has `depth` rows of its
                    // width, and the place `count` rows of `columns`.
                    unsafe { left.multiply(kernel, depth, right, place, columns) };
                }
            }
        }
    }
}
