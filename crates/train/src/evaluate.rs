//! A model on images it has not seen.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use omma_data::{Batch, EvalLoader, Pixels, Shared};
use omma_model::VisionTransformer;

use crate::{
    error::Result,
    health::{LayerHealth, RoutingTally},
    stop::Stop,
};

/// One prediction, to be shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Example {
    /// Which sample.
    pub index: usize,
    /// What it is.
    pub label: usize,
    /// What the model says.
    pub predicted: usize,
    /// How sure it is.
    pub probability: f32,
}

/// What a model makes of a data set.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    /// Images.
    pub samples: usize,
    /// Images that it got right.
    pub correct: usize,
    nll: f64,
    /// How often an image is the first and the model says the second; only what has happened, because a
    /// whole matrix of 20,000 classes is larger than the model.
    pub confusion: BTreeMap<(usize, usize), u64>,
    /// The first images that it got right.
    pub right: Vec<Example>,
    /// The images where it is most sure and wrong.
    pub wrong: Vec<Example>,
    /// Every layer with experts.
    pub routing: Vec<LayerHealth>,
}

impl Evaluation {
    /// Share of the images that it got right.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples.max(1) as f64
    }

    /// Mean negative log-likelihood, in nats.
    pub fn nll(&self) -> f64 {
        self.nll / self.samples.max(1) as f64
    }
}

/// Images of a batch as a tensor, `[B, H, W, 3]`.
pub(crate) fn images(batch: &mut Batch, device: &Device) -> Tensor<4> {
    let shape = [batch.len(), batch.resolution.height, batch.resolution.width, 3];
    Tensor::from_data(TensorData::new(std::mem::take(&mut batch.pixels), shape), device)
}

/// Examples of each kind that are kept.
const EXAMPLES: usize = 12;

/// Evaluates a model, which is not on a device with gradients, unless it is to stop.
pub fn evaluate(
    model: &VisionTransformer,
    data: &Shared,
    pixels: Pixels,
    batch: usize,
    stop: &Stop,
) -> Result<Evaluation> {
    let device = Device::flex();
    let mode = model.config().prediction_mode();
    let classes = model.config().classes;
    let mut result = Evaluation::default();
    let mut tally = RoutingTally::default();
    for batch in EvalLoader::new(data.clone(), pixels, batch) {
        stop.check()?;
        let mut batch = batch?;
        let output = model.forward(images(&mut batch, &device), &mode)?;
        tally.add(RoutingTally::of(&output.routings));
        let logs = output.predictions.log_probabilities();
        let logs: Vec<f32> = logs.try_into_vec_as().expect("logits are floats");
        let samples = batch.indices.iter().zip(batch.labels()).zip(logs.chunks_exact(classes));
        for ((index, label), logs) in samples {
            result.add(*index, *label, logs);
        }
    }
    result.routing = tally.take();
    Ok(result)
}

impl Evaluation {
    fn add(&mut self, index: usize, label: usize, logs: &[f32]) {
        let predicted = best(logs);
        let example = Example { index, label, predicted, probability: logs[predicted].exp() };
        self.samples += 1;
        self.correct += usize::from(predicted == label);
        self.nll -= f64::from(logs[label]);
        *self.confusion.entry((label, predicted)).or_default() += 1;
        match predicted == label {
            true if self.right.len() < EXAMPLES => self.right.push(example),
            true => {}
            false => {
                let sureness = |e: &Example| e.probability;
                let place = self.wrong.partition_point(|e| sureness(e) >= sureness(&example));
                self.wrong.insert(place, example);
                self.wrong.truncate(EXAMPLES);
            }
        }
    }
}

/// The place of the largest value.
pub(crate) fn best(values: &[f32]) -> usize {
    let largest = values.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    largest.map_or(0, |(place, _)| place)
}
