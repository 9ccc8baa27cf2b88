//! Products of matrices, packed for the machine's vectors.
//!
//! `kernel.rs` computes a tile of the result in registers, `pack.rs` brings operands into the order in
//! which it reads them, and this file cuts products into blocks that stay in cache. A left operand that
//! is stored by rows is read in place, picked rows included, so that gathering the tokens of an expert
//! costs nothing. A right operand is packed: [`Packed`] once for many products, [`multiply`] block by
//! block on the way.
//!
//! An element of the result is summed over the inner dimension in blocks that depend on its length
//! alone, so that it has the same bits in whatever piece of the product it is computed. Machines
//! without AVX2 multiply by the `gemm` crate (`library.rs`), which does not promise that.

mod kernel;
mod library;
mod pack;

use std::{ops::Range, sync::OnceLock};

use rayon::prelude::*;

pub(crate) use self::kernel::ROWS;
use self::kernel::{Kernel, Left, MOST_COLUMNS, Panel, Place};
use super::{
    matrix::Matrix,
    scratch::Scratch,
    simd::{self, Level},
    unfilled::Blank,
};

/// Inner dimension of a block: a panel of the right operand fits into the first cache.
const DEPTH: usize = 384;

/// Rows of a block: its left operand fits into the second cache.
pub(crate) const BLOCK_ROWS: usize = 24 * ROWS;

/// Columns of a block of a product that packs its right operand on the way.
const BLOCK_COLUMNS: usize = 512;

/// A right operand that is stored by rows is read in place if it has at most this many values: it stays
/// in the first cache, whatever the distance of its rows.
const VALUES_IN_PLACE: usize = 4 << 10;

/// What a product does to what was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    Replace,
    Add,
}

/// Who multiplies.
#[derive(Debug, Clone, Copy)]
enum Engine {
    /// Our kernel, with tiles of so many columns.
    Tiles { kernel: Kernel, columns: usize },
    /// The `gemm` crate.
    Library,
}

impl Engine {
    /// The best of this machine; the library if `OMMA_PRODUCTS=library`.
    fn best() -> Self {
        static BEST: OnceLock<Engine> = OnceLock::new();
        *BEST.get_or_init(|| {
            let library = std::env::var_os("OMMA_PRODUCTS").is_some_and(|name| name == "library");
            if library { Self::Library } else { Self::of(simd::level()) }
        })
    }

    fn of(level: Level) -> Self {
        match level {
            Level::Baseline => Self::Library,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                Self::Tiles { kernel: kernel::avx2::run, columns: kernel::avx2::COLUMNS }
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Self::Tiles { kernel: kernel::avx512::run, columns: kernel::avx512::COLUMNS }
            }
        }
    }
}

/// Parts of the inner dimension, about equal, none longer than [`DEPTH`].
fn depth_blocks(depth: usize) -> impl Iterator<Item = Range<usize>> {
    let length = depth.div_ceil(depth.div_ceil(DEPTH).max(1)).next_multiple_of(4);
    (0..depth).step_by(length.max(1)).map(move |from| from..depth.min(from + length))
}

/// A right operand in panels, for many products.
#[derive(Debug)]
pub(crate) struct Packed {
    /// For every block of the inner dimension its panels, `[panels, depth, width]`.
    values: Scratch,
    depth: usize,
    columns: usize,
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

    fn with(engine: Engine, right: Matrix, panels_per_task: usize) -> Self {
        let (depth, columns) = (right.rows(), right.columns());
        let width = match engine {
            Engine::Tiles { columns, .. } => columns,
            Engine::Library => columns,
        };
        let padded = if columns == 0 { 0 } else { columns.next_multiple_of(width) };
        let mut packed = Self { values: Scratch::new(depth * padded), depth, columns, width };
        if depth * columns == 0 {
            return packed;
        }
        let mut rest = &mut *packed.values;
        for rows in depth_blocks(depth) {
            let (block, others) = rest.split_at_mut(rows.len() * padded);
            rest = others;
            let pack = |first_panel: usize, panels: &mut [f32]| {
                let column = first_panel * width;
                pack::right_panels(right, rows.start, rows.len(), column, width, panels);
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
    multiply_packed_with(Engine::best(), c, stride, write, a, b, finish);
}

fn multiply_packed_with(
    engine: Engine,
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
        unsafe { multiply_packed_at(engine, c.as_mut_ptr(), stride, write, a, b, finish) };
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
        unsafe { multiply_packed_at(Engine::best(), c, n, Write::Replace, a, b, finish) };
    }
}

/// # Safety
/// `c` points to as many rows as `a` has, `stride` apart, of as many values as `b` has columns; at
/// least one each, and nobody else uses them. To be added to, or where there are gaps between rows, all
/// of it has values.
unsafe fn multiply_packed_at(
    engine: Engine,
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
        let a = a.slice_rows(first, count);
        // SAFETY: within the rows that the caller promises.
        let c = unsafe { c.add(first * stride) };
        if b.depth == 0 {
            // SAFETY: as above.
            unsafe { clear(c, stride, count, n, write) };
        }
        for (inner, panels) in b.blocks() {
            let add = write == Write::Add || inner.start > 0;
            let depth = inner.len();
            match engine {
                Engine::Library => {
                    let right = Matrix::new(panels, depth, n);
                    let left = a.slice_columns(inner.start, depth);
                    // SAFETY: as above.
                    unsafe { library::multiply_at(c, stride, add, left, right) };
                }
                Engine::Tiles { kernel, .. } => {
                    let left = LeftBlock::new(a, inner);
                    for (panel, values) in panels.chunks_exact(depth * b.width).enumerate() {
                        let right = Panel { first: values.as_ptr(), stride: b.width };
                        let column = panel * b.width;
                        let columns = b.width.min(n - column);
                        // SAFETY: within the columns that the caller promises.
                        let place = Place { first: unsafe { c.add(column) }, stride, add };
                        // SAFETY: the engine is this machine's; the panel has `depth` rows of its
                        // width, and the place `count` rows of `columns`.
                        unsafe { left.multiply(kernel, depth, right, b.width, place, columns) };
                    }
                }
            }
        }
        // SAFETY: the rows of this block are written now, and gaps between them have values.
        let done = unsafe { std::slice::from_raw_parts_mut(c, (count - 1) * stride + n) };
        finish(first, done);
    }
}

/// Whether there is anything to compute; asserts that the result has room.
fn check_room(length: usize, stride: usize, m: usize, n: usize) -> bool {
    if m == 0 || n == 0 {
        return false;
    }
    assert!(length >= (m - 1) * stride + n && n <= stride, "product: room for the result");
    true
}

/// What a product over nothing leaves.
///
/// # Safety
/// `c` points to `m` rows of `n` values, `stride` apart.
unsafe fn clear(c: *mut f32, stride: usize, m: usize, n: usize, write: Write) {
    if write == Write::Replace {
        for row in 0..m {
            // SAFETY: the caller's promise; zero is all bits zero.
            unsafe { c.add(row * stride).write_bytes(0, n) };
        }
    }
}

/// Some rows of a left operand over a block of the inner dimension, tile by tile.
struct LeftBlock {
    tiles: [Left; BLOCK_ROWS / ROWS],
    rows: usize,
    /// Where rows are packed to, if they are.
    _packed: Scratch,
}

impl LeftBlock {
    /// A left operand by columns is read in place if it is as small as this.
    const COLUMNS_IN_PLACE: usize = 6 << 10;

    /// - `a`: at most [`BLOCK_ROWS`] rows
    fn new(a: Matrix, inner: Range<usize>) -> Self {
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
    /// The kernel runs on this machine; the panel has `depth` rows of `width`, `depth` being the
    /// inner dimension of this block; the place has this block's rows of `columns <= width`.
    #[inline]
    unsafe fn multiply(
        &self,
        kernel: Kernel,
        depth: usize,
        right: Panel,
        width: usize,
        place: Place,
        columns: usize,
    ) {
        for (tile, left) in self.tiles[..self.rows.div_ceil(ROWS)].iter().enumerate() {
            let count = ROWS.min(self.rows - tile * ROWS);
            // SAFETY: within the place's rows.
            let first = unsafe { place.first.add(tile * ROWS * place.stride) };
            let place = Place { first, ..place };
            if columns == width {
                // SAFETY: the left operand's rows were taken from slices of `depth` values each.
                unsafe { kernel(count, depth, left, right, place) };
                continue;
            }
            let mut whole = [0.0_f32; ROWS * MOST_COLUMNS];
            let buffer = Place { first: whole.as_mut_ptr(), stride: width, add: false };
            // SAFETY: as above, and the buffer has a tile's rows and columns.
            unsafe { kernel(count, depth, left, right, buffer) };
            for (row, sums) in whole.chunks_exact(width).take(count).enumerate() {
                for (column, sum) in sums[..columns].iter().enumerate() {
                    // SAFETY: the place has `columns` values in each of its rows, which are there if
                    // they are added to.
                    unsafe {
                        let to = place.first.add(row * place.stride + column);
                        to.write(if place.add { to.read() + sum } else { *sum });
                    }
                }
            }
        }
    }
}

/// `c = a · b` or `c += a · b` on one thread, with rows of `c` `stride` apart.
pub(crate) fn multiply_strided(c: &mut [f32], stride: usize, write: Write, a: Matrix, b: Matrix) {
    multiply_strided_with(Engine::best(), c, stride, write, a, b);
}

fn multiply_strided_with(
    engine: Engine,
    c: &mut [f32],
    stride: usize,
    write: Write,
    a: Matrix,
    b: Matrix,
) {
    let (m, n) = (a.rows(), b.columns());
    assert_eq!(a.columns(), b.rows(), "product: inner sizes");
    if check_room(c.len(), stride, m, n) {
        // SAFETY: the result has room for `m` rows of `n`, and is borrowed.
        unsafe { multiply_at(engine, c.as_mut_ptr(), stride, write, a, b) };
    }
}

/// # Safety
/// `c` points to as many rows as `a` has, `stride` apart, of as many values as `b` has columns; at
/// least one each, and nobody else uses them.
unsafe fn multiply_at(
    engine: Engine,
    c: *mut f32,
    stride: usize,
    write: Write,
    a: Matrix,
    b: Matrix,
) {
    let (m, depth, n) = (a.rows(), a.columns(), b.columns());
    let Engine::Tiles { kernel, columns: width } = engine else {
        // SAFETY: the caller's promise.
        unsafe { library::multiply_at(c, stride, write == Write::Add, a, b) };
        return;
    };
    if depth == 0 {
        // SAFETY: the caller's promise.
        unsafe { clear(c, stride, m, n, write) };
        return;
    }
    let in_place = b.stride().filter(|_| !b.is_transposed() && depth * n <= VALUES_IN_PLACE);
    for first_column in (0..n).step_by(BLOCK_COLUMNS) {
        let n = BLOCK_COLUMNS.min(n - first_column);
        let panels = n.div_ceil(width);
        // In place, only a last panel that is not full is packed.
        let packed_from = if in_place.is_some() { n / width } else { 0 };
        let longest = depth.min(DEPTH + 4);
        let mut packed = Scratch::new((panels - packed_from) * width * longest);
        for inner in depth_blocks(depth) {
            let add = write == Write::Add || inner.start > 0;
            let size = inner.len() * width;
            let to_pack = &mut packed[..(panels - packed_from) * size];
            if !to_pack.is_empty() {
                let column = first_column + packed_from * width;
                let b = b.slice_columns(0, first_column + n);
                pack::right_panels(b, inner.start, inner.len(), column, width, to_pack);
            }
            for first_row in (0..m).step_by(BLOCK_ROWS) {
                let count = BLOCK_ROWS.min(m - first_row);
                let left = LeftBlock::new(a.slice_rows(first_row, count), inner.clone());
                for panel in 0..panels {
                    let column = panel * width;
                    let right = match in_place {
                        Some(stride) if panel < packed_from => {
                            let rows = b.slice_rows(inner.start, inner.len()).values();
                            Panel { first: rows[first_column + column..].as_ptr(), stride }
                        }
                        _ => Panel {
                            first: packed[(panel - packed_from) * size..][..size].as_ptr(),
                            stride: width,
                        },
                    };
                    let columns = width.min(n - column);
                    // SAFETY: within the rows and columns that the caller promises.
                    let first = unsafe { c.add(first_row * stride + first_column + column) };
                    let place = Place { first, stride, add };
                    // SAFETY: the engine is this machine's; panels have `inner.len()` rows of the
                    // width, in place or packed; the place is the caller's.
                    unsafe { left.multiply(kernel, inner.len(), right, width, place, columns) };
                }
            }
        }
    }
}

/// `c = a · b` or `c += a · b` on one thread; `c` is row-major and full.
pub(crate) fn multiply(c: &mut [f32], write: Write, a: Matrix, b: Matrix) {
    assert_eq!(c.len(), a.rows() * b.columns(), "product: room for the result");
    multiply_strided(c, b.columns().max(1), write, a, b);
}

/// A result that several threads write, each its own part.
#[derive(Clone, Copy)]
struct Shared(*mut f32);

// SAFETY: parts of the result that tasks write do not overlap.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn pointer(self) -> *mut f32 {
        self.0
    }
}

/// [`multiply`] on all threads, the longer side of the result cut among them.
pub(crate) fn multiply_parallel(c: &mut [f32], write: Write, a: Matrix, b: Matrix) {
    assert_eq!(c.len(), a.rows() * b.columns(), "product: room for the result");
    // SAFETY: asserted, and the values are there.
    unsafe { multiply_parallel_at(Shared(c.as_mut_ptr()), write, a, b) };
}

/// [`multiply_parallel`] into memory that nothing was written to: all of it is written.
pub(crate) fn multiply_parallel_into(c: &mut [Blank], a: Matrix, b: Matrix) {
    assert_eq!(c.len(), a.rows() * b.columns(), "product: room for the result");
    // SAFETY: asserted, and what replaces does not read.
    unsafe { multiply_parallel_at(Shared(c.as_mut_ptr().cast()), Write::Replace, a, b) };
}

/// # Safety
/// The result has as many values as `a` has rows times as `b` has columns, row by row, and nobody else
/// uses them; to be added to, they are there.
unsafe fn multiply_parallel_at(result: Shared, write: Write, a: Matrix, b: Matrix) {
    let (m, n) = (a.rows(), b.columns());
    assert_eq!(a.columns(), b.rows(), "product: inner sizes");
    if m == 0 || n == 0 {
        return;
    }
    let engine = Engine::best();
    let width = match engine {
        Engine::Tiles { columns, .. } => columns,
        Engine::Library => 1,
    };
    let (by_columns, length, tile) = if n >= m { (true, n, width) } else { (false, m, ROWS) };
    let part = length.div_ceil(rayon::current_num_threads()).next_multiple_of(tile);
    let parts = length.div_ceil(part);
    (0..parts).into_par_iter().with_max_len(1).for_each(|task| {
        let first = task * part;
        let count = part.min(length - first);
        let (a, b, offset) = match by_columns {
            true => (a, b.slice_columns(first, count), first),
            false => (a.slice_rows(first, count), b, first * n),
        };
        // SAFETY: parts lie within the result, and do not overlap.
        unsafe { multiply_at(engine, result.pointer().add(offset), n, write, a, b) };
    });
}

#[cfg(test)]
mod tests;
