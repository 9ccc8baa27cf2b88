//! Numbers from predictions.
//!
//! | file | question |
//! |---|---|
//! | `scores.rs` | is it right, and how sure was it? error, NLL, Brier |
//! | `calibration.rs` | is it as often right as it is sure? ECE, reliability |
//! | `diversity.rs` | do the members of an ensemble differ? |
//! | `detection.rs` | can it tell what it was not made for? AUROC, AUPR, FPR at 95 % TPR |
//! | `estimate.rs` | how far may it be off? mean and standard error over seeds |
//! | `segmentation.rs` | does every pixel have its class? mIoU |

mod calibration;
mod detection;
mod diversity;
mod estimate;
mod scores;
mod segmentation;

pub use self::{
    calibration::{Bin, Calibration},
    detection::{Curve, Detection},
    diversity::Diversity,
    estimate::Estimate,
    scores::Scores,
    segmentation::Segmentation,
};

/// The place of the largest value; the first of equal ones.
pub fn largest(values: &[f64]) -> usize {
    let mut best = 0;
    for (place, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = place;
        }
    }
    best
}

/// `[classes]`: the mean of the members' probabilities.
pub fn mean_of_members<'a>(members: impl IntoIterator<Item = &'a [f64]>) -> Vec<f64> {
    let (mut mean, mut count) = (Vec::new(), 0.0);
    for member in members {
        mean.resize(member.len(), 0.0);
        mean.iter_mut().zip(member).for_each(|(sum, p)| *sum += p);
        count += 1.0;
    }
    mean.iter_mut().for_each(|sum| *sum /= count);
    mean
}

/// `ln Σ exp(x)`
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// `[classes]`: the probabilities of logits divided by a temperature.
pub fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut values: Vec<f64> =
        logits.iter().map(|x| (f64::from(x - largest) / temperature).exp()).collect();
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
    values
}
