//! Error, negative log-likelihood and Brier score (paper 000 §2.2).

use super::{Calibration, largest};

/// A probability below this is taken for this in a logarithm; the least that an f32 softmax can give.
const SMALLEST: f64 = 1e-38;

/// Scores of predictions, summed as they come.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    samples: usize,
    wrong: usize,
    nll: f64,
    brier: f64,
    calibration: Calibration,
}

impl Scores {
    /// Nothing yet; calibration in so many bins of equal width.
    pub fn new(bins: usize) -> Self {
        let calibration = Calibration::new(bins);
        Self { samples: 0, wrong: 0, nll: 0.0, brier: 0.0, calibration }
    }

    /// Adds a prediction.
    ///
    /// - `probabilities`: `[classes]`
    pub fn add(&mut self, probabilities: &[f64], label: usize) {
        let predicted = largest(probabilities);
        self.samples += 1;
        self.wrong += usize::from(predicted != label);
        self.nll -= probabilities[label].max(SMALLEST).ln();
        let square = |(class, p): (usize, &f64)| (p - f64::from(u8::from(class == label))).powi(2);
        self.brier += probabilities.iter().enumerate().map(square).sum::<f64>();
        self.calibration.add(probabilities[predicted], predicted == label);
    }

    /// Predictions so far.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Share of wrong predictions.
    pub fn error(&self) -> f64 {
        self.wrong as f64 / self.count()
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
