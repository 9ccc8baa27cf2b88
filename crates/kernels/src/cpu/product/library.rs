//! Products by the `gemm` crate, for machines that our kernels do not know.

use gemm::{Parallelism, gemm};

use crate::cpu::{matrix::Matrix, scratch::Scratch};

/// `c = a · b`, or `c += a · b` if `add`, with rows of `c` `stride` apart.
///
/// # Safety
/// `c` points to as many rows as `a` has, `stride` apart, of as many values as `b` has columns, and
/// nobody else uses them.
pub(super) unsafe fn multiply_at(c: *mut f32, stride: usize, add: bool, a: Matrix, b: Matrix) {
    let (m, k, n) = (a.rows(), a.columns(), b.columns());
    if m == 0 || n == 0 {
        return;
    }
    let (mut a_copy, mut b_copy) = (Scratch::new(0), Scratch::new(0));
    let (a, a_strides) = flat(a, &mut a_copy);
    let (b, b_strides) = flat(b, &mut b_copy);
    // SAFETY: the strides reach elements of the operands' slices alone, and the result is the
    // caller's promise.
    unsafe {
        gemm(
            m,
            n,
            k,
            c,
            1,
            stride as isize,
            add,
            a.as_ptr(),
            a_strides[1] as isize,
            a_strides[0] as isize,
            b.as_ptr(),
            b_strides[1] as isize,
            b_strides[0] as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// The values from the first element on, and the distances of rows and columns; picked rows are
/// copied.
fn flat<'a>(matrix: Matrix<'a>, copy: &'a mut Scratch) -> (&'a [f32], [usize; 2]) {
    let [rows, columns] = match matrix.is_transposed() {
        true => [matrix.columns(), matrix.rows()],
        false => [matrix.rows(), matrix.columns()],
    };
    let (values, stride) = match matrix.stride() {
        Some(stride) => (matrix.values(), stride),
        None => {
            *copy = Scratch::new(rows * columns);
            for (row, to) in copy.chunks_exact_mut(columns.max(1)).enumerate() {
                to.copy_from_slice(matrix.stored(row));
            }
            (&**copy, columns)
        }
    };
    (values, if matrix.is_transposed() { [1, stride] } else { [stride, 1] })
}
