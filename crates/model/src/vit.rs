//! The vision transformer that every system is a setting of.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use omma_base::{Resolution, Seed};
use omma_routing::{Layout, RouterConfig, Routing, Sequences};

use crate::{
    config::{ImageConfig, ModelConfig, Pooling},
    encoder::{Encoded, Encoder, Stage},
    error::{ModelError, Result},
    heads::Head,
    inputs::{PatchEmbedding, TextTower},
    mode::Mode,
    predictions::Predictions,
};

/// Channels of a picture, as data has them.
const PICTURE_CHANNELS: usize = 3;

/// The modality of images, for routers that tell modalities apart.
pub const IMAGES: usize = 0;

/// Patches, encoder, head; and texts, where they are compared with images (`pairs.rs`).
#[derive(Module, Debug)]
pub struct VisionTransformer {
    /// From pixels to tokens.
    pub embed: PatchEmbedding,
    /// From texts to tokens, of a model that reads.
    pub text: Option<TextTower>,
    /// What tokens pass.
    pub encoder: Encoder,
    /// From tokens to predictions.
    pub head: Head,
    #[module(skip)]
    config: ModelConfig,
}

/// What comes out of a forward pass.
#[derive(Debug)]
pub struct Output {
    /// The members' logits; without a classifier, their features.
    pub predictions: Predictions,
    /// `[M, B, features]`: what the classifier sees.
    pub features: Tensor<3>,
    /// The blocks with experts, and who went where in them.
    pub routings: Vec<(usize, Routing)>,
}

impl Output {
    /// `[1]`: the sum of the layers' auxiliary losses, each the mean over its groups and subsets
    /// (paper 000 App. C.2); nothing if no router pays.
    pub fn auxiliary_loss(&self) -> Option<Tensor<1>> {
        auxiliary_loss(&self.routings)
    }
}

/// `[1]`: the sum of layers' auxiliary losses; nothing if no router pays.
pub(crate) fn auxiliary_loss(routings: &[(usize, Routing)]) -> Option<Tensor<1>> {
    let totals = routings.iter().filter_map(|(_, routing)| routing.losses.total());
    totals.reduce(|sum, total| sum + total)
}

impl ModelConfig {
    /// A model with fresh parameters, drawn when they are first used.
    pub fn init(&self, seed: Seed, device: &Device) -> Result<VisionTransformer> {
        self.check()?;
        let (width, images) = (self.encoder.width, self.images_per_input());
        let normalises = !self.head.normalises_features();
        let embedding = seed.named("embedding");
        Ok(VisionTransformer {
            embed: PatchEmbedding::new(&self.image, width, images, embedding, device),
            text: TextTower::new(self, seed, device)?,
            encoder: self.encoder.init(normalises, seed, device)?,
            head: Head::new(self, seed, device),
            config: self.clone(),
        })
    }
}

impl VisionTransformer {
    /// What this model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Predictions for a batch.
    ///
    /// - `images`: `[B, H, W, channels]`
    /// - `seed`: where dropout and noise come from, for a model whose predictions are drawn
    ///   ([`ModelConfig::prediction_mode`]); give every batch one of its own
    pub fn predict(&self, images: Tensor<4>, seed: Seed) -> Result<Predictions> {
        Ok(self.forward(images, &self.config.prediction_mode(seed))?.predictions)
    }

    /// - `images`: `[B, H, W, channels]`; for MIMO `[B, H, W, channels · M]` with an image for every
    ///   member, or one image for all of them
    pub fn forward(&self, images: Tensor<4>, mode: &Mode) -> Result<Output> {
        self.forward_observed(images, mode, |_, _| {})
    }

    /// The same, showing the tokens of every stage, `[B·M, T, D]`, to `observe`.
    pub fn forward_observed(
        &self,
        images: Tensor<4>,
        mode: &Mode,
        mut observe: impl FnMut(Stage, &Tensor<3>),
    ) -> Result<Output> {
        let tokens = self.embed.forward(self.checked(images)?);
        let [_, length, width] = tokens.dims();
        let (rows, layout) = rows(tokens);
        let encoded =
            self.encoder.forward_observed(rows, layout, mode, |stage, tokens, layout| {
                let images = layout.rows() / length;
                observe(stage, &tokens.clone().reshape([images, length, width]));
            })?;
        Ok(self.decided(encoded, length, mode))
    }

    /// What images are when they enter block `first`: patches, through the blocks below it as in
    /// predictions. These are blocks that the members of an ensemble share.
    ///
    /// - `images`: as for [`Self::forward`]
    /// - returns: `[B, T, D]`
    pub fn trunk(&self, first: usize, images: Tensor<4>) -> Result<Tensor<3>> {
        let tokens = self.embed.forward(self.checked(images)?);
        let shape = tokens.dims();
        let (rows, layout) = rows(tokens);
        Ok(self.encoder.trunk(first, rows, layout)?.reshape(shape))
    }

    /// The rest of a forward pass, from tokens that enter block `first`.
    ///
    /// - `tokens`: `[B, T, D]`, as [`Self::trunk`] gives them
    pub fn forward_from(&self, first: usize, tokens: Tensor<3>, mode: &Mode) -> Result<Output> {
        let [_, length, _] = tokens.dims();
        let (rows, layout) = rows(tokens);
        let encoded = self.encoder.forward_from(first, rows, layout, mode)?;
        Ok(self.decided(encoded, length, mode))
    }

    /// What the classifier would see of images if the encoder ended after so many blocks, for each of
    /// `depths`, in their order.
    ///
    /// - `images`: as for [`Self::forward`]
    /// - returns: `[M, B, features]` of each
    pub fn features_at(
        &self,
        images: Tensor<4>,
        depths: &[usize],
        mode: &Mode,
    ) -> Result<Vec<Tensor<3>>> {
        let tokens = self.embed.forward(self.checked(images)?);
        let [_, length, _] = tokens.dims();
        let (rows, layout) = rows(tokens);
        let mut found = vec![None; depths.len()];
        self.encoder.forward_observed(rows, layout, mode, |stage, tokens, layout| {
            let Stage::Block(index) = stage else { return };
            for (place, _) in depths.iter().enumerate().filter(|(_, depth)| **depth == index + 1) {
                let tokens = self.encoder.normed(tokens.clone());
                let (layout, routings) = (layout.clone(), Vec::new());
                let output = self.decided(Encoded { tokens, layout, routings }, length, mode);
                found[place] = Some(output.features);
            }
        })?;
        let depth = self.encoder.blocks.len();
        let missing = |place: usize| ModelError::Depth { asked: depths[place], depth };
        found
            .into_iter()
            .enumerate()
            .map(|(place, one)| one.ok_or_else(|| missing(place)))
            .collect()
    }

    /// The same parameters, which are not copied, under another router: one that fewer experts serve, for example.
    pub fn rerouted(&self, router: RouterConfig) -> Result<Self> {
        let mut config = self.config.clone();
        config.encoder.moe.as_mut().ok_or(ModelError::NoExperts)?.router = router;
        config.check()?;
        let encoder = self.encoder.clone().rerouted(&config.encoder)?;
        Ok(Self { encoder, config, ..self.clone() })
    }

    /// What the head makes of tokens, `length` of each copy of an image.
    fn decided(&self, encoded: Encoded, length: usize, mode: &Mode) -> Output {
        let Encoded { tokens, layout, routings } = encoded;
        let [rows, width] = tokens.dims();
        let tokens = tokens.reshape([rows / length, length, width]);
        let (features, predictions) = self.head.forward(tokens, layout.members(), mode);
        Output { predictions, features, routings }
    }

    pub(crate) fn checked(&self, images: Tensor<4>) -> Result<Tensor<4>> {
        let ImageConfig { channels, patch, resolution, .. } = self.config.image;
        let members = self.config.images_per_input();
        let [batch, height, width, found] = images.dims();
        if batch == 0 || height < patch || width < patch {
            let (expected, found) = (vec![1, patch, patch], vec![batch, height, width]);
            let what = "images, height and width are at least".to_owned();
            return Err(ModelError::Shape { what, expected, found });
        }
        let grid = |size: Resolution| <[usize; 2]>::from(self.config.image.grid(size));
        let (expected, there) = (grid(resolution), grid(Resolution::new(height, width)));
        if self.config.head.pooling() == Pooling::Flat && expected != there {
            let what = "rows and columns of patches, each with weights of its own".to_owned();
            let (expected, found) = (expected.to_vec(), there.to_vec());
            return Err(ModelError::Shape { what, expected, found });
        }
        // Pictures have three; a model of one sees their mean.
        if channels == 1 && (found == PICTURE_CHANNELS || found == PICTURE_CHANNELS * members) {
            let copies = found / PICTURE_CHANNELS;
            let split = images.reshape([batch, height, width, copies, PICTURE_CHANNELS]);
            return self.checked(split.mean_dim(4).reshape([batch, height, width, copies]));
        }
        match found {
            _ if found == channels * members => Ok(images),
            _ if found == channels => Ok(Tensor::cat(vec![images; members], 3)),
            _ => {
                let what = "channels of the images".to_owned();
                let expected = vec![channels * members];
                Err(ModelError::Shape { what, expected, found: vec![found] })
            }
        }
    }
}

/// Tokens of images `[B, T, D]` as rows, and how these lie.
fn rows(tokens: Tensor<3>) -> (Tensor<2>, Layout) {
    let [count, length, width] = tokens.dims();
    let kind = Sequences { count, tokens: length, modality: Some(IMAGES) };
    (tokens.reshape([count * length, width]), Layout::of(vec![kind]))
}
