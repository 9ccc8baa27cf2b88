//! Products of matrices, packed for the machine's vectors.
//!
//! Products are cut into blocks that stay in cache. A left operand that is stored by rows is read in
//! place, picked rows included, so that gathering the tokens of an expert costs nothing. A right operand
//! is packed: [`Packed`] once for many products, [`multiply`] block by block on the way.
//!
//! | file | room for |
//! |---|---|
//! | `kernel.rs` | a tile of the result in registers |
//! | `left.rs` | where it finds the rows of a left operand |
//! | `pack.rs` | operands in the order in which it reads them |
//! | `packed.rs` | a right operand for many products, and these |
//! | `right.rs` | a right operand for many products or for one |
//! | `kept.rs` | right operands for many operations |
//! | `library.rs` | the `gemm` crate |
//!
//! An element of the result is summed over the inner dimension in blocks that depend on its length
//! alone, so that it has the same bits in whatever piece of the product it is computed. Machines
//! without AVX2 multiply by the `gemm` crate, which does not promise that.

mod kept;
mod kernel;
mod left;
mod library;
mod pack;
mod packed;
mod right;

use std::{ops::Range, sync::OnceLock};

use rayon::prelude::*;

pub(crate) use self::{
    kept::{Kept, Panels},
    kernel::ROWS,
    packed::{Packed, multiply_packed, multiply_packed_by_columns, multiply_packed_into},
    right::Right,
};
use self::{
    kernel::{Kernel, Panel, Place},
    left::LeftBlock,
    pack::Part,
};
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

/// Whether a product is better cut by columns than by rows: so few rows that every task would pass all of the right
/// operand for little, and that one task more or less is a good part of the work.
pub(crate) fn has_few_rows(rows: usize) -> bool {
    rows < 2 * BLOCK_ROWS * rayon::current_num_threads()
}

/// Columns of a block of a product that packs its right operand on the way: its panels, and what they are packed
/// from, stay in the second cache. So few that the left operand is not packed often, if it is.
const BLOCK_COLUMNS: usize = 256;

/// So many columns are one block.
const COLUMNS_OF_ONE_BLOCK: usize = 384;

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
    let block_columns = if n <= COLUMNS_OF_ONE_BLOCK { n } else { BLOCK_COLUMNS };
    for first_column in (0..n).step_by(block_columns) {
        let n = block_columns.min(n - first_column);
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
                pack::right_panels(b, Part { rows: inner.clone(), column, width }, to_pack);
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
                    unsafe { left.multiply(kernel, inner.len(), right, place, columns) };
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

/// [`multiply`] into memory that nothing was written to: all of it is written.
pub(crate) fn multiply_into(c: &mut [Blank], a: Matrix, b: Matrix) {
    assert_eq!(c.len(), a.rows() * b.columns(), "product: room for the result");
    assert_eq!(a.columns(), b.rows(), "product: inner sizes");
    if !c.is_empty() {
        let c = c.as_mut_ptr().cast();
        // SAFETY: asserted, and what replaces does not read.
        unsafe { multiply_at(Engine::best(), c, b.columns(), Write::Replace, a, b) };
    }
}

/// `c = a · b` on one thread, with rows of `c` `stride` apart, of which only these columns are touched.
///
/// # Safety
/// `c` points to as many rows as `a` has of as many values as `b` has columns, which nobody else uses.
pub(crate) unsafe fn multiply_to(c: *mut f32, stride: usize, a: Matrix, b: Matrix) {
    assert_eq!(a.columns(), b.rows(), "product: inner sizes");
    assert!(b.columns() <= stride, "product: room for the result");
    if a.rows() * b.columns() > 0 {
        // SAFETY: the caller's promise, and what replaces does not read.
        unsafe { multiply_at(Engine::best(), c, stride, Write::Replace, a, b) };
    }
}

/// A result that several threads write, each its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared(*mut f32);

// SAFETY: parts of the result that tasks write do not overlap.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(values: &mut [Blank]) -> Self {
        Self(values.as_mut_ptr().cast())
    }

    /// The value `offset` from the first one.
    ///
    /// # Safety
    /// There is one.
    pub(crate) unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
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
    unsafe { multiply_parallel_at(Shared::new(c), Write::Replace, a, b) };
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
        unsafe { multiply_at(engine, result.at(offset), n, write, a, b) };
    });
}

#[cfg(test)]
mod tests;
