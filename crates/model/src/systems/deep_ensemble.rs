//! Several trained models as one.

use burn::tensor::Tensor;
use omma_base::Seed;

use crate::{
    error::{ModelError, Result},
    predictions::Predictions,
    vit::VisionTransformer,
};

/// A deep ensemble: every model sees the same images and has its own say (paper 000 §2.2). Members that
/// are ensembles themselves count with all of theirs.
#[derive(Debug, Clone)]
pub struct DeepEnsemble {
    models: Vec<VisionTransformer>,
}

impl DeepEnsemble {
    /// Fails on no models, or on models with different classes or channels.
    pub fn new(models: Vec<VisionTransformer>) -> Result<Self> {
        let first = models.first().ok_or(ModelError::EmptyEnsemble)?.config().clone();
        for model in &models {
            let other = model.config();
            let pairs = [
                ("the number of classes", first.classes(), other.classes()),
                ("the number of channels", first.image.channels, other.image.channels),
            ];
            if let Some((what, first, other)) = pairs.into_iter().find(|(_, a, b)| a != b) {
                return Err(ModelError::Ensemble { what, first, other });
            }
        }
        Ok(Self { models })
    }

    /// The models.
    pub fn models(&self) -> &[VisionTransformer] {
        &self.models
    }

    /// - `images`: `[B, H, W, channels]`
    /// - `seed`: as for [`VisionTransformer::predict`]; every model draws from a stream of its own
    /// - returns: the predictions of all members of all models, `[ΣM, B, classes]`
    pub fn predict(&self, images: Tensor<4>, seed: Seed) -> Result<Predictions> {
        let logits = self.models.iter().zip(0..).map(|(model, number)| {
            Ok(model.predict(images.clone(), seed.numbered(number))?.logits)
        });
        Ok(Predictions { logits: Tensor::cat(logits.collect::<Result<_>>()?, 0) })
    }
}
