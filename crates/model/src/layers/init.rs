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
