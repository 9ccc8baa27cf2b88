//! An exponential moving average of the weights.

use burn::tensor::{Device, Tensor};
use omma_model::VisionTransformer;
use rayon::prelude::*;

use super::on_device::with_rows;
use crate::optimiser::row;

/// Averages of all parameters. Early steps count more, so that the start is forgotten quickly: the
/// decay at step `t` is at most `(1 + t) / (10 + t)`.
#[derive(Debug, Clone)]
pub(crate) struct Average {
    /// The longest decay.
    pub(crate) decay: f64,
    /// The averages, in the order of the parameters; none where they are on a device.
    pub(crate) values: Vec<Vec<f32>>,
    on_device: Option<Vec<Tensor<1>>>,
}

impl Average {
    /// Starts at the given values.
    pub(crate) fn new(decay: f64, values: &[Vec<f32>]) -> Self {
        Self { decay, values: values.to_vec(), on_device: None }
    }

    /// How far the average goes towards the values after step `step`, counted from 1.
    fn share(&self, step: u64) -> f32 {
        let step = step as f64;
        (1.0 - self.decay.min((1.0 + step) / (10.0 + step))) as f32
    }

    /// Moves towards the values after step `step`, counted from 1.
    pub(crate) fn follow(&mut self, step: u64, values: &[Vec<f32>]) {
        let rest = self.share(step);
        self.values.par_iter_mut().zip(values).for_each(|(average, values)| {
            average.iter_mut().zip(values).for_each(|(a, v)| *a += rest * (v - *a));
        });
    }

    /// The same on a device, where the average stays from then on.
    pub(crate) fn follow_on_device(&mut self, step: u64, values: Vec<Tensor<1>>, device: &Device) {
        let rest = self.share(step);
        let host = std::mem::take(&mut self.values).into_iter();
        let moved = || host.map(|values| row(values, device)).collect();
        let averages: Vec<Tensor<1>> = self.on_device.take().unwrap_or_else(moved);
        let followed = averages.into_iter().zip(values).map(|(a, v)| a.clone() + (v - a) * rest);
        self.on_device = Some(followed.collect());
    }

    /// A model, with gradients, whose parameters that learn are these averages; nothing where they are not on a
    /// device.
    pub(crate) fn put_on_device(&self, model: &VisionTransformer) -> Option<VisionTransformer> {
        self.on_device.as_ref().map(|averages| with_rows(model.clone(), averages.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimiser::read;

    #[test]
    fn early_steps_have_a_decay_that_grows_with_the_step() {
        let mut average = Average::new(0.9, &[vec![100.0]]);
        // The distance to 1 shrinks from 99 by 2/11, 3/12, 4/13.
        for (step, expected) in [(1, 19.0), (2, 5.5), (3, 1.0 + 18.0 / 13.0)] {
            average.follow(step, &[vec![1.0]]);
            let found = average.values[0][0];
            assert!((found - expected).abs() < 1e-5, "step {step}: {found}");
        }
        (4..100).for_each(|step| average.follow(step, &[vec![1.0]]));
        assert!((average.values[0][0] - 1.0).abs() < 1e-5, "the start is forgotten");
    }

    #[test]
    fn late_steps_have_the_decay_that_was_asked_for() {
        for (decay, step, expected) in [(0.5, 1000, 0.5), (0.9, 80, 0.1), (0.9, 1000, 0.1)] {
            let mut average = Average::new(decay, &[vec![0.0]]);
            average.follow(step, &[vec![1.0]]);
            let found = average.values[0][0];
            assert!((found - expected).abs() < 1e-7, "decay {decay}, step {step}: {found}");
        }
    }

    #[test]
    fn an_average_on_a_device_is_that_of_the_host() {
        let device = Device::flex();
        let start = [vec![1.0, -2.0, 3.0], vec![0.5]];
        let mut on_host = Average::new(0.8, &start);
        let mut on_device = on_host.clone();
        for step in 1..20 {
            let values =
                start.clone().map(|values| values.iter().map(|v| v * step as f32).collect());
            on_host.follow(step, &values);
            let values = values.map(|values: Vec<f32>| row(values, &device)).to_vec();
            on_device.follow_on_device(step, values, &device);
        }
        assert!(on_device.values.is_empty(), "nothing is left on the host");
        let found: Vec<Vec<f32>> = on_device.on_device.unwrap().iter().map(read).collect();
        assert_eq!(found, on_host.values);
    }
}
