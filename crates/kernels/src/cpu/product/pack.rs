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
        for (panel, place) in panels.chunks_exact_mut(depth * WIDTH).enumerate() {
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

/// Panels of a matrix that is stored by columns, squares of eight by eight at a time.
fn transposed_panels(right: Matrix, part: Part, panels: &mut [f32]) {
    let Part { rows: taken, column, width } = part;
    let (columns, depth) = (right.columns(), taken.len());
    for (panel, place) in panels.chunks_exact_mut(depth * width).enumerate() {
        let first = column + panel * width;
        for block in (0..width).step_by(8) {
            let count = columns.saturating_sub(first + block).min(8).min(width - block);
            let rows: [&[f32]; 8] = std::array::from_fn(|i| match i < count {
                true => &right.stored(first + block + i)[taken.clone()],
                false => &[][..],
            });
            match simd::level() {
                #[cfg(target_arch = "x86_64")]
                simd::Level::Avx2 | simd::Level::Avx512 if count == 8 => {
                    // SAFETY: this machine has AVX2, and the function checks its slices.
                    unsafe { transpose_by_vectors(rows, width, &mut place[block..]) };
                }
                _ => {
                    for row in 0..depth {
                        let place = &mut place[row * width + block..];
                        for (to, values) in place.iter_mut().zip(&rows).take(8.min(width - block)) {
                            *to = values.get(row).copied().unwrap_or(0.0);
                        }
                    }
                }
            }
        }
    }
}

/// Eight rows of equal lengths as eight columns of `place`, whose rows are `stride` apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn transpose_by_vectors(rows: [&[f32]; 8], stride: usize, place: &mut [f32]) {
    use std::arch::x86_64::*;
    let depth = rows[0].len();
    assert!(rows.iter().all(|row| row.len() == depth), "transpose: equal rows");
    assert!(depth == 0 || place.len() >= (depth - 1) * stride + 8, "transpose: room");
    let whole = depth - depth % 8;
    for first in (0..whole).step_by(8) {
        // SAFETY: `first + 8 <= depth`, the length of every row.
        let r = rows.map(|row| unsafe { _mm256_loadu_ps(row.as_ptr().add(first)) });
        let pair =
            |i: usize| [_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1])];
        let [[a0, a1], [a2, a3], [a4, a5], [a6, a7]] = [pair(0), pair(2), pair(4), pair(6)];
        let low = |a, b| _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
        let high = |a, b| _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
        let upper = [low(a0, a2), high(a0, a2), low(a1, a3), high(a1, a3)];
        let lower = [low(a4, a6), high(a4, a6), low(a5, a7), high(a5, a7)];
        for i in 0..4 {
            let near = _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]);
            let far = _mm256_permute2f128_ps::<0x31>(upper[i], lower[i]);
            // SAFETY: rows `first..first + 8` of the place have eight values, as asserted.
            unsafe {
                _mm256_storeu_ps(place.as_mut_ptr().add((first + i) * stride), near);
                _mm256_storeu_ps(place.as_mut_ptr().add((first + i + 4) * stride), far);
            }
        }
    }
    for row in whole..depth {
        for (to, values) in place[row * stride..].iter_mut().zip(&rows) {
            *to = values[row];
        }
    }
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
