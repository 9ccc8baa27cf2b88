//! The fifteen common corruptions in five severities (paper 000 App. A.6).

use std::{collections::BTreeMap, sync::Arc};

use omma_base::Seed;
use omma_data::{
    Picture, Selection,
    corrupt::{Corruption, SEVERITIES},
};
use omma_report::{Bars, Lines, Series};
use serde::{Deserialize, Serialize};

use super::test::{TestProtocol, TestRecord};
use crate::{
    error::Result,
    report::{Draft, Fact, Figure, percent, score_row},
    stream::{Images, Watcher},
    summary::Summary,
    system::System,
    tally::{DiversityRecord, Tally},
};

/// What is done to the test images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShiftProtocol {
    /// Test images that are used, evenly spread; all of them if there are not more.
    pub samples: usize,
    /// Where the corruptions' random numbers come from.
    pub seed: u64,
}

/// What is found on corrupted images: of one severity, or the mean of several.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shifted {
    /// Scores of the mean of the members' probabilities.
    #[serde(flatten)]
    pub summary: Summary,
    /// How the members differ (paper 000 Table 15); nothing for one member, and in records of earlier
    /// versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diversity: Option<DiversityRecord>,
}

impl Shifted {
    fn mean<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let diversity: Vec<_> = all.clone().map(|one| one.diversity).collect();
        Self {
            summary: Summary::mean(all.map(|one| &one.summary)),
            diversity: DiversityRecord::mean(&diversity),
        }
    }
}

/// One corruption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShiftRecord {
    /// The mean over severities.
    #[serde(flatten)]
    pub overall: Shifted,
    /// Severity 1 to 5.
    pub severities: Vec<Shifted>,
}

impl ShiftRecord {
    fn new(severities: Vec<Shifted>) -> Self {
        Self { overall: Shifted::mean(severities.iter()), severities }
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
            let mut tally = Tally::new(binning, system.members());
            images.logits(system, batch, watcher, |logits, label| {
                tally.add(logits, label);
            })?;
            severities.push(Shifted { summary: tally.summary(), diversity: tally.diversity() });
        }
        corruptions.insert(corruption.name().to_owned(), ShiftRecord::new(severities));
    }
    let at = |severity: usize| {
        Shifted::mean(corruptions.values().map(|record: &ShiftRecord| &record.severities[severity]))
    };
    let mean = ShiftRecord::new((0..SEVERITIES).map(at).collect());
    Ok(Shift { samples: data.len(), mean, corruptions })
}

impl Shift {
    pub(crate) fn fact(&self) -> Fact {
        let Summary { error, nll, .. } = self.mean.overall.summary;
        ("Error on corrupted images", percent(error), format!("NLL {nll:.3}"))
    }

    /// - `test`: of the images as they are
    pub(crate) fn section(&self, draft: Draft, test: &TestRecord) -> Draft {
        let clean = Shifted { summary: test.summary, diversity: test.diversity };
        let text = format!(
            "{} test images under fifteen corruptions in five severities; severity 0 is the test as \
             it is.",
            self.samples
        );
        let accuracy = |at: &Shifted| 100.0 * (1.0 - at.summary.error);
        let mut figures = vec![
            self.lines("shift-accuracy", "Accuracy", "%", &clean, accuracy),
            self.lines("shift-nll", "NLL", "nats", &clean, |at| at.summary.nll),
            self.lines("shift-ece", "Calibration error", "%", &clean, |at| 100.0 * at.summary.ece),
            ("shift-corruptions".to_owned(), self.bars(&test.summary)),
        ];
        let mut header = vec!["corruption", "error", "NLL", "Brier", "ECE", "error at severity 5"];
        if self.mean.overall.diversity.is_some() {
            header.extend(["KL", "cosine", "disagreement"]);
            let kl = |at: &Shifted| at.diversity.map_or(f64::NAN, |diversity| diversity.kl);
            figures.push(self.lines("shift-kl", "KL between members", "nats", &clean, kl));
        }
        draft
            .add(|page| page.section("Corrupted images").text(&text))
            .figures(figures)
            .add(|page| page.table(&header, &self.rows()))
    }

    /// A number over severities: the mean, and the corruptions that it is highest and lowest for.
    fn lines(
        &self,
        file: &str,
        title: &str,
        y_label: &str,
        clean: &Shifted,
        of: fn(&Shifted) -> f64,
    ) -> Figure {
        let points = |severities: &[Shifted]| {
            let all = std::iter::once(clean).chain(severities).enumerate();
            all.map(|(severity, at)| (severity as f64, of(at))).collect()
        };
        let mut by_effect: Vec<_> = self.corruptions.iter().collect();
        by_effect.sort_by(|a, b| of(&b.1.overall).total_cmp(&of(&a.1.overall)));
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
        let errors = self.corruptions.values().map(|record| 100.0 * record.overall.summary.error);
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
            let mut row = score_row(&name, &record.overall.summary);
            let last = record.severities.last();
            row.push(last.map(|last| percent(last.summary.error)).unwrap_or_default());
            if let Some(DiversityRecord { kl, cosine, disagreement, .. }) = record.overall.diversity
            {
                row.extend([kl, cosine, disagreement].map(|value| format!("{value:.4}")));
            }
            row
        };
        records.chain([("mean".to_owned(), &self.mean)]).map(row).collect()
    }
}
