//! Blur.

use rand::{Rng, RngExt};

use super::Canvas;

/// A disk with a soft edge.
pub(super) fn defocus(canvas: &Canvas, step: usize) -> Canvas {
    let radius = [0.7, 1.0, 1.3, 1.7, 2.2][step] * canvas.unit().sqrt().max(1.0);
    let reach = radius.ceil() as isize + 1;
    let mut kernel = Vec::new();
    for dy in -reach..=reach {
        for dx in -reach..=reach {
            let distance = (dx as f32).hypot(dy as f32);
            let weight = (radius + 0.5 - distance).clamp(0.0, 1.0);
            if weight > 0.0 {
                kernel.push((dx, dy, weight));
            }
        }
    }
    canvas.convolved(&kernel)
}

fn gaussian_kernel(deviation: f32) -> Vec<(isize, isize, f32)> {
    let reach = (3.0 * deviation).ceil() as isize;
    let mut kernel = Vec::new();
    for dy in -reach..=reach {
        for dx in -reach..=reach {
            let square = (dx * dx + dy * dy) as f32;
            kernel.push((dx, dy, (-square / (2.0 * deviation * deviation)).exp()));
        }
    }
    kernel
}

/// Smoothed, then neighbours exchanged at random, then smoothed.
pub(super) fn glass(canvas: Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let (deviation, reach, rounds) =
        [(0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 2), (0.8, 2, 3), (0.9, 3, 3)][step];
    let unit = canvas.unit().sqrt().max(1.0);
    let reach = (reach as f32 * unit).round() as i32;
    let kernel = gaussian_kernel(deviation * unit);
    let mut canvas = canvas.convolved(&kernel);
    for _ in 0..rounds {
        for y in 0..canvas.height as isize {
            for x in 0..canvas.width as isize {
                let mut shift = || rng.random_range(-reach..=reach) as isize;
                let other_x = (x + shift()).clamp(0, canvas.width as isize - 1);
                let other_y = (y + shift()).clamp(0, canvas.height as isize - 1);
                let width = canvas.width as isize;
                canvas.values.swap((y * width + x) as usize, (other_y * width + other_x) as usize);
            }
        }
    }
    canvas.convolved(&kernel)
}

/// Along a line of a random direction.
pub(super) fn motion(canvas: &Canvas, step: usize, rng: &mut impl Rng) -> Canvas {
    let length = [2.0, 3.0, 4.0, 5.5, 7.0][step] * canvas.unit();
    let (sin, cos) = rng.random_range(-45f32..45.0).to_radians().sin_cos();
    let samples = (length * 2.0).ceil() as usize + 1;
    let steps: Vec<Canvas> = (0..samples)
        .map(|i| {
            let along = length * (i as f32 / (samples - 1) as f32 - 0.5);
            canvas.moved(|x, y| (x as f32 + along * cos, y as f32 + along * sin))
        })
        .collect();
    mean(&steps)
}

/// Magnified to several sizes at once.
pub(super) fn zoom(canvas: &Canvas, step: usize) -> Canvas {
    let largest = [1.07, 1.13, 1.18, 1.24, 1.30][step];
    let (mx, my) = ((canvas.width as f32 - 1.0) / 2.0, (canvas.height as f32 - 1.0) / 2.0);
    let steps: Vec<Canvas> = (0..8)
        .map(|i| {
            let factor = 1.0 + (largest - 1.0) * i as f32 / 7.0;
            canvas.moved(|x, y| (mx + (x as f32 - mx) / factor, my + (y as f32 - my) / factor))
        })
        .collect();
    mean(&steps)
}

fn mean(steps: &[Canvas]) -> Canvas {
    let mut result = steps[0].clone();
    for (i, value) in result.values.iter_mut().enumerate() {
        let sum = |c: usize| steps.iter().map(|step| step.values[i][c]).sum::<f32>();
        *value = std::array::from_fn(|c| sum(c) / steps.len() as f32);
    }
    result
}
