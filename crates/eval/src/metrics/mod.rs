//! Numbers from predictions.
//!
//! | file | question |
//! |---|---|
//! | `scores.rs` | is it right, and how likely was that held to be? error, NLL, Brier |
//! | `calibration.rs` | is it right as often as its confidence says? ECE, reliability |
//! | `diversity.rs` | do the members of an ensemble differ? |
//! | `detection.rs` | can it tell what it was not made for? AUROC, AUPR, FPR at 95 % TPR |
//! | `bootstrap.rs` | how far may it be off, because the images are only some? intervals |
//! | `estimate.rs` | and because seeds differ? mean and standard error |
//! | `embeddings.rs` | where do images and texts lie? rows of one width |
//! | `zero_shot.rs` | which classifier do the names of classes make? |
//! | `retrieval.rs` | does a text find its image, an image its texts? recall at 1, 5, 10 |
//! | `contrast.rs` | are the pairs of a batch told apart? |
//! | `segmentation.rs` | does every pixel have its class? mIoU |

mod bootstrap;
mod calibration;
mod contrast;
mod detection;
mod diversity;
mod embeddings;
mod estimate;
mod retrieval;
mod scores;
mod segmentation;
mod zero_shot;

pub use self::{
    bootstrap::{Interval, draw, intervals, resamples},
    calibration::{Bin, Calibration},
    contrast::ContrastiveAccuracy,
    detection::{Detection, DetectionIntervals},
    diversity::Diversity,
    embeddings::Embeddings,
    estimate::Estimate,
    retrieval::{AtDepths, Recall, Retrieval, best, ranks},
    scores::{Outcome, Scores},
    segmentation::Segmentation,
    zero_shot::zero_shot_classifier,
};

pub(crate) use self::{detection::Curve, scores::TOP};

/// The place of the largest value; the first of equal ones.
pub fn largest<T: PartialOrd>(values: &[T]) -> usize {
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
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

/// `[classes]`: the probabilities of logits divided by a temperature.
pub(crate) fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut values: Vec<f64> =
        logits.iter().map(|x| (f64::from(x - largest) / temperature).exp()).collect();
    let sum: f64 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
    values
}

/// `[classes]`: the mean of the members' probabilities at a temperature.
///
/// - `logits`: `[M]` of `[classes]`
pub fn mean_softmax(logits: &[&[f32]], temperature: f64) -> Vec<f64> {
    let members: Vec<Vec<f64>> = logits.iter().map(|logits| softmax(logits, temperature)).collect();
    mean_of_members(members.iter().map(Vec::as_slice))
}

/// In nats.
pub(crate) fn entropy(probabilities: &[f64]) -> f64 {
    -probabilities.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_is_exact_for_small_and_huge_logits() {
        assert!((log_sum_exp(&[1.0, 2.0, 3.0]) - 3.407_605_964_444_38).abs() < 1e-12);
        assert!((log_sum_exp(&[1000.0, 1000.0]) - (1000.0 + 2_f64.ln())).abs() < 1e-9);
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        assert_eq!(largest(&[0.1, 0.4, 0.4, 0.1]), 1);
        assert_eq!(largest(&[0.25; 4]), 0);
        // Two members that contradict each other alike leave a tie.
        assert_eq!(largest(&mean_softmax(&[&[0.0, 0.0, 3.0], &[0.0, 3.0, 0.0]], 1.0)), 1);
    }

    #[test]
    fn the_mean_of_the_members_decides_not_their_majority() {
        // Two members lean to class 0, one is certain of class 1.
        let logits: [&[f32]; 3] = [&[0.2, 0.0], &[0.2, 0.0], &[0.0, 9.0]];
        let votes = logits.map(|logits| largest(&softmax(logits, 1.0)));
        assert_eq!((votes, largest(&mean_softmax(&logits, 1.0))), ([0, 0, 1], 1));
    }
}
