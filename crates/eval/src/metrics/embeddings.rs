//! Images and texts as points of one space.

use burn::tensor::{Device, Tensor, TensorData};

/// Rows of one width, `[N, E]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Embeddings {
    width: usize,
    values: Vec<f32>,
}

impl Embeddings {
    /// - `values`: `[N, width]`
    pub fn new(values: Vec<f32>, width: usize) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width), "embeddings: values and width");
        Self { width, values }
    }

    /// `[N, E]`
    pub fn of(tensor: Tensor<2>) -> Self {
        let [_, width] = tensor.dims();
        Self::new(tensor.try_into_vec_as().expect("embeddings are floats"), width)
    }

    /// Adds rows after these; the first ones say how wide rows are.
    pub fn extend(&mut self, other: Self) {
        assert!(self.width == 0 || self.width == other.width, "embeddings: one width");
        self.width = other.width;
        self.values.extend(other.values);
    }

    /// Rows, `N`.
    pub fn len(&self) -> usize {
        self.values.len() / self.width.max(1)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// `E`
    pub fn width(&self) -> usize {
        self.width
    }

    /// `[N, E]`
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// `[E]`
    pub fn row(&self, place: usize) -> &[f32] {
        &self.values[place * self.width..][..self.width]
    }

    /// `[N]` of `[E]`
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.width.max(1))
    }

    /// Some of the rows, in this order.
    pub fn select(&self, places: &[usize]) -> Self {
        let values = places.iter().flat_map(|place| self.row(*place)).copied().collect();
        Self { width: self.width, values }
    }

    /// The first row with a value that is not a number.
    pub fn first_broken(&self) -> Option<usize> {
        self.rows().position(|row| row.iter().any(|value| !value.is_finite()))
    }

    /// `[N, E]`
    pub fn tensor(&self, device: &Device) -> Tensor<2> {
        let data = TensorData::new(self.values.clone(), [self.len(), self.width]);
        Tensor::from_data(data, device)
    }

    /// The length of the longest row.
    pub(super) fn longest(&self) -> f64 {
        self.rows().map(|row| dot(row, row).sqrt()).fold(0.0, f64::max)
    }
}

/// `Σ a · b` in double precision and in a fixed order: equal rows have equal products.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    // Zeros of both signs are one product.
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() + 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_and_selected() {
        let mut all = Embeddings::default();
        assert!(all.is_empty() && all.rows().len() == 0);
        all.extend(Embeddings::new(vec![1.0, 2.0], 2));
        all.extend(Embeddings::new(vec![3.0, 4.0, 5.0, f32::NAN], 2));
        assert_eq!((all.len(), all.width(), all.first_broken()), (3, 2, Some(2)));
        assert_eq!(all.select(&[1, 0, 1]).values(), [3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(all.select(&[0, 1]).longest(), 5.0);
    }
}
