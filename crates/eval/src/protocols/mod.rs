//! What is asked of a system, one file per question, with its record and its part of the page.
//!
//! | file | question |
//! |---|---|
//! | `test.rs` | how good are predictions, of the system, of its members, of every class? |
//! | `temperature.rs` | how well calibrated could they be? |
//! | `shift.rs` | and on corrupted images? |
//! | `ood.rs` | are out-of-distribution images told from the test images? |
//! | `subsets/` | how far do some experts of a Soft MoE come? |
//! | `segmentation.rs` | what does every pixel belong to? |
//! | `contrast.rs` | do images and texts find each other? |
//! | `fewshot.rs` | what do frozen features know about classes? |
//! | `probe.rs` | which linear classifier on frozen features is to be kept? |
//! | `transfer.rs` | and about those of other data sets? |
//! | `linear.rs` | how far does a linear classifier on pixels come? |
//! | `mod.rs` | the first seven and few shots of other data as one protocol, and the record of it, `eval.json` |

pub(crate) mod contrast;
pub(crate) mod fewshot;
pub(crate) mod linear;
pub(crate) mod ood;
pub(crate) mod probe;
pub(crate) mod segmentation;
pub(crate) mod shift;
pub(crate) mod subsets;
pub(crate) mod temperature;
pub(crate) mod test;
pub(crate) mod transfer;

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use self::{
    contrast::{ContrastProtocol, ContrastRecord},
    ood::{OodPositive, OodProtocol, OodRecord, OodScore, detect},
    segmentation::{SegmentationProtocol, SegmentationRecord, segmentation},
    shift::{Shift, ShiftProtocol, shift},
    subsets::{SubsetsProtocol, SubsetsRecord, subsets},
    temperature::{Scaled, TemperatureRecord},
    test::{Test, TestProtocol, TestRecord},
    transfer::{FewShotRecord, TransferProtocol, transfer},
};
use crate::{
    error::{EvalError, Result},
    gallery::{Experts, Gallery, worst_corruption},
    outcomes::Outcomes,
    predictions::{Columns, Line, Predictions},
    segment::Windows,
    stream::{Images, Watcher},
    summary::Binning,
    system::{JudgedClasses, System, SystemCost, SystemKind},
    tally::Predicted,
};

/// What is asked.
#[derive(Clone)]
pub struct Protocol {
    /// What the system is called.
    pub label: String,
    /// What tells its settings, all but the seed, from others.
    pub fingerprint: String,
    /// The test images.
    pub test: Images,
    /// Images that the models have not learned from and are not judged by, to fit a temperature on.
    pub validation: Option<Images>,
    /// Corruptions, if they are asked for.
    pub shift: Option<ShiftProtocol>,
    /// Some experts of a Soft MoE, if they are asked for.
    pub subsets: Option<SubsetsProtocol>,
    /// What is to be told from the test images.
    pub ood: OodProtocol,
    /// Other data that features are judged by from a few images of every class.
    pub few_shot: TransferProtocol,
    /// The bins of the calibration error.
    pub binning: Binning,
    /// Images per forward pass.
    pub batch: usize,
    /// How pictures are looked at by a system that labels pixels.
    pub windows: Windows,
    /// A file that every prediction is written to, in the format that its name ends with.
    pub predictions: Option<PathBuf>,
    /// What `omma eval` was told to ask this, beside what it judges.
    pub options: Vec<String>,
}

/// What is kept of single images, beside the record.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ImageResults {
    /// Nothing: a record of an earlier version.
    #[default]
    None,
    /// It was kept and cannot be read.
    Lost(String),
    /// All of it.
    Whole(Outcomes),
}

/// Everything that was found; `eval.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// What the system is called.
    pub label: String,
    /// What tells its settings from others; evaluations of one label and fingerprint differ by their
    /// seed alone.
    pub fingerprint: String,
    /// What other systems it can be compared with, and along which axis.
    pub kind: SystemKind,
    /// Names of the models that were judged.
    pub models: Vec<String>,
    /// Name of the data that they were judged by.
    pub data: String,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Where these are only some of those that the models tell apart: how many that is.
    pub judged_classes: Option<JudgedClasses>,
    /// On the test images as they are; nothing for images that have captions and no classes.
    #[serde(flatten)]
    pub test: Option<TestRecord>,
    /// Of a model that compares images with texts: how these find each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contrast: Option<ContrastRecord>,
    /// Of a system that labels pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segmentation: Option<SegmentationRecord>,
    /// The scores after temperature scaling.
    pub temperature: Option<TemperatureRecord>,
    /// Under corruptions.
    pub shift: Option<Shift>,
    /// By some experts of a Soft MoE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsets: Option<SubsetsRecord>,
    /// Against out-of-distribution images, by data set.
    pub ood: BTreeMap<String, OodRecord>,
    /// What these were told by.
    pub ood_score: OodScore,
    /// Which of both were to be found.
    #[serde(default = "OodPositive::of_earlier_records")]
    pub ood_positive: OodPositive,
    /// From a few images of every class, by data set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub few_shot: BTreeMap<String, FewShotRecord>,
    /// What one image costs.
    pub cost: SystemCost,
    /// The most memory that the process held, where the system says it.
    pub peak_rss_bytes: Option<u64>,
    /// What `omma eval` was told, beside what it judged; nothing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    /// The seal of `images.safetensors`, which has the results of single images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_seal: Option<String>,
    /// These results.
    #[serde(skip)]
    pub images: ImageResults,
}

impl Evaluation {
    /// Images that it was judged by.
    pub fn samples(&self) -> usize {
        let captions = || self.contrast.as_ref()?.captions.as_ref().map(|all| all.images);
        let masks = || self.segmentation.as_ref().map(|found| found.samples);
        let classes = self.test.as_ref().map(|test| test.samples);
        classes.or_else(masks).or_else(captions).unwrap_or_default()
    }

    /// `, among 200 of 1000 classes`, where these are not all.
    pub fn among(&self) -> String {
        let among =
            |of: JudgedClasses| format!(", among {} of {} classes", self.classes.len(), of.of);
        self.judged_classes.map(among).unwrap_or_default()
    }
}

/// Judges a system: what is found, and pictures of it. A model that compares images with texts is judged by the
/// captions of the images as well, where they have some, or by them alone where it has no classes.
pub fn evaluate(
    system: &System,
    protocol: &Protocol,
    watcher: &mut dyn Watcher,
) -> Result<(Evaluation, Gallery)> {
    let test = &protocol.test;
    if system.labels_pixels() {
        return segmented(system, protocol, watcher);
    }
    let reader = system.reader()?;
    let captioned = reader.filter(|_| test.data.has_captions());
    let tested = match captioned.is_some() && system.classes() == 0 {
        true => protocol.check_captions_alone().map(|()| None)?,
        false => Some(tested(system, protocol, watcher)?),
    };
    let asked = ContrastProtocol { templates: None, batch: protocol.batch, ..Default::default() };
    let captions = match &captioned {
        Some(reader) => Some(contrast::contrast(reader, test, &asked, watcher)?),
        None => None,
    };
    let contrast = system.models().find(|model| model.reads()).map(|model| ContrastRecord {
        scale: model.scale(),
        prompts: system.prompts().cloned(),
        captions: captions.as_ref().and_then(|found| found.record.captions.clone()),
    });
    let found = contrast.as_ref().is_some_and(|found| found.captions.is_some());
    if tested.is_none() && !found {
        return Err(EvalError::NoTexts { data: test.name.clone() });
    }
    let Tested { record, temperature, shift, subsets, ood, images, mut gallery } =
        tested.unwrap_or_default();
    if let Some(found) = &captions {
        gallery = gallery.with_retrieval(found, system.pixels().resolution);
    }
    let few_shot = transfer(system, &protocol.few_shot, protocol.batch, watcher)?;
    let classes = if record.is_some() { test.data.classes() } else { &[] };
    let evaluation = Evaluation {
        test: record,
        contrast,
        temperature,
        shift,
        subsets,
        ood,
        few_shot,
        images,
        ..protocol.record(system, classes)?
    };
    Ok((evaluation, gallery))
}

/// Judges a system that labels pixels.
fn segmented(
    system: &System,
    protocol: &Protocol,
    watcher: &mut dyn Watcher,
) -> Result<(Evaluation, Gallery)> {
    if let Some(what) = protocol.asked_of_classes() {
        return Err(EvalError::NotOfPixels { model: system.name(), what });
    }
    let &Protocol { windows, binning, batch, .. } = protocol;
    let asked = SegmentationProtocol { windows, binning, batch };
    let found = segmentation(system, &protocol.test, asked, watcher)?;
    let classes = protocol.test.data.pixel_classes().unwrap_or_default();
    let gallery = Gallery::default().with_segmentation(&found.shown);
    let segmentation = Some(found.record);
    Ok((Evaluation { segmentation, ..protocol.record(system, classes)? }, gallery))
}

impl Protocol {
    /// A record without anything that was found yet.
    fn record(&self, system: &System, classes: &[String]) -> Result<Evaluation> {
        Ok(Evaluation {
            label: self.label.clone(),
            fingerprint: self.fingerprint.clone(),
            kind: system.kind(),
            models: system.names().to_vec(),
            data: self.test.name.clone(),
            classes: classes.to_vec(),
            judged_classes: system.judged_classes(),
            test: None,
            contrast: None,
            segmentation: None,
            temperature: None,
            shift: None,
            subsets: None,
            ood: BTreeMap::new(),
            few_shot: BTreeMap::new(),
            ood_score: self.ood.score,
            ood_positive: self.ood.positive,
            cost: system.cost()?,
            peak_rss_bytes: omma_base::memory::peak(),
            options: Some(self.options.clone()),
            images_seal: None,
            images: ImageResults::None,
        })
    }

    /// Fails where something is asked for that takes classes.
    fn check_captions_alone(&self) -> Result<()> {
        match self.asked_of_classes() {
            Some(what) => Err(EvalError::NoClasses { data: self.test.name.clone(), what }),
            None => Ok(()),
        }
    }

    /// Something that is asked for and takes classes of images.
    fn asked_of_classes(&self) -> Option<&'static str> {
        let asked = [
            (self.shift.is_some(), "what is judged on corrupted images"),
            (self.subsets.is_some(), "what some experts serve"),
            (!self.ood.sets.is_empty(), "telling out-of-distribution images"),
            (self.predictions.is_some(), "a file of predictions"),
            (!self.few_shot.sets.is_empty(), "what features know from a few images of a class"),
        ];
        asked.into_iter().find(|(asked, _)| *asked).map(|(_, what)| what)
    }
}

/// What is found by classes.
#[derive(Default)]
struct Tested {
    record: Option<TestRecord>,
    temperature: Option<TemperatureRecord>,
    shift: Option<Shift>,
    subsets: Option<SubsetsRecord>,
    ood: BTreeMap<String, OodRecord>,
    images: ImageResults,
    gallery: Gallery,
}

fn tested(system: &System, protocol: &Protocol, watcher: &mut dyn Watcher) -> Result<Tested> {
    let &Protocol { binning, batch, .. } = protocol;
    let classes = protocol.test.data.classes();
    // Before a temperature takes its time.
    system.check_classes(&protocol.test.name, classes.len())?;
    let columns = Columns {
        classes: classes.to_vec(),
        members: if system.members() > 1 { system.members() } else { 0 },
        scaled: protocol.validation.is_some(),
    };
    let path = protocol.predictions.as_ref();
    let mut predictions = path.map(|path| Predictions::create(path, columns)).transpose()?;
    let mut scaled = match &protocol.validation {
        Some(images) => Some(Scaled::fit(system, images, binning, batch, watcher)?),
        None => None,
    };
    let asked = TestProtocol { binning, batch };
    let mut in_distribution = Vec::new();
    let mut experts = Experts::of(system, protocol.test.data.len());
    let watching = Some(&mut experts);
    let mut outcomes = Outcomes::default();
    let mut test = Test::observed(system, &protocol.test, asked, watcher, watching, |seen| {
        let Predicted { members, mean, outcome } = seen.predicted;
        let name = protocol.test.data.name(seen.index);
        outcomes.add(seen.index, &name, seen.label, outcome);
        let scaled = scaled.as_mut().map(|scaled| scaled.add(seen.index, seen.logits, seen.label));
        if !protocol.ood.sets.is_empty() {
            in_distribution.push(protocol.ood.score.of(seen.logits, mean));
        }
        let Some(predictions) = &mut predictions else { return Ok(()) };
        predictions.add(&Line {
            image: &name,
            label: seen.label,
            predicted: outcome.predicted,
            confidence: outcome.confidence,
            scaled_confidence: scaled.map(|scaled| scaled.confidence),
            mean,
            members,
        })
    })?;
    if let Some(predictions) = predictions {
        predictions.finish()?;
    }
    test.record.intervals = outcomes.intervals(binning, classes.len());
    let ood = detect(system, &protocol.ood, &in_distribution, batch, watcher)?;
    let shift = match &protocol.shift {
        Some(corruptions) => Some(shift(system, &protocol.test, corruptions, asked, watcher)?),
        None => None,
    };
    let subsets = match &protocol.subsets {
        Some(asked) => Some(subsets(system, &protocol.test, asked, batch, watcher)?),
        None => None,
    };
    let worst = match (&protocol.shift, &shift) {
        (Some(asked), Some(found)) => worst_corruption(system, &protocol.test, asked, found)?,
        _ => None,
    };
    let gallery = Gallery::of(&test, &experts, &protocol.test, system.pixels().resolution);
    Ok(Tested {
        record: Some(test.record),
        temperature: scaled.map(Scaled::record),
        shift,
        subsets,
        ood,
        images: ImageResults::Whole(outcomes),
        gallery: gallery.with_corruption(worst),
    })
}
