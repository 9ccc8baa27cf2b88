//! Matrices as views of slices.

use rayon::prelude::*;

/// Rows of a slice as a matrix, or transposed.
///
/// Rows may lie any distance apart, and may be picked by number, so that a product reads the tokens of
/// an expert where they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    /// Distance of two stored rows.
    stride: usize,
    /// The stored rows that are the rows of this matrix; all, in order, if there is no list.
    picked: Option<&'a [u32]>,
    /// Stored rows, and columns of each.
    stored: [usize; 2],
    /// Whether stored rows are columns of this matrix.
    transposed: bool,
}

impl<'a> Matrix<'a> {
    /// A row-major matrix that fills its slice.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(values.len()), rows.checked_mul(columns), "matrix: values and shape");
        Self { values, stride: columns, picked: None, stored: [rows, columns], transposed: false }
    }

    /// A row-major matrix whose rows lie `stride` apart.
    pub(crate) fn strided(values: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        let needed = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
        assert!(values.len() >= needed && columns <= stride, "matrix: values and strides");
        Self { values, stride, picked: None, stored: [rows, columns], transposed: false }
    }

    /// The rows of `values`, `columns` wide each, that `picked` names.
    pub(crate) fn picked(values: &'a [f32], columns: usize, picked: &'a [u32]) -> Self {
        let highest = picked.iter().max().map_or(0, |row| *row as usize + 1);
        assert!(values.len() >= highest * columns, "matrix: picked rows exist");
        let stored = [picked.len(), columns];
        Self { values, stride: columns, picked: Some(picked), stored, transposed: false }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    pub(crate) fn rows(&self) -> usize {
        self.stored[usize::from(self.transposed)]
    }

    pub(crate) fn columns(&self) -> usize {
        self.stored[usize::from(!self.transposed)]
    }

    pub(crate) fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// The distance of stored rows that are in order.
    pub(crate) fn stride(&self) -> Option<usize> {
        self.picked.is_none().then_some(self.stride)
    }

    /// The slice from the first stored row on.
    pub(crate) fn values(&self) -> &'a [f32] {
        self.values
    }

    /// Stored row `row`: a row of this matrix, or a column if it is transposed.
    #[inline]
    pub(crate) fn stored(&self, row: usize) -> &'a [f32] {
        let row = self.picked.map_or(row, |picked| picked[row] as usize);
        &self.values[row * self.stride..][..self.stored[1]]
    }

    /// Rows `start..start + count`, or columns if `by_columns`.
    fn slice(self, by_columns: bool, start: usize, count: usize) -> Self {
        let [rows, columns] = self.stored;
        if by_columns != self.transposed {
            assert!(start + count <= columns, "matrix: out of range");
            let values = &self.values[start.min(self.values.len())..];
            return Self { values, stored: [rows, count], ..self };
        }
        assert!(start + count <= rows, "matrix: out of range");
        match self.picked {
            Some(picked) => {
                let picked = Some(&picked[start..start + count]);
                Self { picked, stored: [count, columns], ..self }
            }
            None => {
                let first = if count == 0 || columns == 0 { 0 } else { start * self.stride };
                Self { values: &self.values[first..], stored: [count, columns], ..self }
            }
        }
    }

    /// Rows `start..start + count`.
    pub(crate) fn slice_rows(self, start: usize, count: usize) -> Self {
        self.slice(false, start, count)
    }

    /// Columns `start..start + count`.
    pub(crate) fn slice_columns(self, start: usize, count: usize) -> Self {
        self.slice(true, start, count)
    }
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
