//! The whole protocol: the test images as they are, corrupted, and among others.

use std::{collections::BTreeMap, time::Instant};

use omma_data::Selection;
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    metrics::largest,
    ood::{OodRecord, OodScore},
    shift::{Shift, ShiftProtocol, shift},
    stream::{Images, Watcher},
    system::{System, SystemCost, SystemKind},
    tally::{Binning, DiversityRecord, ReliabilityBin, Summary, Tally, average},
    temperature::{TemperatureRecord, Validation},
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
    /// Images from outside.
    pub outside: Vec<Images>,
    /// What they are told by.
    pub ood_score: OodScore,
    /// The bins of the calibration error.
    pub binning: Binning,
    /// Images per forward pass.
    pub batch: usize,
}

/// A temperature is fitted on at most so many images, since their logits are kept.
const VALIDATION: usize = 5_000;

/// Everything that was found; `eval.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// What the system is called.
    pub label: String,
    /// What tells its settings from others; evaluations of one label and fingerprint differ by their
    /// seed alone.
    pub fingerprint: String,
    /// What kind of system it is.
    pub kind: SystemKind,
    /// The models that were judged.
    pub models: Vec<String>,
    /// The data that they were judged by.
    pub data: String,
    /// Test images.
    pub samples: usize,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Scores of the members' average.
    #[serde(flatten)]
    pub summary: Summary,
    /// The bins of the calibration error.
    pub binning: Binning,
    /// Scores of every member; empty for one model with one prediction.
    pub members: Vec<Summary>,
    /// How the members differ.
    pub diversity: Option<DiversityRecord>,
    /// The reliability diagram.
    pub reliability: Vec<ReliabilityBin>,
    /// The scores after temperature scaling.
    pub temperature: Option<TemperatureRecord>,
    /// Error of every class; nothing for one without test images.
    pub class_errors: Vec<Option<f64>>,
    /// Under corruptions.
    pub shift: Option<Shift>,
    /// Among images from outside, by data set.
    pub ood: BTreeMap<String, OodRecord>,
    /// What these were told by.
    pub ood_score: OodScore,
    /// What one image costs.
    pub cost: SystemCost,
    /// Test images per second, reading included.
    pub images_per_second: f64,
    /// The most memory that the process held, where the system says it.
    pub peak_rss_bytes: Option<u64>,
}

/// Judges a system.
pub fn evaluate(
    system: &System,
    protocol: &Protocol,
    watcher: &mut dyn Watcher,
) -> Result<Evaluation> {
    let classes = protocol.test.data.classes();
    system.check_classes(&protocol.test.name, classes.len())?;
    let temperature = match &protocol.validation {
        Some(validation) => Some(fit_temperature(system, validation, protocol.batch, watcher)?),
        None => None,
    };
    watcher.begins("test images", protocol.test.data.len());
    let started = Instant::now();
    let mut tally = Tally::new(
        protocol.binning,
        system.members(),
        temperature.map(|(temperature, _)| temperature),
    );
    let mut inside = Vec::new();
    let mut by_class = vec![(0_u64, 0_u64); classes.len()];
    protocol.test.predictions(system, protocol.batch, watcher, |logits, label| {
        tally.add(logits, label);
        let (seen, wrong) = &mut by_class[label];
        *seen += 1;
        *wrong += u64::from(largest(&average(logits, 1.0)) != label);
        if !protocol.outside.is_empty() {
            inside.push(protocol.ood_score.of(logits));
        }
    })?;
    let images_per_second = tally.samples() as f64 / started.elapsed().as_secs_f64().max(1e-9);
    let mut ood = BTreeMap::new();
    for images in &protocol.outside {
        watcher.begins(&images.name, images.data.len());
        let mut outside = Vec::new();
        images.predictions(system, protocol.batch, watcher, |logits, _| {
            outside.push(protocol.ood_score.of(logits));
        })?;
        ood.extend(OodRecord::new(&outside, &inside).map(|record| (images.name.clone(), record)));
    }
    let shift = match protocol.shift {
        Some(asked) => {
            let (test, binning, batch) = (&protocol.test, protocol.binning, protocol.batch);
            Some(shift(system, test, asked, binning, batch, watcher)?)
        }
        None => None,
    };
    let scaled = |(value, fitted_on): (f64, usize)| {
        let (summary, reliability) = tally.scaled()?;
        Some(TemperatureRecord { value, fitted_on, summary, reliability })
    };
    Ok(Evaluation {
        label: protocol.label.clone(),
        fingerprint: protocol.fingerprint.clone(),
        kind: system.kind(),
        models: system.names().to_vec(),
        data: protocol.test.name.clone(),
        samples: tally.samples(),
        classes: classes.to_vec(),
        summary: tally.average(),
        binning: protocol.binning,
        members: tally.members(),
        diversity: tally.diversity(),
        reliability: tally.reliability(),
        temperature: temperature.and_then(scaled),
        class_errors: by_class
            .into_iter()
            .map(|(seen, wrong)| (seen > 0).then(|| wrong as f64 / seen as f64))
            .collect(),
        shift,
        ood,
        ood_score: protocol.ood_score,
        cost: system.cost()?,
        images_per_second,
        peak_rss_bytes: omma_base::memory::peak(),
    })
}

/// The temperature, and how many images it was fitted on.
fn fit_temperature(
    system: &System,
    images: &Images,
    batch: usize,
    watcher: &mut dyn Watcher,
) -> Result<(f64, usize)> {
    system.check_classes(&images.name, images.data.classes().len())?;
    let images = Images { data: Selection::spread(&images.data, VALIDATION), ..images.clone() };
    watcher.begins("held-out images, for the temperature", images.data.len());
    let mut validation = Validation::default();
    images.predictions(system, batch, watcher, |logits, label| validation.add(logits, label))?;
    Ok((validation.fit(), validation.len()))
}
