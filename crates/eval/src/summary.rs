//! The four scores and the bins behind one of them, as records.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::metrics::{Bin, Calibration, Scores};

/// How predictions are put into bins by their confidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BinKind {
    /// Bins of equal width.
    EqualWidth,
    /// Bins with equally many predictions.
    EqualMass,
}

/// The bins of the calibration error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binning {
    /// How they are cut.
    pub kind: BinKind,
    /// How many there are.
    pub bins: usize,
}

impl Default for Binning {
    /// 15 of equal width, as in Guo et al. (2017) and paper 000.
    fn default() -> Self {
        Self { kind: BinKind::EqualWidth, bins: 15 }
    }
}

/// `15 bins of equal width`
impl fmt::Display for Binning {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let equal = match self.kind {
            BinKind::EqualWidth => "width",
            BinKind::EqualMass => "mass",
        };
        write!(f, "{} bins of equal {equal}", self.bins)
    }
}

/// Bins of equal mass are joined from so many of equal width.
const FINE: usize = 10_000;

impl Binning {
    /// Sums that the bins can be cut from.
    pub(crate) fn scores(self) -> Scores {
        Scores::new(match self.kind {
            BinKind::EqualWidth => self.bins,
            BinKind::EqualMass => FINE,
        })
    }

    fn calibration(self, scores: &Scores) -> Calibration {
        match self.kind {
            BinKind::EqualWidth => scores.calibration().clone(),
            BinKind::EqualMass => scores.calibration().equal_mass(self.bins),
        }
    }

    pub(crate) fn summary(self, scores: &Scores) -> Summary {
        Summary {
            error: scores.error(),
            nll: scores.nll(),
            brier: scores.brier(),
            ece: self.calibration(scores).ece(),
        }
    }

    /// The bins that have predictions in them.
    pub(crate) fn reliability(self, scores: &Scores) -> Vec<ReliabilityBin> {
        let calibration = self.calibration(scores);
        let bins = calibration.bins().iter().filter(|bin| bin.samples > 0);
        let record = |bin: &Bin| ReliabilityBin {
            confidence: bin.confidence(),
            accuracy: bin.accuracy(),
            samples: bin.samples,
        };
        bins.map(record).collect()
    }
}

/// The four scores of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Share of wrong predictions.
    pub error: f64,
    /// Mean negative log-likelihood, in nats.
    pub nll: f64,
    /// Mean squared distance from the truth.
    pub brier: f64,
    /// Expected calibration error.
    pub ece: f64,
}

impl Summary {
    pub(crate) fn mean<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let (mut sum, mut count) = (Self::default(), 0.0);
        for one in all {
            sum.error += one.error;
            sum.nll += one.nll;
            sum.brier += one.brier;
            sum.ece += one.ece;
            count += 1.0;
        }
        let over = |value: f64| value / f64::max(count, 1.0);
        Self {
            error: over(sum.error),
            nll: over(sum.nll),
            brier: over(sum.brier),
            ece: over(sum.ece),
        }
    }
}

/// Predictions of about the same confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// Their mean.
    #[serde(alias = "sureness")]
    pub confidence: f64,
    /// Share of them that were right.
    pub accuracy: f64,
    /// How many there are.
    pub samples: usize,
}
