//! Telling two sets apart by a score.

use serde::Serialize;

/// How well a score tells positives from negatives; equal scores are taken together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Detection {
    /// Area under the ROC curve: the probability that a positive scores above a negative, counting half
    /// for a tie.
    pub auroc: f64,
    /// Average precision: `Σ (R_n − R_{n−1}) · P_n` over falling thresholds, without interpolation.
    pub aupr: f64,
    /// The smallest false-positive rate at which at least 95 % of the positives are found.
    pub fpr95: f64,
}

/// Points of the ROC curve, `(false-positive rate, true-positive rate)`, from (0, 0) to (1, 1).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve(pub(crate) Vec<(f64, f64)>);

/// Positives and negatives found at one threshold.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    positives: usize,
    negatives: usize,
}

/// What is found at every threshold "score ≥ t", from the highest score down; starts with nothing.
fn thresholds(positives: &[f64], negatives: &[f64]) -> Vec<Found> {
    let mut scores: Vec<(f64, bool)> = positives.iter().map(|score| (*score, true)).collect();
    scores.extend(negatives.iter().map(|score| (*score, false)));
    scores.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut all = vec![Found::default()];
    let mut now = Found::default();
    for (place, (score, positive)) in scores.iter().enumerate() {
        match positive {
            true => now.positives += 1,
            false => now.negatives += 1,
        }
        if scores.get(place + 1).is_none_or(|(next, _)| next != score) {
            all.push(now);
        }
    }
    all
}

impl Detection {
    /// Of two sets of scores; nothing if one of them is empty or a score is not a number.
    pub fn of(positives: &[f64], negatives: &[f64]) -> Option<Self> {
        let numbers = positives.iter().chain(negatives).all(|score| !score.is_nan());
        if positives.is_empty() || negatives.is_empty() || !numbers {
            return None;
        }
        let (p, n) = (positives.len(), negatives.len());
        let found = thresholds(positives, negatives);
        let (mut auroc, mut aupr) = (0.0, 0.0);
        for pair in found.windows(2) {
            let new_negatives = (pair[1].negatives - pair[0].negatives) as f64;
            auroc += new_negatives * (pair[0].positives + pair[1].positives) as f64 / 2.0;
            let new_positives = (pair[1].positives - pair[0].positives) as f64;
            let precision =
                pair[1].positives as f64 / (pair[1].positives + pair[1].negatives) as f64;
            aupr += new_positives * precision;
        }
        let enough = found.iter().find(|found| found.positives * 20 >= p * 19);
        let fpr95 = enough.map_or(1.0, |found| found.negatives as f64 / n as f64);
        Some(Self { auroc: auroc / (p * n) as f64, aupr: aupr / p as f64, fpr95 })
    }
}

impl Curve {
    /// Of two sets of scores, neither empty.
    pub(crate) fn of(positives: &[f64], negatives: &[f64]) -> Self {
        let share = |count: usize, of: &[f64]| count as f64 / of.len().max(1) as f64;
        let point = |f: Found| (share(f.negatives, negatives), share(f.positives, positives));
        Self(thresholds(positives, negatives).into_iter().map(point).collect())
    }
}
