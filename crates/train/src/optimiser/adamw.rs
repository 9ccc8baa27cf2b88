//! AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019).

use burn::tensor::Tensor;

use super::{Rule, Step, sums::in_parts};

pub(super) struct AdamW {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) epsilon: f64,
}

impl Rule for AdamW {
    fn memory(&self, shape: &[usize]) -> Vec<usize> {
        vec![shape.iter().product(); 2]
    }

    /// `p -= rate · (m̂ / (√v̂ + ε) + decay · p)`
    fn update(
        &self,
        step: Step<'_>,
        values: &mut [f32],
        gradient: &[f32],
        memory: &mut [Vec<f32>],
    ) {
        let [first, second] = memory else { return };
        let moments = Moments::at(self.beta1, self.beta2, self.epsilon, step.number);
        let (rate, decay) = (step.rate as f32, step.decay as f32);
        in_parts(values, [first, second], gradient, |values, [first, second], gradient| {
            for (((p, m), v), g) in values.iter_mut().zip(first).zip(second).zip(gradient) {
                *p -= rate * (moments.follow(m, v, *g) + decay * *p);
            }
        });
    }

    fn update_on_device(
        &self,
        step: Step<'_>,
        values: Tensor<1>,
        gradient: Tensor<1>,
        memory: &mut [Tensor<1>],
    ) -> Tensor<1> {
        let moments = Moments::at(self.beta1, self.beta2, self.epsilon, step.number);
        let (rate, decay) = (step.rate as f32, step.decay as f32);
        let direction = moments.follow_on_device(memory, gradient);
        values.clone() - (direction + values * decay) * rate
    }
}

/// Adam's moments at a step, corrected for having started at zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    beta1: f32,
    beta2: f32,
    first: f32,
    second: f32,
    epsilon: f32,
}

impl Moments {
    pub(super) fn at(beta1: f64, beta2: f64, epsilon: f64, step: u64) -> Self {
        let left = |beta: f64| (1.0 / (1.0 - beta.powf(step as f64))) as f32;
        Self {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            first: left(beta1),
            second: left(beta2),
            epsilon: epsilon as f32,
        }
    }

    /// Moves both moments and returns the direction.
    #[inline]
    pub(super) fn follow(&self, m: &mut f32, v: &mut f32, g: f32) -> f32 {
        *m = self.beta1 * *m + (1.0 - self.beta1) * g;
        *v = self.beta2 * *v + (1.0 - self.beta2) * g * g;
        (*m * self.first) / ((*v * self.second).sqrt() + self.epsilon)
    }

    /// The same on a device, where `memory` is both moments.
    pub(super) fn follow_on_device(&self, memory: &mut [Tensor<1>], g: Tensor<1>) -> Tensor<1> {
        let [m, v] = memory else { unreachable!("two moments are remembered") };
        *m = m.clone() * self.beta1 + g.clone() * (1.0 - self.beta1);
        *v = v.clone() * self.beta2 + g.clone() * (1.0 - self.beta2) * g;
        (m.clone() * self.first) / ((v.clone() * self.second).sqrt() + self.epsilon)
    }
}
