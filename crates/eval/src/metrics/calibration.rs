//! Expected calibration error and the reliability diagram behind it.

use serde::Serialize;

/// Predictions of about the same confidence.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Bin {
    /// How many there are.
    pub samples: usize,
    right: usize,
    confidence: f64,
}

impl Bin {
    /// Share of them that were right.
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.samples.max(1) as f64
    }

    /// Their mean confidence.
    pub fn confidence(&self) -> f64 {
        self.confidence / self.samples.max(1) as f64
    }
}

/// Bins of equal width, `(i/n, (i+1)/n]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    bins: Vec<Bin>,
}

impl Calibration {
    /// Empty bins.
    pub fn new(bins: usize) -> Self {
        Self { bins: vec![Bin::default(); bins.max(1)] }
    }

    /// Adds a prediction by its largest probability.
    pub fn add(&mut self, confidence: f64, right: bool) {
        let last = self.bins.len() - 1;
        let place = (confidence * self.bins.len() as f64).ceil() as usize;
        let bin = &mut self.bins[place.saturating_sub(1).min(last)];
        bin.samples += 1;
        bin.right += usize::from(right);
        bin.confidence += confidence;
    }

    /// The bins, from low to high confidence.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// `Σ n_b/N · |accuracy_b − confidence_b|`
    pub fn ece(&self) -> f64 {
        let samples: usize = self.bins.iter().map(|bin| bin.samples).sum();
        let gap = |bin: &Bin| (bin.accuracy() - bin.confidence()).abs() * bin.samples as f64;
        self.bins.iter().map(gap).sum::<f64>() / samples.max(1) as f64
    }

    /// The same in `n` bins of equal mass: neighbours are joined until each has its share of the
    /// samples. Exact for as many fine bins as there are different confidences, and close to it
    /// for a thousand.
    pub fn equal_mass(&self, n: usize) -> Self {
        let samples: usize = self.bins.iter().map(|bin| bin.samples).sum();
        let mut joined = vec![Bin::default(); n.max(1)];
        let mut before = 0;
        for bin in &self.bins {
            let place = (before * joined.len()).checked_div(samples).unwrap_or(0);
            let last = joined.len() - 1;
            let into = &mut joined[place.min(last)];
            into.samples += bin.samples;
            into.right += bin.right;
            into.confidence += bin.confidence;
            before += bin.samples;
        }
        Self { bins: joined }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Predictions of this confidence that are right as often as `accuracy`.
    fn filled(bins: usize, groups: &[(usize, f64, f64)]) -> Calibration {
        let mut calibration = Calibration::new(bins);
        for (count, confidence, accuracy) in groups {
            let right = (*count as f64 * accuracy).round() as usize;
            (0..*count).for_each(|n| calibration.add(*confidence, n < right));
        }
        calibration
    }

    #[test]
    fn the_error_is_the_gap_weighted_by_samples() {
        let calibration = filled(15, &[(30, 0.9, 0.6), (10, 0.5, 0.5)]);
        assert!((calibration.ece() - 0.3 * 0.75).abs() < 1e-12);
        assert_eq!(filled(15, &[]).ece(), 0.0);
    }

    #[test]
    fn edges_belong_to_the_bin_below() {
        let calibration = filled(10, &[(1, 0.1, 1.0), (1, 0.0, 1.0), (1, 1.0, 1.0)]);
        let counts: Vec<usize> = calibration.bins().iter().map(|bin| bin.samples).collect();
        assert_eq!((counts[0], counts[9]), (2, 1));
    }

    #[test]
    fn bins_of_equal_mass_have_equal_mass() {
        let groups: Vec<(usize, f64, f64)> =
            (0..100).map(|n| (10, 0.9 + f64::from(n) * 1e-3, 0.5)).collect();
        let joined = filled(1000, &groups).equal_mass(4);
        assert!(joined.bins().iter().all(|bin| bin.samples == 250), "{joined:?}");
    }
}
