//! Results that are written before they are read, and so need not be cleared first.

use std::mem::{ManuallyDrop, MaybeUninit};

/// A value that may not have been written yet.
pub(crate) type Blank = MaybeUninit<f32>;

/// Memory for `length` values.
pub(crate) fn unfilled(length: usize) -> Vec<Blank> {
    let mut values = Vec::with_capacity(length);
    // SAFETY: the capacity is there, and what may be anything needs no value.
    unsafe { values.set_len(length) };
    values
}

/// The same memory with its values.
///
/// # Safety
/// Every value has been written.
pub(crate) unsafe fn filled(values: Vec<Blank>) -> Vec<f32> {
    let mut values = ManuallyDrop::new(values);
    let (pointer, length, capacity) = (values.as_mut_ptr().cast(), values.len(), values.capacity());
    // SAFETY: the parts are those of a vector that is not dropped, `MaybeUninit<f32>` has the layout of
    // `f32`, and the caller promises the values.
    unsafe { Vec::from_raw_parts(pointer, length, capacity) }
}
