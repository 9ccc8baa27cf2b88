//! Operands in the order in which the kernel reads them.
//!
//! A panel of the right operand is as wide as a tile, its rows one after another, and what lies beyond
//! the last column is zero. A panel of a left operand that is stored by columns has the rows of a tile
//! side by side.

use std::ops::Range;

use super::kernel::ROWS;
use crate::cpu::{matrix::Matrix, simd};

/// Which part of a right operand is packed: some rows, and the columns from `column` on, into panels of
/// `width`.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    pub(super) column: usize,
    pub(super) width: usize,
}

/// - `panels`: `[panels, rows, width]`
pub(super) fn right_panels(right: Matrix, part: Part, panels: &mut [f32]) {
    if right.is_transposed() {
        transposed_panels(right, part, panels);
    } else {
        copied_panels(right, part, panels);
    }
}

simd::multiversion! {
    /// Panels of a matrix that is stored by rows.
    fn copied_panels(right: Matrix, part: Part, panels: &mut [f32]) {
        let Part { rows, column, width } = part;
        match width {
            16 => copied::<16>(right, rows, column, panels),
            32 => copied::<32>(right, rows, column, panels),
            // The library's one panel.
            _ => {
                for (row, place) in rows.zip(panels.chunks_exact_mut(width)) {
                    place.copy_from_slice(&right.stored(row)[column..]);
                }
            }
        }
    }
}

/// Asks for the lines of so many values, which are read soon.
#[inline(always)]
fn ask_for<const WIDTH: usize>(first: *const f32) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..WIDTH).step_by(LINE) {
        use std::arch::x86_64::*;
        // SAFETY: what is asked for need not be there.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(line).cast()) };
    }
}

/// Some rows at a time, so that reads go along them and writes along the panels.
#[inline(always)]
fn copied<const WIDTH: usize>(
    right: Matrix,
    rows: Range<usize>,
    column: usize,
    panels: &mut [f32],
) {
    const AT_A_TIME: usize = 8;
    let depth = rows.len();
    let whole = (right.columns() - column) / WIDTH;
    for first in (0..depth).step_by(AT_A_TIME) {
        let count = AT_A_TIME.min(depth - first);
        // Whole panels of every row, and what is left of it.
        let values: [(&[[f32; WIDTH]], &[f32]); AT_A_TIME] =
            std::array::from_fn(|row| match row < count {
                true => right.stored(rows.start + first + row)[column..].as_chunks(),
                false => (&[][..], &[][..]),
            });
        let next = (first + AT_A_TIME..depth).take(AT_A_TIME);
        let next = next.map(|row| right.stored(rows.start + row)[column..].as_ptr());
        for (panel, place) in panels.chunks_exact_mut(depth * WIDTH).enumerate() {
            for row in next.clone() {
                ask_for::<WIDTH>(row.wrapping_add(panel * WIDTH));
            }
            let (places, _) = place[first * WIDTH..][..count * WIDTH].as_chunks_mut::<WIDTH>();
            for (place, (values, rest)) in places.iter_mut().zip(values) {
                if panel < whole {
                    *place = values[panel];
                } else {
                    place.fill(0.0);
                    place[..rest.len()].copy_from_slice(rest);
                }
            }
        }
    }
}

/// Panels of a matrix that is stored by columns.
fn transposed_panels(right: Matrix, part: Part, panels: &mut [f32]) {
    let Part { rows: taken, column, width } = part;
    let (columns, depth) = (right.columns(), taken.len());
    for (panel, place) in panels.chunks_exact_mut(depth * width).enumerate() {
        let first = column + panel * width;
        let count = columns.saturating_sub(first).min(width);
        let stored = |i: usize| &right.stored(first + i)[taken.clone()];
        let by_vectors = match simd::level() {
            simd::Level::Baseline => 0,
            #[cfg(target_arch = "x86_64")]
            simd::Level::Avx2 | simd::Level::Avx512 => {
                let mut rows = [&[][..]; MOST_COLUMNS];
                let whole = count.min(MOST_COLUMNS) / SQUARE * SQUARE;
                rows.iter_mut().take(whole).enumerate().for_each(|(i, row)| *row = stored(i));
                // SAFETY: this machine has AVX2, and the function checks its slices.
                unsafe { transpose_by_vectors(&rows[..whole], width, place) };
                whole
            }
        };
        for i in by_vectors..width {
            let values = if i < count { stored(i) } else { &[] };
            for (row, place) in place.chunks_exact_mut(width).enumerate() {
                place[i] = values.get(row).copied().unwrap_or(0.0);
            }
        }
    }
}

/// Values of a line of a cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

/// Sides of the squares that are turned in registers.
#[cfg(target_arch = "x86_64")]
const SQUARE: usize = 8;

/// Columns of the widest panel.
#[cfg(target_arch = "x86_64")]
const MOST_COLUMNS: usize = 32;

/// Rows of equal lengths, a multiple of [`SQUARE`] of them, as the first columns of `place`, whose rows are `stride`
/// apart. A line of every row at a time, so that reads and writes are of whole lines.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn transpose_by_vectors(rows: &[&[f32]], stride: usize, place: &mut [f32]) {
    /// How many lines ahead of what is turned are asked for.
    const AHEAD: usize = 8;
    use std::arch::x86_64::*;
    let Some(depth) = rows.first().map(|row| row.len()) else { return };
    assert!(rows.iter().all(|row| row.len() == depth), "transpose: equal rows");
    assert!(rows.len().is_multiple_of(SQUARE) && rows.len() <= stride, "transpose: columns");
    assert!(depth == 0 || place.len() >= (depth - 1) * stride + rows.len(), "transpose: room");
    let whole = depth - depth % SQUARE;
    for line in (0..whole).step_by(LINE) {
        for (block, rows) in rows.chunks_exact(SQUARE).enumerate() {
            for row in rows {
                let ahead = row.as_ptr().wrapping_add(line + AHEAD * LINE);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            for first in (line..whole.min(line + LINE)).step_by(SQUARE) {
                let r: [__m256; SQUARE] = std::array::from_fn(|i| {
                    // SAFETY: `first + 8 <= depth`, the length of every row.
                    unsafe { _mm256_loadu_ps(rows[i].as_ptr().add(first)) }
                });
                let turned = turn(r);
                for (i, column) in turned.into_iter().enumerate() {
                    // SAFETY: rows `first..first + 8` of the place have the columns of this block, as asserted.
                    unsafe {
                        let to = place.as_mut_ptr().add((first + i) * stride + block * SQUARE);
                        _mm256_storeu_ps(to, column);
                    }
                }
            }
        }
    }
    for row in whole..depth {
        for (to, values) in place[row * stride..].iter_mut().zip(rows) {
            *to = values[row];
        }
    }
}

/// The columns of a square of which these are the rows.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn turn(r: [std::arch::x86_64::__m256; SQUARE]) -> [std::arch::x86_64::__m256; SQUARE] {
    use std::arch::x86_64::*;
    let pair = |i: usize| [_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1])];
    let [[a0, a1], [a2, a3], [a4, a5], [a6, a7]] = [pair(0), pair(2), pair(4), pair(6)];
    let low = |a, b| _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
    let high = |a, b| _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
    let upper = [low(a0, a2), high(a0, a2), low(a1, a3), high(a1, a3)];
    let lower = [low(a4, a6), high(a4, a6), low(a5, a7), high(a5, a7)];
    let near = |i: usize| _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]);
    let far = |i: usize| _mm256_permute2f128_ps::<0x31>(upper[i], lower[i]);
    [near(0), near(1), near(2), near(3), far(0), far(1), far(2), far(3)]
}

simd::multiversion! {
    /// A left operand that is stored by columns, over its columns from `from`, a tile of rows after the
    /// other.
    ///
    /// - `panels`: `[tiles, depth, ROWS]`; what lies beyond the last row is left as it was
    pub(super) fn left_panels(left: Matrix, from: usize, depth: usize, panels: &mut [f32]) {
        /// Columns that are read at a time: they stay in the first cache while all tiles take their part.
        const COLUMNS: usize = 32;
        let rows = left.rows();
        for first in (0..depth).step_by(COLUMNS) {
            let count = COLUMNS.min(depth - first);
            for (tile, place) in panels.chunks_exact_mut(depth * ROWS).enumerate() {
                let row = tile * ROWS;
                let place = &mut place[first * ROWS..][..count * ROWS];
                for (column, place) in place.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
                    let values = &left.stored(from + first + column)[row..rows];
                    match values.first_chunk() {
                        Some(values) => *place = *values,
                        None => place[..values.len()].copy_from_slice(values),
                    }
                }
            }
        }
    }
}
