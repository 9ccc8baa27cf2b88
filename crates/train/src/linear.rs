//! A linear classifier on pixels: what any model should beat.

use burn::tensor::{Device, Int, Tensor, TensorData, activation::softmax};
use omma_base::{Resolution, Seed};
use omma_data::{EvalLoader, Pixels, Shared};
use rand::seq::SliceRandom;

use crate::{
    error::Result,
    optimiser::{Optimiser, OptimiserConfig},
    schedule::Schedule,
    stop::Stop,
};

/// Sides above this are made smaller; pixels beyond this many are not read.
const LARGEST_SIDE: usize = 32;
const MOST_VALUES: usize = 40_000_000;
/// A classifier of more weights sees smaller images: with tens of thousands of classes it would be larger
/// than the model that it is compared with.
const MOST_WEIGHTS: usize = 8_000_000;
const BATCH: usize = 256;
const EPOCHS: usize = 8;

/// `[N, features]` and `[N]`.
struct Table {
    features: usize,
    rows: Vec<f32>,
    labels: Vec<usize>,
}

fn read(data: &Shared, pixels: Pixels, most: usize, stop: &Stop) -> Result<Table> {
    let features = pixels.resolution.pixels() * 3;
    let mut table = Table { features, rows: Vec::new(), labels: Vec::new() };
    // Evenly spread, because a folder is sorted by class.
    let every = (data.len() * features).div_ceil(most).max(1);
    let chosen = (0..data.len()).step_by(every).collect();
    let data: Shared = std::sync::Arc::new(omma_data::Selection::new(data.clone(), chosen));
    for batch in EvalLoader::new(data, pixels, BATCH) {
        stop.check()?;
        let batch = batch?;
        table.labels.extend(batch.labels());
        table.rows.extend(batch.pixels);
    }
    Ok(table)
}

/// The side of the images that the classifier sees.
fn side(whole: usize, classes: usize) -> usize {
    let fits = |side: &usize| (side * side * 3 + 1).saturating_mul(classes) <= MOST_WEIGHTS;
    (1..=whole.min(LARGEST_SIDE)).rev().find(fits).unwrap_or(1)
}

/// Test accuracy of multinomial logistic regression on normalised pixels, fitted with AdamW.
pub fn linear_baseline(
    train: &Shared,
    test: &Shared,
    pixels: Pixels,
    seed: Seed,
    stop: &Stop,
) -> Result<f64> {
    let device = Device::flex();
    let classes = train.classes().len();
    let pixels = Pixels {
        resolution: Resolution::square(side(pixels.resolution.shortest(), classes)),
        ..pixels
    };
    let table = read(train, pixels, MOST_VALUES, stop)?;
    let features = table.features;
    let config = OptimiserConfig { learning_rate: 1e-3, weight_decay: 1e-2, ..Default::default() };
    let shape = [features + 1, classes];
    let mut optimiser = Optimiser::new(config, 0, [("weight", &shape[..])]);
    let mut values = vec![vec![0.0; (features + 1) * classes]];
    let mut order: Vec<i32> = (0..table.labels.len() as i32).collect();
    let all = Tensor::<2>::from_data(
        TensorData::new(table.rows, [table.labels.len(), features]),
        &device,
    );
    let predict = |x: Tensor<2>, values: &[f32]| {
        let weights = Tensor::<2>::from_data(TensorData::new(values.to_vec(), shape), &device);
        let bias = weights.clone().slice([features..features + 1, 0..classes]);
        x.matmul(weights.slice([0..features, 0..classes])) + bias
    };
    let schedule = Schedule::default();
    let total = (EPOCHS * order.len().div_ceil(BATCH)) as u64;
    let mut step = 0;
    for epoch in 0..EPOCHS {
        order.shuffle(&mut seed.named("epoch").numbered(epoch as u64).rng());
        for rows in order.chunks(BATCH) {
            stop.check()?;
            let x = all.clone().select(0, Tensor::<1, Int>::from_data(rows, &device));
            let mut target = vec![0.0_f32; rows.len() * classes];
            for (slot, row) in rows.iter().enumerate() {
                target[slot * classes + table.labels[*row as usize]] = 1.0;
            }
            let target =
                Tensor::<2>::from_data(TensorData::new(target, [rows.len(), classes]), &device);
            let error = (softmax(predict(x.clone(), &values[0]), 1) - target) / rows.len() as f64;
            let gradient =
                Tensor::cat(vec![x.transpose().matmul(error.clone()), error.sum_dim(0)], 0);
            let gradient: Vec<f32> = gradient.try_into_vec_as().expect("gradients are floats");
            let rate = config.learning_rate * schedule.share(step, total);
            optimiser.step(rate, &mut values, &[gradient]);
            step += 1;
        }
    }
    drop(all);
    let (mut right, mut seen) = (0, 0);
    for batch in EvalLoader::new(test.clone(), pixels, BATCH) {
        stop.check()?;
        let mut batch = batch?;
        let x = TensorData::new(std::mem::take(&mut batch.pixels), [batch.len(), features]);
        let logits = predict(Tensor::from_data(x, &device), &values[0]);
        let logits: Vec<f32> = logits.try_into_vec_as().expect("logits are floats");
        let says = logits.chunks_exact(classes).map(crate::evaluate::best);
        right += says.zip(batch.labels()).filter(|(said, label)| said == *label).count();
        seen += batch.len();
    }
    Ok(right as f64 / seen.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_classes_see_smaller_images() {
        assert_eq!([side(28, 10), side(224, 1000), side(224, 21_841)], [28, 32, 11]);
        assert_eq!(side(32, 100_000_000), 1);
    }
}
