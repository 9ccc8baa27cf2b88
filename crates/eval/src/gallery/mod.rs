//! Pictures for a page, which its record does not hold: a page is made of its record alone, or of its record
//! and a [`Gallery`].
//!
//! | file | pictures of |
//! |---|---|
//! | `predictions.rs` | mistakes, unsure predictions, classes, pairs of classes that are taken for each other |
//! | `corruption.rs` | the corruption that does most harm, severity by severity |
//! | `experts.rs`, `patches.rs` | what experts take, found in the test's one pass; the patches, read again |
//! | `retrieval.rs` | texts and the images that they find |
//! | `segmentation.rs` | classes of pixels, and the experts of patches |
//! | `thumbnails.rs` | how small a picture is |

mod corruption;
mod experts;
mod patches;
mod predictions;
mod retrieval;
mod segmentation;
mod thumbnails;

use omma_base::Resolution;
use omma_report::PictureRow;

pub use self::experts::Experts;
pub(crate) use self::experts::{Layer, ModelExperts, Patch, Taken, keep_strongest};
pub(crate) use self::{
    corruption::{CorruptionPictures, worst_corruption},
    patches::{ExpertPictures, LayerPictures},
    predictions::PredictionPictures,
    retrieval::RetrievalPictures,
    segmentation::{Shown, legend},
};
use crate::{
    protocols::{contrast::Contrast, test::Test},
    stream::Images,
};

/// The pictures of one evaluation. What there is none of is not shown.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gallery {
    pub(crate) predictions: PredictionPictures,
    pub(crate) experts: ExpertPictures,
    pub(crate) corruption: Option<CorruptionPictures>,
    pub(crate) retrieval: RetrievalPictures,
    pub(crate) segmentation: Vec<PictureRow>,
}

impl Gallery {
    /// Reads what a test has found worth showing.
    ///
    /// - `images`: what was tested by
    /// - `resolution`: what the models see of it
    pub fn of(test: &Test, experts: &Experts, images: &Images, resolution: Resolution) -> Self {
        Self {
            predictions: PredictionPictures::of(test, images.data.as_ref(), resolution),
            experts: ExpertPictures::of(experts, images.data.as_ref(), resolution),
            ..Self::default()
        }
    }

    pub(crate) fn with_corruption(self, corruption: Option<CorruptionPictures>) -> Self {
        Self { corruption, ..self }
    }

    pub(crate) fn with_segmentation(self, shown: &[Shown]) -> Self {
        Self { segmentation: shown.iter().map(Shown::row).collect(), ..self }
    }

    pub(crate) fn with_retrieval(self, found: &Contrast, resolution: Resolution) -> Self {
        Self { retrieval: RetrievalPictures::of(found, resolution), ..self }
    }
}
