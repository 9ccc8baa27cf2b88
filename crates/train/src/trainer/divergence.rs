//! When a run cannot be saved, and what its layers looked like.

use std::collections::BTreeMap;

use super::weights::Weights;
use crate::error::TrainError;

/// What is found at the step that went wrong.
pub(crate) struct Divergence<'a> {
    pub(crate) step: u64,
    pub(crate) loss: f64,
    pub(crate) gradient_norm: f64,
    /// A loss beyond this is an explosion.
    pub(crate) limit: f64,
    pub(crate) weights: &'a Weights,
    /// None where it did not come so far.
    pub(crate) gradients: &'a [Vec<f32>],
}

#[derive(Default)]
struct Layer {
    count: usize,
    weights: f64,
    gradients: f64,
    broken: usize,
}

impl Divergence<'_> {
    /// Whether a step with these numbers went wrong.
    pub(crate) fn is_one(loss: f64, gradient_norm: f64, limit: f64) -> bool {
        !loss.is_finite() || !gradient_norm.is_finite() || loss > limit
    }

    /// An error, if this step went wrong; `last_good` says what to go back to.
    pub(crate) fn check(&self, last_good: &dyn Fn() -> String) -> Result<(), TrainError> {
        let Self { step, loss, gradient_norm, limit, .. } = *self;
        match () {
            () if !loss.is_finite() => {
                Err(self.error(&format!("the loss of step {step} is {loss}"), last_good))
            }
            () if !gradient_norm.is_finite() => {
                let why =
                    format!("the gradient of step {step} is not finite, at a loss of {loss:.4}");
                Err(self.error(&why, last_good))
            }
            () if loss > limit => {
                let why = format!(
                    "the loss of step {step} is {loss:.4}, beyond {limit:.1} (train.explosion times \
                     that of guessing)"
                );
                Err(self.error(&why, last_good))
            }
            () => Ok(()),
        }
    }

    /// What is said of a run that has diverged.
    pub(crate) fn error(&self, why: &str, last_good: &dyn Fn() -> String) -> TrainError {
        let why = format!("training has diverged: {why}; try a lower optimiser.learning_rate");
        TrainError::Diverged { why, layers: self.layers(), last_good: last_good() }
    }

    /// A line per part of the model: RMS of weights and gradients, and how many are not finite.
    fn layers(&self) -> String {
        let mut layers: BTreeMap<String, Layer> = BTreeMap::new();
        let all = self.weights.parameters.iter().zip(&self.weights.values);
        for (place, (parameter, values)) in all.enumerate() {
            let gradient = self.gradients.get(place).map_or(&[][..], Vec::as_slice);
            let parts: Vec<&str> = parameter.name.split('.').collect();
            let depth = if parts[0] == "blocks" { 3 } else { 1 };
            let name = parts[..parts.len().min(depth)].join(".");
            let layer = layers.entry(name).or_default();
            layer.count += values.len();
            layer.weights += values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            layer.gradients += gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            layer.broken += values.iter().chain(gradient).filter(|x| !x.is_finite()).count();
        }
        let width = layers.keys().map(String::len).max().unwrap_or(0);
        let mut text =
            format!("{:width$}  {:>12}  {:>12}  not finite", "layer", "weights", "gradient");
        for (name, layer) in layers {
            let rms = |sum: f64| (sum / layer.count.max(1) as f64).sqrt();
            let (weights, gradient) = (rms(layer.weights), rms(layer.gradients));
            text +=
                &format!("\n{name:width$}  {weights:12.3e}  {gradient:12.3e}  {:10}", layer.broken);
        }
        text
    }
}
