//! `‖X‖₂`, learned by one Soft MoE layer from fresh tokens (paper 004 App. C): what a single expert cannot represent,
//! however large it is (Theorem 1), several small ones learn.

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::{Resolution, Seed};
use omma_model::{
    Activation, ClassifierConfig, EncoderConfig, ExpertStart, HeadConfig, ImageConfig, Mode,
    ModelConfig, MoeConfig, Placement, Pooling, Position,
};
use omma_routing::{Allocation, RouterConfig, Soft};
use rand::RngExt;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    optimiser::{Optimiser, OptimiserConfig},
    trainer::{Weights, gradients},
};

/// Variance of every number of `X ~ N(0, 5 I)`.
const VARIANCE: f32 = 5.0;
/// Hidden units of all experts together, as a multiple of the width.
const UNITS: usize = 10;

/// A layer, and how long it learns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormLesson {
    /// Tokens of an input, `m`.
    pub tokens: usize,
    /// Features of a token, `d`.
    pub width: usize,
    /// Experts, `n`, with `10 d / n` hidden units each.
    pub experts: usize,
    /// Batches, each drawn anew.
    pub steps: u64,
    /// Inputs of a batch.
    pub batch: usize,
    /// Of Adam.
    pub learning_rate: f64,
}

impl NormLesson {
    /// The paper's: batches of 10,000, Adam with a learning rate of 1e-3, 500 epochs, of which each is a batch here.
    pub fn new(tokens: usize, width: usize, experts: usize) -> Self {
        Self { tokens, width, experts, steps: 500, batch: 10_000, learning_rate: 1e-3 }
    }

    /// The layer alone: no projection, no attention, no normalisation, nothing that skips it, and no head, so that
    /// its outputs are what the model gives. Experts have no biases, `20 d²` parameters in all.
    pub fn model(&self) -> ModelConfig {
        let &Self { tokens, width, experts, .. } = self;
        let units = UNITS * width;
        let soft = Allocation::Soft(Soft::new(1, false));
        let moe = MoeConfig {
            placement: Placement::Tail(1),
            hidden: Some(units / experts.max(1)),
            residual: false,
            bias: false,
            start: ExpertStart { shared: false, noise: 0.0 },
            ..MoeConfig::new(RouterConfig { allocation: soft, ..RouterConfig::soft(experts, 1) })
        };
        let head = ClassifierConfig { pooling: Pooling::Flat, classes: 0, ..Default::default() };
        ModelConfig {
            image: ImageConfig {
                resolution: Resolution::new(tokens, 1),
                channels: width,
                patch: 1,
                projection: false,
                class_token: false,
                position: Position::None,
                ..ImageConfig::default()
            },
            encoder: EncoderConfig {
                width,
                depth: 1,
                heads: 1,
                mlp: units,
                activation: Activation::Relu,
                attention: false,
                norm: false,
                moe: Some(moe),
                ..EncoderConfig::default()
            },
            head: HeadConfig::Classifier(head),
            ..ModelConfig::default()
        }
    }

    /// Learns from batches that are never seen again, so that a step's loss, the mean squared error of the sum of all
    /// outputs, is that of training and of testing alike.
    ///
    /// - `goes_on`: asked before every step with its number; the lesson ends early where it says no
    /// - returns: the loss of every step
    pub fn learn(
        &self,
        seed: Seed,
        device: &Device,
        mut goes_on: impl FnMut(u64) -> bool,
    ) -> Result<Vec<f64>> {
        let device = &device.clone().autodiff();
        let mut model = self.model().init(seed.named("model"), device)?;
        let mut weights = Weights::of(&model);
        let config = OptimiserConfig {
            learning_rate: self.learning_rate,
            weight_decay: 0.0,
            ..OptimiserConfig::default()
        };
        let shapes = weights.parameters.iter();
        let shapes = shapes.map(|one| (one.name.as_str(), one.shape.as_slice()));
        let mut optimiser = Optimiser::new(config, 1, shapes);
        let mut losses = Vec::new();
        for step in (0..self.steps).take_while(|step| goes_on(*step)) {
            let (inputs, norms) = self.batch(seed.named("batch").numbered(step), device);
            let mode = Mode::Training(seed.named("step").numbered(step));
            let outputs = model.forward(inputs, &mode)?.features; // [1, B, m · d]
            let loss = (outputs.sum_dim(2) - norms).square().mean();
            losses.push(f64::from(loss.clone().into_scalar::<f32>()));
            let gradients = gradients(&model, &loss.backward());
            optimiser.step(self.learning_rate, &mut weights.values, &gradients);
            model = weights.put(model)?;
        }
        Ok(losses)
    }

    /// `X`: `[B, m, 1, d]`, whose numbers lie in their order, and `‖X‖₂`: `[1, B, 1]`.
    fn batch(&self, seed: Seed, device: &Device) -> (Tensor<4>, Tensor<3>) {
        let &Self { tokens, width, batch, .. } = self;
        let size = tokens * width;
        let mut rng = seed.rng();
        let deviation = VARIANCE.sqrt();
        let draw = || rng.sample::<f32, _>(StandardNormal) * deviation;
        let inputs: Vec<f32> = std::iter::repeat_with(draw).take(batch * size).collect();
        let norm = |x: &[f32]| x.iter().map(|value| value * value).sum::<f32>().sqrt();
        let norms: Vec<f32> = inputs.chunks_exact(size.max(1)).map(norm).collect();
        (
            Tensor::from_data(TensorData::new(inputs, [batch, tokens, 1, width]), device),
            Tensor::from_data(TensorData::new(norms, [1, batch, 1]), device),
        )
    }
}

/// What predicting the mean of `‖X‖₂` for all `X` of `N(0, 5 I)` loses: their variance,
/// `5 (k − 2 (Γ((k+1)/2) / Γ(k/2))²)` for `k` numbers.
pub fn loss_of_a_constant(numbers: usize) -> f64 {
    // Γ((k+1)/2) / Γ(k/2), by the recurrence r(k+1) = k / (2 r(k)) from r(1) = 1/√π.
    let start = 1.0 / std::f64::consts::PI.sqrt();
    let ratio = (1..numbers).fold(start, |ratio, k| k as f64 / (2.0 * ratio));
    f64::from(VARIANCE) * (numbers as f64 - 2.0 * ratio * ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// App. C: hidden layers of `10 d / n`, "always constant at 20 d²".
    #[test]
    fn experts_have_the_parameters_of_appendix_c() {
        for (tokens, width) in [(5, 2), (2, 5)] {
            for experts in [1, 2, 5, 10] {
                let config = NormLesson::new(tokens, width, experts).model();
                let cost = config.cost(config.image.resolution).unwrap();
                assert_eq!(cost.params_total, (20 * width * width + width * experts) as u64);
                assert_eq!(
                    (cost.tokens, config.moe().unwrap().hidden),
                    (tokens, Some(10 * width / experts))
                );
            }
        }
        let NormLesson { steps, batch, learning_rate, .. } = NormLesson::new(5, 2, 1);
        assert_eq!((steps, batch, learning_rate), (500, 10_000, 1e-3));
    }

    #[test]
    fn inputs_are_drawn_with_variance_five_and_their_norms_are_the_targets() {
        let lesson = NormLesson { batch: 20_000, ..NormLesson::new(5, 2, 1) };
        let (inputs, norms) = lesson.batch(Seed::new(1), &Device::flex());
        let inputs: Vec<f32> = inputs.try_into_vec_as().unwrap();
        let norms: Vec<f32> = norms.try_into_vec_as().unwrap();
        let squares: f64 = inputs.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((squares / inputs.len() as f64 - 5.0).abs() < 0.1);
        let first = inputs[..10].iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((norms[0] - first).abs() < 1e-4);
        let mean = norms.iter().map(|x| f64::from(*x)).sum::<f64>() / norms.len() as f64;
        let variance = norms.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
        let variance = variance / norms.len() as f64;
        assert!((variance - loss_of_a_constant(10)).abs() < 0.1, "{variance}");
    }

    /// Theorem 1 for `n = 1`, and that several experts do better at the same number of parameters.
    #[test]
    fn one_expert_learns_less_than_ten() {
        let last = |experts| {
            let lesson = NormLesson {
                steps: 250,
                batch: 200,
                learning_rate: 1e-2,
                ..NormLesson::new(5, 2, experts)
            };
            let losses = lesson.learn(Seed::new(3), &Device::flex(), |_| true).unwrap();
            assert_eq!(losses.len(), 250);
            losses[losses.len() - 20..].iter().sum::<f64>() / 20.0
        };
        let (one, ten) = (last(1), last(10));
        assert!(one > 1.5 * ten, "{one} {ten}");
    }

    #[test]
    fn a_lesson_is_the_same_for_the_same_seed_and_ends_when_it_is_told() {
        let lesson = NormLesson { steps: 5, batch: 8, ..NormLesson::new(2, 5, 2) };
        let learned = |steps| lesson.learn(Seed::new(1), &Device::flex(), |step| step < steps);
        let whole = learned(9).unwrap();
        assert_eq!((whole.len(), &learned(3).unwrap()[..]), (5, &whole[..3]));
    }
}
