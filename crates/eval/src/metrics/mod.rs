//! Numbers from predictions.
//!
//! | file | question |
//! |---|---|
//! | `scores.rs` | is it right, and how sure was it? error, NLL, Brier |
//! | `calibration.rs` | is it as often right as it is sure? ECE, reliability |
//! | `diversity.rs` | do the members of an ensemble differ? |
//! | `detection.rs` | can it tell what it was not made for? AUROC, AUPR, FPR at 95 % TPR |
//! | `segmentation.rs` | does every pixel have its class? mIoU |

mod calibration;
mod detection;
mod diversity;
mod scores;
mod segmentation;

pub use self::{
    calibration::{Bin, Calibration},
    detection::{Curve, Detection},
    diversity::Diversity,
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
