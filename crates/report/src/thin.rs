//! Long series made short.

/// The most points one line keeps.
pub(crate) const MOST: usize = 500;

/// The indices of the points to draw: all of a short series; of a long one the ends, and the lowest
/// and the highest point of every bucket, in order.
pub(crate) fn thin(points: &[(f64, f64)], most: usize) -> Vec<usize> {
    if points.len() <= most {
        return (0..points.len()).collect();
    }
    let buckets = (most.saturating_sub(2) / 2).max(1);
    let mut kept = vec![0];
    for bucket in 0..buckets {
        let start = bucket * points.len() / buckets;
        let end = (bucket + 1) * points.len() / buckets;
        let by_height = |a: &usize, b: &usize| points[*a].1.total_cmp(&points[*b].1);
        kept.extend((start..end).min_by(by_height));
        kept.extend((start..end).max_by(by_height));
    }
    kept.push(points.len() - 1);
    kept.sort_unstable();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_series_stay() {
        assert_eq!(thin(&[(0.0, 1.0), (1.0, 0.0)], 500), [0, 1]);
        assert!(thin(&[], 500).is_empty());
    }

    #[test]
    fn long_series_keep_their_ends_and_extremes() {
        let mut points: Vec<_> =
            (0..100_000).map(|i| (f64::from(i), (f64::from(i) * 0.37).sin())).collect();
        points[31_415].1 = 9.0;
        points[27_182].1 = -9.0;
        let kept = thin(&points, MOST);
        assert!(kept.len() <= MOST && kept.is_sorted());
        for index in [0, 27_182, 31_415, 99_999] {
            assert!(kept.contains(&index), "{index}");
        }
    }
}
