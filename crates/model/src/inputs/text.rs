//! Texts become tokens.

use burn::{
    module::{Module, Param},
    tensor::{Device, Int, Tensor},
};
use omma_base::{Seed, transfer};

use crate::{
    config::{EncoderConfig, ModelConfig, Padding, TextConfig},
    encoder::Encoder,
    error::Result,
    layers::normal,
};

/// A vector per token of the vocabulary, one per place, and perhaps an encoder of its own.
#[derive(Module, Debug)]
pub struct TextTower {
    /// `[V, D]`.
    pub embedding: Param<Tensor<2>>,
    /// `[L, D]`.
    pub position: Param<Tensor<2>>,
    /// What the tokens of texts pass, where that is not the encoder of images.
    pub encoder: Option<Encoder>,
    #[module(skip)]
    config: TextConfig,
}

impl TextTower {
    /// Embeddings start as Flax draws them, `N(0, 1/D)`, positions as those of patches.
    pub(crate) fn new(model: &ModelConfig, seed: Seed, device: &Device) -> Result<Option<Self>> {
        let Some(config) = &model.text else { return Ok(None) };
        let EncoderConfig { width, .. } = *config.tower.as_ref().unwrap_or(&model.encoder);
        let TextConfig { vocabulary, length, .. } = *config;
        let seed = seed.named("text");
        let deviation = (width as f32).sqrt().recip();
        let tower = config.tower.as_ref().map(|tower| tower.init(true, seed, device));
        Ok(Some(Self {
            embedding: normal([vocabulary, width], deviation, seed.named("embedding"), device),
            position: normal([length, width], 0.02, seed.named("position"), device),
            encoder: tower.transpose()?,
            config: config.clone(),
        }))
    }

    /// How texts become tokens.
    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// - `ids`: `[B, L]`, below the vocabulary
    /// - returns: `[B, L, D]`
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let [batch, length] = ids.dims();
        let [_, width] = self.embedding.dims();
        let words = self.embedding.val().select(0, ids.reshape([batch * length]));
        words.reshape([batch, length, width]) + self.position.val().unsqueeze::<3>()
    }

    /// `[B · L]`: which places are padding that nobody is to see; nothing where all are seen. The first
    /// place of an empty text is.
    pub(crate) fn absent(&self, ids: &Tensor<2, Int>) -> Option<Vec<bool>> {
        let [_, length] = ids.dims();
        (self.config.padding == Padding::Masked).then(|| {
            let ids: Vec<i32> = ids.clone().try_into_vec_as().expect("tokens are integers");
            transfer::fetched(&ids);
            let is_padding = |(place, id): (usize, &i32)| {
                *id == TextConfig::PAD && !place.is_multiple_of(length)
            };
            ids.iter().enumerate().map(is_padding).collect()
        })
    }
}
