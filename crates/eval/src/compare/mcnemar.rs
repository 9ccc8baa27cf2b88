//! McNemar's exact test: two classifiers on the same images (McNemar 1947).

use serde::Serialize;

/// Images that one of two systems gets right and the other wrong. Were both equally good, each of them would be
/// one's or the other's by the toss of a coin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct McNemar {
    /// Images that only the system gets right.
    pub gained: u64,
    /// Images that only the baseline gets right.
    pub lost: u64,
    /// How likely so many of one kind, or more, would be by the toss of a coin; two-sided.
    pub p: f64,
}

impl McNemar {
    /// - `gained`, `lost`: images that only one of both gets right
    pub fn of(gained: u64, lost: u64) -> Self {
        let (all, fewer) = (gained + lost, gained.min(lost));
        // Σ C(all, i) / 2^all over i ≤ fewer, term by term in logarithms.
        let mut term = -(all as f64) * std::f64::consts::LN_2;
        let mut sum = term.exp();
        for i in 1..=fewer {
            term += ((all - i + 1) as f64 / i as f64).ln();
            sum += term.exp();
        }
        Self { gained, lost, p: (2.0 * sum).min(1.0) }
    }

    /// Of several seeds on the same images, whose tests depend on each other: twice the median p-value, which
    /// keeps its level whatever the dependence (Rüger 1978); the images are summed.
    pub fn combined(seeds: &[Self]) -> Self {
        let (gained, lost) =
            (seeds.iter().map(|one| one.gained).sum(), seeds.iter().map(|one| one.lost).sum());
        let mut all: Vec<f64> = seeds.iter().map(|one| one.p).collect();
        all.sort_by(f64::total_cmp);
        let p = match all.as_slice() {
            [] => 1.0,
            [one] => *one,
            // The upper of the two in the middle.
            several => (2.0 * several[several.len() / 2]).min(1.0),
        };
        Self { gained, lost, p }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_a_fair_coin() {
        assert_eq!(McNemar::of(0, 0).p, 1.0);
        assert_eq!(McNemar::of(3, 3).p, 1.0);
        // 2 · (1 + 6) / 64 and 2 · (1 + 10 + 45) / 1024
        assert!((McNemar::of(1, 5).p - 14.0 / 64.0).abs() < 1e-12);
        assert!((McNemar::of(8, 2).p - 112.0 / 1024.0).abs() < 1e-12);
        // By whole numbers of any size, elsewhere.
        let many = McNemar::of(400, 495);
        assert!(
            (many.p - 0.001_662_688_844_255_8).abs() < 1e-12 && McNemar::of(90_000, 20).p < 1e-300,
            "{many:?}"
        );
    }

    #[test]
    fn seeds_are_combined_by_twice_their_median() {
        let seeds = [McNemar::of(1, 5), McNemar::of(8, 2), McNemar::of(3, 3)];
        let both = McNemar::combined(&seeds);
        assert_eq!((both.gained, both.lost), (12, 10));
        assert!((both.p - 28.0 / 64.0).abs() < 1e-12);
        assert_eq!(McNemar::combined(&seeds[..1]), seeds[0]);
    }
}
