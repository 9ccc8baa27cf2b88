//! What comes out: everything that tokens become, one file each.

mod classifier;
mod pooling;

use burn::{module::Module, tensor::Device};
pub use classifier::Classifier;
use omma_base::Seed;
pub use pooling::AttentionPooling;

use crate::config::{HeadConfig, ModelConfig};

/// What a model makes of its tokens.
#[derive(Module, Debug)]
pub enum Head {
    /// One prediction per image.
    Classifier(Classifier),
}

impl Head {
    /// The head of a model.
    pub(crate) fn new(config: &ModelConfig, seed: Seed, device: &Device) -> Self {
        let HeadConfig::Classifier(classifier) = &config.head;
        Self::Classifier(Classifier::new(classifier, config, seed, device))
    }
}
