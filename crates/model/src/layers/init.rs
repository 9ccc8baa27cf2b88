//! How parameters start. Values are drawn when a parameter is first used, so a model whose
//! parameters come from a file never draws them.

use burn::{
    module::{Param, ParamId},
    tensor::{Device, Shape, Tensor, TensorData},
};
use omma_base::Seed;
use rand::{Rng, RngExt};
use rand_distr::StandardNormal;

use crate::config::ExpertStart;

/// Uniform with the variance of Glorot and Bengio: `±√(6 / (inputs + outputs))`.
pub(crate) fn xavier<const R: usize>(
    shape: [usize; R],
    (inputs, outputs): (usize, usize),
    seed: Seed,
    device: &Device,
) -> Param<Tensor<R>> {
    let bound = (6.0 / (inputs + outputs) as f32).sqrt();
    parameter(shape, device, seed, move |rng| rng.random_range(-bound..=bound))
}

/// The matrices of several experts, `[E, inputs, outputs]`, each as [`xavier`] draws one.
pub(crate) fn xavier_of_experts(
    [experts, inputs, outputs]: [usize; 3],
    ExpertStart { shared, noise }: ExpertStart,
    seed: Seed,
    device: &Device,
) -> Param<Tensor<3>> {
    let bound = (6.0 / (inputs + outputs) as f32).sqrt();
    let shape = [experts, inputs, outputs];
    lazy(shape, device, move |device| {
        let drawn = if shared { 1 } else { experts };
        let mut rng = seed.rng();
        let draw = || rng.random_range(-bound..=bound);
        let values: Vec<f32> =
            std::iter::repeat_with(draw).take(drawn * inputs * outputs).collect();
        let mut values = values.repeat(experts / drawn);
        if noise > 0.0 {
            let mut rng = seed.named("noise").rng();
            let mut draw = || rng.sample::<f32, _>(StandardNormal) * noise;
            values.iter_mut().for_each(|value| *value += draw());
        }
        Tensor::from_data(TensorData::new(values, shape), device)
    })
}

/// Normal around a mean with the given standard deviation.
pub(crate) fn normal_around<const R: usize>(
    shape: [usize; R],
    (mean, deviation): (f32, f32),
    seed: Seed,
    device: &Device,
) -> Param<Tensor<R>> {
    parameter(shape, device, seed, move |rng| {
        mean + rng.sample::<f32, _>(StandardNormal) * deviation
    })
}

/// Normal with the given standard deviation.
pub(crate) fn normal<const R: usize>(
    shape: [usize; R],
    deviation: f32,
    seed: Seed,
    device: &Device,
) -> Param<Tensor<R>> {
    normal_around(shape, (0.0, deviation), seed, device)
}

/// −1 or 1.
pub(crate) fn random_sign<const R: usize>(
    shape: [usize; R],
    seed: Seed,
    device: &Device,
) -> Param<Tensor<R>> {
    parameter(shape, device, seed, |rng| if rng.random::<bool>() { 1.0 } else { -1.0 })
}

/// The same value everywhere.
pub(crate) fn constant<const R: usize>(
    shape: [usize; R],
    value: f32,
    device: &Device,
) -> Param<Tensor<R>> {
    lazy(shape, device, move |device| Tensor::full(shape, value, device))
}

fn parameter<const R: usize>(
    shape: [usize; R],
    device: &Device,
    seed: Seed,
    draw: impl Fn(&mut dyn Rng) -> f32 + Send + Sync + 'static,
) -> Param<Tensor<R>> {
    lazy(shape, device, move |device| {
        let mut rng = seed.rng();
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| draw(&mut rng)).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    })
}

fn lazy<const R: usize>(
    shape: [usize; R],
    device: &Device,
    make: impl FnOnce(&Device) -> Tensor<R> + Send + Sync + 'static,
) -> Param<Tensor<R>> {
    let start = move |device: &Device, grad: bool| make(device).set_require_grad(grad);
    Param::uninitialized(ParamId::new(), start, device.clone(), true, Shape::from(shape))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of a parameter, and their mean and standard deviation.
    fn drawn<const R: usize>(parameter: &Param<Tensor<R>>) -> (Vec<f32>, f64, f64) {
        let values: Vec<f32> = parameter.val().try_into_vec_as().unwrap();
        let (mean, deviation) = moments(&values);
        (values, mean, deviation)
    }

    fn moments(values: &[f32]) -> (f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let squares = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
        (mean, (squares / count).sqrt())
    }

    /// Uniform between `±√(6 / (inputs + outputs))`, whose deviation is the bound over √3.
    fn assert_xavier(values: &[f32], (inputs, outputs): (usize, usize)) {
        let bound = (6.0 / (inputs + outputs) as f64).sqrt();
        let largest = f64::from(values.iter().fold(0.0, |most: f32, v| most.max(v.abs())));
        assert!(largest <= bound * 1.000_001, "{largest} is beyond {bound}");
        assert!(largest > 0.99 * bound, "{largest} does not come near {bound}");
        let (mean, deviation) = moments(values);
        assert!(mean.abs() < 0.05 * bound, "{mean} is not zero");
        let expected = bound / 3_f64.sqrt();
        assert!((deviation / expected - 1.0).abs() < 0.04, "{deviation}, expected {expected}");
    }

    #[test]
    fn xavier_has_bound_and_deviation_of_its_fans() {
        let device = Device::flex();
        for fans in [(40, 60), (64, 24), (24, 64)] {
            let weight = xavier([fans.0, fans.1], fans, Seed::new(3), &device);
            assert_xavier(&drawn(&weight).0, fans);
        }
        // The fans need not be the shape: queries, keys and values are three square matrices.
        let weight = xavier([24, 72], (24, 24), Seed::new(3), &device);
        assert_xavier(&drawn(&weight).0, (24, 24));
    }

    #[test]
    fn xavier_of_experts_uses_fans_of_one_expert() {
        let (device, shape) = (Device::flex(), [5, 30, 70]);
        let start = ExpertStart { shared: false, noise: 0.0 };
        let (values, ..) = drawn(&xavier_of_experts(shape, start, Seed::new(3), &device));
        let experts: Vec<&[f32]> = values.chunks_exact(30 * 70).collect();
        assert_eq!(experts.len(), 5);
        for (number, expert) in experts.iter().enumerate() {
            assert_xavier(expert, (30, 70));
            assert!(experts[..number].iter().all(|other| other[..9] != expert[..9]));
        }
    }

    #[test]
    fn shared_experts_start_equal_up_to_their_noise() {
        let device = Device::flex();
        let experts = |noise| {
            let start = ExpertStart { shared: true, noise };
            drawn(&xavier_of_experts([3, 30, 70], start, Seed::new(3), &device)).0
        };
        let (equal, noisy) = (experts(0.0), experts(0.01));
        let (first, others) = equal.split_at(30 * 70);
        assert_xavier(first, (30, 70));
        assert!(others == [first, first].concat());
        let noise: Vec<f32> = noisy.iter().zip(&equal).map(|(a, b)| a - b).collect();
        for expert in noise.chunks_exact(30 * 70) {
            let (mean, deviation) = moments(expert);
            assert!(mean.abs() < 0.001 && (deviation / 0.01 - 1.0).abs() < 0.05, "{deviation}");
        }
        assert!(noise[..9] != noise[30 * 70..][..9]);
    }

    #[test]
    fn normal_has_its_mean_and_deviation() {
        let device = Device::flex();
        let (values, mean, deviation) = drawn(&normal([60, 70], 0.02, Seed::new(3), &device));
        assert!((deviation / 0.02 - 1.0).abs() < 0.04 && mean.abs() < 0.001, "{mean}, {deviation}");
        // Of a normal distribution 68.3 % are within one standard deviation.
        let within = values.iter().filter(|v| v.abs() < 0.02).count() as f64 / 4200.0;
        assert!((within - 0.683).abs() < 0.03, "{within}");
        let around = normal_around([60, 70], (1.0, 0.5), Seed::new(3), &device);
        let (_, mean, deviation) = drawn(&around);
        assert!((mean - 1.0).abs() < 0.03 && (deviation - 0.5).abs() < 0.02, "{mean}, {deviation}");
    }

    #[test]
    fn random_signs_are_balanced() {
        let (values, mean, _) = drawn(&random_sign([4000], Seed::new(3), &Device::flex()));
        assert!(values.iter().all(|v| v.abs() == 1.0) && mean.abs() < 0.06, "{mean}");
    }
}
