//! Temperature scaling (Guo et al. 2017): one number that all logits are divided by, fitted on images
//! that the model has not learned from.

use omma_data::Selection;
use omma_report::Series;
use serde::{Deserialize, Serialize};

use super::test::{TestRecord, counted, reliability, series};
use crate::{
    digits::Digits,
    error::Result,
    metrics::{Outcome, Scores, mean_softmax},
    outcomes::Outcomes,
    report::{Draft, ScoreTable},
    stream::{Images, Watcher},
    summary::{Binning, ReliabilityBin, Summary, SummaryIntervals},
    system::System,
};

/// A temperature is fitted on at most so many images, since their logits are kept.
const MOST_IMAGES: usize = 5_000;

/// The logits of all members for some images, and the labels of these.
#[derive(Debug, Clone, Default)]
pub(super) struct Validation {
    members: usize,
    logits: Vec<f32>,
    labels: Vec<usize>,
}

/// What scaling makes of the test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TemperatureRecord {
    /// What logits are divided by.
    pub value: f64,
    /// Images that it was fitted on.
    pub fitted_on: usize,
    /// Scores of the test images with it.
    #[serde(flatten)]
    pub summary: Summary,
    /// How far these may be off, were the temperature given; nothing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervals: Option<SummaryIntervals>,
    /// The reliability diagram with it.
    pub reliability: Vec<ReliabilityBin>,
}

/// Temperatures that are tried, as logarithms.
const RANGE: (f64, f64) = (-3.0, 3.0);
/// Places that are looked at before the search closes in on the best of them.
const COARSE: usize = 25;
/// How closely.
const PRECISION: f64 = 1e-4;

impl TemperatureRecord {
    /// Whether it is at an end of what is tried, where it says only that no temperature was best.
    pub fn is_at_end(&self) -> bool {
        let close = |end: f64| (self.value.ln() - end).abs() < 10.0 * PRECISION;
        close(RANGE.0) || close(RANGE.1)
    }

    /// The test's scores and its reliability, as they are and scaled.
    pub(crate) fn section(&self, draft: Draft, test: &TestRecord) -> Draft {
        let text = format!(
            "All logits divided by {:.3}, which was fitted on {} held-out images.",
            self.value, self.fitted_on
        );
        let table = ScoreTable::new(Digits::of(test), &test.summary)
            .row("as it is", &test.summary, test.intervals.as_ref())
            .row("scaled", &self.summary, self.intervals.as_ref());
        let scaled = Series { dashed: true, ..series("scaled", &self.reliability) };
        let scaled = counted(scaled, &self.reliability);
        let diagram = reliability(vec![test.reliability_series(), scaled]);
        draft
            .add(|page| table.onto(page.section("Temperature scaling").text(&text)))
            .figures(vec![("reliability-scaled".to_owned(), diagram)])
    }
}

/// Scores of the test images at a fitted temperature, summed as predictions come.
pub(super) struct Scaled {
    value: f64,
    fitted_on: usize,
    binning: Binning,
    classes: usize,
    scores: Scores,
    outcomes: Outcomes,
}

impl Scaled {
    /// Fits a temperature on images that the models have not learned from.
    pub(super) fn fit(
        system: &System,
        images: &Images,
        binning: Binning,
        batch: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<Self> {
        let classes = images.data.classes().len();
        system.check_classes(&images.name, classes)?;
        let data = Selection::spread(&images.data, MOST_IMAGES);
        let images = Images { data, ..images.clone() };
        watcher.begins("held-out images, for the temperature", images.data.len());
        let mut validation = Validation::default();
        images.logits(system, batch, watcher, |logits, label| validation.add(logits, label))?;
        let (value, fitted_on) = (validation.fit(), validation.len());
        let (scores, outcomes) = (binning.scores(), Outcomes::default());
        Ok(Self { value, fitted_on, binning, classes, scores, outcomes })
    }

    /// Adds a test image, and says what it scores at the temperature.
    ///
    /// - `logits`: `[M]` of `[classes]`
    pub(super) fn add(&mut self, index: usize, logits: &[&[f32]], label: usize) -> Outcome {
        let outcome = self.scores.add(&mean_softmax(logits, self.value), label);
        self.outcomes.add(index, "", label, &outcome);
        outcome
    }

    pub(super) fn record(self) -> TemperatureRecord {
        TemperatureRecord {
            value: self.value,
            fitted_on: self.fitted_on,
            summary: self.binning.summary(&self.scores, self.classes),
            intervals: self.outcomes.intervals(self.binning, self.classes),
            reliability: self.binning.reliability(&self.scores),
        }
    }
}

impl Validation {
    pub(super) fn add(&mut self, logits: &[&[f32]], label: usize) {
        self.members = logits.len();
        logits.iter().for_each(|logits| self.logits.extend_from_slice(logits));
        self.labels.push(label);
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    /// Mean negative log-likelihood of the members' average with all logits divided by a temperature.
    pub(super) fn nll(&self, temperature: f64) -> f64 {
        let per_image = self.logits.len() / self.labels.len().max(1);
        let classes = per_image / self.members.max(1);
        let images = self.logits.chunks_exact(per_image.max(1)).zip(&self.labels);
        let sum: f64 = images
            .map(|(logits, label)| {
                let members: Vec<&[f32]> = logits.chunks_exact(classes).collect();
                -mean_softmax(&members, temperature)[*label].max(f64::MIN_POSITIVE).ln()
            })
            .sum();
        sum / self.labels.len().max(1) as f64
    }

    /// The temperature of the least NLL. The NLL of one model has a single minimum in `1/T`; that of an
    /// average need not, so the whole range is looked at before a golden-section search.
    pub(super) fn fit(&self) -> f64 {
        let at = |step: usize| RANGE.0 + (RANGE.1 - RANGE.0) * step as f64 / (COARSE - 1) as f64;
        let cost = |logarithm: f64| self.nll(logarithm.exp());
        let coarse: Vec<f64> = (0..COARSE).map(|step| cost(at(step))).collect();
        let best = (0..COARSE).min_by(|a, b| coarse[*a].total_cmp(&coarse[*b])).unwrap_or(0);
        let (mut low, mut high) = (at(best.saturating_sub(1)), at((best + 1).min(COARSE - 1)));
        let golden = (5_f64.sqrt() - 1.0) / 2.0;
        let (mut a, mut b) = (high - golden * (high - low), low + golden * (high - low));
        let (mut cost_a, mut cost_b) = (cost(a), cost(b));
        while high - low > PRECISION {
            if cost_a < cost_b {
                (high, b, cost_b) = (b, a, cost_a);
                a = high - golden * (high - low);
                cost_a = cost(a);
            } else {
                (low, a, cost_a) = (a, b, cost_b);
                b = low + golden * (high - low);
                cost_b = cost(b);
            }
        }
        ((low + high) / 2.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;
    use rand::RngExt;

    use super::*;
    use crate::metrics::softmax;

    /// Labels drawn from the softmax of the logits, which are then given multiplied by `factor`.
    fn drawn(images: usize, members: usize, factor: f32) -> Validation {
        let mut rng = Seed::new(5).rng();
        let mut validation = Validation::default();
        for _ in 0..images {
            let logits: Vec<f32> = (0..4).map(|_| rng.random_range(-3.0..3.0)).collect();
            let mut left: f64 = rng.random();
            let chances = softmax(&logits, 1.0);
            let label = chances.iter().position(|p| {
                left -= p;
                left <= 0.0
            });
            let given: Vec<f32> = logits.iter().map(|value| value * factor).collect();
            validation.add(&vec![given.as_slice(); members], label.unwrap_or(3));
        }
        validation
    }

    #[test]
    fn the_factor_that_logits_were_multiplied_by_is_found() {
        for (factor, members) in [(3.0, 1), (0.4, 1), (2.0, 3)] {
            let found = drawn(4000, members, factor).fit();
            assert!((found / f64::from(factor) - 1.0).abs() < 0.08, "{found} is not {factor}");
        }
    }

    #[test]
    fn no_temperature_near_the_fitted_one_is_better() {
        let validation = drawn(500, 2, 1.7);
        let best = validation.nll(validation.fit());
        for step in 0..200 {
            let temperature = (-2.9 + 5.8 * f64::from(step) / 199.0).exp();
            assert!(best <= validation.nll(temperature) + 1e-7, "{temperature} is better");
        }
    }

    #[test]
    fn images_that_are_all_right_have_no_best_temperature() {
        let record = |validation: &Validation| TemperatureRecord {
            value: validation.fit(),
            fitted_on: validation.len(),
            summary: Summary::default(),
            intervals: None,
            reliability: Vec::new(),
        };
        let mut right = Validation::default();
        right.add(&[&[0.1, 0.0]], 0);
        assert!(record(&right).is_at_end());
        assert!(!record(&drawn(500, 1, 2.0)).is_at_end());
    }
}
