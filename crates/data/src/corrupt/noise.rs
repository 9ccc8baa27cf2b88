//! Noise.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, Poisson, StandardNormal};

use super::Canvas;

pub(super) fn gaussian(canvas: Canvas, step: usize, small: bool, rng: &mut impl Rng) -> Canvas {
    let deviation = match small {
        true => [0.04, 0.06, 0.08, 0.09, 0.10],
        false => [0.08, 0.12, 0.18, 0.26, 0.38],
    }[step];
    let mut canvas = canvas;
    for value in canvas.values.iter_mut().flatten() {
        *value += rng.sample::<f32, _>(StandardNormal) * deviation;
    }
    canvas
}

pub(super) fn shot(canvas: Canvas, step: usize, small: bool, rng: &mut impl Rng) -> Canvas {
    let photons: f32 = match small {
        true => [500.0, 250.0, 100.0, 75.0, 50.0],
        false => [60.0, 25.0, 12.0, 5.0, 3.0],
    }[step];
    let mut canvas = canvas;
    for value in canvas.values.iter_mut().flatten() {
        let mean = (*value * photons).max(1e-3);
        *value = Poisson::new(mean).map_or(mean, |poisson| poisson.sample(rng)) / photons;
    }
    canvas
}

pub(super) fn impulse(canvas: Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let share = [0.01, 0.03, 0.06, 0.10, 0.17][step];
    let mut canvas = canvas;
    for value in canvas.values.iter_mut().flatten() {
        if rng.random_bool(share) {
            *value = f32::from(u8::from(rng.random::<bool>()));
        }
    }
    canvas
}
