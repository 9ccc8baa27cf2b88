//! Softmax regression: the linear classifier that training a head by cross-entropy would end at.
//!
//! Minimises `−1/N Σ log softmax(W x)ᵧ + λ/2 ‖W‖²` over whitened features by L-BFGS (Liu and Nocedal 1989),
//! which needs no learning rate; the bias is not regularised.

use std::collections::VecDeque;

use burn::tensor::{Device, Tensor};

use super::{LinearHead, ProbeError, Whitening, matrix, values, width};

/// Pairs of steps and gradients that the curvature is known by.
const MEMORY: usize = 10;
/// Steps at most.
const MOST_STEPS: usize = 300;
/// The largest component of a gradient at the end.
const PRECISION: f64 = 1e-6;
/// How much of the promised decrease a step must bring (Armijo).
const DECREASE: f64 = 1e-4;

/// A support set, whitened.
pub struct LogisticSupport {
    whitening: Whitening,
    classes: usize,
    /// `[N, D + 1]`
    x: Tensor<2>,
    labels: Vec<usize>,
    device: Device,
}

/// Weights that a search starts from.
#[derive(Debug, Clone, Default)]
pub struct Start(Vec<f64>);

impl LogisticSupport {
    /// - `features`: `[N, D]`; `labels`: `[N]`
    pub fn new(
        features: &[f32],
        labels: &[usize],
        classes: usize,
        device: &Device,
    ) -> Result<Self, ProbeError> {
        let whitening = Whitening::of(features, width(features, labels, classes)?);
        let x = whitening.with_constant(features, 1.0);
        let shape = [labels.len(), x.len() / labels.len()];
        let x = matrix(x, shape, device);
        Ok(Self { whitening, classes, x, labels: labels.to_vec(), device: device.clone() })
    }

    /// The classifier for a strength of the regularisation. What is left in `start` is where the search for
    /// the next strength begins.
    pub fn solve(&self, l2: f64, start: &mut Start) -> Result<LinearHead, ProbeError> {
        let [_, columns] = self.x.dims();
        if start.0.len() != columns * self.classes {
            start.0 = vec![0.0; columns * self.classes];
        }
        minimise(&mut start.0, |weights| self.loss(weights, l2))?;
        Ok(self.whitening.folded(&start.0, self.classes, 1.0))
    }

    /// The loss of weights `[D + 1, classes]`, and its gradient.
    fn loss(&self, weights: &[f64], l2: f64) -> (f64, Vec<f64>) {
        let [rows, columns] = self.x.dims();
        let classes = self.classes;
        let weights_matrix = matrix(weights.to_vec(), [columns, classes], &self.device);
        let mut residuals = values(self.x.clone().matmul(weights_matrix));
        let mut loss = 0.0;
        for (row, label) in residuals.chunks_exact_mut(classes).zip(&self.labels) {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            loss += largest - row[*label];
            row.iter_mut().for_each(|logit| *logit = (*logit - largest).exp());
            let sum: f64 = row.iter().sum();
            loss += sum.ln();
            row.iter_mut().for_each(|share| *share /= sum);
            row[*label] -= 1.0;
        }
        let residuals = matrix(residuals, [rows, classes], &self.device);
        let mut gradient = values(self.x.clone().transpose().matmul(residuals));
        gradient.iter_mut().for_each(|sum| *sum /= rows as f64);
        loss /= rows as f64;
        // All but the constant's.
        for (gradient, weight) in gradient.iter_mut().zip(&weights[..(columns - 1) * classes]) {
            *gradient += l2 * weight;
            loss += 0.5 * l2 * weight * weight;
        }
        (loss, gradient)
    }
}

/// L-BFGS with a line search that halves its steps.
fn minimise(x: &mut [f64], loss: impl Fn(&[f64]) -> (f64, Vec<f64>)) -> Result<(), ProbeError> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let (mut value, mut gradient) = loss(x);
    let mut pairs: VecDeque<(Vec<f64>, Vec<f64>)> = VecDeque::new();
    for _ in 0..MOST_STEPS {
        if !value.is_finite() {
            return Err(ProbeError::Singular);
        }
        if gradient.iter().all(|component| component.abs() < PRECISION) {
            break;
        }
        let direction = direction(&gradient, &pairs);
        let slope = dot(&direction, &gradient);
        let mut length = match pairs.is_empty() {
            true => 1.0 / dot(&gradient, &gradient).sqrt().max(1.0),
            false => 1.0,
        };
        let next = loop {
            let next: Vec<f64> = x.iter().zip(&direction).map(|(x, d)| x + length * d).collect();
            let (there, slopes) = loss(&next);
            if there <= value + DECREASE * length * slope {
                break Some((next, there, slopes));
            }
            length /= 2.0;
            if length < 1e-12 {
                break None;
            }
        };
        // No step is better: as close as these numbers come.
        let Some((next, there, slopes)) = next else { break };
        let step: Vec<f64> = next.iter().zip(x.iter()).map(|(next, x)| next - x).collect();
        let bend: Vec<f64> = slopes.iter().zip(&gradient).map(|(next, now)| next - now).collect();
        if dot(&step, &bend) > 1e-12 * dot(&bend, &bend) {
            pairs.push_back((step, bend));
            if pairs.len() > MEMORY {
                pairs.pop_front();
            }
        }
        x.copy_from_slice(&next);
        (value, gradient) = (there, slopes);
    }
    Ok(())
}

/// Minus the gradient, times what the pairs know of the inverse of the Hessian (two loops).
fn direction(gradient: &[f64], pairs: &VecDeque<(Vec<f64>, Vec<f64>)>) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut q: Vec<f64> = gradient.iter().map(|component| -component).collect();
    let mut factors = Vec::with_capacity(pairs.len());
    for (step, bend) in pairs.iter().rev() {
        let factor = dot(step, &q) / dot(step, bend);
        q.iter_mut().zip(bend).for_each(|(q, bend)| *q -= factor * bend);
        factors.push(factor);
    }
    if let Some((step, bend)) = pairs.back() {
        let scale = dot(step, bend) / dot(bend, bend);
        q.iter_mut().for_each(|q| *q *= scale);
    }
    for ((step, bend), factor) in pairs.iter().zip(factors.into_iter().rev()) {
        let back = factor - dot(bend, &q) / dot(step, bend);
        q.iter_mut().zip(step).for_each(|(q, step)| *q += back * step);
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two classes of one feature, not to be told apart perfectly.
    const FEATURES: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    const LABELS: [usize; 6] = [0, 0, 1, 0, 1, 1];

    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let support = LogisticSupport::new(&FEATURES, &LABELS, 2, &Device::flex()).unwrap();
        let weights = [0.3, -0.2, 0.1, 0.5];
        let (_, gradient) = support.loss(&weights, 0.1);
        for place in 0..4 {
            let at = |shift: f64| {
                let mut moved = weights;
                moved[place] += shift;
                support.loss(&moved, 0.1).0
            };
            let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
            assert!((slope - gradient[place]).abs() < 1e-7, "{slope} {}", gradient[place]);
        }
    }

    #[test]
    fn the_solution_has_no_slope_and_folds_into_features_as_they_are() {
        let support = LogisticSupport::new(&FEATURES, &LABELS, 2, &Device::flex()).unwrap();
        let mut start = Start::default();
        let head = support.solve(0.05, &mut start).unwrap();
        let (_, gradient) = support.loss(&start.0, 0.05);
        assert!(gradient.iter().all(|slope| slope.abs() < 1e-5), "{gradient:?}");
        let x = support.whitening.with_constant(&FEATURES, 1.0);
        let logits = head.logits(&FEATURES);
        for (row, logits) in x.chunks_exact(2).zip(logits.chunks_exact(2)) {
            for (class, logit) in logits.iter().enumerate() {
                let expected = row[0] * start.0[class] + row[1] * start.0[2 + class];
                assert!((expected - f64::from(*logit)).abs() < 1e-5);
            }
        }
        // The larger the feature, the likelier the second class.
        let margin = |row: usize| logits[2 * row + 1] - logits[2 * row];
        assert!(margin(0) < 0.0 && margin(5) > 0.0);
    }

    #[test]
    fn more_regularisation_means_smaller_weights() {
        let support = LogisticSupport::new(&FEATURES, &LABELS, 2, &Device::flex()).unwrap();
        let size = |l2: f64| {
            let head = support.solve(l2, &mut Start::default()).unwrap();
            head.weights.iter().map(|weight| weight.abs()).sum::<f64>()
        };
        assert!(size(1.0) < size(0.1) && size(0.1) < size(0.001));
    }

    #[test]
    fn what_cannot_be_fitted_is_an_error() {
        let new = |features: &[f32], labels: &[usize]| {
            LogisticSupport::new(features, labels, 2, &Device::flex()).err()
        };
        assert_eq!(new(&[], &[]), Some(ProbeError::Empty));
        assert_eq!(new(&[1.0], &[2]), Some(ProbeError::Label { label: 2, classes: 2 }));
        assert_eq!(new(&[1.0; 3], &[0, 1]), Some(ProbeError::Shape { values: 3, rows: 2 }));
        let broken = LogisticSupport::new(&[f32::NAN, 1.0], &[0, 1], 2, &Device::flex()).unwrap();
        let found = broken.solve(1.0, &mut Start::default());
        assert_eq!(found.err(), Some(ProbeError::Singular));
    }
}
