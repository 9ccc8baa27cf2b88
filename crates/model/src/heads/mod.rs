//! What comes out: everything that tokens become, one file each.

mod classifier;
mod contrast;
mod pooling;
mod segmenter;

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
pub use classifier::Classifier;
pub use contrast::{Contrast, Projection};
use omma_base::Seed;
pub use pooling::AttentionPooling;
pub use segmenter::{Segmenter, interpolated, pixel_cross_entropy, upsampled};

use crate::{
    config::{HeadConfig, ModelConfig},
    mode::Mode,
    predictions::Predictions,
};

/// What a model makes of its tokens.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "one per model, next to megabytes of values")]
pub enum Head {
    /// One prediction per image.
    Classifier(Classifier),
    /// One prediction per patch.
    Segmenter(Segmenter),
    /// One vector per image and per text.
    Contrast(Contrast),
}

impl Head {
    /// The head of a model.
    pub(crate) fn new(config: &ModelConfig, seed: Seed, device: &Device) -> Self {
        match &config.head {
            HeadConfig::Classifier(classifier) => {
                Self::Classifier(Classifier::new(classifier, config, seed, device))
            }
            HeadConfig::Segmenter(segmenter) => {
                Self::Segmenter(Segmenter::new(segmenter, config, device))
            }
            HeadConfig::Contrast(contrast) => {
                Self::Contrast(Contrast::new(contrast, config, seed, device))
            }
        }
    }

    /// - `tokens`: `[B·M, T, D]`, `members` copies of an image next to each other
    /// - returns: `[M, B, features]`, and what is predicted from it
    pub(crate) fn forward(
        &self,
        tokens: Tensor<3>,
        members: usize,
        mode: &Mode,
    ) -> (Tensor<3>, Predictions) {
        match self {
            Self::Classifier(classifier) => classifier.forward(tokens, members, mode),
            Self::Segmenter(segmenter) => segmenter.forward(tokens, members),
            Self::Contrast(contrast) => contrast.forward(tokens, mode),
        }
    }

    /// What compares images with texts, if it does.
    pub fn contrast(&self) -> Option<&Contrast> {
        match self {
            Self::Classifier(_) | Self::Segmenter(_) => None,
            Self::Contrast(contrast) => Some(contrast),
        }
    }
}
