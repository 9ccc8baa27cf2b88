//! Telling images of another kind by what a system says of them.
//!
//! An image from outside is the positive case, as in the reference's tables (paper 000 App. L.5): a
//! detector with a score above every image from inside has AUROC and AUPR 1 and no false positives.

use serde::{Deserialize, Serialize};

use crate::{
    metrics::{Curve, Detection, log_sum_exp},
    tally::average,
};

/// How unsure a system is; more is further outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OodScore {
    /// One minus the largest probability (Hendrycks & Gimpel 2017).
    #[default]
    MaxProbability,
    /// Entropy of the probabilities, in nats.
    Entropy,
    /// Minus the logarithm of the sum of the exponentials of the logits, mean over members (Liu et al.
    /// 2020).
    Energy,
}

impl OodScore {
    /// Of what the members say of one image.
    ///
    /// - `logits`: `[M]` of `[classes]`
    pub fn of(self, logits: &[&[f32]]) -> f64 {
        match self {
            Self::MaxProbability => 1.0 - average(logits, 1.0).into_iter().fold(0.0, f64::max),
            Self::Entropy => entropy(&average(logits, 1.0)),
            Self::Energy => {
                let sum: f64 = logits.iter().map(|logits| -log_sum_exp(logits)).sum();
                sum / logits.len().max(1) as f64
            }
        }
    }
}

/// In nats.
pub fn entropy(probabilities: &[f64]) -> f64 {
    -probabilities.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

/// How well a data set from outside is told from the test images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OodRecord {
    /// Images from outside.
    pub samples: usize,
    /// Area under the ROC curve.
    pub auroc: f64,
    /// Average precision.
    pub aupr: f64,
    /// False-positive rate where 95 % of the images from outside are found.
    pub fpr95: f64,
    /// Mean score of the images from outside.
    pub mean_score: f64,
    /// Points of the ROC curve, `(false-positive rate, true-positive rate)`.
    pub roc: Vec<(f64, f64)>,
    /// Edges of the bins of both histograms, one more than bins.
    pub edges: Vec<f64>,
    /// Share of the images from outside in every bin.
    pub outside: Vec<f64>,
    /// Share of the test images in every bin.
    pub inside: Vec<f64>,
}

/// Points of a ROC curve that are kept.
const ROC_POINTS: usize = 200;
/// Bins of the histograms.
const BINS: usize = 40;

impl OodRecord {
    /// From the scores of both sets; nothing if one of them is empty.
    pub fn new(outside: &[f64], inside: &[f64]) -> Option<Self> {
        let Detection { auroc, aupr, fpr95 } = Detection::of(outside, inside)?;
        let curve = Curve::of(outside, inside).0;
        let every = curve.len().div_ceil(ROC_POINTS).max(1);
        let mut roc: Vec<(f64, f64)> = curve.iter().copied().step_by(every).collect();
        if roc.last() != curve.last() {
            roc.extend(curve.last());
        }
        let all = || outside.iter().chain(inside).copied();
        let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN, f64::max));
        let width = ((high - low) / BINS as f64).max(f64::MIN_POSITIVE);
        let shares = |scores: &[f64]| {
            let mut counts = vec![0.0; BINS];
            for score in scores {
                counts[(((score - low) / width) as usize).min(BINS - 1)] += 1.0;
            }
            counts.iter_mut().for_each(|count| *count /= scores.len() as f64);
            counts
        };
        Some(Self {
            samples: outside.len(),
            auroc,
            aupr,
            fpr95,
            mean_score: outside.iter().sum::<f64>() / outside.len() as f64,
            roc,
            edges: (0..=BINS).map(|edge| low + width * edge as f64).collect(),
            outside: shares(outside),
            inside: shares(inside),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsure_system_scores_higher() {
        let (sure, unsure) = ([9.0_f32, 0.0, 0.0], [1.0_f32, 0.9, 0.8]);
        for score in [OodScore::MaxProbability, OodScore::Entropy, OodScore::Energy] {
            assert!(score.of(&[&unsure]) > score.of(&[&sure]), "{score:?}");
        }
        assert!((OodScore::Entropy.of(&[&[2.0_f32; 8]]) - 8_f64.ln()).abs() < 1e-12);
        let both = OodScore::MaxProbability.of(&[&[50.0, 0.0], &[0.0, 50.0]]);
        assert!(
            (both - 0.5).abs() < 1e-12,
            "members that contradict each other are unsure: {both}"
        );
    }

    #[test]
    fn records_hold_a_curve_and_two_histograms() {
        let outside: Vec<f64> = (0..1000).map(|i| f64::from(i) / 1000.0).collect();
        let inside: Vec<f64> = (0..3000).map(|i| f64::from(i) / 6000.0).collect();
        let record = OodRecord::new(&outside, &inside).unwrap();
        assert!(record.roc.len() <= ROC_POINTS + 1);
        assert_eq!((record.roc[0], *record.roc.last().unwrap()), ((0.0, 0.0), (1.0, 1.0)));
        for shares in [&record.outside, &record.inside] {
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        assert!((record.auroc - 0.75).abs() < 1e-3);
        let same = OodRecord::new(&[0.5; 3], &[0.5; 4]).unwrap();
        assert_eq!((same.auroc, same.inside[0]), (0.5, 1.0));
        assert_eq!(OodRecord::new(&[], &[1.0]), None);
    }
}
