//! Batches. Their order depends on the seed alone: not on the number of workers, and not on where a run
//! was interrupted.

mod bad_files;
mod eval;
mod train;
mod workers;

pub use self::{
    bad_files::BadFiles,
    eval::{Change, EvalLoader},
    train::{Position, TrainLoader, TrainOptions},
};

use crate::picture::Picture;

/// Images and what they are, ready for a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// `[B, side, side, 3]`, normalised.
    pub pixels: Vec<f32>,
    /// `[B, classes]`: rows add up to 1.
    pub targets: Vec<f32>,
    /// `[B]`: the class of every image; of a mixed one, that of its own part.
    pub labels: Vec<usize>,
    /// `[B]`: which sample of the data set every image is.
    pub indices: Vec<usize>,
    /// Side of the images.
    pub side: usize,
}

impl Batch {
    /// Images in it.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// What pixels become: `(x / 255 - mean) / deviation`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pixels {
    /// Side of the images.
    pub side: usize,
    /// Per channel.
    pub mean: [f32; 3],
    /// Per channel.
    pub deviation: [f32; 3],
}

impl Pixels {
    /// `[side, side, 3]`, appended. A picture of another size is cut in the middle and resized.
    pub fn write(&self, picture: &Picture, to: &mut Vec<f32>) {
        if (picture.width, picture.height) != (self.side, self.side) {
            return self.write(&picture.centre_crop(self.side, 1.0), to);
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
        let pixels = Pixels { side: 2, mean: [0.0, 0.5, 1.0], deviation: [1.0, 0.5, 0.25] };
        let mut values = vec![7.0];
        pixels.write(&Picture::filled(2, 2, [0, 255, 51]), &mut values);
        assert_eq!(values.len(), 1 + 12);
        assert_eq!(values[0], 7.0);
        for (value, expected) in values[1..4].iter().zip([0.0, 1.0, -3.2]) {
            assert!((value - expected).abs() < 1e-5, "{value} is not {expected}");
        }
        pixels.write(&Picture::filled(5, 9, [3; 3]), &mut values);
        assert_eq!(values.len(), 1 + 24);
    }
}
