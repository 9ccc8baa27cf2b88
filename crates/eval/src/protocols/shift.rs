//! The fifteen common corruptions in five severities (paper 000 App. A.6), made here or as they were
//! published.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use omma_base::Seed;
use omma_data::{
    Picture, Selection, Shared,
    corrupt::{Corruption, SEVERITIES},
    formats::CorruptedSet,
};
use omma_report::{Bars, Lines, Series};
use serde::{Deserialize, Serialize};

use super::test::{TestProtocol, TestRecord};
use crate::{
    digits::Digits,
    error::{EvalError, Result},
    report::{Draft, Fact, Figure, ScoreTable},
    stream::{Images, Watcher},
    summary::Summary,
    system::System,
    tally::{DiversityRecord, Tally},
};

/// Which corrupted images are judged by.
#[derive(Debug, Clone)]
pub struct ShiftProtocol {
    /// Images of every corruption and severity, evenly spread; all of them if there are not more.
    pub samples: usize,
    /// Where they come from.
    pub corrupted: Corrupted,
}

/// Where corrupted images come from.
#[derive(Debug, Clone)]
pub enum Corrupted {
    /// They are made of the test images, with random numbers of this seed.
    Made {
        /// The seed.
        seed: u64,
    },
    /// They were published in a folder of this name, with some of the fifteen corruptions in it.
    Published {
        /// The name.
        folder: String,
        /// The images.
        set: Arc<CorruptedSet>,
    },
}

/// Where corrupted images came from, as records say it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the fields are those of `Corrupted`")]
pub enum ShiftOrigin {
    Made { seed: u64 },
    Published { folder: String },
}

impl Corrupted {
    /// The images of a folder; fails if it has none of the fifteen corruptions.
    pub fn published(folder: &Path, set: CorruptedSet) -> Result<Self> {
        let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
        match set.counted() {
            [] => Err(EvalError::NoCorruption { folder: name }),
            _ => Ok(Self::Published { folder: name, set: Arc::new(set) }),
        }
    }

    fn origin(&self) -> ShiftOrigin {
        match self {
            Self::Made { seed } => ShiftOrigin::Made { seed: *seed },
            Self::Published { folder, .. } => ShiftOrigin::Published { folder: folder.clone() },
        }
    }
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
    /// Where the images came from. Records of earlier versions do not say it: they were made, and the seed
    /// is not known.
    #[serde(default)]
    pub origin: Option<ShiftOrigin>,
    /// Images of every corruption and severity.
    pub samples: usize,
    /// The mean over corruptions.
    pub mean: ShiftRecord,
    /// What a published folder has beside the fifteen, each by its name; not in the mean.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, ShiftRecord>,
    /// Each of the fifteen by its name; of a published folder, those that it has.
    #[serde(flatten)]
    pub corruptions: BTreeMap<String, ShiftRecord>,
}

/// A system under every corruption.
pub(super) fn shift(
    system: &System,
    test: &Images,
    protocol: &ShiftProtocol,
    asked: TestProtocol,
    watcher: &mut dyn Watcher,
) -> Result<Shift> {
    let mut judge = Judge { system, asked, watcher };
    let few = |data: &Shared| Selection::spread(data, protocol.samples.max(1));
    let (mut corruptions, mut extra) = (BTreeMap::new(), BTreeMap::new());
    let samples;
    match &protocol.corrupted {
        Corrupted::Made { seed } => {
            let (data, seed) = (few(&test.data), Seed::new(*seed).named("shift"));
            samples = data.len();
            for corruption in Corruption::ALL {
                let images = |severity: usize| Images {
                    name: format!("{} with {}", test.name, corruption.name()),
                    data: data.clone(),
                    change: Some(Arc::new(move |index: usize, picture: Picture| {
                        corruption.apply(&picture, severity, seed.numbered(index as u64))
                    })),
                };
                let record =
                    judge.severities(corruption.name(), |severity| Ok(images(severity)))?;
                corruptions.insert(corruption.name().to_owned(), record);
            }
        }
        Corrupted::Published { folder, set } => {
            samples = few(&set.images(&set.names()[0], 1)?).len();
            let mut record = |name: &String| {
                judge.severities(name, |severity| {
                    let data = few(&set.images(name, severity)?);
                    Ok(Images::new(format!("{name} of {folder}"), data))
                })
            };
            for name in set.counted() {
                corruptions.insert(name.clone(), record(name)?);
            }
            for name in set.extra() {
                extra.insert(name.clone(), record(name)?);
            }
        }
    }
    let at = |severity: usize| {
        Shifted::mean(corruptions.values().map(|record: &ShiftRecord| &record.severities[severity]))
    };
    let mean = ShiftRecord::new((0..SEVERITIES).map(at).collect());
    let origin = Some(protocol.corrupted.origin());
    Ok(Shift { origin, samples, mean, extra, corruptions })
}

/// `fog`, `jpeg compression`
pub(crate) fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// Who judges one corruption after the other.
struct Judge<'a> {
    system: &'a System,
    asked: TestProtocol,
    watcher: &'a mut dyn Watcher,
}

impl Judge<'_> {
    /// - `images`: those of a severity, 1 to 5
    fn severities(
        &mut self,
        name: &str,
        images: impl Fn(usize) -> Result<Images>,
    ) -> Result<ShiftRecord> {
        let all: Vec<Images> = (1..=SEVERITIES).map(images).collect::<Result<_>>()?;
        let count = all.iter().map(|images| images.data.len()).sum();
        self.watcher.begins(&words(name), count);
        let severities = all.iter().map(|images| {
            let mut tally = Tally::new(self.asked.binning, self.system.members());
            images.logits(self.system, self.asked.batch, self.watcher, |logits, label| {
                tally.add(logits, label);
            })?;
            Ok(Shifted { summary: tally.summary(), diversity: tally.diversity() })
        });
        Ok(ShiftRecord::new(severities.collect::<Result<_>>()?))
    }
}

impl Shift {
    pub(crate) fn fact(&self) -> Fact {
        let scores = self.digits().scores(&self.mean.overall.summary);
        ("Error on corrupted images", scores.error, format!("NLL {}", scores.nll))
    }

    /// Of a corruption; all are of the same images, so that a mean of them bears few more.
    pub fn digits(&self) -> Digits {
        Digits::of_images(self.samples)
    }

    /// After "corrupted images".
    pub fn origin_in_words(&self) -> String {
        match &self.origin {
            None => "made here".to_owned(),
            Some(ShiftOrigin::Made { seed }) => format!("made here with seed {seed}"),
            Some(ShiftOrigin::Published { folder }) => format!("as published in {folder}"),
        }
    }

    /// What another's mean has to be of to be compared with: as many images of the same corruptions. How
    /// they were drawn when they were made is noise.
    pub(crate) fn terms(&self) -> String {
        let from = match &self.origin {
            None | Some(ShiftOrigin::Made { .. }) => "made here".to_owned(),
            Some(ShiftOrigin::Published { .. }) => self.origin_in_words(),
        };
        format!("by {} images under {} corruptions {from}", self.samples, self.corruptions.len())
    }

    /// - `test`: of the images as they are
    pub(crate) fn section(&self, draft: Draft, test: &TestRecord) -> Draft {
        let clean = Shifted { summary: test.summary, diversity: test.diversity };
        let text = format!(
            "{} test images under {} corruptions in five severities, {}; severity 0 is the test as it is.",
            self.samples,
            self.corruptions.len(),
            self.origin_in_words()
        );
        let accuracy = |at: &Shifted| 100.0 * (1.0 - at.summary.error);
        let mut figures = vec![
            self.lines("shift-accuracy", "Accuracy", "%", &clean, accuracy),
            self.lines("shift-nll", "NLL", "nats", &clean, |at| at.summary.nll),
            self.lines("shift-ece", "Calibration error", "%", &clean, |at| 100.0 * at.summary.ece),
            ("shift-corruptions".to_owned(), self.bars(&test.summary)),
        ];
        let table = ScoreTable::new(self.digits(), &self.mean.overall.summary);
        let mut header = table.header();
        header[0] = "corruption";
        header.push("error at severity 5");
        if self.mean.overall.diversity.is_some() {
            header.extend(["KL", "cosine", "disagreement"]);
            let kl = |at: &Shifted| at.diversity.map_or(f64::NAN, |diversity| diversity.kl);
            figures.push(self.lines("shift-kl", "KL between members", "nats", &clean, kl));
        }
        draft
            .add(|page| page.section("Corrupted images").text(&text))
            .figures(figures)
            .add(|page| page.table(&header, &self.rows(&table)))
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
            ..Series::new(words(name), points(&record.severities))
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
            labels: self.corruptions.keys().map(|name| words(name)).collect(),
            groups: vec![("error".to_owned(), errors.collect())],
            reference: Some(("as it is".to_owned(), 100.0 * clean.error)),
            errors: Vec::new(),
        }
        .svg()
    }

    fn rows(&self, table: &ScoreTable) -> Vec<Vec<String>> {
        let counted = self.corruptions.iter().map(|(name, record)| (words(name), record));
        let mean = [("mean".to_owned(), &self.mean)];
        let extra = self.extra.iter();
        let extra =
            extra.map(|(name, record)| (format!("{} (not in the mean)", words(name)), record));
        let row = |(name, record): (String, &ShiftRecord)| {
            let mut row = table.cells(&name, &record.overall.summary, None);
            let last = record.severities.last();
            let last = last.map(|last| self.digits().error(last.summary.error));
            row.push(last.unwrap_or_default());
            if let Some(DiversityRecord { kl, cosine, disagreement, .. }) = record.overall.diversity
            {
                let digits = self.digits().nll + 1;
                row.extend([kl, cosine, disagreement].map(|value| format!("{value:.digits$}")));
            }
            row
        };
        counted.chain(mean).chain(extra).map(row).collect()
    }
}
