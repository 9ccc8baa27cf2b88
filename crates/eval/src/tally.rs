//! Scores of an ensemble and of its members, summed as predictions come.

use serde::{Deserialize, Serialize};

use crate::metrics::{Calibration, Diversity, Scores, mean_of_members, softmax};

/// How predictions are put into bins by their sureness.
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

/// Bins of equal mass are joined from so many of equal width.
const FINE: usize = 10_000;

impl Binning {
    fn scores(self) -> Scores {
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

    fn summary(self, scores: &Scores) -> Summary {
        Summary {
            error: scores.error(),
            nll: scores.nll(),
            brier: scores.brier(),
            ece: self.calibration(scores).ece(),
        }
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
    /// The mean of several.
    pub fn mean<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
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

/// Predictions that were about equally sure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// How sure they were, on average.
    pub sureness: f64,
    /// Share of them that were right.
    pub accuracy: f64,
    /// How many.
    pub samples: usize,
}

/// How the members of an ensemble differ.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DiversityRecord {
    /// Kullback–Leibler divergence, mean over ordered pairs, in nats.
    pub kl: f64,
    /// Cosine of the probabilities, mean over pairs.
    pub cosine: f64,
    /// Share of images on which two members say different classes, divided by the members' mean error
    /// (Fort et al. 2019).
    pub disagreement: f64,
    /// The share itself.
    pub disagreement_share: f64,
}

/// Scores of an ensemble, of its members, and of the ensemble at a temperature.
pub(crate) struct Tally {
    binning: Binning,
    average: Scores,
    members: Vec<Scores>,
    diversity: Option<Diversity>,
    scaled: Option<(f64, Scores)>,
}

impl Tally {
    pub(crate) fn new(binning: Binning, members: usize, temperature: Option<f64>) -> Self {
        Self {
            binning,
            average: binning.scores(),
            members: vec![binning.scores(); members],
            diversity: Diversity::new(members),
            scaled: temperature.map(|temperature| (temperature, binning.scores())),
        }
    }

    /// Adds what the members say of one image.
    ///
    /// - `logits`: `[M]` of `[classes]`
    pub(crate) fn add(&mut self, logits: &[&[f32]], label: usize) {
        let said: Vec<Vec<f64>> = logits.iter().map(|logits| softmax(logits, 1.0)).collect();
        let said: Vec<&[f64]> = said.iter().map(Vec::as_slice).collect();
        self.members.iter_mut().zip(&said).for_each(|(scores, said)| scores.add(said, label));
        self.average.add(&mean_of_members(said.iter().copied()), label);
        if let Some(diversity) = &mut self.diversity {
            diversity.add(&said);
        }
        if let Some((temperature, scores)) = &mut self.scaled {
            scores.add(&average(logits, *temperature), label);
        }
    }

    pub(crate) fn samples(&self) -> usize {
        self.average.samples()
    }

    pub(crate) fn average(&self) -> Summary {
        self.binning.summary(&self.average)
    }

    /// Nothing for an ensemble of one, which is its member.
    pub(crate) fn members(&self) -> Vec<Summary> {
        match self.members.len() {
            1 => Vec::new(),
            _ => self.members.iter().map(|scores| self.binning.summary(scores)).collect(),
        }
    }

    pub(crate) fn diversity(&self) -> Option<DiversityRecord> {
        let diversity = self.diversity.as_ref()?;
        let error = Summary::mean(&self.members()).error;
        let share = diversity.disagreement();
        Some(DiversityRecord {
            kl: diversity.kl(),
            cosine: diversity.cosine(),
            disagreement: if error > 0.0 { share / error } else { 0.0 },
            disagreement_share: share,
        })
    }

    pub(crate) fn reliability(&self) -> Vec<ReliabilityBin> {
        bins(&self.binning.calibration(&self.average))
    }

    /// Scores and bins at the temperature.
    pub(crate) fn scaled(&self) -> Option<(Summary, Vec<ReliabilityBin>)> {
        let (_, scores) = self.scaled.as_ref()?;
        Some((self.binning.summary(scores), bins(&self.binning.calibration(scores))))
    }
}

fn bins(calibration: &Calibration) -> Vec<ReliabilityBin> {
    let bins = calibration.bins().iter().filter(|bin| bin.samples > 0);
    bins.map(|bin| ReliabilityBin {
        sureness: bin.sureness(),
        accuracy: bin.accuracy(),
        samples: bin.samples,
    })
    .collect()
}

/// `[classes]`: the mean of the members' probabilities at a temperature.
pub(crate) fn average(logits: &[&[f32]], temperature: f64) -> Vec<f64> {
    let said: Vec<Vec<f64>> = logits.iter().map(|logits| softmax(logits, temperature)).collect();
    mean_of_members(said.iter().map(Vec::as_slice))
}
