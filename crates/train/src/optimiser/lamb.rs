//! LAMB: Adam whose step is as long as the parameter allows (You et al. 2020).

use burn::tensor::Tensor;

use super::{
    Rule, Step,
    adamw::Moments,
    on_device::norm,
    sums::{in_parts, sum_of_squares},
};

pub(super) struct Lamb {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) epsilon: f64,
}

impl Rule for Lamb {
    fn memory(&self, shape: &[usize]) -> Vec<usize> {
        vec![shape.iter().product(); 2]
    }

    /// A step is as long as the whole parameter.
    fn takes_parts(&self, _: &[usize], _: &[usize]) -> bool {
        false
    }

    /// `u = m̂ / (√v̂ + ε) + decay · p`, `p -= rate · ‖p‖ / ‖u‖ · u`
    fn update(
        &self,
        step: Step<'_>,
        values: &mut [f32],
        gradient: &[f32],
        memory: &mut [Vec<f32>],
    ) {
        let [first, second] = memory else { return };
        let moments = Moments::at(self.beta1, self.beta2, self.epsilon, step.number);
        let decay = step.decay as f32;
        let mut update = values.to_vec();
        in_parts(&mut update, [first, second], gradient, |update, [first, second], gradient| {
            for (((u, m), v), g) in update.iter_mut().zip(first).zip(second).zip(gradient) {
                *u = moments.follow(m, v, *g) + decay * *u;
            }
        });
        let (own, other) = (sum_of_squares(values).sqrt(), sum_of_squares(&update).sqrt());
        let trust = if own > 0.0 && other > 0.0 { own / other } else { 1.0 };
        let length = (step.rate * trust) as f32;
        values.iter_mut().zip(update).for_each(|(p, u)| *p -= length * u);
    }

    fn update_on_device(
        &self,
        step: Step<'_>,
        values: Tensor<1>,
        gradient: Tensor<1>,
        memory: &mut [Tensor<1>],
    ) -> Tensor<1> {
        let moments = Moments::at(self.beta1, self.beta2, self.epsilon, step.number);
        let direction = moments.follow_on_device(memory, gradient);
        let update = direction + values.clone() * step.decay as f32;
        let (own, other) = (norm(values.clone()), norm(update.clone()));
        let nothing = own.clone().equal_scalar(0.0).bool_or(other.clone().equal_scalar(0.0));
        let trust = (own / other).mask_fill(nothing, 1.0);
        values - update * (trust * step.rate as f32)
    }
}
