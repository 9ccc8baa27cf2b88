//! Telling out-of-distribution images from the test images by a system's outputs (paper 000 App. L.5).
//!
//! The test images, which are in distribution, are the positive class, as in the reference's tables: in
//! Table 32 AUPR is above AUROC against the few images of DTD and far below it against the many of
//! Places365, which fits nothing else. AUROC is the same either way; AUPR and the false-positive rate
//! are not.

use std::collections::BTreeMap;

use omma_report::{Lines, Series};
use serde::{Deserialize, Serialize};

use crate::{
    digits::share_within,
    error::Result,
    metrics::{Curve, Detection, DetectionIntervals, entropy, log_sum_exp, mean_softmax},
    report::{Draft, Fact, Figure, file_name},
    stream::{Images, Watcher},
    system::System,
};

/// What is to be told from the test images, and by what.
#[derive(Clone, Default)]
pub struct OodProtocol {
    /// Out-of-distribution data sets, each with a name of its own.
    pub sets: Vec<Images>,
    /// How far out of the distribution an image is.
    pub score: OodScore,
    /// Which images are to be found.
    pub positive: OodPositive,
}

/// Which images are the positive class: those that a detector is to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OodPositive {
    /// The test images, by a low score; as in paper 000.
    #[default]
    InDistribution,
    /// The others, by a high score.
    OutOfDistribution,
}

impl OodPositive {
    /// What records mean that do not say it.
    pub(super) fn of_earlier_records() -> Self {
        Self::OutOfDistribution
    }

    /// In front of "images".
    pub fn in_words(self) -> &'static str {
        match self {
            Self::InDistribution => "in-distribution",
            Self::OutOfDistribution => "out-of-distribution",
        }
    }

    /// Scores of the positive and of the negative class, each higher for what is more positive.
    fn sides(self, out_of_distribution: &[f64], in_distribution: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let opposite = |scores: &[f64]| scores.iter().map(|score| -score).collect();
        match self {
            Self::InDistribution => (opposite(in_distribution), opposite(out_of_distribution)),
            Self::OutOfDistribution => (out_of_distribution.to_vec(), in_distribution.to_vec()),
        }
    }

    /// The share of the positive among all images: the average precision of a score that knows nothing.
    pub(crate) fn base_rate(self, out_of_distribution: usize, in_distribution: usize) -> f64 {
        let positives = match self {
            Self::InDistribution => in_distribution,
            Self::OutOfDistribution => out_of_distribution,
        };
        positives as f64 / (out_of_distribution + in_distribution).max(1) as f64
    }

    /// Axes of the ROC curve: false positives, true positives.
    fn axes(self) -> (&'static str, &'static str) {
        match self {
            Self::InDistribution => {
                ("out-of-distribution images taken for test images", "test images that are found")
            }
            Self::OutOfDistribution => (
                "test images taken for out-of-distribution",
                "out-of-distribution images that are found",
            ),
        }
    }
}

/// How far out of the distribution an image is taken to be; more for less confidence.
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
    /// Of one image.
    ///
    /// - `logits`: `[M]` of `[classes]`
    /// - `probabilities`: `[classes]`, the mean of the members'
    pub fn of(self, logits: &[&[f32]], probabilities: &[f64]) -> f64 {
        match self {
            Self::MaxProbability => 1.0 - probabilities.iter().copied().fold(0.0, f64::max),
            Self::Entropy => entropy(probabilities),
            Self::Energy => {
                let sum: f64 = logits.iter().map(|logits| -log_sum_exp(logits)).sum();
                sum / logits.len().max(1) as f64
            }
        }
    }

    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Self::MaxProbability => "one minus the largest probability",
            Self::Entropy => "the entropy of the probabilities",
            Self::Energy => "the energy of the logits",
        }
    }
}

/// How well an out-of-distribution data set is told from the test images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OodRecord {
    /// Out-of-distribution images.
    pub samples: usize,
    /// Area under the ROC curve.
    pub auroc: f64,
    /// Average precision of finding the positive images.
    pub aupr: f64,
    /// What that is for a score that knows nothing: the share of the positive images. Where a record of an
    /// earlier version does not say it, it is filled in when that is read.
    #[serde(default)]
    pub base_rate: Option<f64>,
    /// False-positive rate where 95 % of the positive images are found.
    pub fpr95: f64,
    /// How far the three may be off, both sets resampled; nothing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervals: Option<DetectionIntervals>,
    /// Mean score of the out-of-distribution images.
    pub mean_score: f64,
    /// Points of the ROC curve, `(false-positive rate, true-positive rate)`.
    pub roc: Vec<(f64, f64)>,
    /// Edges of the bins of both histograms, one more than bins.
    pub edges: Vec<f64>,
    /// Share of the out-of-distribution images in every bin.
    #[serde(alias = "outside")]
    pub out_of_distribution: Vec<f64>,
    /// Share of the test images in every bin.
    #[serde(alias = "inside")]
    pub in_distribution: Vec<f64>,
}

/// Every data set against the test images.
///
/// - `in_distribution`: the scores of the test images
pub(super) fn detect(
    system: &System,
    protocol: &OodProtocol,
    in_distribution: &[f64],
    batch: usize,
    watcher: &mut dyn Watcher,
) -> Result<BTreeMap<String, OodRecord>> {
    let mut records = BTreeMap::new();
    for images in &protocol.sets {
        watcher.begins(&images.name, images.data.len());
        let mut scores = Vec::new();
        images.logits(system, batch, watcher, |logits, _| {
            scores.push(protocol.score.of(logits, &mean_softmax(logits, 1.0)));
        })?;
        let record = OodRecord::new(&scores, in_distribution, protocol.positive);
        records.extend(record.map(|record| (images.name.clone(), record)));
    }
    Ok(records)
}

/// Points of a ROC curve that are kept.
const ROC_POINTS: usize = 200;
/// Bins of the histograms.
const BINS: usize = 40;

impl OodRecord {
    /// From the scores of both sets, higher for what is further out; nothing if one of them is empty.
    pub fn new(
        out_of_distribution: &[f64],
        in_distribution: &[f64],
        positive: OodPositive,
    ) -> Option<Self> {
        let (positives, negatives) = positive.sides(out_of_distribution, in_distribution);
        let Detection { auroc, aupr, fpr95 } = Detection::of(&positives, &negatives)?;
        let curve = Curve::of(&positives, &negatives).0;
        let every = curve.len().div_ceil(ROC_POINTS).max(1);
        let mut roc: Vec<(f64, f64)> = curve.iter().copied().step_by(every).collect();
        if roc.last() != curve.last() {
            roc.extend(curve.last());
        }
        let all = || out_of_distribution.iter().chain(in_distribution).copied();
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
            samples: out_of_distribution.len(),
            auroc,
            aupr,
            base_rate: Some(positive.base_rate(out_of_distribution.len(), in_distribution.len())),
            fpr95,
            intervals: DetectionIntervals::of(&positives, &negatives),
            mean_score: out_of_distribution.iter().sum::<f64>() / out_of_distribution.len() as f64,
            roc,
            edges: (0..=BINS).map(|edge| low + width * edge as f64).collect(),
            out_of_distribution: shares(out_of_distribution),
            in_distribution: shares(in_distribution),
        })
    }

    /// AUROC, AUPR, its base rate and FPR95, with their intervals where these are known.
    pub fn cells(&self) -> [String; 4] {
        let intervals = self.intervals.as_ref();
        let base = self.base_rate.map_or("—".to_owned(), |rate| format!("{:.1} %", 100.0 * rate));
        [
            share_within(self.auroc, intervals.map(|all| &all.auroc), self.samples),
            share_within(self.aupr, intervals.map(|all| &all.aupr), self.samples),
            base,
            share_within(self.fpr95, intervals.map(|all| &all.fpr95), self.samples),
        ]
    }

    /// Both histograms in one figure.
    fn histograms(&self, name: &str) -> String {
        let steps = |shares: &[f64]| -> Vec<(f64, f64)> {
            let edges = self.edges.iter().zip(shares);
            let mut points: Vec<(f64, f64)> =
                edges.map(|(edge, share)| (*edge, 100.0 * share)).collect();
            if let (Some(end), Some(share)) = (self.edges.last(), shares.last()) {
                points.push((*end, 100.0 * share));
            }
            points
        };
        let series = |label: &str, shares: &[f64]| Series {
            steps: true,
            ..Series::new(label, steps(shares))
        };
        Lines {
            title: format!("Scores of {name}"),
            x_label: "score: further out of the distribution to the right".to_owned(),
            y_label: "% of the images".to_owned(),
            series: vec![
                series("test images", &self.in_distribution),
                series(name, &self.out_of_distribution),
            ],
            ..Lines::default()
        }
        .svg()
    }
}

/// The data set that is hardest to tell.
pub(crate) fn fact(records: &BTreeMap<String, OodRecord>) -> Option<Fact> {
    let (name, record) = records.iter().min_by(|a, b| a.1.auroc.total_cmp(&b.1.auroc))?;
    let value = share_within(record.auroc, None, record.samples);
    Some(("Lowest AUROC", value, format!("against {name}")))
}

/// Nothing without records.
pub(crate) fn section(
    draft: Draft,
    records: &BTreeMap<String, OodRecord>,
    score: OodScore,
    positive: OodPositive,
) -> Draft {
    if records.is_empty() {
        return draft;
    }
    let text = format!(
        "How well images of another kind are told from the test images by {}. The \
         positive class are the {} images: AUPR is the precision of finding them, which is the base rate \
         for a score that knows nothing, and the last column the share of the others that are taken for \
         them where 95 % of them are found.",
        score.in_words(),
        positive.in_words()
    );
    let row = |(name, record): (&String, &OodRecord)| {
        let mut row = vec![name.clone(), record.samples.to_string()];
        row.extend(record.cells());
        row
    };
    let rows: Vec<Vec<String>> = records.iter().map(row).collect();
    let curve = |(name, record): (&String, &OodRecord)| Series::new(name, record.roc.clone());
    let (false_positives, true_positives) = positive.axes();
    let roc = Lines {
        title: "ROC".to_owned(),
        x_label: false_positives.to_owned(),
        y_label: true_positives.to_owned(),
        series: records.iter().map(curve).collect(),
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: Some("chance".to_owned()),
        ..Lines::default()
    };
    let mut figures: Vec<Figure> = vec![("ood-roc".to_owned(), roc.svg())];
    figures.extend(records.iter().map(|(name, record)| {
        (format!("ood-scores-{}", file_name(name)), record.histograms(name))
    }));
    let header = ["data", "images", "AUROC", "AUPR", "base rate", "FPR at 95 % TPR"];
    draft
        .add(|page| page.section("Out-of-distribution images").text(&text).table(&header, &rows))
        .figures(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(score: OodScore, logits: &[&[f32]]) -> f64 {
        score.of(logits, &mean_softmax(logits, 1.0))
    }

    #[test]
    fn less_confidence_scores_higher() {
        let (high, low) = ([9.0_f32, 0.0, 0.0], [1.0_f32, 0.9, 0.8]);
        for score in [OodScore::MaxProbability, OodScore::Entropy, OodScore::Energy] {
            assert!(of(score, &[&low]) > of(score, &[&high]), "{score:?}");
        }
        assert!((of(OodScore::Entropy, &[&[2.0_f32; 8]]) - 8_f64.ln()).abs() < 1e-12);
        let both = of(OodScore::MaxProbability, &[&[50.0, 0.0], &[0.0, 50.0]]);
        assert!((both - 0.5).abs() < 1e-12, "members that contradict each other have none: {both}");
    }

    #[test]
    fn records_hold_a_curve_and_two_histograms() {
        let far: Vec<f64> = (0..1000).map(|i| f64::from(i) / 1000.0).collect();
        let near: Vec<f64> = (0..3000).map(|i| f64::from(i) / 6000.0).collect();
        for positive in [OodPositive::InDistribution, OodPositive::OutOfDistribution] {
            let record = OodRecord::new(&far, &near, positive).unwrap();
            assert!(record.roc.len() <= ROC_POINTS + 1);
            assert_eq!((record.roc[0], *record.roc.last().unwrap()), ((0.0, 0.0), (1.0, 1.0)));
            for shares in [&record.out_of_distribution, &record.in_distribution] {
                assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            }
            // The histograms are of the scores, whichever side is positive.
            let [low, high] = [0, BINS - 1].map(|bin| record.in_distribution[bin]);
            assert!((low - 0.05).abs() < 1e-2 && high == 0.0, "{low} {high}");
            assert!((record.auroc - 0.75).abs() < 1e-3);
            let same = OodRecord::new(&[0.5; 3], &[0.5; 4], positive).unwrap();
            assert_eq!((same.auroc, same.in_distribution[0]), (0.5, 1.0));
            assert_eq!(OodRecord::new(&[], &[1.0], positive), None);
        }
    }

    #[test]
    fn the_positive_class_is_the_one_that_is_found() {
        // Nine test images look alike, the tenth like the one image of another kind.
        let near = [[0.1; 9].as_slice(), &[0.9]].concat();
        let found = |positive| OodRecord::new(&[0.9], &near, positive).unwrap();
        let inside = found(OodPositive::InDistribution);
        let outside = found(OodPositive::OutOfDistribution);
        assert_eq!((inside.auroc, outside.auroc), (0.95, 0.95));
        // All ten are needed for 95 %, and the stranger comes with the tenth.
        assert_eq!((inside.fpr95, outside.fpr95), (1.0, 0.1));
        assert!((inside.aupr - (0.9 + 0.1 * 10.0 / 11.0)).abs() < 1e-12);
        assert_eq!(outside.aupr, 0.5);
        // Precision is to be measured by how many there are to find.
        assert_eq!((inside.base_rate, outside.base_rate), (Some(10.0 / 11.0), Some(1.0 / 11.0)));
        assert_eq!(outside.cells()[2], "9.1 %");
        // One step to nine tenths of the test images without any other, and along the curve's top.
        assert_eq!(inside.roc, [(0.0, 0.0), (0.0, 0.9), (1.0, 1.0)]);
        assert_eq!(outside.roc, [(0.0, 0.0), (0.1, 1.0), (1.0, 1.0)]);
    }

    #[test]
    fn the_page_says_which_images_are_positive() {
        let said = |positive| {
            let record = OodRecord::new(&[0.9, 0.4], &[0.1, 0.5], positive).unwrap();
            let records = BTreeMap::from([("far".to_owned(), record)]);
            let draft = Draft::new(omma_report::Page::new("", ""));
            section(draft, &records, OodScore::default(), positive).finish().html
        };
        let inside = said(OodPositive::InDistribution);
        assert!(inside.contains("positive class are the in-distribution images"), "{inside}");
        assert!(inside.contains("out-of-distribution images taken for test images"));
        let outside = said(OodPositive::OutOfDistribution);
        assert!(outside.contains("positive class are the out-of-distribution images"));
        assert!(outside.contains("test images taken for out-of-distribution"));
    }
}
