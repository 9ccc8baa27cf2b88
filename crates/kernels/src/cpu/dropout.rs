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
}
