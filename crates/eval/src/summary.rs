//! The scores, how far they may be off, and the bins behind one of them, as records.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::metrics::{Bin, Calibration, Interval, Scores, TOP};

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

    /// - `classes`: how many there are; five guesses say nothing about less than six
    pub(crate) fn summary(self, scores: &Scores, classes: usize) -> Summary {
        Summary {
            error: scores.error(),
            top5_error: (classes > TOP).then(|| scores.top5_error()),
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

/// The scores of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Share of wrong predictions.
    pub error: f64,
    /// Share of images whose label is not among the five likeliest classes; nothing for up to five
    /// classes, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5_error: Option<f64>,
    /// Mean negative log-likelihood, in nats.
    pub nll: f64,
    /// Mean squared distance from the truth.
    pub brier: f64,
    /// Expected calibration error.
    pub ece: f64,
}

impl Summary {
    /// The top-5 error is there if all have one.
    pub(crate) fn mean<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let all: Vec<&Self> = all.into_iter().collect();
        let count = all.len().max(1) as f64;
        let mean = |of: fn(&Self) -> f64| all.iter().map(|one| of(one)).sum::<f64>() / count;
        let top5: Option<Vec<f64>> = all.iter().map(|one| one.top5_error).collect();
        Self {
            error: mean(|one| one.error),
            top5_error: top5
                .filter(|top5| !top5.is_empty())
                .map(|top5| top5.iter().sum::<f64>() / count),
            nll: mean(|one| one.nll),
            brier: mean(|one| one.brier),
            ece: mean(|one| one.ece),
        }
    }
}

/// How far the numbers of a [`Summary`] may be off: 95 % intervals by the bootstrap over images.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SummaryIntervals {
    /// Of the error.
    pub error: Interval,
    /// Of the top-5 error, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5_error: Option<Interval>,
    /// Of the negative log-likelihood.
    pub nll: Interval,
    /// Of the Brier score.
    pub brier: Interval,
    /// Of the calibration error. Resamples are less well calibrated than the images that they are of, so
    /// that on few images it lies high.
    pub ece: Interval,
    /// Resamples that they are of.
    pub resamples: usize,
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
