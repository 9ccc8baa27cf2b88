//! All engines against the definition of a product.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::cpu::unfilled::{filled, unfilled};

/// All that this machine can run: the widest vectors, AVX2 where wider ones are too, and the library.
fn engines() -> Vec<Engine> {
    let mut engines = vec![Engine::Library, Engine::of(simd::level())];
    #[cfg(target_arch = "x86_64")]
    if simd::level() == Level::Avx512 {
        engines.push(Engine::of(Level::Avx2));
    }
    engines
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = Pcg64::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// How an operand is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Storage {
    Rows,
    Columns,
    /// Rows further apart than they are long.
    Apart,
    /// Rows picked from more, some twice.
    Picked,
    /// Columns picked from more.
    PickedColumns,
}

const STORAGES: [Storage; 5] =
    [Storage::Rows, Storage::Columns, Storage::Apart, Storage::Picked, Storage::PickedColumns];

/// Values of a matrix of any storage, and which rows are picked.
struct Operand {
    values: Vec<f32>,
    picked: Vec<u32>,
    shape: [usize; 2],
    storage: Storage,
}

impl Operand {
    fn new(rows: usize, columns: usize, storage: Storage, seed: u64) -> Self {
        let by_columns = matches!(storage, Storage::Columns | Storage::PickedColumns);
        let shape = if by_columns { [columns, rows] } else { [rows, columns] };
        let more = shape[0] + 3;
        let picked = (0..shape[0]).map(|row| (row * 7 % more) as u32).collect();
        let values = random(more * (shape[1] + 5), seed);
        Self { values, picked, shape, storage }
    }

    fn matrix(&self) -> Matrix<'_> {
        let [rows, columns] = self.shape;
        match self.storage {
            Storage::Rows => Matrix::new(&self.values[..rows * columns], rows, columns),
            Storage::Columns => {
                Matrix::new(&self.values[..rows * columns], rows, columns).transposed()
            }
            Storage::Apart => Matrix::strided(&self.values, rows, columns, columns + 5),
            Storage::Picked => Matrix::picked(&self.values, columns, &self.picked),
            Storage::PickedColumns => {
                Matrix::picked(&self.values, columns, &self.picked).transposed()
            }
        }
    }
}

fn element(matrix: Matrix, row: usize, column: usize) -> f64 {
    f64::from(match matrix.is_transposed() {
        true => matrix.stored(column)[row],
        false => matrix.stored(row)[column],
    })
}

/// `before + a · b` in double precision.
fn defined(before: f32, a: Matrix, b: Matrix, row: usize, column: usize) -> f64 {
    let terms = (0..a.columns()).map(|k| element(a, row, k) * element(b, k, column));
    f64::from(before) + terms.sum::<f64>()
}

fn check(engine: Engine, [m, k, n]: [usize; 3], a: Storage, b: Storage, write: Write, gap: usize) {
    let (a, b) = (Operand::new(m, k, a, 1), Operand::new(k, n, b, 2));
    let (a, b) = (a.matrix(), b.matrix());
    let stride = n + gap;
    let before = random(m * stride, 3);
    let mut plain = before.clone();
    multiply_strided_with(engine, &mut plain, stride.max(1), write, a, b);
    let mut packed = before.clone();
    let mut finished = vec![0; m];
    let panels = Packed::with(engine, b, 2);
    multiply_packed(&mut packed, stride.max(1), write, a, &panels, |first, rows| {
        let count = rows.len().div_ceil(stride);
        finished[first..first + count].iter_mut().for_each(|times| *times += 1);
    });
    if n > 0 {
        assert_eq!(finished, vec![1; m], "every row is finished once");
    }
    if write == Write::Replace && gap == 0 {
        assert_eq!(by_columns(a, &panels, n), packed, "cut by columns");
    }
    for row in 0..m {
        for column in 0..stride {
            let at = row * stride + column;
            if column >= n {
                assert_eq!([plain[at], packed[at]], [before[at]; 2], "between rows");
                continue;
            }
            let start = if write == Write::Add { before[at] } else { 0.0 };
            let expected = defined(start, a, b, row, column);
            let tolerance = 1e-6 * (1.0 + k as f64);
            for found in [plain[at], packed[at]] {
                let error = (f64::from(found) - expected).abs();
                assert!(error <= tolerance, "{row}, {column}: {found} for {expected}");
            }
        }
    }
}

/// A product whose columns are cut among three threads, with a sign that every value changes once.
fn by_columns(a: Matrix, b: &Packed, columns: usize) -> Vec<f32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut result = unfilled(a.rows() * columns);
    let finish = |row: usize, columns: Range<usize>, part: &mut [f32]| {
        assert!(row < a.rows() && columns.len() == part.len(), "columns of a row");
        part.iter_mut().for_each(|value| *value = -*value);
    };
    pool.install(|| multiply_packed_by_columns(&mut result, a, b, finish));
    // SAFETY: the product writes all of it.
    let result = unsafe { filled(result) };
    result.into_iter().map(|value| -value).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn products_are_what_they_are_defined_as(
        m in 0_usize..40, k in 0_usize..50, n in 0_usize..70,
        a in 0_usize..5, b in 0_usize..5, add in any::<bool>(), gap in 0_usize..4,
    ) {
        let write = if add { Write::Add } else { Write::Replace };
        for engine in engines() {
            check(engine, [m, k, n], STORAGES[a], STORAGES[b], write, gap);
        }
    }
}

#[test]
fn products_of_several_blocks_are_too() {
    for engine in engines() {
        for storage in STORAGES {
            // More rows, columns and depth than a block has, and none a multiple of a tile.
            check(engine, [BLOCK_ROWS + 7, DEPTH + 1, 35], storage, storage, Write::Replace, 0);
            check(engine, [5, 9, BLOCK_COLUMNS + 19], storage, storage, Write::Add, 1);
            check(engine, [ROWS + 1, 2 * DEPTH + 3, 17], storage, storage, Write::Add, 0);
        }
    }
}

#[test]
fn threads_and_pieces_do_not_change_a_bit() {
    let Engine::Tiles { .. } = Engine::of(simd::level()) else { return };
    let (m, k, n) = (133, 500, 77);
    for storage in [Storage::Rows, Storage::Columns] {
        let (a, b) = (Operand::new(m, k, storage, 1), Operand::new(k, n, storage, 2));
        let (a, b) = (a.matrix(), b.matrix());
        let mut whole = vec![0.0; m * n];
        multiply(&mut whole, Write::Replace, a, b);
        for threads in [1, 2, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut cut = vec![0.0; m * n];
            pool.install(|| multiply_parallel(&mut cut, Write::Replace, a, b));
            assert_eq!(cut, whole, "{threads} threads");
        }
        let mut packed = vec![0.0; m * n];
        multiply_packed(&mut packed, n, Write::Replace, a, &Packed::new(b), |_, _| {});
        assert_eq!(packed, whole);
        assert_eq!(by_columns(a, &Packed::new(b), n), whole);
        for row in [0, 59, 132] {
            let mut alone = vec![0.0; n];
            multiply(&mut alone, Write::Replace, a.slice_rows(row, 1), b);
            assert_eq!(alone, whole[row * n..][..n], "row {row}");
        }
        let mut columns = vec![0.0; m * 20];
        multiply(&mut columns, Write::Replace, a, b.slice_columns(31, 20));
        for row in 0..m {
            assert_eq!(columns[row * 20..][..20], whole[row * n + 31..][..20]);
        }
    }
}
