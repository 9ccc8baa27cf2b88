//! Matrices as views of slices, and their products.

use gemm::{Parallelism, gemm};
use rayon::prelude::*;

use super::rows_per_task;

/// A matrix in a slice, with any distance between its rows and columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix that fills its slice.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(values.len()), rows.checked_mul(columns), "matrix: values and shape");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// A row-major matrix whose rows lie `row_stride` apart.
    pub(crate) fn strided(
        values: &'a [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> Self {
        let needed = if rows == 0 { 0 } else { (rows - 1) * row_stride + columns };
        assert!(values.len() >= needed && columns <= row_stride, "matrix: values and strides");
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Rows `start..start + count`.
    pub(crate) fn slice_rows(self, start: usize, count: usize) -> Self {
        assert!(start + count <= self.rows, "matrix: rows out of range");
        let first = if count == 0 || self.columns == 0 { 0 } else { start * self.row_stride };
        Self { values: &self.values[first..], rows: count, ..self }
    }
}

/// What a product does to what was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    Replace,
    Add,
}

/// `c = a · b` or `c += a · b` on one thread, with rows of `c` `row_stride` apart.
pub(crate) fn multiply_strided(
    c: &mut [f32],
    row_stride: usize,
    write: Write,
    a: Matrix,
    b: Matrix,
) {
    let (m, k, n) = (a.rows, a.columns, b.columns);
    assert_eq!(k, b.rows, "product: inner sizes");
    if m == 0 || n == 0 {
        return;
    }
    assert!(c.len() >= (m - 1) * row_stride + n && n <= row_stride, "product: room for the result");
    if k == 0 {
        if write == Write::Replace {
            c.chunks_mut(row_stride).take(m).for_each(|row| row[..n].fill(0.0));
        }
        return;
    }
    // SAFETY: `Matrix` guarantees that every element of `a` and `b` that the strides reach lies in
    // their slices, and the assertion above that every element of the result lies in `c`.
    unsafe {
        gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            row_stride as isize,
            write == Write::Add,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// `c = a · b` or `c += a · b` on one thread; `c` is row-major and full.
pub(crate) fn multiply(c: &mut [f32], write: Write, a: Matrix, b: Matrix) {
    assert_eq!(c.len(), a.rows * b.columns, "product: room for the result");
    multiply_strided(c, b.columns.max(1), write, a, b);
}

/// [`multiply`] on all threads, split over the rows of the result.
pub(crate) fn multiply_parallel(c: &mut [f32], write: Write, a: Matrix, b: Matrix) {
    assert_eq!(c.len(), a.rows * b.columns, "product: room for the result");
    if c.is_empty() {
        return;
    }
    let rows = a.rows.div_ceil(rayon::current_num_threads()).max(rows_per_task(a.rows).min(a.rows));
    c.par_chunks_mut(rows * b.columns).enumerate().for_each(|(task, c)| {
        multiply(c, write, a.slice_rows(task * rows, c.len() / b.columns), b);
    });
}

/// Adds the rows of `matrix` up, `[columns]`, on all threads, in an order that does not depend on
/// how many there are.
pub(crate) fn sum_of_rows(matrix: &[f32], columns: usize) -> Vec<f32> {
    const ROWS_PER_SUM: usize = 256;
    let parts: Vec<Vec<f32>> = matrix
        .par_chunks(ROWS_PER_SUM * columns)
        .map(|rows| {
            let mut sum = vec![0.0; columns];
            rows.chunks_exact(columns).for_each(|row| super::simd::add(&mut sum, row));
            sum
        })
        .collect();
    let mut sum = vec![0.0; columns];
    parts.iter().for_each(|part| super::simd::add(&mut sum, part));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_views_are_products() {
        // a = [[0, 1, 2], [3, 4, 5]], b = aᵀ; a·b = [[5, 14], [14, 50]].
        let a = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let a = Matrix::new(&a, 2, 3);
        let mut c = [1.0; 4];
        multiply(&mut c, Write::Replace, a, a.transposed());
        assert_eq!(c, [5.0, 14.0, 14.0, 50.0]);
        multiply(&mut c, Write::Add, a, a.transposed());
        assert_eq!(c, [10.0, 28.0, 28.0, 100.0]);
        let mut row = [0.0; 2];
        multiply(&mut row, Write::Replace, a.slice_rows(1, 1), a.transposed());
        assert_eq!(row, [14.0, 50.0]);
        let mut wide = [9.0; 5];
        multiply_strided(&mut wide, 3, Write::Replace, a, a.transposed());
        assert_eq!(wide, [5.0, 14.0, 9.0, 14.0, 50.0]);
        multiply(&mut [], Write::Replace, Matrix::new(&[], 0, 3), a.transposed());
    }
}
