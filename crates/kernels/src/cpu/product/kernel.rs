//! The innermost loops: a tile of the result in registers.
//!
//! A tile is [`ROWS`] rows by two vectors of columns. Every step of the inner dimension loads two
//! vectors of the right operand, and for each row one value of the left one, spread over a vector:
//! twelve fused multiply-adds for eight loads, which keeps both FMA units of a core busy. The left
//! operand is read where it lies, through one pointer per row; the right one comes in panels.
//!
//! The sum of an element of the result runs over the inner dimension in order, whatever tile it is in.

/// Rows of a tile.
pub(crate) const ROWS: usize = 6;

/// Columns of the widest tile.
pub(super) const MOST_COLUMNS: usize = 32;

/// The left operand of a tile: the first values of its rows, and the distance of two columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    pub(super) rows: [*const f32; ROWS],
    pub(super) step: usize,
}

/// The right operand of a tile: as many columns as a tile has, rows `stride` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panel {
    pub(super) first: *const f32,
    pub(super) stride: usize,
}

/// Where a tile of the result goes: rows `stride` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) first: *mut f32,
    pub(super) stride: usize,
    /// Whether the tile is added to what is there.
    pub(super) add: bool,
}

/// A function that computes the first `count` rows of a tile over an inner dimension of `depth`.
///
/// # Safety
/// The machine has the instructions, and `count` rows of `depth` values of the left operand, `depth`
/// rows of a tile's columns of the right one, and `count` rows of a tile's columns of the place are
/// within their slices.
pub(super) type Kernel =
    unsafe fn(count: usize, depth: usize, left: &Left, right: Panel, place: Place);

/// The kernel of one instruction set, of tiles of `2 · $lanes` columns.
macro_rules! kernel {
    ($name:ident, $features:literal, $lanes:literal, $zero:ident, $load:ident, $store:ident, $spread:ident, $fma:ident, $add:ident) => {
        #[cfg(target_arch = "x86_64")]
        pub(super) mod $name {
            use std::arch::x86_64::*;

            use super::{Left, Panel, Place, ROWS};

            pub(in super::super) const COLUMNS: usize = 2 * $lanes;

            #[target_feature(enable = $features)]
            unsafe fn tile<const COUNT: usize>(
                depth: usize,
                left: &Left,
                right: Panel,
                place: Place,
            ) {
                // SAFETY: the caller's promises about the operands, see `Kernel`.
                unsafe {
                    for row in 0..COUNT {
                        let start = place.first.add(row * place.stride);
                        _mm_prefetch::<_MM_HINT_T0>(start.cast());
                        _mm_prefetch::<_MM_HINT_T0>(start.add(COLUMNS - 1).cast());
                    }
                    let mut sums = [[$zero(); 2]; COUNT];
                    let (mut at, mut panel) = (0, right.first);
                    for _ in 0..depth {
                        let b = [$load(panel), $load(panel.add($lanes))];
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let a = $spread(*left.rows[row].add(at));
                            sums[0] = $fma(a, b[0], sums[0]);
                            sums[1] = $fma(a, b[1], sums[1]);
                        }
                        at += left.step;
                        panel = panel.add(right.stride);
                    }
                    for (row, sums) in sums.into_iter().enumerate() {
                        for (half, mut sum) in sums.into_iter().enumerate() {
                            let to = place.first.add(row * place.stride + half * $lanes);
                            if place.add {
                                sum = $add(sum, $load(to));
                            }
                            $store(to, sum);
                        }
                    }
                }
            }

            /// See [`Kernel`](super::Kernel).
            ///
            /// # Safety
            /// As there.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn run(
                count: usize,
                depth: usize,
                left: &Left,
                right: Panel,
                place: Place,
            ) {
                // SAFETY: passed on.
                unsafe {
                    match count {
                        1 => tile::<1>(depth, left, right, place),
                        2 => tile::<2>(depth, left, right, place),
                        3 => tile::<3>(depth, left, right, place),
                        4 => tile::<4>(depth, left, right, place),
                        5 => tile::<5>(depth, left, right, place),
                        _ => tile::<ROWS>(depth, left, right, place),
                    }
                }
            }
        }
    };
}

kernel!(
    avx2,
    "avx2,fma",
    8,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_set1_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);
kernel!(
    avx512,
    "avx512f,avx512vl,avx512dq,avx2,fma",
    16,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps
);
