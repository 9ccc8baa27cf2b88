//! One prediction per patch, and from patches to pixels.

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData, activation::log_softmax},
};
use omma_base::{Resolution, transfer};

use crate::{
    config::{ModelConfig, SegmenterConfig},
    layers::Dense,
    predictions::Predictions,
};

/// A linear classifier of every patch of every member's copy (paper 003 §5: "a linear layer is trained to predict
/// class logits from the patch tokens").
#[derive(Module, Debug)]
pub struct Segmenter {
    /// From the features of a patch to logits.
    pub patches: Dense,
    /// Tokens in front of the patches.
    #[module(skip)]
    prefix: usize,
}

impl Segmenter {
    pub(super) fn new(config: &SegmenterConfig, model: &ModelConfig, device: &Device) -> Self {
        Self {
            patches: Dense::zeros(model.encoder.width, config.classes, device),
            prefix: model.image.prefix_tokens(),
        }
    }

    /// - `tokens`: `[B·M, T, D]`, `members` copies of an image next to each other
    /// - returns: `[M, B, D]`, the mean of an image's patches; and what is predicted of each of its `P` patches,
    ///   `[M, B·P, classes]`, row by row
    pub fn forward(&self, tokens: Tensor<3>, members: usize) -> (Tensor<3>, Predictions) {
        let [rows, length, width] = tokens.dims();
        let (batch, patches) = (rows / members, length - self.prefix);
        let tokens = tokens.slice([0..rows, self.prefix..length, 0..width]);
        let features = tokens.clone().mean_dim(1).reshape([batch, members, width]).swap_dims(0, 1);
        let logits = self.patches.forward(tokens);
        let [_, _, classes] = logits.dims();
        let logits = match members {
            1 => logits.reshape([1, batch * patches, classes]),
            _ => logits.reshape([batch, members, patches, classes]).swap_dims(0, 1).reshape([
                members,
                batch * patches,
                classes,
            ]),
        };
        (features, Predictions { logits })
    }
}

/// Logits of patches, bilinearly interpolated to pixels with half-pixel centres (`align_corners = false`).
///
/// - `logits`: `[N, rows · columns, classes]` of a grid of `(rows, columns)`
/// - returns: `[N, classes, W, H]`: pixels column by column, as [`interpolated`] has them
pub fn upsampled(logits: Tensor<3>, grid: (usize, usize), to: Resolution) -> Tensor<4> {
    let (rows, columns) = grid;
    let [images, _, classes] = logits.dims();
    let planes = logits.swap_dims(1, 2).reshape([images, classes, rows, columns]);
    interpolated(planes, (to.height, to.width))
}

/// Planes at another size, bilinearly with half-pixel centres, and turned over: by two products, each of which
/// leaves the side that it has made in front. Twice gives planes as they were.
///
/// - `planes`: `[N, classes, rows, columns]`
/// - `to`: rows and columns of the result
/// - returns: `[N, classes, columns, rows]`
pub fn interpolated(planes: Tensor<4>, to: (usize, usize)) -> Tensor<4> {
    let [images, classes, rows, columns] = planes.dims();
    let (to_rows, to_columns) = to;
    let count = images * classes;
    let device = planes.device();
    let across = Tensor::<2>::from_data(interpolation(columns, to_columns), &device);
    let down = Tensor::<2>::from_data(interpolation(rows, to_rows), &device);
    planes
        .reshape([count * rows, columns])
        .matmul(across)
        .reshape([count, rows, to_columns])
        .swap_dims(1, 2)
        .reshape([count * to_columns, rows])
        .matmul(down)
        .reshape([images, classes, to_columns, to_rows])
}

/// `[from, to]`: how much of each of `from` values is in each of `to` between them.
fn interpolation(from: usize, to: usize) -> TensorData {
    let mut weights = vec![0.0_f32; from * to];
    for place in 0..to {
        let at = ((place as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0);
        let low = (at as usize).min(from - 1);
        let high = (low + 1).min(from - 1);
        let share = (at - low as f64).clamp(0.0, 1.0);
        weights[low * to + place] += (1.0 - share) as f32;
        weights[high * to + place] += share as f32;
    }
    transfer::brought(&weights);
    TensorData::new(weights, [from, to])
}

/// `[1]`: the mean cross-entropy of the pixels that count; 0 where none does.
///
/// - `logits`: `[N, classes, W, H]`
/// - `labels`: the class of every pixel, `[N, W, H]`; nothing for one that is ignored
pub fn pixel_cross_entropy(
    logits: Tensor<4>,
    labels: impl Iterator<Item = Option<usize>>,
) -> Tensor<1> {
    let [images, classes, width, height] = logits.dims();
    let device = logits.device();
    let (labels, counts): (Vec<i32>, Vec<f32>) =
        labels.map(|label| label.map_or((0, 0.0), |label| (label as i32, 1.0))).unzip();
    let counted: f32 = counts.iter().sum();
    let shape = [images, 1, width * height];
    transfer::brought(&labels);
    transfer::brought(&counts);
    let labels = Tensor::<3, Int>::from_data(TensorData::new(labels, shape), &device);
    let counts = Tensor::<3>::from_data(TensorData::new(counts, shape), &device);
    let logs = log_softmax(logits.reshape([images, classes, width * height]), 1);
    -(logs.gather(1, labels) * counts).sum() / f64::from(counted.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition for one value: `PyTorch`'s `interpolate(mode="bilinear", align_corners=False)`.
    fn value(
        grid: &[f32],
        (rows, columns): (usize, usize),
        to: Resolution,
        x: usize,
        y: usize,
    ) -> f32 {
        let source = |place: usize, from: usize, to: usize| {
            let at = ((place as f32 + 0.5) * from as f32 / to as f32 - 0.5).max(0.0);
            let low = (at.floor() as usize).min(from - 1);
            (low, (low + 1).min(from - 1), at - low as f32)
        };
        let (left, right, across) = source(x, columns, to.width);
        let (top, bottom, down) = source(y, rows, to.height);
        let at = |row: usize, column: usize| grid[row * columns + column];
        (1.0 - down) * ((1.0 - across) * at(top, left) + across * at(top, right))
            + down * ((1.0 - across) * at(bottom, left) + across * at(bottom, right))
    }

    #[test]
    fn patches_become_pixels_by_their_neighbours() {
        let device = Device::flex();
        let (grid, classes) = ((3, 5), 2);
        let values: Vec<f32> = (0..30).map(|place| ((place * 7) % 11) as f32 - 4.0).collect();
        let logits = TensorData::new(values.clone(), [1, 15, classes]);
        for to in [(3, 5), (12, 20), (7, 11), (2, 3)].map(|(h, w)| Resolution::new(h, w)) {
            let pixels = upsampled(Tensor::from_data(logits.clone(), &device), grid, to);
            assert_eq!(pixels.dims(), [1, classes, to.width, to.height]);
            let pixels: Vec<f32> = pixels.try_into_vec_as().unwrap();
            for class in 0..classes {
                let plane: Vec<f32> = values.iter().skip(class).step_by(classes).copied().collect();
                for (x, y) in (0..to.width).flat_map(|x| (0..to.height).map(move |y| (x, y))) {
                    let found = pixels[(class * to.width + x) * to.height + y];
                    let expected = value(&plane, grid, to, x, y);
                    assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn pixels_that_are_ignored_neither_cost_nor_count() {
        let device = Device::flex();
        let logits = TensorData::new(vec![1.0_f32, -2.0, 0.5, 3.0, 0.0, 1.0], [1, 2, 1, 3]);
        let logits = Tensor::<4>::from_data(logits, &device);
        let loss = |labels: [Option<usize>; 3]| {
            pixel_cross_entropy(logits.clone(), labels.into_iter()).into_scalar::<f32>()
        };
        let own = |right: f32, wrong: f32| (1.0 + (wrong - right).exp()).ln();
        let expected = (own(1.0, 3.0) + own(1.0, 0.5)) / 2.0;
        assert!((loss([Some(0), None, Some(1)]) - expected).abs() < 1e-6);
        assert_eq!(loss([None; 3]), 0.0);
    }
}
