//! The innermost loops: a tile of the result in registers.
//!
//! A tile is [`ROWS`] rows by two vectors of columns. Every step of the inner dimension loads two
//! vectors of the right operand, and for each row one value of the left one, spread over a vector:
//! twelve fused multiply-adds for eight loads, which keeps both FMA units of a core busy. The left
//! operand is read where it lies, through one pointer per row; the right one comes in panels. Of a last
//! panel that is not full, only the vectors are computed that have columns, and only these are written.
//!
//! The sum of an element of the result runs over the inner dimension in order, whatever tile it is in.

/// Rows of a tile.
pub(crate) const ROWS: usize = 6;

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

/// How much of a tile there is: so many rows and columns, over an inner dimension of `depth`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// A function that computes a tile, or the part of it that there is.
///
/// # Safety
/// The machine has the instructions; there are one to [`ROWS`] rows and one to a tile's columns; and the
/// extent's rows of `depth` values of the left operand, `depth` rows of a tile's columns of the right one,
/// and the extent's rows and columns of the place are within their slices.
pub(super) type Kernel = unsafe fn(extent: Extent, left: &Left, right: Panel, place: Place);

/// The kernel of one instruction set, of tiles of `2 · $lanes` columns. `$mask` makes what `$store_part` and
/// `$load_part` take of a number of lanes.
macro_rules! kernel {
    (
        $name:ident,
        $features:literal,
        $lanes:literal,
        $zero:ident,
        $load:ident,
        $store:ident,
        $spread:ident,
        $fma:ident,
        $add:ident,
        $mask:expr,
        $load_part:ident,
        $store_part:ident
    ) => {
        #[cfg(target_arch = "x86_64")]
        pub(super) mod $name {
            use std::arch::x86_64::*;

            #[allow(unused_imports, reason = "of one instruction set")]
            use super::load_of_eight;
            use super::{Extent, Left, Panel, Place, ROWS};

            pub(in super::super) const COLUMNS: usize = 2 * $lanes;

            #[target_feature(enable = $features)]
            unsafe fn tile<const COUNT: usize, const VECTORS: usize>(
                Extent { columns, depth, .. }: Extent,
                left: &Left,
                right: Panel,
                place: Place,
            ) {
                // SAFETY: the caller's promises about the operands, see `Kernel`.
                unsafe {
                    for row in 0..COUNT {
                        let start = place.first.add(row * place.stride);
                        _mm_prefetch::<_MM_HINT_T0>(start.cast());
                        _mm_prefetch::<_MM_HINT_T0>(start.add(columns - 1).cast());
                    }
                    let mut sums = [[$zero(); VECTORS]; COUNT];
                    let (mut at, mut panel) = (0, right.first);
                    for _ in 0..depth {
                        let mut b = [$zero(); VECTORS];
                        for (vector, b) in b.iter_mut().enumerate() {
                            *b = $load(panel.add(vector * $lanes));
                        }
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let a = $spread(*left.rows[row].add(at));
                            for (sum, b) in sums.iter_mut().zip(b) {
                                *sum = $fma(a, b, *sum);
                            }
                        }
                        at += left.step;
                        panel = panel.add(right.stride);
                    }
                    for (row, sums) in sums.into_iter().enumerate() {
                        for (vector, mut sum) in sums.into_iter().enumerate() {
                            let to = place.first.add(row * place.stride + vector * $lanes);
                            let lanes = columns - vector * $lanes;
                            if lanes >= $lanes {
                                if place.add {
                                    sum = $add(sum, $load(to));
                                }
                                $store(to, sum);
                            } else {
                                let mask = $mask(lanes);
                                if place.add {
                                    sum = $add(sum, $load_part(mask, to));
                                }
                                $store_part(to, mask, sum);
                            }
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn rows<const VECTORS: usize>(
                extent: Extent,
                left: &Left,
                right: Panel,
                place: Place,
            ) {
                // SAFETY: passed on.
                unsafe {
                    match extent.rows {
                        1 => tile::<1, VECTORS>(extent, left, right, place),
                        2 => tile::<2, VECTORS>(extent, left, right, place),
                        3 => tile::<3, VECTORS>(extent, left, right, place),
                        4 => tile::<4, VECTORS>(extent, left, right, place),
                        5 => tile::<5, VECTORS>(extent, left, right, place),
                        _ => tile::<ROWS, VECTORS>(extent, left, right, place),
                    }
                }
            }

            /// See [`Kernel`](super::Kernel).
            ///
            /// # Safety
            /// As there.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn run(
                extent: Extent,
                left: &Left,
                right: Panel,
                place: Place,
            ) {
                // SAFETY: passed on.
                unsafe {
                    match extent.columns <= $lanes {
                        true => rows::<1>(extent, left, right, place),
                        false => rows::<2>(extent, left, right, place),
                    }
                }
            }
        }
    };
}

/// The lanes of eight below `lanes`, as AVX2 wants to have them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn lanes_of_eight(lanes: usize) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::*;
    let below = _mm256_set1_epi32(lanes as i32);
    _mm256_cmpgt_epi32(below, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// Loads the lanes of a mask; the others are zero.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn load_of_eight(
    mask: std::arch::x86_64::__m256i,
    from: *const f32,
) -> std::arch::x86_64::__m256 {
    // SAFETY: the caller promises the lanes of the mask.
    unsafe { std::arch::x86_64::_mm256_maskload_ps(from, mask) }
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
    _mm256_add_ps,
    super::lanes_of_eight,
    load_of_eight,
    _mm256_maskstore_ps
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
    _mm512_add_ps,
    |lanes: usize| (1 << lanes) - 1,
    _mm512_maskz_loadu_ps,
    _mm512_mask_storeu_ps
);
