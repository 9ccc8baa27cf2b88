//! Dropout whose mask can be computed again from the seed and the place.

/// Which values survive. The mask of a value depends on the seed and on the value's index alone, so
/// the backward pass and any other device find the same one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Probability of a value to be dropped, in `0..1`.
    pub rate: f32,
    /// The stream of masks.
    pub seed: u64,
}

impl Dropout {
    /// The factor of value `index`: 0, or what keeps the mean.
    #[inline]
    pub fn factor(&self, index: usize) -> f32 {
        if self.keeps(index) { 1.0 / (1.0 - self.rate) } else { 0.0 }
    }

    /// Whether value `index` stays.
    #[inline]
    pub fn keeps(&self, index: usize) -> bool {
        let random = mix(self.seed ^ mix(index as u64)) >> 40;
        random as f32 >= self.rate * (1 << 24) as f32
    }

    /// Multiplies values that start at `first` by their factors.
    pub(crate) fn apply(&self, values: &mut [f32], first: usize) {
        for (i, value) in values.iter_mut().enumerate() {
            *value *= self.factor(first + i);
        }
    }
}

/// Rows whose masks are those of other rows, in the dispatch of whoever has sent them here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The first of them; they end where the next ones begin.
    pub first: usize,
    /// The stream of masks there.
    pub seed: u64,
    /// Which row the first one is there.
    pub row: usize,
}

impl Dropout {
    /// Multiplies hidden rows by their factors.
    ///
    /// - `values`: `[rows, hidden]`, of which the first is row `first`
    /// - `origins`: where the rows come from, in their order, if not from here
    pub(crate) fn apply_to_rows(
        &self,
        values: &mut [f32],
        hidden: usize,
        first: usize,
        origins: Option<&[Origin]>,
    ) {
        let Some(origins) = origins else { return self.apply(values, first * hidden) };
        for (row, values) in (first..).zip(values.chunks_exact_mut(hidden.max(1))) {
            let origin = origins[origins.partition_point(|origin| origin.first <= row) - 1];
            let there = Self { seed: origin.seed, ..*self };
            there.apply(values, (origin.row + row - origin.first) * hidden);
        }
    }
}

/// The finaliser of SplitMix64.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_and_so_is_the_mean() {
        let dropout = Dropout { rate: 0.3, seed: 5 };
        let factors: Vec<f32> = (0..100_000).map(|i| dropout.factor(i)).collect();
        let dropped = factors.iter().filter(|factor| **factor == 0.0).count();
        assert!((dropped as f32 / 1e5 - 0.3).abs() < 0.01);
        assert!((factors.iter().sum::<f32>() / 1e5 - 1.0).abs() < 0.01);
        let other = Dropout { seed: 6, ..dropout };
        assert!((0..100).any(|i| other.factor(i) != factors[i]), "seeds differ");
    }

    #[test]
    fn rows_from_elsewhere_have_the_masks_that_they_have_there() {
        let own = Dropout { rate: 0.5, seed: 1 };
        let masks = |first: usize, rows: usize, seed: u64| {
            let mut values = vec![1.0; rows * 7];
            Dropout { seed, ..own }.apply_to_rows(&mut values, 7, first, None);
            values
        };
        // Two rows from place 4 of another, then three from place 9 of a third.
        let origins = [Origin { first: 0, seed: 5, row: 4 }, Origin { first: 2, seed: 6, row: 9 }];
        let mut values = vec![1.0; 4 * 7];
        own.apply_to_rows(&mut values, 7, 1, Some(&origins));
        assert_eq!(values, [masks(5, 1, 5), masks(9, 3, 6)].concat());
    }
}
