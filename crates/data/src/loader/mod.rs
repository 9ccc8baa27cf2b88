//! Batches. Their order depends on the seed alone: not on the number of workers, and not on where a run
//! was interrupted.

mod bad_files;
mod eval;
mod masked;
mod options;
mod order;
mod schedule;
mod train;
mod workers;

pub use self::{
    eval::{Change, EvalLoader, transformed_mask},
    masked::{MaskedPicture, MaskedPictures},
    options::TrainOptions,
    order::Order,
    train::{Cursor, TrainLoader, Turns},
};

use omma_base::Resolution;

use crate::{picture::Picture, targets::Targets};

/// The share of files that may be unreadable in evaluations.
const BAD_SHARE: f64 = 0.01;

/// Images and what they are, ready for a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// `[B, H, W, 3]`, normalised.
    pub pixels: Vec<f32>,
    /// What a model is to say of them.
    pub targets: Targets,
    /// `[B]`: which sample of the data set every image is.
    pub indices: Vec<usize>,
    /// `H` and `W`, which are those of all its images.
    pub resolution: Resolution,
}

impl Batch {
    /// Pictures of which nothing is known but how many came before them, cut in the middle.
    pub fn unlabelled(pictures: &[Picture], before: usize, pixels: &Pixels) -> Self {
        let mut values = Vec::with_capacity(pictures.len() * pixels.resolution.pixels() * 3);
        pictures.iter().for_each(|picture| pixels.write(picture, &mut values));
        Self {
            pixels: values,
            targets: Targets::unknown(),
            indices: (before..before + pictures.len()).collect(),
            resolution: pixels.resolution,
        }
    }

    /// Images that are normalised already, of which nothing is known.
    ///
    /// - `pixels`: `[B, H, W, 3]`
    pub fn normalised(pixels: Vec<f32>, resolution: Resolution) -> Self {
        let images = pixels.len() / (resolution.pixels() * 3).max(1);
        Self { pixels, targets: Targets::unknown(), indices: (0..images).collect(), resolution }
    }

    /// `B`.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// `[B]`: the class of every image; empty where the targets are something else.
    pub fn labels(&self) -> &[usize] {
        match &self.targets {
            Targets::Classes { labels, .. } => labels,
            Targets::Masks { .. } | Targets::Texts(_) => &[],
        }
    }
}

/// What pixels become: `(x / 255 - mean) / deviation`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pixels {
    /// What every image is cut and resized to.
    pub resolution: Resolution,
    /// Per channel.
    pub mean: [f32; 3],
    /// Per channel.
    pub deviation: [f32; 3],
}

impl Pixels {
    /// `[H, W, 3]`, appended. A picture of another size is cut in the middle and resized.
    pub(crate) fn write(&self, picture: &Picture, to: &mut Vec<f32>) {
        if picture.resolution() != self.resolution {
            return self.write(&picture.centre_crop(self.resolution, 1.0), to);
        }
        let scale = self.deviation.map(|deviation| 1.0 / (255.0 * deviation));
        let shift: [f32; 3] = std::array::from_fn(|c| self.mean[c] / self.deviation[c]);
        let start = to.len();
        to.resize(start + picture.pixels.len(), 0.0);
        let pairs = to[start..].chunks_exact_mut(3).zip(picture.pixels.chunks_exact(3));
        for (values, pixel) in pairs {
            for c in 0..3 {
                values[c] = f32::from(pixel[c]) * scale[c] - shift[c];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_are_normalised_per_channel() {
        let pixels = Pixels {
            resolution: Resolution::new(2, 3),
            mean: [0.0, 0.5, 1.0],
            deviation: [1.0, 0.5, 0.25],
        };
        let mut values = vec![7.0];
        pixels.write(&Picture::filled(3, 2, [0, 255, 51]), &mut values);
        assert_eq!(values.len(), 1 + 18);
        assert_eq!(values[0], 7.0);
        for (value, expected) in values[1..4].iter().zip([0.0, 1.0, -3.2]) {
            assert!((value - expected).abs() < 1e-5, "{value} is not {expected}");
        }
        pixels.write(&Picture::filled(5, 9, [3; 3]), &mut values);
        assert_eq!(values.len(), 1 + 36);
    }
}
