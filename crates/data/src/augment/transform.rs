//! What is done to one image, and alike to its mask.

use omma_base::Resolution;

use super::{affine::Affine, colour::Recolour, crop::Shift, erase::Patch, truncated::Truncated};
use crate::{mask::Mask, part::Part, picture::Picture};

/// Everything that is done to one image, all choices made. A mask is moved as its picture is; what changes
/// colours or covers them leaves it alone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transform {
    part: Part,
    resolution: Resolution,
    steps: Vec<Step>,
}

/// One of the things that are done to an image after it was cut out; its size stays.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Shift(Shift),
    /// Left and right exchanged.
    Flip,
    Affine(Affine),
    /// As [`Step::Affine`], from the nearest pixel instead of between pixels.
    NearestAffine(Affine),
    Recolour(Recolour),
    Truncated(Truncated),
    Erase(Patch),
}

impl Transform {
    /// A part of an image at a resolution, and nothing else.
    pub(super) fn crop(part: Part, resolution: Resolution) -> Self {
        Self { part, resolution, steps: Vec::new() }
    }

    /// The middle of an image, as for evaluation.
    pub(crate) fn centre(image: Resolution, resolution: Resolution) -> Self {
        Self::crop(Part::centre(image, resolution, 1.0), resolution)
    }

    pub(super) fn then(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.steps.extend(steps);
        self
    }

    pub(crate) fn picture(&self, picture: &Picture) -> Picture {
        let cut = picture.resized_part(self.part, self.resolution);
        self.steps.iter().fold(cut, |picture, step| step.picture(picture))
    }

    pub(crate) fn mask(&self, mask: &Mask) -> Mask {
        let cut = mask.resized_part(self.part, self.resolution);
        self.steps.iter().fold(cut, |mask, step| step.mask(mask))
    }
}

impl Step {
    pub(super) fn picture(&self, picture: Picture) -> Picture {
        let image = picture.resolution();
        match self {
            Self::Shift(shift) => picture.moved(|x, y| shift.from(image, x, y)),
            Self::Flip => picture.moved(|x, y| (image.width - 1 - x, y)),
            Self::Affine(affine) => affine.picture(&picture),
            Self::NearestAffine(affine) => affine.nearest_picture(&picture),
            Self::Recolour(recolour) => recolour.apply(picture),
            Self::Truncated(recolour) => recolour.apply(picture),
            Self::Erase(patch) => patch.cover(picture),
        }
    }

    fn mask(&self, mask: Mask) -> Mask {
        let image = mask.resolution;
        match self {
            Self::Shift(shift) => mask.moved(image, |x, y| Some(shift.from(image, x, y))),
            Self::Flip => mask.moved(image, |x, y| Some((image.width - 1 - x, y))),
            Self::Affine(affine) | Self::NearestAffine(affine) => affine.mask(&mask),
            Self::Recolour(_) | Self::Truncated(_) | Self::Erase(_) => mask,
        }
    }
}
