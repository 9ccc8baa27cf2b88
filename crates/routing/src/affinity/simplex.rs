//! The Euclidean projection onto the probability simplex with few non-zeros.

use crate::error::{Result, RoutingError};

/// Projects `vector` onto `{p ≥ 0, Σp = 1, ‖p‖₀ ≤ k}`.
///
/// The `k` largest entries (ties: lowest index first) are projected onto the simplex, the others
/// become 0. With `k ≥ vector.len()` this is the usual simplex projection.
///
/// ```
/// let p = omma_routing::affinity::sparse_simplex_projection(&[0.5, 0.2, 0.4], 2)?;
/// assert_eq!(p, [0.55, 0.0, 0.45]);
/// # Ok::<(), omma_routing::RoutingError>(())
/// ```
pub fn sparse_simplex_projection(vector: &[f64], k: usize) -> Result<Vec<f64>> {
    if vector.is_empty() {
        return Err(RoutingError::EmptyBatch);
    }
    if k == 0 {
        return Err(RoutingError::NoChoices);
    }
    let mut projected = vec![0.0; vector.len()];
    let mut entries = Vec::new();
    project(vector.iter().copied(), k, &mut entries);
    for (index, value) in entries {
        projected[index as usize] = value;
    }
    Ok(projected)
}

/// The projection as a list of its non-zero `(index, value)` pairs, left in `entries`, whose memory
/// is reused. Linear in the length of `vector`.
pub(crate) fn project(vector: impl Iterator<Item = f64>, k: usize, entries: &mut Vec<(u32, f64)>) {
    entries.clear();
    entries.extend((0..).zip(vector));
    if k < entries.len() {
        entries.select_nth_unstable_by(k - 1, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        entries.truncate(k);
    }
    // Michelot's algorithm: shift by what is missing, drop what falls to zero, until nothing falls.
    loop {
        let sum: f64 = entries.iter().map(|entry| entry.1).sum();
        let threshold = (sum - 1.0) / entries.len() as f64;
        let before = entries.len();
        if entries.iter().any(|entry| entry.1 > threshold) {
            entries.retain(|entry| entry.1 > threshold);
        }
        if entries.len() == before {
            entries.iter_mut().for_each(|entry| entry.1 -= threshold);
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition by sorting (Liu et al. 2023): the largest `r` entries that stay positive.
    fn by_sorting(vector: &[f64], k: usize) -> Vec<f64> {
        let mut order: Vec<usize> = (0..vector.len()).collect();
        order.sort_by(|&a, &b| vector[b].total_cmp(&vector[a]));
        order.truncate(k);
        let mut sum = 0.0;
        let mut threshold = 0.0;
        for (i, &index) in order.iter().enumerate() {
            sum += vector[index];
            let rank = (i + 1) as f64;
            if 1.0 + rank * vector[index] - sum > 0.0 {
                threshold = (sum - 1.0) / rank;
            }
        }
        let mut projected = vec![0.0; vector.len()];
        for index in order {
            projected[index] = (vector[index] - threshold).max(0.0);
        }
        projected
    }

    proptest! {
        #[test]
        fn the_projection_is_the_definition_by_sorting(
            vector in prop::collection::vec(-3.0..3.0_f64, 1..40),
            k in 1..50_usize,
        ) {
            let p = sparse_simplex_projection(&vector, k).unwrap();
            for (p, q) in p.iter().zip(by_sorting(&vector, k)) {
                prop_assert!((p - q).abs() < 1e-12);
            }
            prop_assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            prop_assert!(p.iter().filter(|p| **p != 0.0).count() <= k);
        }
    }

    #[test]
    fn equal_entries_are_taken_from_the_front() {
        assert_eq!(sparse_simplex_projection(&[1.0; 4], 2).unwrap(), [0.5, 0.5, 0.0, 0.0]);
        assert!(sparse_simplex_projection(&[], 2).is_err());
        assert!(sparse_simplex_projection(&[1.0], 0).is_err());
    }
}
