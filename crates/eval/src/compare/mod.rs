//! Several evaluations beside each other.
//!
//! | file | room for |
//! |---|---|
//! | `mod.rs` | one row per system, its seeds as mean and standard error |
//! | `alike.rs` | which evaluations of several runs were judged alike, and what is missing |
//! | `paired.rs`, `mcnemar.rs` | two systems image by image: can they be told apart? |
//! | `improvement.rs` | percentage gains, and these normalised by difficulty (paper 000 App. D) |
//! | `transfer.rs` | few shots of other data sets, plain and weighted means |
//! | `tables.rs` | all of it in tables |
//! | `subsets.rs` | some experts of several Soft MoEs (paper 004 §4) |
//! | `grid.rs` | experts per token against models (paper 000 Fig. 2) |

mod alike;
mod grid;
mod improvement;
mod mcnemar;
mod paired;
mod subsets;
mod tables;
mod transfer;

use std::{collections::BTreeMap, path::Path};

use omma_base::files::read_regular;
use serde::Serialize;

pub use self::{
    alike::{Alike, Subject},
    grid::{Cell, Grid},
    improvement::{Difficulty, Gain},
    mcnemar::McNemar,
    paired::{Difference, Paired},
    subsets::{SubsetComparison, SubsetEstimates, SubsetSystem},
    tables::Table,
    transfer::Transfer,
};
use crate::{
    error::{EvalError, Result},
    metrics::{AtDepths, Estimate, Recall},
    outcomes::Outcomes,
    protocols::{
        Evaluation, ImageResults,
        contrast::CaptionRecord,
        ood::{OodPositive, OodRecord},
        segmentation::SegmentationRecord,
        shift::Shifted,
        test::TestRecord,
    },
    summary::SummaryIntervals,
    system::{SystemCost, SystemKind},
};

pub(crate) use self::improvement::factor;

/// A record of 100,000 classes has a few million bytes.
const LARGEST: u64 = 1 << 28;

/// A system over its seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What it is called in tables and figures.
    pub label: String,
    /// Where it belongs among the others.
    pub kind: SystemKind,
    /// Evaluations that the means are of.
    pub runs: usize,
    /// How far the scores of a single run may be off; nothing for several, which have a standard error.
    pub intervals: Option<SummaryIntervals>,
    /// Share of wrong predictions; nothing for images without classes, as of the next three.
    pub error: Option<Estimate>,
    /// Negative log-likelihood.
    pub nll: Option<Estimate>,
    /// Expected calibration error.
    pub ece: Option<Estimate>,
    /// Brier score.
    pub brier: Option<Estimate>,
    /// NLL after temperature scaling.
    pub scaled_nll: Option<Estimate>,
    /// KL divergence between members.
    pub kl: Option<Estimate>,
    /// Error under corruptions.
    pub shift_error: Option<Estimate>,
    /// NLL under corruptions.
    pub shift_nll: Option<Estimate>,
    /// Calibration error under corruptions.
    pub shift_ece: Option<Estimate>,
    /// KL divergence between members under corruptions.
    pub shift_kl: Option<Estimate>,
    /// Area under the ROC curve by out-of-distribution data set.
    pub auroc: BTreeMap<String, Estimate>,
    /// Average precision by out-of-distribution data set.
    pub aupr: BTreeMap<String, Estimate>,
    /// What that is for a score that knows nothing.
    pub base_rate: BTreeMap<String, Estimate>,
    /// False-positive rate at 95 % by out-of-distribution data set.
    pub fpr95: BTreeMap<String, Estimate>,
    /// From a few images of every class of other data, by how many these are.
    pub few_shot: Vec<Transfer>,
    /// Whether its classes, if it has some, are made of their names: its accuracy is zero-shot.
    pub reads: bool,
    /// Recall of texts that look for their image.
    pub text_to_image: Option<AtDepths<Estimate>>,
    /// Recall of images that look for their texts.
    pub image_to_text: Option<AtDepths<Estimate>>,
    /// Mean intersection over union, of systems that label pixels.
    pub mean_iou: Option<Estimate>,
    /// Share of the pixels that are right.
    pub pixel_accuracy: Option<Estimate>,
    /// NLL of pixels.
    pub pixel_nll: Option<Estimate>,
    /// Calibration error of pixels.
    pub pixel_ece: Option<Estimate>,
    /// Share of images that find their text within a batch.
    pub images_told_apart: Option<Estimate>,
    /// Share of texts that find their image within a batch.
    pub texts_told_apart: Option<Estimate>,
    /// How much members disagree, as the share of images on which two of them decide differently.
    pub disagreement: Option<Estimate>,
    /// The cosine between members' probabilities.
    pub cosine: Option<Estimate>,
    /// What one image costs.
    pub cost: SystemCost,
}

/// Systems beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What they were judged by.
    pub data: String,
    /// How many images of it.
    pub images: usize,
    /// Which images were to be found where out-of-distribution data was looked at.
    pub ood_positive: Option<OodPositive>,
    /// One row per system, in the order in which they came.
    pub rows: Vec<Row>,
    /// The system that gains are measured against.
    pub baseline: String,
    /// Gains of the other systems.
    pub gains: Vec<Gain>,
    /// How the plain models' NLL falls with their cost, if there are several.
    pub difficulty: Option<Difficulty>,
    /// NLL over experts per token and models, where the systems cover several of both.
    pub grid: Option<Grid>,
    /// What some experts of Soft MoEs get right, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsets: Option<SubsetComparison>,
    /// What would make for a fuller comparison.
    pub notes: Vec<String>,
}

/// Reads `eval.json`, given by itself or by its folder, and the results of single images beside it.
pub fn read_evaluation(path: &Path) -> Result<Evaluation> {
    let file = if path.is_dir() { path.join("eval.json") } else { path.to_owned() };
    let bytes = read_regular(&file, LARGEST).map_err(EvalError::io(&file))?;
    let record = serde_json::from_slice::<Evaluation>(&bytes).and_then(|record| {
        // Where there are classes, there is a test of them; if there is none, something is wrong with it.
        let captions = record.contrast.as_ref().is_some_and(|found| found.captions.is_some());
        let pixels = record.segmentation.is_some();
        if record.test.is_none() && !pixels && !(captions && record.classes.is_empty()) {
            serde_json::from_slice::<TestRecord>(&bytes)?;
        }
        Ok(record)
    });
    let record = record.map_err(|error| error.to_string()).and_then(checked);
    let mut record = record.map_err(|why| EvalError::Record {
        why: format!("it is not the record of an evaluation: {why}"),
        path: file.clone(),
    })?;
    if let Some(seal) = &record.images_seal {
        let folder = file.parent().unwrap_or(Path::new(""));
        record.images = match Outcomes::read(folder, seal) {
            Ok(outcomes) => ImageResults::Whole(outcomes),
            Err(error) => ImageResults::Lost(error.to_string()),
        };
    }
    Ok(record)
}

/// Fails where parts of a record contradict each other, and fills in what earlier versions left out.
fn checked(mut record: Evaluation) -> Result<Evaluation, String> {
    let classes = record.classes.len();
    if let Some(found) = &record.segmentation {
        let square = found.confusion.len() == classes
            && found.confusion.iter().all(|row| row.len() == classes);
        if found.iou.len() != classes || found.class_accuracy.len() != classes || !square {
            return Err(format!("its pixels are not those of {classes} classes"));
        }
    }
    let Some(test) = &record.test else { return Ok(record) };
    if record.subsets.as_ref().is_some_and(|subsets| !subsets.is_of(classes)) {
        return Err(format!("its subsets of experts are not those of {classes} classes"));
    }
    let errors = test.class_errors.len();
    if errors != classes {
        return Err(format!("it has {errors} errors of {classes} classes"));
    }
    if test.confusion.as_ref().is_some_and(|confusion| !confusion.is_of(classes)) {
        return Err(format!("its confusions are not those of {classes} classes"));
    }
    let (images, positive) = (test.samples, record.ood_positive);
    for set in record.ood.values_mut() {
        let samples = set.samples;
        set.base_rate.get_or_insert_with(|| positive.base_rate(samples, images));
    }
    Ok(record)
}

impl Comparison {
    /// Of evaluations on the same data; those of one label and fingerprint are seeds of one system.
    ///
    /// - `baseline`: the label of the system that gains are measured against; the first if none
    pub fn new(evaluations: &[Evaluation], baseline: Option<&str>) -> Result<Self> {
        let first = evaluations
            .first()
            .ok_or_else(|| EvalError::Compare("there is nothing to compare".to_owned()))?;
        alike::check(evaluations)?;
        let mut groups: Vec<Vec<&Evaluation>> = Vec::new();
        for one in evaluations {
            let same = |group: &&mut Vec<&Evaluation>| {
                group[0].label == one.label && group[0].fingerprint == one.fingerprint
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.push(one),
                None => groups.push(vec![one]),
            }
        }
        let mut rows: Vec<Row> = groups.iter().map(|group| Row::new(group)).collect();
        // Two systems of one name go by the names of their models.
        for (place, group) in groups.iter().enumerate() {
            let same = |other: &Vec<&Evaluation>| other[0].label == group[0].label;
            if groups.iter().filter(|other| same(other)).count() > 1 {
                rows[place].label = format!("{} ({})", group[0].label, group[0].models.join(" + "));
            }
        }
        let at = match baseline {
            Some(label) => rows.iter().position(|row| row.label == label).ok_or_else(|| {
                let known: Vec<&str> = rows.iter().map(|row| row.label.as_str()).collect();
                EvalError::Compare(format!(
                    "there is no system \"{label}\" to measure gains against; there are {}",
                    known.join(", ")
                ))
            })?,
            None => 0,
        };
        for (row, group) in rows.iter_mut().zip(&groups) {
            row.few_shot = Transfer::of(group, &groups[at]);
        }
        let base = &rows[at];
        let difficulty = Difficulty::fit(&rows);
        let others = rows.iter().enumerate().filter(|(place, _)| *place != at);
        let gains = others.map(|(place, row)| {
            let gain = Gain::new(row, base, &rows, difficulty.as_ref());
            gain.with_pairs(Paired::new(&groups[place], &groups[at]))
        });
        let gains = gains.collect();
        let (data, baseline) = (first.data.clone(), base.label.clone());
        let images = first.samples();
        let grid = Grid::new(&rows);
        let ood_positive = evaluations.iter().find(|one| !one.ood.is_empty());
        let ood_positive = ood_positive.map(|one| one.ood_positive);
        let notes = Vec::new();
        let labels = rows.iter().map(|row| row.label.clone());
        let subsets = SubsetComparison::of(&labels.zip(groups).collect::<Vec<_>>());
        Ok(Self {
            data,
            images,
            ood_positive,
            baseline,
            gains,
            difficulty,
            grid,
            subsets,
            rows,
            notes,
        })
    }
}

impl Row {
    fn new(group: &[&Evaluation]) -> Self {
        let maybe = |value: &dyn Fn(&Evaluation) -> Option<f64>| {
            let values: Vec<f64> = group.iter().filter_map(|one| value(one)).collect();
            (!values.is_empty()).then(|| Estimate::of(&values))
        };
        let tested = |value: fn(&TestRecord) -> f64| maybe(&|one| Some(value(one.test.as_ref()?)));
        let captioned = |value: fn(&CaptionRecord) -> f64| {
            maybe(&|one| Some(value(one.contrast.as_ref()?.captions.as_ref()?)))
        };
        let pixels = |value: fn(&SegmentationRecord) -> f64| {
            maybe(&|one| Some(value(one.segmentation.as_ref()?)))
        };
        let recalls = |of: fn(&CaptionRecord) -> &Recall| {
            let depths: [fn(&Recall) -> f64; 3] = [
                |recall| recall.recall.at_1,
                |recall| recall.recall.at_5,
                |recall| recall.recall.at_10,
            ];
            let of_depth = |depth: fn(&Recall) -> f64| {
                maybe(&|one| Some(depth(of(one.contrast.as_ref()?.captions.as_ref()?))))
            };
            let [at_1, at_5, at_10] = depths.map(of_depth);
            Some(AtDepths { at_1: at_1?, at_5: at_5?, at_10: at_10? })
        };
        let shifted = |value: fn(&Shifted) -> Option<f64>| {
            maybe(&|one| value(&one.shift.as_ref()?.mean.overall))
        };
        let names = group.iter().flat_map(|one| one.ood.keys());
        let by_set = |value: fn(&OodRecord) -> Option<f64>| -> BTreeMap<String, Estimate> {
            let by_name = names.clone().filter_map(|name| {
                Some((name.clone(), maybe(&|one| one.ood.get(name).and_then(value))?))
            });
            by_name.collect()
        };
        Self {
            label: group[0].label.clone(),
            kind: group[0].kind.clone(),
            runs: group.len(),
            intervals: group[0]
                .test
                .as_ref()
                .and_then(|test| test.intervals)
                .filter(|_| group.len() == 1),
            error: tested(|test| test.summary.error),
            nll: tested(|test| test.summary.nll),
            ece: tested(|test| test.summary.ece),
            brier: tested(|test| test.summary.brier),
            scaled_nll: maybe(&|one| Some(one.temperature.as_ref()?.summary.nll)),
            kl: maybe(&|one| Some(one.test.as_ref()?.diversity?.kl)),
            shift_error: shifted(|mean| Some(mean.summary.error)),
            shift_nll: shifted(|mean| Some(mean.summary.nll)),
            shift_ece: shifted(|mean| Some(mean.summary.ece)),
            shift_kl: shifted(|mean| Some(mean.diversity?.kl)),
            auroc: by_set(|record| Some(record.auroc)),
            aupr: by_set(|record| Some(record.aupr)),
            base_rate: by_set(|record| record.base_rate),
            fpr95: by_set(|record| Some(record.fpr95)),
            few_shot: Vec::new(),
            reads: group[0].contrast.is_some(),
            text_to_image: recalls(|captions| &captions.retrieval.text_to_image),
            image_to_text: recalls(|captions| &captions.retrieval.image_to_text),
            mean_iou: pixels(|found| found.mean_iou),
            pixel_accuracy: pixels(|found| found.pixel_accuracy),
            pixel_nll: pixels(|found| found.nll),
            pixel_ece: pixels(|found| found.ece),
            images_told_apart: captioned(|captions| captions.accuracy.images),
            texts_told_apart: captioned(|captions| captions.accuracy.texts),
            disagreement: maybe(&|one| Some(one.test.as_ref()?.diversity?.disagreement)),
            cosine: maybe(&|one| Some(one.test.as_ref()?.diversity?.cosine)),
            cost: group[0].cost,
        }
    }
}
