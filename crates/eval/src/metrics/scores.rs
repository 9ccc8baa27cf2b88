//! Error, negative log-likelihood and Brier score (paper 000 §2.2).

use super::{Calibration, largest};

/// A probability below this is taken for this in a logarithm; the least that an f32 softmax can give.
const SMALLEST: f64 = 1e-38;

/// Predictions of so many classes are looked at for the label, where there are more.
pub(crate) const TOP: usize = 5;

/// What one prediction scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The likeliest class.
    pub predicted: usize,
    /// How likely that class is held to be.
    pub confidence: f64,
    /// Classes that come before the label: 0 where the prediction is right. Of equally likely ones the
    /// lowest comes first.
    pub rank: usize,
    /// Negative log-likelihood of the label, in nats.
    pub nll: f64,
    /// Squared distance of the probabilities from the truth, 0 to 2.
    pub brier: f64,
}

impl Outcome {
    /// - `probabilities`: `[classes]`
    pub fn of(probabilities: &[f64], label: usize) -> Self {
        let predicted = largest(probabilities);
        let own = probabilities[label];
        let before = |(class, p): &(usize, &f64)| **p > own || (**p == own && *class < label);
        let square = |(class, p): (usize, &f64)| (p - f64::from(u8::from(class == label))).powi(2);
        Self {
            predicted,
            confidence: probabilities[predicted],
            rank: probabilities.iter().enumerate().filter(before).count(),
            nll: -own.max(SMALLEST).ln(),
            brier: probabilities.iter().enumerate().map(square).sum(),
        }
    }

    /// Whether the likeliest class is the label.
    pub fn is_right(&self) -> bool {
        self.rank == 0
    }
}

/// Scores of predictions, summed as they come.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    samples: usize,
    wrong: usize,
    beyond_top: usize,
    nll: f64,
    brier: f64,
    calibration: Calibration,
}

impl Scores {
    /// Nothing yet; calibration in so many bins of equal width.
    pub fn new(bins: usize) -> Self {
        let calibration = Calibration::new(bins);
        Self { samples: 0, wrong: 0, beyond_top: 0, nll: 0.0, brier: 0.0, calibration }
    }

    /// Adds a prediction, and says what it scores.
    ///
    /// - `probabilities`: `[classes]`
    pub fn add(&mut self, probabilities: &[f64], label: usize) -> Outcome {
        let outcome = Outcome::of(probabilities, label);
        self.add_outcome(&outcome);
        outcome
    }

    /// Adds a prediction that was judged already.
    pub fn add_outcome(&mut self, outcome: &Outcome) {
        let right = outcome.is_right();
        self.samples += 1;
        self.wrong += usize::from(!right);
        self.beyond_top += usize::from(outcome.rank >= TOP);
        self.nll += outcome.nll;
        self.brier += outcome.brier;
        self.calibration.add(outcome.confidence, right);
    }

    /// Predictions so far.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Share of wrong predictions.
    pub fn error(&self) -> f64 {
        self.wrong as f64 / self.count()
    }

    /// Share of images whose label is not among the five likeliest classes.
    pub fn top5_error(&self) -> f64 {
        self.beyond_top as f64 / self.count()
    }

    /// Share of right predictions.
    pub fn accuracy(&self) -> f64 {
        1.0 - self.error()
    }

    /// Mean negative log-likelihood, in nats.
    pub fn nll(&self) -> f64 {
        self.nll / self.count()
    }

    /// Mean squared distance of the probabilities from the truth, 0 to 2.
    pub fn brier(&self) -> f64 {
        self.brier / self.count()
    }

    /// How well confidence and accuracy agree.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    fn count(&self) -> f64 {
        self.samples.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_of_the_label_counts_what_comes_before_it() {
        let probabilities = [0.1, 0.3, 0.1, 0.3, 0.2];
        let ranks = [0, 1, 2, 3, 4].map(|label| Outcome::of(&probabilities, label).rank);
        assert_eq!(ranks, [3, 0, 4, 1, 2]);
        let first = Outcome::of(&probabilities, 1);
        assert!(first.is_right() && first.predicted == 1 && first.confidence == 0.3);
    }

    #[test]
    fn five_guesses_are_enough_or_not() {
        let mut scores = Scores::new(15);
        let probabilities = [0.3, 0.2, 0.15, 0.12, 0.11, 0.07, 0.05];
        for label in 0..7 {
            scores.add(&probabilities, label);
        }
        assert_eq!((scores.top5_error(), scores.error()), (2.0 / 7.0, 6.0 / 7.0));
    }
}
