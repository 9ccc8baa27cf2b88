//! Where patches are: the fixed code, and learned grids at another size.

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::transfer;

/// The sin-cos code of a grid (vmoe, big_vision): with `q = D/4` and `ω_k = 10000^(-k/(q-1))`, patch
/// (row `y`, column `x`) gets `[sin xω, cos xω, sin yω, cos yω]`.
///
/// - returns: `[rows · columns, D]`
pub(crate) fn sincos2d(
    (rows, columns): (usize, usize),
    width: usize,
    device: &Device,
) -> Tensor<2> {
    let quarter = width / 4;
    let frequency = |k: usize| 10_000f64.powf(-(k as f64) / (quarter.max(2) - 1) as f64);
    let frequencies: Vec<f64> = (0..quarter).map(frequency).collect();
    let mut code = Vec::with_capacity(rows * columns * width);
    for y in 0..rows {
        for x in 0..columns {
            for place in [x as f64, y as f64] {
                code.extend(frequencies.iter().map(|w| (place * w).sin() as f32));
                code.extend(frequencies.iter().map(|w| (place * w).cos() as f32));
            }
        }
    }
    transfer::brought(&code);
    Tensor::from_data(TensorData::new(code, [rows * columns, width]), device)
}

/// A grid of vectors at another size, by bicubic interpolation with pixel centres at half integers (as
/// PyTorch does it without aligned corners, which is what DINOv2 uses).
///
/// - `grid`: `[height · width, D]`, of `(height, width)` vectors
/// - returns: `[rows · columns, D]`
pub(crate) fn interpolate(
    grid: Tensor<2>,
    (height, width): (usize, usize),
    (rows, columns): (usize, usize),
) -> Tensor<2> {
    if (rows, columns) == (height, width) {
        return grid;
    }
    let [_, features] = grid.dims();
    let device = grid.device();
    let down = grid.reshape([height, width * features]);
    let down = bicubic(height, rows, &device).matmul(down); // [rows, width · D]
    let across = down.reshape([rows, width, features]).swap_dims(0, 1); // [width, rows, D]
    let across = bicubic(width, columns, &device).matmul(across.reshape([width, rows * features]));
    across.reshape([columns, rows, features]).swap_dims(0, 1).reshape([rows * columns, features])
}

/// `[to, from]`: each output as a weighted sum of the inputs.
fn bicubic(from: usize, to: usize, device: &Device) -> Tensor<2> {
    const A: f64 = -0.75;
    let weight = |distance: f64| {
        let d = distance.abs();
        match d {
            _ if d <= 1.0 => (A + 2.0) * d.powi(3) - (A + 3.0) * d.powi(2) + 1.0,
            _ if d < 2.0 => A * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0),
            _ => 0.0,
        }
    };
    let mut weights = vec![0.0f32; to * from];
    for output in 0..to {
        let centre = (output as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        for tap in -1..=2 {
            let place = centre.floor() + f64::from(tap);
            let input = place.clamp(0.0, (from - 1) as f64) as usize;
            weights[output * from + input] += weight(centre - place) as f32;
        }
    }
    transfer::brought(&weights);
    Tensor::from_data(TensorData::new(weights, [to, from]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: Tensor<2>) -> Vec<f32> {
        tensor.try_into_vec_as().unwrap()
    }

    /// `torch.nn.functional.interpolate(torch.arange(9.).reshape(1, 1, 3, 3), (2, 4), mode="bicubic")`.
    #[test]
    fn interpolation_is_that_of_pytorch() {
        let grid: Vec<f32> = (0..9).map(|i| i as f32).collect();
        let grid = Tensor::from_data(TensorData::new(grid, [9, 1]), &Device::flex());
        let found = values(interpolate(grid, (3, 3), (2, 4)));
        let expected: [f32; 8] =
            [0.50244, 1.10400, 2.04443, 2.64600, 5.35400, 5.95557, 6.89600, 7.49756];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    /// Rows are interpolated by themselves, and columns by themselves, whatever the shape.
    #[test]
    fn a_rectangle_is_interpolated_along_its_own_sides() {
        let line = |length: usize| -> Vec<f32> { (0..length).map(|i| (i * i) as f32).collect() };
        let one = |length: usize, to: usize| {
            let values = TensorData::new(line(length), [length, 1]);
            let grid = Tensor::from_data(values, &Device::flex());
            self::values(interpolate(grid, (1, length), (1, to)))
        };
        let (down, across) = (one(3, 5), one(4, 2));
        let product: Vec<f32> =
            line(3).iter().flat_map(|a| line(4).into_iter().map(move |b| a * b)).collect();
        let grid = Tensor::from_data(TensorData::new(product, [12, 1]), &Device::flex());
        let found = values(interpolate(grid, (3, 4), (5, 2)));
        let expected = down.iter().flat_map(|a| across.iter().map(move |b| a * b));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
    }

    #[test]
    fn a_constant_grid_stays_constant() {
        let grid = Tensor::full([16, 3], 2.5, &Device::flex());
        for value in values(interpolate(grid, (2, 8), (7, 3))) {
            assert!((value - 2.5).abs() < 1e-6);
        }
    }
}
