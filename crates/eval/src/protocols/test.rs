//! The test images as they are: scores of a system and its members, calibration, classes, routing.

use std::time::Instant;

use omma_report::{Bars, Lines, Series};
use serde::{Deserialize, Serialize};

use crate::{
    confusion::Confusion,
    error::Result,
    examples::{Example, Examples},
    gallery::Experts,
    metrics::largest,
    report::{Draft, Fact, Figure, SCORES, percent, score_row},
    routing::{LayerHealth, RoutingTally},
    stream::{Images, Watcher},
    summary::{Binning, ReliabilityBin, Summary},
    system::System,
    tally::{DiversityRecord, Tally},
};

/// How test images are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestProtocol {
    /// The bins of the calibration error.
    pub binning: Binning,
    /// Images per forward pass.
    pub batch: usize,
}

/// The test's part of `eval.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestRecord {
    /// Images that could be read.
    pub samples: usize,
    /// Scores of the mean of the members' probabilities.
    #[serde(flatten)]
    pub summary: Summary,
    /// What the calibration error was computed with.
    pub binning: Binning,
    /// Scores of every member; empty for one model with one prediction.
    pub members: Vec<Summary>,
    /// Nothing for one member.
    pub diversity: Option<DiversityRecord>,
    /// From low to high confidence, without empty bins.
    pub reliability: Vec<ReliabilityBin>,
    /// `[classes]`: error of every class; nothing for one without test images.
    pub class_errors: Vec<Option<f64>>,
    /// Reading included.
    pub images_per_second: f64,
}

/// Everything that one pass over the test images shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// What `eval.json` has of it.
    pub record: TestRecord,
    /// By the mean of the members' probabilities.
    pub confusion: Confusion,
    /// Predictions to be shown.
    pub examples: Examples,
    /// Per model, its layers with experts.
    pub routing: Vec<Vec<LayerHealth>>,
}

/// A test image as everything sees it that is computed in the same pass.
pub(super) struct Seen<'a> {
    /// `[M]` of `[classes]`
    pub(super) logits: &'a [&'a [f32]],
    /// `[classes]`: the mean of the members' probabilities.
    pub(super) probabilities: &'a [f64],
    pub(super) label: usize,
}

impl Test {
    /// Runs a system over images once. The mean of the members' probabilities decides, ties go to the
    /// lowest class.
    pub fn run(
        system: &System,
        images: &Images,
        protocol: TestProtocol,
        watcher: &mut dyn Watcher,
    ) -> Result<Self> {
        Self::observed(system, images, protocol, watcher, None, |_| {})
    }

    /// The same, and what the models' experts took.
    pub fn run_with_experts(
        system: &System,
        images: &Images,
        protocol: TestProtocol,
        watcher: &mut dyn Watcher,
    ) -> Result<(Self, Experts)> {
        let mut experts = Experts::of(system, images.data.len());
        let test = Self::observed(system, images, protocol, watcher, Some(&mut experts), |_| {})?;
        Ok((test, experts))
    }

    /// The same, with every image shown to an observer as well.
    pub(super) fn observed(
        system: &System,
        images: &Images,
        protocol: TestProtocol,
        watcher: &mut dyn Watcher,
        mut experts: Option<&mut Experts>,
        mut observe: impl FnMut(Seen),
    ) -> Result<Self> {
        let classes = images.data.classes().len();
        system.check_classes(&images.name, classes)?;
        watcher.begins("test images", images.data.len());
        let started = Instant::now();
        let mut tally = Tally::new(protocol.binning, system.members());
        let (mut confusion, mut examples) = (Confusion::default(), Examples::default());
        let mut routing = vec![RoutingTally::default(); system.names().len()];
        images.outputs(system, protocol.batch, watcher, |batch, outputs| {
            for (tally, routings) in routing.iter_mut().zip(&outputs.routings) {
                tally.add(RoutingTally::of(routings));
            }
            if let Some(experts) = &mut experts {
                experts.add(batch, &outputs.routings);
            }
            for (image, (label, index)) in batch.labels().iter().zip(&batch.indices).enumerate() {
                let logits: Vec<&[f32]> = outputs.of_image(image).collect();
                let probabilities = tally.add(&logits, *label);
                let predicted = largest(&probabilities);
                confusion.add(*label, predicted);
                let (label, confidence) = (*label, probabilities[predicted]);
                examples.add(Example { index: *index, label, predicted, confidence });
                observe(Seen { logits: &logits, probabilities: &probabilities, label });
            }
        })?;
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        let class_errors = confusion.class_errors(classes);
        let record = TestRecord {
            samples: tally.samples(),
            summary: tally.summary(),
            binning: protocol.binning,
            members: tally.members(),
            diversity: tally.diversity(),
            reliability: tally.reliability(),
            class_errors,
            images_per_second: tally.samples() as f64 / seconds,
        };
        let routing = routing.iter_mut().map(RoutingTally::take).collect();
        Ok(Self { record, confusion, examples, routing })
    }

    /// Share of the images that the system gets right.
    pub fn accuracy(&self) -> f64 {
        1.0 - self.record.summary.error
    }
}

/// Classes that a figure shows.
const MOST_CLASSES: usize = 20;

impl TestRecord {
    pub(crate) fn facts(&self) -> Vec<Fact> {
        let Summary { error, nll, brier, ece } = self.summary;
        vec![
            ("Accuracy", percent(1.0 - error), format!("error {}", percent(error))),
            ("NLL", format!("{nll:.4}"), "nats".to_owned()),
            ("Brier score", format!("{brier:.4}"), String::new()),
            ("Calibration error", percent(ece), format!("{} bins", self.binning.bins)),
        ]
    }

    /// Calibration and classes.
    pub(crate) fn section(&self, draft: Draft, classes: &[String]) -> Draft {
        let text = "Predictions are sorted into bins by their confidence. On the diagonal, they are right \
                    as often as their confidence says; below it they are overconfident.";
        let figures = vec![
            ("reliability".to_owned(), reliability(vec![self.reliability_series()])),
            ("confidence".to_owned(), self.confidence()),
            ("classes".to_owned(), self.hardest_classes(classes)),
        ];
        draft.add(|page| page.section("Calibration").text(text)).figures(figures)
    }

    /// Members beside their ensemble; nothing for a system of one.
    pub(crate) fn members_section(&self, draft: Draft) -> Draft {
        if self.members.is_empty() {
            return draft;
        }
        let name = |place: usize| format!("member {}", place + 1);
        let mut rows = vec![score_row("all together", &self.summary)];
        let members = self.members.iter().enumerate();
        rows.extend(members.map(|(place, scores)| score_row(&name(place), scores)));
        let bars = |file: &str, title: &str, y_label: &str, of: fn(&Summary) -> f64| -> Figure {
            let figure = Bars {
                title: title.to_owned(),
                x_label: String::new(),
                y_label: y_label.to_owned(),
                labels: (0..self.members.len()).map(name).collect(),
                groups: vec![("alone".to_owned(), self.members.iter().map(of).collect())],
                reference: Some(("together".to_owned(), of(&self.summary))),
            };
            (file.to_owned(), figure.svg())
        };
        let figures = vec![
            bars("members-error", "Error of the members", "%", |scores| 100.0 * scores.error),
            bars("members-nll", "NLL of the members", "nats", |scores| scores.nll),
        ];
        let draft =
            draft.add(|page| page.section("Members").table(&SCORES, &rows)).figures(figures);
        let Some(diversity) = &self.diversity else { return draft };
        let share = percent(diversity.disagreement_share);
        let facts = [
            ("KL between members", format!("{:.4}", diversity.kl), "nats".to_owned()),
            ("Cosine", format!("{:.4}", diversity.cosine), String::new()),
            (
                "Disagreement",
                format!("{:.3}", diversity.disagreement),
                format!("× the error; on {share} of the images"),
            ),
        ];
        draft.add(|page| page.facts(facts))
    }

    /// The reliability diagram's line.
    pub(super) fn reliability_series(&self) -> Series {
        series("as it is", &self.reliability)
    }

    fn confidence(&self) -> String {
        let share = |bin: &ReliabilityBin| 100.0 * bin.samples as f64 / self.samples.max(1) as f64;
        Bars {
            title: "Confidence of the predictions".to_owned(),
            x_label: "mean confidence of the bin".to_owned(),
            y_label: "% of predictions".to_owned(),
            labels: self.reliability.iter().map(|bin| format!("{:.2}", bin.confidence)).collect(),
            groups: vec![("test images".to_owned(), self.reliability.iter().map(share).collect())],
            reference: None,
        }
        .svg()
    }

    fn hardest_classes(&self, classes: &[String]) -> String {
        let errors = classes.iter().zip(&self.class_errors);
        let mut order: Vec<(&String, f64)> =
            errors.filter_map(|(class, error)| Some((class, (*error)?))).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1));
        order.truncate(MOST_CLASSES);
        let errors = order.iter().map(|(_, error)| 100.0 * error).collect();
        Bars {
            title: match self.class_errors.len() > MOST_CLASSES {
                true => format!("The {MOST_CLASSES} hardest classes"),
                false => "Error by class".to_owned(),
            },
            x_label: String::new(),
            y_label: "% wrong".to_owned(),
            labels: order.iter().map(|(class, _)| (*class).clone()).collect(),
            groups: vec![("error".to_owned(), errors)],
            reference: Some(("mean".to_owned(), 100.0 * self.summary.error)),
        }
        .svg()
    }
}

pub(super) fn series(name: &str, bins: &[ReliabilityBin]) -> Series {
    Series::new(name, bins.iter().map(|bin| (bin.confidence, bin.accuracy)).collect())
}

/// The reliability diagram.
pub(super) fn reliability(series: Vec<Series>) -> String {
    Lines {
        title: "Reliability".to_owned(),
        x_label: "confidence".to_owned(),
        y_label: "accuracy".to_owned(),
        series,
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: Some("perfect".to_owned()),
        ..Lines::default()
    }
    .svg()
}
