//! Stochastic gradient descent with momentum.

use burn::tensor::Tensor;

use super::{Rule, Step, sums::in_parts};

pub(super) struct Sgd {
    pub(super) momentum: f64,
}

impl Rule for Sgd {
    fn memory(&self, shape: &[usize]) -> Vec<usize> {
        vec![shape.iter().product()]
    }

    /// `t = g + momentum · t`, `p -= rate · (t + decay · p)`
    fn update(
        &self,
        step: Step<'_>,
        values: &mut [f32],
        gradient: &[f32],
        memory: &mut [Vec<f32>],
    ) {
        let [trace] = memory else { return };
        let momentum = self.momentum as f32;
        let (rate, decay) = (step.rate as f32, step.decay as f32);
        in_parts(values, [trace], gradient, |values, [trace], gradient| {
            for ((p, t), g) in values.iter_mut().zip(trace).zip(gradient) {
                *t = g + momentum * *t;
                *p -= rate * (*t + decay * *p);
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
        let [trace] = memory else { unreachable!("one trace is remembered") };
        let (rate, decay) = (step.rate as f32, step.decay as f32);
        *trace = gradient + trace.clone() * self.momentum as f32;
        values.clone() - (trace.clone() + values * decay) * rate
    }
}
