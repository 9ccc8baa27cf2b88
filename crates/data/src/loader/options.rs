//! How training batches are made.

use super::Pixels;
use crate::{
    augment::{Augmentation, Mixing},
    error::{DataError, Result},
    targets::TargetKind,
};

/// How training batches are made, apart from their order, which is the seed's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainOptions {
    /// Images per batch.
    pub batch: usize,
    /// How large images are, and how they are normalised.
    pub pixels: Pixels,
    /// What happens to every image.
    pub augmentation: Augmentation,
    /// What happens to every batch.
    pub mixing: Mixing,
    /// What a model is to say of the images. Only classes can be mixed.
    pub targets: TargetKind,
    /// Batches that are made ahead.
    pub prefetch: usize,
    /// Threads that make them.
    pub workers: usize,
    /// The share of files that may be unreadable.
    pub bad_share: f64,
}

impl TrainOptions {
    /// Says what cannot be.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |what: &str| Err(DataError::Options(what.to_owned()));
        if self.batch == 0 {
            return refuse("a batch needs at least one image");
        }
        if self.pixels.resolution.shortest() == 0 {
            return refuse("images need at least one pixel");
        }
        if !self.pixels.deviation.iter().all(|deviation| *deviation > 0.0) {
            return refuse("the deviation of the pixels is above 0 in every channel");
        }
        let mixed = self.mixing.mixup > 0.0 || self.mixing.cutmix > 0.0;
        match self.targets {
            TargetKind::Classes { smoothing } if !(0.0..=1.0).contains(&smoothing) => {
                refuse("label smoothing lies between 0 and 1")
            }
            TargetKind::Masks | TargetKind::Texts if mixed => {
                refuse("mixup and CutMix mix classes; they do not go with masks or captions")
            }
            _ => Ok(()),
        }
    }
}
