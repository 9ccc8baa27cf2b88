//! How parameters start.

use burn::{
    module::Param,
    tensor::{Device, Tensor, TensorData},
};
use omma_routing::Seed;
use rand::RngExt;
use rand_distr::StandardNormal;

/// Uniform with the variance of Glorot and Bengio: `±√(6 / (inputs + outputs))`.
pub(crate) fn xavier<const R: usize>(
    shape: [usize; R],
    (inputs, outputs): (usize, usize),
    seed: Seed,
    device: &Device,
) -> Param<Tensor<R>> {
    let bound = (6.0 / (inputs + outputs) as f32).sqrt();
    let mut rng = seed.rng();
    parameter(shape, device, || rng.random_range(-bound..=bound))
}

/// Normal with the given standard deviation.
pub(crate) fn normal<const R: usize>(
    shape: [usize; R],
    deviation: f32,
    seed: Seed,
    device: &Device,
) -> Param<Tensor<R>> {
    let mut rng = seed.rng();
    parameter(shape, device, || rng.sample::<f32, _>(StandardNormal) * deviation)
}

fn parameter<const R: usize>(
    shape: [usize; R],
    device: &Device,
    mut draw: impl FnMut() -> f32,
) -> Param<Tensor<R>> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| draw()).collect();
    Param::from_tensor(Tensor::from_data(TensorData::new(values, shape), device))
}
