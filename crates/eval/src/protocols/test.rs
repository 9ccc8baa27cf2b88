//! The test images as they are: scores of a system and its members, calibration, classes, routing.

use std::time::Instant;

use omma_report::{Bars, Lines, Series};
use serde::{Deserialize, Serialize};

use crate::{
    confusion::{Confusion, ConfusionRecord},
    digits::{self, Digits, Scored},
    error::Result,
    examples::{Example, Examples},
    gallery::Experts,
    metrics::Interval,
    report::{Draft, Fact, Figure, ScoreTable},
    routing::{LayerHealth, RoutingTally},
    stream::{Images, Watcher},
    summary::{Binning, ReliabilityBin, Summary, SummaryIntervals},
    system::System,
    tally::{DiversityRecord, Predicted, Tally},
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
    /// How far these may be off; nothing where nobody asked, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervals: Option<SummaryIntervals>,
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
    /// Which classes are taken for which; nothing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confusion: Option<ConfusionRecord>,
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
    /// Its place in the data.
    pub(super) index: usize,
    pub(super) label: usize,
    /// `[M]` of `[classes]`
    pub(super) logits: &'a [&'a [f32]],
    pub(super) predicted: &'a Predicted,
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
        Self::observed(system, images, protocol, watcher, None, |_| Ok(()))
    }

    /// The same, and what the models' experts took.
    pub fn run_with_experts(
        system: &System,
        images: &Images,
        protocol: TestProtocol,
        watcher: &mut dyn Watcher,
    ) -> Result<(Self, Experts)> {
        let mut experts = Experts::of(system, images.data.len());
        let test =
            Self::observed(system, images, protocol, watcher, Some(&mut experts), |_| Ok(()))?;
        Ok((test, experts))
    }

    /// The same, with every image shown to an observer as well.
    pub(super) fn observed(
        system: &System,
        images: &Images,
        protocol: TestProtocol,
        watcher: &mut dyn Watcher,
        mut experts: Option<&mut Experts>,
        mut observe: impl FnMut(Seen) -> Result<()>,
    ) -> Result<Self> {
        let classes = images.data.classes().len();
        system.check_classes(&images.name, classes)?;
        watcher.begins("test images", images.data.len());
        let started = Instant::now();
        let mut tally = Tally::new(protocol.binning, system.members());
        let (mut confusion, mut examples) = (Confusion::default(), Examples::default());
        let mut routing = vec![RoutingTally::default(); system.names().len()];
        images.outputs(system, protocol.batch, watcher, |batch, outputs| {
            for (tally, found) in routing.iter_mut().zip(outputs.tallies()) {
                tally.add(found);
            }
            // Who went where is known where it was computed.
            if let Some(experts) = experts.as_mut().filter(|_| outputs.is_own()) {
                experts.add(batch, &outputs.routings);
            }
            for (image, (label, index)) in batch.labels().iter().zip(&batch.indices).enumerate() {
                let (label, index) = (*label, *index);
                let logits: Vec<&[f32]> = outputs.of_image(image).collect();
                let predicted = tally.add(&logits, label);
                let outcome = predicted.outcome;
                confusion.add(label, outcome.predicted);
                let (class, confidence) = (outcome.predicted, outcome.confidence);
                examples.add(Example { index, label, predicted: class, confidence });
                observe(Seen { index, label, logits: &logits, predicted: &predicted })?;
            }
            Ok(())
        })?;
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        let class_errors = confusion.class_errors(classes);
        let record = TestRecord {
            samples: tally.samples(),
            summary: tally.summary(),
            intervals: None,
            binning: protocol.binning,
            members: tally.members(),
            diversity: tally.diversity(),
            reliability: tally.reliability(),
            class_errors,
            confusion: Some(confusion.record(classes)),
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

/// Pairs of classes that a table shows.
const MOST_PAIRS: usize = 12;
/// Classes that a figure shows.
const MOST_CLASSES: usize = 20;

impl TestRecord {
    pub(crate) fn facts(&self) -> Vec<Fact> {
        let digits = Digits::of(self);
        let values = digits.scores(&self.summary);
        let ranges = self.intervals.as_ref().map(|intervals| digits.intervals(intervals));
        // What is right has the interval of what is wrong, mirrored.
        let right = |share: f64| digits.error(1.0 - share);
        let mirrored = |interval: Interval| {
            let right = Interval { low: 1.0 - interval.high, high: 1.0 - interval.low };
            digits::range(right.times(100.0), digits.error)
        };
        let within = |text: Option<String>, unit: &str| match text {
            Some(text) => format!("95 % interval {text}{unit}"),
            None => unit.trim_start_matches(", ").to_owned(),
        };
        let intervals = self.intervals.as_ref();
        let accuracy = within(intervals.map(|all| mirrored(all.error)), "");
        let mut facts = vec![("Accuracy", right(self.summary.error), accuracy)];
        if let Some(share) = self.summary.top5_error {
            let top5 = intervals.and_then(|all| all.top5_error).map(mirrored);
            facts.push(("Top-5 accuracy", right(share), within(top5, "")));
        }
        let range = |of: fn(&Scored<String>) -> &String| ranges.as_ref().map(|all| of(all).clone());
        let bins = format!(", {} bins", self.binning.bins);
        facts.extend([
            ("NLL", values.nll, within(range(|all| &all.nll), ", nats")),
            ("Brier score", values.brier, within(range(|all| &all.brier), "")),
            ("Calibration error", values.ece, within(range(|all| &all.ece), &bins)),
        ]);
        facts
    }

    /// Calibration and classes.
    pub(crate) fn section(&self, draft: Draft, classes: &[String]) -> Draft {
        let text = "Predictions are sorted into bins by their confidence. On the diagonal, they are right \
                    as often as their confidence says; below it they are overconfident. The number at a point \
                    is that of its images: where there are few, the point says little.";
        let figures = vec![
            (
                "reliability".to_owned(),
                reliability(vec![counted(self.reliability_series(), &self.reliability)]),
            ),
            ("confidence".to_owned(), self.confidence()),
            ("classes".to_owned(), self.hardest_classes(classes)),
        ];
        let draft = draft.add(|page| page.section("Calibration").text(text)).figures(figures);
        self.confusion_section(draft, classes)
    }

    /// Which classes are taken for which; nothing where nothing is wrong, or not known.
    fn confusion_section(&self, draft: Draft, classes: &[String]) -> Draft {
        let Some(confusion) = self.confusion.as_ref().filter(|all| !all.pairs.is_empty()) else {
            return draft;
        };
        let rows = confusion.rows(classes, MOST_PAIRS).into_iter();
        let rows: Vec<Vec<String>> = rows.map(Vec::from).collect();
        let header = ["images of", "taken for", "how many"];
        let figure = confusion.figure(classes).map(|svg| ("confusion".to_owned(), svg));
        let draft = draft.add(|page| page.section("Confusions"));
        let draft = match figure {
            Some(figure) => draft.figures(vec![figure]),
            None => draft,
        };
        draft.add(|page| page.table(&header, &rows))
    }

    /// Members beside their ensemble; nothing for a system of one.
    pub(crate) fn members_section(&self, draft: Draft) -> Draft {
        if self.members.is_empty() {
            return draft;
        }
        let name = |place: usize| format!("member {}", place + 1);
        let digits = Digits::of(self);
        let table = ScoreTable::new(digits, &self.summary).row(
            "all together",
            &self.summary,
            self.intervals.as_ref(),
        );
        let members = self.members.iter().enumerate();
        let table =
            members.fold(table, |table, (place, scores)| table.row(&name(place), scores, None));
        let bars = |file: &str, title: &str, y_label: &str, of: fn(&Summary) -> f64| -> Figure {
            let figure = Bars {
                title: title.to_owned(),
                x_label: String::new(),
                y_label: y_label.to_owned(),
                labels: (0..self.members.len()).map(name).collect(),
                groups: vec![("alone".to_owned(), self.members.iter().map(of).collect())],
                reference: Some(("together".to_owned(), of(&self.summary))),
                errors: Vec::new(),
            };
            (file.to_owned(), figure.svg())
        };
        let figures = vec![
            bars("members-error", "Error of the members", "%", |scores| 100.0 * scores.error),
            bars("members-nll", "NLL of the members", "nats", |scores| scores.nll),
        ];
        let draft = draft.add(|page| table.onto(page.section("Members"))).figures(figures);
        let Some(diversity) = &self.diversity else { return draft };
        let share = digits.error(diversity.disagreement_share);
        let facts = [
            (
                "KL between members",
                format!("{:.*}", digits.nll + 1, diversity.kl),
                "nats".to_owned(),
            ),
            ("Cosine", format!("{:.*}", digits.nll + 1, diversity.cosine), String::new()),
            (
                "Disagreement",
                format!("{:.2}", diversity.disagreement),
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
            errors: Vec::new(),
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
            errors: Vec::new(),
        }
        .svg()
    }
}

pub(super) fn series(name: &str, bins: &[ReliabilityBin]) -> Series {
    Series::new(name, bins.iter().map(|bin| (bin.confidence, bin.accuracy)).collect())
}

/// The same line with the number of images at every point.
pub(super) fn counted(series: Series, bins: &[ReliabilityBin]) -> Series {
    Series { notes: bins.iter().map(|bin| short_count(bin.samples)).collect(), ..series }
}

/// `87`, `4.3k`, `120k`
fn short_count(images: usize) -> String {
    match images {
        0..1_000 => images.to_string(),
        1_000..10_000 => format!("{:.1}k", images as f64 / 1e3),
        _ => format!("{:.0}k", images as f64 / 1e3),
    }
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
