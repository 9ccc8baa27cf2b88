//! What is kept of every image: a few numbers, for intervals and for comparisons image by image.
//!
//! | file | room for |
//! |---|---|
//! | `mod.rs` | the numbers, which images they are of, and intervals of what they sum up to |
//! | `file.rs` | `images.safetensors`, beside `eval.json` |

mod file;

use omma_base::checksum;

pub use self::file::IMAGES_FILE;
use crate::{
    metrics::{Outcome, draw, intervals, resamples},
    summary::{Binning, Summary, SummaryIntervals},
};

/// One image: 28 bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageOutcome {
    /// Its place in the data.
    pub index: u32,
    /// Its class.
    pub label: u32,
    /// The likeliest class.
    pub predicted: u32,
    /// Classes that come before the label.
    pub rank: u32,
    /// How likely the likeliest class is held to be.
    pub confidence: f32,
    /// Negative log-likelihood of the label.
    pub nll: f32,
    /// Squared distance of the probabilities from the truth.
    pub brier: f32,
}

impl ImageOutcome {
    fn new(index: usize, label: usize, outcome: &Outcome) -> Self {
        Self {
            index: index as u32,
            label: label as u32,
            predicted: outcome.predicted as u32,
            rank: outcome.rank as u32,
            confidence: outcome.confidence as f32,
            nll: outcome.nll as f32,
            brier: outcome.brier as f32,
        }
    }

    /// Whether the prediction is wrong.
    pub fn is_wrong(&self) -> bool {
        self.rank > 0
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            predicted: self.predicted as usize,
            confidence: f64::from(self.confidence),
            rank: self.rank as usize,
            nll: f64::from(self.nll),
            brier: f64::from(self.brier),
        }
    }
}

/// All images of a test, in their order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcomes {
    /// One per image that could be read.
    pub images: Vec<ImageOutcome>,
    /// Checksum of the images' places, names and labels: whose are equal can be compared image by image.
    pub identity: String,
}

impl Outcomes {
    /// - `name`: what the image is called in its data
    pub(crate) fn add(&mut self, index: usize, name: &str, label: usize, outcome: &Outcome) {
        self.images.push(ImageOutcome::new(index, label, outcome));
        self.identity = checksum(format!("{}\0{index}\0{label}\0{name}", self.identity));
    }

    /// How far the scores may be off, by a bootstrap over the images.
    pub(crate) fn intervals(&self, binning: Binning, classes: usize) -> Option<SummaryIntervals> {
        let images = self.images.len();
        let count = resamples(images);
        if images == 0 {
            return None;
        }
        let [error, top5, nll, brier, ece] = intervals(count, |seed| {
            let mut scores = binning.scores();
            draw(seed, images).for_each(|place| scores.add_outcome(&self.images[place].outcome()));
            let Summary { error, top5_error, nll, brier, ece } = binning.summary(&scores, classes);
            [error, top5_error.unwrap_or_default(), nll, brier, ece]
        });
        let top5_error = (classes > crate::metrics::TOP).then_some(top5);
        Some(SummaryIntervals { error, top5_error, nll, brier, ece, resamples: count })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use omma_base::Seed;
    use rand::RngExt;

    use super::*;
    use crate::{
        metrics::{Interval, Scores},
        summary::BinKind,
    };

    /// Predictions among eight classes, some of them right.
    pub(crate) fn drawn(images: usize, seed: u64) -> Outcomes {
        let mut rng = Seed::new(seed).rng();
        let mut outcomes = Outcomes::default();
        for index in 0..images {
            let raw: Vec<f64> = (0..8).map(|_| rng.random::<f64>().powi(3)).collect();
            let sum: f64 = raw.iter().sum();
            let probabilities: Vec<f64> = raw.iter().map(|p| p / sum).collect();
            let label = rng.random_range(0..8);
            outcomes.add(index, "", label, &Outcome::of(&probabilities, label));
        }
        outcomes
    }

    /// The definition, written out: a resample is a list of images, and each score is that of the list.
    fn definition(outcomes: &Outcomes, binning: Binning, of: fn(&Summary) -> f64) -> Interval {
        let images = outcomes.images.len();
        let mut values: Vec<f64> = (0..1000_u64)
            .map(|number| {
                let seed = Seed::new(0).named("bootstrap").numbered(number);
                let list: Vec<ImageOutcome> =
                    draw(seed, images).map(|place| outcomes.images[place]).collect();
                let mean = |of: &dyn Fn(&ImageOutcome) -> f64| {
                    list.iter().map(of).sum::<f64>() / images as f64
                };
                let mut scores: Scores = binning.scores();
                list.iter().for_each(|image| scores.add_outcome(&image.outcome()));
                of(&Summary {
                    error: mean(&|image| f64::from(u8::from(image.rank > 0))),
                    top5_error: Some(mean(&|image| f64::from(u8::from(image.rank > 4)))),
                    nll: mean(&|image| f64::from(image.nll)),
                    brier: mean(&|image| f64::from(image.brier)),
                    ece: binning.summary(&scores, 8).ece,
                })
            })
            .collect();
        values.sort_by(f64::total_cmp);
        // The 2.5th percentile of 1000 values is 97.5 % of the way from the 25th to the 26th, counted from 1.
        let between = |a: f64, b: f64, share: f64| a + (b - a) * share;
        Interval {
            low: between(values[24], values[25], 0.975),
            high: between(values[974], values[975], 0.025),
        }
    }

    #[test]
    fn intervals_are_percentiles_of_what_resamples_score() {
        let outcomes = drawn(83, 1);
        let close = |a: Interval, b: Interval| {
            (a.low - b.low).abs() < 1e-9 && (a.high - b.high).abs() < 1e-9
        };
        for kind in [BinKind::EqualWidth, BinKind::EqualMass] {
            let binning = Binning { kind, bins: 15 };
            let found = outcomes.intervals(binning, 8).unwrap();
            assert_eq!(found.resamples, 1000);
            let of = |of: fn(&Summary) -> f64| definition(&outcomes, binning, of);
            assert!(close(found.error, of(|one| one.error)), "{found:?}");
            assert!(close(found.top5_error.unwrap(), of(|one| one.top5_error.unwrap())));
            assert!(close(found.nll, of(|one| one.nll)));
            assert!(close(found.brier, of(|one| one.brier)));
            assert!(close(found.ece, of(|one| one.ece)));
        }
        assert_eq!(outcomes.intervals(Binning::default(), 5).unwrap().top5_error, None);
        assert_eq!(Outcomes::default().intervals(Binning::default(), 8), None);
    }

    #[test]
    fn images_are_known_by_place_name_and_label() {
        let of = |index: usize, name: &str, label: usize| {
            let mut outcomes = Outcomes::default();
            outcomes.add(index, name, label, &Outcome::of(&[0.5, 0.5], label));
            outcomes.identity
        };
        let others = [of(1, "a", 0), of(0, "b", 0), of(0, "a", 1)];
        assert!(others.iter().all(|other| *other != of(0, "a", 0)));
        assert_eq!(of(0, "a", 0), of(0, "a", 0));
    }
}
