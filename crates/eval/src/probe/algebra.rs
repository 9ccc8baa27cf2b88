//! Matrices in double precision: a device multiplies, everything else is done here in blocks.

use burn::tensor::{DType, Device, Tensor, TensorData};
use rayon::prelude::*;

use super::ProbeError;

/// Columns that are eliminated at a time: few enough for the work between products to be small, many
/// enough for products to be fast.
const BLOCK: usize = 64;

/// On the CPU where a device has no double precision.
///
/// - `values`: `[rows, columns]`
pub(super) fn matrix(values: Vec<f64>, shape: [usize; 2], device: &Device) -> Tensor<2> {
    let exact = device.supports_dtype(DType::F64);
    let device = if exact { device.clone() } else { Device::flex() };
    Tensor::from_data(TensorData::new(values, shape), (&device, DType::F64))
}

pub(super) fn values(matrix: Tensor<2>) -> Vec<f64> {
    matrix.try_into_vec_as().expect("a matrix is of floats")
}

/// Solves `A X = B` in place for a symmetric positive definite `A [n, n]` and `B [n, columns]`.
pub(super) fn solve(
    a: &mut [f64],
    n: usize,
    b: &mut [f64],
    columns: usize,
    device: &Device,
) -> Result<(), ProbeError> {
    factorise(a, n, device)?;
    let lower = |rows: std::ops::Range<usize>, within: std::ops::Range<usize>| {
        let shape = [rows.len(), within.len()];
        let part = rows.flat_map(|row| &a[row * n + within.start..row * n + within.end]);
        matrix(part.copied().collect(), shape, device)
    };
    let known = |rows: &[f64]| matrix(rows.to_vec(), [rows.len() / columns, columns], device);
    let starts = (0..n).step_by(BLOCK);
    for start in starts.clone() {
        let end = (start + BLOCK).min(n);
        let (before, rest) = b.split_at_mut(start * columns);
        if start > 0 {
            subtract(rest, lower(start..end, 0..start).matmul(known(before)));
        }
        for i in start..end {
            let (solved, row) = rest.split_at_mut((i - start) * columns);
            eliminate(&mut row[..columns], solved, a[i * n + start..].iter(), a[i * n + i]);
        }
    }
    for start in starts.rev() {
        let end = (start + BLOCK).min(n);
        let (rest, after) = b.split_at_mut(end * columns);
        let block = &mut rest[start * columns..];
        if end < n {
            subtract(block, lower(end..n, start..end).transpose().matmul(known(after)));
        }
        for i in (start..end).rev() {
            let (row, solved) = block[(i - start) * columns..].split_at_mut(columns);
            let below = a[(i + 1) * n..].iter().skip(i).step_by(n);
            eliminate(row, solved, below, a[i * n + i]);
        }
    }
    Ok(())
}

/// `row = (row − Σ factor · solved row) / pivot`
fn eliminate<'a>(
    row: &mut [f64],
    solved: &[f64],
    factors: impl Iterator<Item = &'a f64>,
    pivot: f64,
) {
    for (other, factor) in solved.chunks_exact(row.len()).zip(factors) {
        row.iter_mut().zip(other).for_each(|(value, other)| *value -= factor * other);
    }
    row.iter_mut().for_each(|value| *value /= pivot);
}

fn subtract(from: &mut [f64], product: Tensor<2>) {
    from.iter_mut().zip(values(product)).for_each(|(value, part)| *value -= part);
}

/// The Cholesky factor of `A`, in its lower triangle; what is above stays as it was.
fn factorise(a: &mut [f64], n: usize, device: &Device) -> Result<(), ProbeError> {
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let width = end - start;
        if start > 0 {
            let left = a[start * n..].chunks_exact(n).flat_map(|row| &row[..start]);
            let left = matrix(left.copied().collect(), [n - start, start], device);
            let top = left.clone().slice([0..width, 0..start]);
            let product = values(left.matmul(top.transpose()));
            let rows = a[start * n..].chunks_exact_mut(n).zip(product.chunks_exact(width));
            for (row, part) in rows {
                row[start..end].iter_mut().zip(part).for_each(|(value, part)| *value -= part);
            }
        }
        // `[width, width]`: the block on the diagonal, row by row as it is factorised.
        let mut pivots: Vec<Vec<f64>> = Vec::new();
        for row in a[start * n..end * n].chunks_exact_mut(n) {
            let i = pivots.len();
            substitute(&mut row[start..start + i], &pivots);
            let rest = row[start + i] - row[start..start + i].iter().map(|v| v * v).sum::<f64>();
            if !(rest > 0.0 && rest.is_finite()) {
                return Err(ProbeError::Singular);
            }
            row[start + i] = rest.sqrt();
            pivots.push(row[start..=start + i].to_vec());
        }
        let below = a[end * n..].par_chunks_exact_mut(n);
        below.for_each(|row| substitute(&mut row[start..end], &pivots));
    }
    Ok(())
}

/// Solves `x Lᵀ = row` in place for the lower triangle `L`, given by its rows.
fn substitute(row: &mut [f64], lower: &[Vec<f64>]) {
    for (j, factors) in lower.iter().enumerate().take(row.len()) {
        let dot: f64 = row[..j].iter().zip(factors).map(|(x, l)| x * l).sum();
        row[j] = (row[j] - dot) / factors[j];
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;
    use rand::RngExt;

    use super::*;

    #[test]
    fn systems_larger_than_a_block_are_solved() {
        let device = Device::flex();
        for (n, columns) in [(1, 1), (5, 2), (BLOCK, 3), (3 * BLOCK - 7, 4)] {
            let mut rng = Seed::new(n as u64).rng();
            let mut random = |count: usize| -> Vec<f64> {
                (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
            };
            let (half, x) = (random(n * n), random(n * columns));
            let half = matrix(half, [n, n], &device);
            let mut a = values(half.clone().matmul(half.transpose()));
            (0..n).for_each(|i| a[i * n + i] += 1.0);
            let x_matrix = matrix(x.clone(), [n, columns], &device);
            let mut b = values(matrix(a.clone(), [n, n], &device).matmul(x_matrix));
            solve(&mut a, n, &mut b, columns, &device).unwrap();
            let error = b.iter().zip(&x).map(|(b, x)| (b - x).abs()).fold(0.0, f64::max);
            assert!(error < 1e-9, "{n} unknowns are off by {error}");
        }
    }

    #[test]
    fn what_has_no_solution_is_refused() {
        let device = Device::flex();
        for mut a in [[1.0, 2.0, 2.0, 4.0], [1.0, 0.0, 0.0, f64::NAN], [-1.0, 0.0, 0.0, 1.0]] {
            let solved = solve(&mut a, 2, &mut [1.0, 1.0], 1, &device);
            assert_eq!(solved, Err(ProbeError::Singular));
        }
    }
}
