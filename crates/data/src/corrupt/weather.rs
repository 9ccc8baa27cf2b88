//! Snow, frost, fog, and too much light.

use rand::{Rng, RngExt};
use rand_distr::StandardNormal;

use super::Canvas;

/// Cloudy values in `0..=1` by midpoint displacement (the "plasma" of the benchmark).
fn plasma(width: usize, height: usize, decay: f32, rng: &mut impl Rng) -> Vec<f32> {
    let side = width.max(height).next_power_of_two().max(2);
    let mut map = vec![0.0f32; side * side];
    let at = |x: usize, y: usize| (y % side) * side + x % side;
    let mut step = side;
    let mut wobble = 1.0f32;
    while step >= 2 {
        let half = step / 2;
        for y in (0..side).step_by(step) {
            for x in (0..side).step_by(step) {
                let corners = map[at(x, y)]
                    + map[at(x + step, y)]
                    + map[at(x, y + step)]
                    + map[at(x + step, y + step)];
                map[at(x + half, y + half)] = corners / 4.0 + wobble * rng.random_range(-1.0..1.0);
            }
        }
        for y in (0..side).step_by(half) {
            let first = if (y / half).is_multiple_of(2) { half } else { 0 };
            for x in (first..side).step_by(step) {
                let around = map[at(x + half, y)]
                    + map[at(x + side - half, y)]
                    + map[at(x, y + half)]
                    + map[at(x, y + side - half)];
                map[at(x, y)] = around / 4.0 + wobble * rng.random_range(-1.0..1.0);
            }
        }
        wobble /= decay;
        step = half;
    }
    let low = map.iter().copied().fold(f32::INFINITY, f32::min);
    let high = map.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = (high - low).max(1e-6);
    (0..width * height).map(|i| (map[at(i % width, i / width)] - low) / range).collect()
}

pub(super) fn fog(mut canvas: Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let (amount, decay) = [(0.3, 2.6), (0.6, 2.3), (0.9, 2.1), (1.3, 1.9), (1.8, 1.7)][step];
    let cloud = plasma(canvas.width, canvas.height, decay, rng);
    let brightest = canvas.values.iter().flatten().copied().fold(0.0, f32::max);
    let scale = brightest / (brightest + amount).max(1e-6);
    for (value, cloud) in canvas.values.iter_mut().zip(cloud) {
        *value = value.map(|v| (v + amount * cloud) * scale);
    }
    canvas
}

/// Crystals that grow from the edges, drawn from clouds of two sizes.
pub(super) fn frost(mut canvas: Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let (keep, add) = [(0.95, 0.2), (0.9, 0.35), (0.82, 0.48), (0.75, 0.6), (0.68, 0.72)][step];
    let coarse = plasma(canvas.width, canvas.height, 2.2, rng);
    let fine = plasma(canvas.width, canvas.height, 1.4, rng);
    let (width, height) = (canvas.width as f32, canvas.height as f32);
    for (i, value) in canvas.values.iter_mut().enumerate() {
        let (x, y) = ((i % canvas.width) as f32 / width, (i / canvas.width) as f32 / height);
        let edge = ((x - 0.5).abs().max((y - 0.5).abs()) * 2.0).powi(2);
        // Where a cloud passes its middle height, there is a vein.
        let vein = |cloud: f32| (1.0 - (2.0 * cloud - 1.0).abs() * 4.0).max(0.0);
        let veins = vein(coarse[i]).max(0.8 * vein(fine[i]));
        let ice = (0.35 * coarse[i] + 0.25 * fine[i] + 0.7 * veins) * (0.35 + 0.65 * edge);
        let tint = [0.82, 0.92, 1.0];
        *value = std::array::from_fn(|c| keep * value[c] + add * ice * tint[c]);
    }
    canvas
}

/// Flakes that fall aslant, over a paler picture.
pub(super) fn snow(mut canvas: Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let (threshold, pale) = [(2.1, 0.1), (1.9, 0.17), (1.75, 0.24), (1.6, 0.3), (1.45, 0.37)][step];
    let mut flakes = Canvas { values: vec![[0.0; 3]; canvas.values.len()], ..canvas.clone() };
    for value in &mut flakes.values {
        let strength: f32 = rng.sample(StandardNormal);
        *value = [if strength > threshold { 1.0 } else { 0.0 }; 3];
    }
    let length = (2.0 * canvas.unit()).round().max(1.0) as isize;
    let streak: Vec<(isize, isize, f32)> = (0..=length).map(|i| (-i / 2, i, 1.0)).collect();
    let streaks = flakes.convolved(&streak);
    for (value, snow) in canvas.values.iter_mut().zip(&streaks.values) {
        let grey = (0.299 * value[0] + 0.587 * value[1] + 0.114 * value[2]) * 1.5 + 0.5;
        let strength = (snow[0] * 1.6).min(1.0);
        *value = value.map(|v| {
            let faded = (1.0 - pale) * v + pale * v.max(grey.min(1.0));
            faded + strength * (1.0 - faded)
        });
    }
    canvas
}

/// The value of every colour is raised, its hue kept.
pub(super) fn brightness(canvas: Canvas, step: usize) -> Canvas {
    let amount = [0.1, 0.2, 0.3, 0.4, 0.5][step];
    canvas.map(|pixel| {
        let value = pixel.into_iter().fold(0.0, f32::max);
        let raised = (value + amount).min(1.0);
        match value > 1e-4 {
            true => pixel.map(|v| v * raised / value),
            false => [raised; 3],
        }
    })
}
