//! Telling two sets apart by a score.

use serde::{Deserialize, Serialize};

use super::bootstrap::{Interval, draw, intervals, resamples};

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

/// How far a [`Detection`] may be off, both sets resampled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DetectionIntervals {
    /// Of the area under the ROC curve.
    pub auroc: Interval,
    /// Of the average precision.
    pub aupr: Interval,
    /// Of the false-positive rate.
    pub fpr95: Interval,
}

/// Points of the ROC curve, `(false-positive rate, true-positive rate)`, from (0, 0) to (1, 1).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve(pub(crate) Vec<(f64, f64)>);

/// Positives and negatives found at one threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
        Some(Self::at(&thresholds(positives, negatives)))
    }

    /// - `found`: at every threshold, from nothing to everything
    fn at(found: &[Found]) -> Self {
        let all = found.last().copied().unwrap_or_default();
        let (p, n) = (all.positives, all.negatives);
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
        Self { auroc: auroc / (p as f64 * n as f64), aupr: aupr / p as f64, fpr95 }
    }
}

impl DetectionIntervals {
    /// Of two sets of scores; nothing where there is no [`Detection`]. A resample is counted by the places
    /// of its scores in the order of all scores, so that nothing is sorted again.
    pub fn of(positives: &[f64], negatives: &[f64]) -> Option<Self> {
        Detection::of(positives, negatives)?;
        let mut order: Vec<f64> = positives.iter().chain(negatives).copied().collect();
        order.sort_unstable_by(|a, b| b.total_cmp(a));
        // Zeros of both signs are one score.
        order.dedup_by(|a, b| a == b);
        let place = |score: &f64| order.partition_point(|other| other > score) as u32;
        let positives: Vec<u32> = positives.iter().map(place).collect();
        let negatives: Vec<u32> = negatives.iter().map(place).collect();
        let count = resamples(positives.len() + negatives.len());
        let [auroc, aupr, fpr95] = intervals(count, |seed| {
            let mut counts = vec![Found::default(); order.len()];
            for drawn in draw(seed.named("positives"), positives.len()) {
                counts[positives[drawn] as usize].positives += 1;
            }
            for drawn in draw(seed.named("negatives"), negatives.len()) {
                counts[negatives[drawn] as usize].negatives += 1;
            }
            let mut found = vec![Found::default()];
            let mut now = Found::default();
            for more in counts.into_iter().filter(|more| *more != Found::default()) {
                now.positives += more.positives;
                now.negatives += more.negatives;
                found.push(now);
            }
            let Detection { auroc, aupr, fpr95 } = Detection::at(&found);
            [auroc, aupr, fpr95]
        });
        Some(Self { auroc, aupr, fpr95 })
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

#[cfg(test)]
mod tests {
    use omma_base::Seed;
    use rand::RngExt;

    use super::*;

    /// The definition: every resample is detected in for itself.
    #[test]
    fn intervals_are_those_of_resamples_that_are_sorted_anew() {
        let mut rng = Seed::new(3).rng();
        let mut scores = |count: usize, from: i32| -> Vec<f64> {
            (0..count).map(|_| f64::from(rng.random_range(from..from + 12)) / 4.0).collect()
        };
        let (positives, negatives) = (scores(60, 2), scores(35, 0));
        let [auroc, aupr, fpr95] = intervals(resamples(95), |seed| {
            let of = |name: &str, all: &[f64]| -> Vec<f64> {
                draw(seed.named(name), all.len()).map(|place| all[place]).collect()
            };
            let drawn = (of("positives", &positives), of("negatives", &negatives));
            let Detection { auroc, aupr, fpr95 } = Detection::of(&drawn.0, &drawn.1).unwrap();
            [auroc, aupr, fpr95]
        });
        let found = DetectionIntervals::of(&positives, &negatives).unwrap();
        assert_eq!(found, DetectionIntervals { auroc, aupr, fpr95 });
        let whole = Detection::of(&positives, &negatives).unwrap();
        assert!(found.auroc.contains(whole.auroc) && found.auroc.width() > 0.05, "{found:?}");
        assert_eq!(DetectionIntervals::of(&[], &negatives), None);
    }

    #[test]
    fn what_is_told_for_certain_has_no_width() {
        let found = DetectionIntervals::of(&[2.0, 3.0], &[0.0, -0.0, 1.0]).unwrap();
        assert_eq!((found.auroc.low, found.aupr.low, found.fpr95.high), (1.0, 1.0, 0.0));
    }
}
