//! A system's predictions, summed as they come: scores of the average and of every member, and how the
//! members differ.

use serde::{Deserialize, Serialize};

use crate::{
    metrics::{Diversity, Outcome, Scores, mean_of_members, softmax},
    summary::{Binning, ReliabilityBin, Summary},
};

/// How the members of an ensemble differ.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct DiversityRecord {
    /// Kullback–Leibler divergence, mean over ordered pairs, in nats.
    pub kl: f64,
    /// Cosine of the probabilities, mean over pairs.
    pub cosine: f64,
    /// Share of images on which two members predict different classes, divided by the members' mean
    /// error (Fort et al. 2019).
    pub disagreement: f64,
    /// The share itself.
    pub disagreement_share: f64,
}

impl DiversityRecord {
    /// Nothing unless there is one of each.
    pub(crate) fn mean(all: &[Option<Self>]) -> Option<Self> {
        let all: Vec<Self> = all.iter().copied().collect::<Option<_>>()?;
        let mean = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        (!all.is_empty()).then(|| Self {
            kl: mean(|one| one.kl),
            cosine: mean(|one| one.cosine),
            disagreement: mean(|one| one.disagreement),
            disagreement_share: mean(|one| one.disagreement_share),
        })
    }

    /// In a sentence.
    pub fn in_words(&self) -> String {
        let Self { kl, cosine, disagreement, .. } = self;
        format!("KL {kl:.4}, cosine {cosine:.4}, disagreement {disagreement:.3} × their error")
    }
}

/// Sums of an ensemble's predictions.
pub(crate) struct Tally {
    binning: Binning,
    classes: usize,
    ensemble: Scores,
    members: Vec<Scores>,
    diversity: Option<Diversity>,
}

/// What a system makes of one image.
pub(crate) struct Predicted {
    /// `[M]` of `[classes]`: the members' probabilities.
    pub(crate) members: Vec<Vec<f64>>,
    /// `[classes]`: their mean.
    pub(crate) mean: Vec<f64>,
    /// What the mean scores.
    pub(crate) outcome: Outcome,
}

impl Tally {
    /// Nothing yet, of so many members.
    pub(crate) fn new(binning: Binning, members: usize) -> Self {
        Self {
            binning,
            classes: 0,
            ensemble: binning.scores(),
            // An ensemble of one is its member.
            members: vec![binning.scores(); if members > 1 { members } else { 0 }],
            diversity: Diversity::new(members),
        }
    }

    /// Adds an image, and gives what is predicted for it.
    ///
    /// - `logits`: `[M]` of `[classes]`
    pub(crate) fn add(&mut self, logits: &[&[f32]], label: usize) -> Predicted {
        let members: Vec<Vec<f64>> = logits.iter().map(|logits| softmax(logits, 1.0)).collect();
        let own: Vec<&[f64]> = members.iter().map(Vec::as_slice).collect();
        for (scores, own) in self.members.iter_mut().zip(&own) {
            scores.add(own, label);
        }
        if let Some(diversity) = &mut self.diversity {
            diversity.add(&own);
        }
        let mean = mean_of_members(own.iter().copied());
        self.classes = mean.len();
        let outcome = self.ensemble.add(&mean, label);
        Predicted { members, mean, outcome }
    }

    pub(crate) fn samples(&self) -> usize {
        self.ensemble.samples()
    }

    /// Of the mean of the members' probabilities.
    pub(crate) fn summary(&self) -> Summary {
        self.binning.summary(&self.ensemble, self.classes)
    }

    /// Of every member; empty for one.
    pub(crate) fn members(&self) -> Vec<Summary> {
        let summary = |scores: &Scores| self.binning.summary(scores, self.classes);
        self.members.iter().map(summary).collect()
    }

    /// Nothing for one member.
    pub(crate) fn diversity(&self) -> Option<DiversityRecord> {
        let diversity = self.diversity.as_ref()?;
        let (error, share) = (Summary::mean(&self.members()).error, diversity.disagreement());
        Some(DiversityRecord {
            kl: diversity.kl(),
            cosine: diversity.cosine(),
            disagreement: if error > 0.0 { share / error } else { 0.0 },
            disagreement_share: share,
        })
    }

    /// Of the mean of the members' probabilities.
    pub(crate) fn reliability(&self) -> Vec<ReliabilityBin> {
        self.binning.reliability(&self.ensemble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disagreement_is_measured_by_the_members_mean_error() {
        let mut tally = Tally::new(Binning::default(), 2);
        // One member is right once in four, the other three times; they differ on two images.
        let (a, b): ([f32; 2], [f32; 2]) = ([3.0, 0.0], [0.0, 3.0]);
        for (first, second, label) in [(a, a, 0), (b, a, 0), (b, a, 0), (b, b, 0)] {
            tally.add(&[&first, &second], label);
        }
        let found = tally.diversity().unwrap();
        assert_eq!((found.disagreement_share, found.disagreement), (0.5, 1.0));
        assert_eq!(tally.members().iter().map(|one| one.error).collect::<Vec<_>>(), [0.75, 0.25]);
        assert_eq!(tally.samples(), 4);
        assert_eq!(Tally::new(Binning::default(), 1).diversity(), None);
    }

    #[test]
    fn members_without_errors_disagree_by_zero() {
        let mut tally = Tally::new(Binning::default(), 2);
        tally.add(&[&[3.0, 0.0], &[2.0, 0.0]], 0);
        assert_eq!(tally.diversity().unwrap().disagreement, 0.0);
    }

    #[test]
    fn a_mean_is_of_all_or_of_none() {
        let one = |kl: f64| DiversityRecord { kl, cosine: 1.0 - kl, ..DiversityRecord::default() };
        let mean = DiversityRecord::mean(&[Some(one(0.25)), Some(one(0.75))]).unwrap();
        assert_eq!((mean.kl, mean.cosine), (0.5, 0.5));
        assert_eq!(DiversityRecord::mean(&[Some(one(0.25)), None]), None);
        assert_eq!(DiversityRecord::mean(&[]), None);
    }
}
