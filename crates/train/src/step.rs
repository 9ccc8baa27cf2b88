//! One forward and backward pass.

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::Seed;
use omma_data::{Batch, Targets};
use omma_model::{Mode, VisionTransformer, systems::pair};

use crate::{
    error::Result,
    evaluate::{best, images},
    health::RoutingTally,
    recipe::recipe_error,
    weights::gradients,
};

/// What a pass found.
pub struct Pass {
    /// Images in it.
    pub images: usize,
    /// Images that the model got right; of a mixed one, the larger part counts.
    pub correct: usize,
    /// Mean loss with the routers' own losses.
    pub loss: f64,
    /// The routers' own part of it.
    pub auxiliary_loss: f64,
    /// Gradients of the loss, in the order of the parameters.
    pub gradients: Vec<Vec<f32>>,
    /// Where the tokens went.
    pub routing: RoutingTally,
}

/// Runs a batch forwards and backwards. Members of an ensemble are all trained on every image (paper
/// 000 App. C.1); those of MIMO each on their own.
pub fn pass(
    model: &VisionTransformer,
    mut batch: Batch,
    seed: Seed,
    device: &Device,
) -> Result<Pass> {
    let classes = model.config().classes;
    let mut pictures = images(&mut batch, device);
    let count = batch.len();
    let Targets::Classes { distribution, .. } = batch.targets else {
        return Err(recipe_error("a classifier learns from classes".to_owned()));
    };
    let mut labels: Vec<usize> = distribution.chunks_exact(classes).map(best).collect();
    let targets = TensorData::new(distribution, [1, count, classes]);
    let mut targets = Tensor::<3>::from_data(targets, device);
    if let Some(config) = &model.config().mimo {
        let paired = pair(pictures, config, seed.named("mimo"));
        let row = |row: &usize| *row as i32;
        let chosen = paired.sources.iter().map(|rows| {
            let rows: Vec<i32> = rows.iter().map(row).collect();
            targets.clone().select(1, Tensor::from_data(rows.as_slice(), device))
        });
        targets = Tensor::cat(chosen.collect(), 0);
        labels = paired.sources[0].iter().map(|row| labels[*row]).collect();
        pictures = paired.images;
    }
    let output = model.forward(pictures, &Mode::Training(seed))?;
    let routing = RoutingTally::of(&output.routings);
    let task = output.predictions.soft_cross_entropy(targets);
    let auxiliary = output.auxiliary_loss();
    let auxiliary_loss = auxiliary.clone().map_or(0.0, |loss| f64::from(loss.into_scalar::<f32>()));
    let loss = match auxiliary {
        Some(auxiliary) => task + auxiliary,
        None => task,
    };
    let correct = {
        let logits = output.predictions.logits.clone().detach();
        let [_, rows, _] = logits.dims();
        // The first member speaks for all: this is a hint for the progress bar, not a result.
        let logits: Vec<f32> =
            logits.slice([0..1, 0..rows]).try_into_vec_as().expect("logits are floats");
        let says = logits.chunks_exact(classes).map(best);
        says.zip(&labels).filter(|(said, label)| said == *label).count()
    };
    let value = f64::from(loss.clone().into_scalar::<f32>());
    let gradients = gradients(model, &loss.backward());
    Ok(Pass { images: labels.len(), correct, loss: value, auxiliary_loss, gradients, routing })
}

impl Pass {
    /// Adds the pass of another part of the same step.
    pub(crate) fn add(&mut self, other: Self) {
        self.images += other.images;
        self.correct += other.correct;
        self.loss += other.loss;
        self.auxiliary_loss += other.auxiliary_loss;
        self.routing.add(other.routing);
        for (own, other) in self.gradients.iter_mut().zip(other.gradients) {
            own.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        }
    }

    /// From a sum over equal parts to their mean.
    pub(crate) fn divide(&mut self, parts: usize) {
        if parts > 1 {
            let share = 1.0 / parts as f64;
            self.loss *= share;
            self.auxiliary_loss *= share;
            self.gradients.iter_mut().flatten().for_each(|g| *g *= share as f32);
        }
    }
}
