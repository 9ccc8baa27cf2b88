//! The fifteen common corruptions in five severities (paper 000 App. A.6).

use std::{collections::BTreeMap, sync::Arc};

use omma_base::Seed;
use omma_data::{
    Picture, Selection,
    corrupt::{Corruption, SEVERITIES},
};
use omma_report::{Bars, Lines, Series};
use serde::{Deserialize, Serialize};

use super::test::TestProtocol;
use crate::{
    error::Result,
    metrics::mean_softmax,
    report::{Draft, Fact, Figure, percent, score_row},
    stream::{Images, Watcher},
    summary::Summary,
    system::System,
};

/// What is done to the test images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShiftProtocol {
    /// Test images that are used, evenly spread; all of them if there are not more.
    pub samples: usize,
    /// Where the corruptions' random numbers come from.
    pub seed: u64,
}

/// One corruption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShiftRecord {
    /// The mean over severities.
    #[serde(flatten)]
    pub summary: Summary,
    /// Severity 1 to 5.
    pub severities: Vec<Summary>,
}

impl ShiftRecord {
    fn new(severities: Vec<Summary>) -> Self {
        Self { summary: Summary::mean(&severities), severities }
    }
}

/// The test images under all corruptions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shift {
    /// Images of every corruption and severity.
    pub samples: usize,
    /// The mean over corruptions.
    pub mean: ShiftRecord,
    /// Each by its name.
    #[serde(flatten)]
    pub corruptions: BTreeMap<String, ShiftRecord>,
}

/// Scores of a system under every corruption.
pub(super) fn shift(
    system: &System,
    test: &Images,
    protocol: ShiftProtocol,
    TestProtocol { binning, batch }: TestProtocol,
    watcher: &mut dyn Watcher,
) -> Result<Shift> {
    let data = Selection::spread(&test.data, protocol.samples.max(1));
    let seed = Seed::new(protocol.seed).named("shift");
    let mut corruptions = BTreeMap::new();
    for corruption in Corruption::ALL {
        watcher.begins(&corruption.name().replace('_', " "), data.len() * SEVERITIES);
        let mut severities = Vec::new();
        for severity in 1..=SEVERITIES {
            let change = move |index: usize, picture: Picture| {
                corruption.apply(&picture, severity, seed.numbered(index as u64))
            };
            let images = Images {
                name: format!("{} with {}", test.name, corruption.name()),
                data: data.clone(),
                change: Some(Arc::new(change)),
            };
            let mut scores = binning.scores();
            images.logits(system, batch, watcher, |logits, label| {
                scores.add(&mean_softmax(logits, 1.0), label);
            })?;
            severities.push(binning.summary(&scores));
        }
        corruptions.insert(corruption.name().to_owned(), ShiftRecord::new(severities));
    }
    let at = |severity: usize| {
        Summary::mean(corruptions.values().map(|record: &ShiftRecord| &record.severities[severity]))
    };
    let mean = ShiftRecord::new((0..SEVERITIES).map(at).collect());
    Ok(Shift { samples: data.len(), mean, corruptions })
}

impl Shift {
    pub(crate) fn fact(&self) -> Fact {
        let Summary { error, nll, .. } = self.mean.summary;
        ("Error on corrupted images", percent(error), format!("NLL {nll:.3}"))
    }

    /// - `clean`: the scores of the test images as they are
    pub(crate) fn section(&self, draft: Draft, clean: &Summary) -> Draft {
        let text = format!(
            "{} test images under fifteen corruptions in five severities; severity 0 is the test as \
             it is.",
            self.samples
        );
        let header = ["corruption", "error", "NLL", "Brier", "ECE", "error at severity 5"];
        draft
            .add(|page| page.section("Corrupted images").text(&text))
            .figures(vec![
                self.lines("shift-accuracy", "Accuracy", "%", clean, |s| 100.0 * (1.0 - s.error)),
                self.lines("shift-nll", "NLL", "nats", clean, |s| s.nll),
                self.lines("shift-ece", "Calibration error", "%", clean, |s| 100.0 * s.ece),
                ("shift-corruptions".to_owned(), self.bars(clean)),
            ])
            .add(|page| page.table(&header, &self.rows()))
    }

    /// A score over severities: the mean, and the corruptions that it is highest and lowest for.
    fn lines(
        &self,
        file: &str,
        title: &str,
        y_label: &str,
        clean: &Summary,
        of: fn(&Summary) -> f64,
    ) -> Figure {
        let points = |severities: &[Summary]| {
            let all = std::iter::once(clean).chain(severities).enumerate();
            all.map(|(severity, scores)| (severity as f64, of(scores))).collect()
        };
        let mut by_effect: Vec<_> = self.corruptions.iter().collect();
        by_effect.sort_by(|a, b| of(&b.1.summary).total_cmp(&of(&a.1.summary)));
        let ends = [by_effect.first(), by_effect.last()];
        let mut series = vec![Series::new("mean of all", points(&self.mean.severities))];
        series.extend(ends.into_iter().flatten().map(|(name, record)| Series {
            dashed: true,
            ..Series::new(name.replace('_', " "), points(&record.severities))
        }));
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        let x_label = "severity".to_owned();
        (file.to_owned(), Lines { title, x_label, y_label, series, ..Lines::default() }.svg())
    }

    fn bars(&self, clean: &Summary) -> String {
        let errors = self.corruptions.values().map(|record| 100.0 * record.summary.error);
        Bars {
            title: "Error by corruption".to_owned(),
            x_label: String::new(),
            y_label: "%, mean over severities".to_owned(),
            labels: self.corruptions.keys().map(|name| name.replace('_', " ")).collect(),
            groups: vec![("error".to_owned(), errors.collect())],
            reference: Some(("as it is".to_owned(), 100.0 * clean.error)),
        }
        .svg()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let corruptions = self.corruptions.iter();
        let records = corruptions.map(|(name, record)| (name.replace('_', " "), record));
        let row = |(name, record): (String, &ShiftRecord)| {
            let mut row = score_row(&name, &record.summary);
            row.push(record.severities.last().map(|last| percent(last.error)).unwrap_or_default());
            row
        };
        records.chain([("mean".to_owned(), &self.mean)]).map(row).collect()
    }
}
