//! The vision transformer that every system is a setting of.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use omma_routing::{Layout, Routing, Seed};

use crate::{
    config::{FeedForwardKind, ModelConfig, Pooling, Tiling},
    error::{ModelError, Result},
    layers::{AttentionPooling, Block, Dense, Embedding, MlpConfig, Norm, tile},
    mode::Mode,
    predictions::Predictions,
};

/// Patch embedding, blocks, pooling, classifier.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    /// From pixels to tokens.
    pub embed: Embedding,
    /// The encoder.
    pub blocks: Vec<Block>,
    /// Behind the last block, or behind the pooling.
    pub norm: Norm,
    /// Attention pooling, if tokens are pooled so.
    pub pool: Option<AttentionPooling>,
    /// A hidden representation with tanh, if there is one.
    pub representation: Option<Dense>,
    /// The classifier, if there is one.
    pub head: Option<Dense>,
    #[module(skip)]
    config: ModelConfig,
}

/// What comes out of a forward pass.
#[derive(Debug)]
pub struct Output {
    /// What the members say; without a classifier, their features.
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
        let totals = self.routings.iter().filter_map(|(_, routing)| routing.losses.total());
        totals.reduce(|sum, total| sum + total)
    }
}

/// A place between two parts of the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Behind the embedding.
    Embedded,
    /// Behind a block.
    Block(usize),
    /// Behind the final normalisation.
    Encoded,
}

impl ModelConfig {
    /// A model with fresh parameters, drawn when they are first used.
    pub fn init(&self, seed: Seed, device: &Device) -> Result<VisionTransformer> {
        self.check()?;
        let kinds = self.feed_forwards()?;
        let last_moe = kinds.iter().rposition(|kind| *kind == FeedForwardKind::Moe);
        let multi_pred = self.moe.as_ref().filter(|moe| moe.multi_pred);
        let choices = |block| {
            multi_pred.filter(|_| Some(block) == last_moe).map(|moe| moe.experts_per_token())
        };
        let blocks = kinds.iter().enumerate().map(|(index, kind)| {
            let seed = seed.named("block").numbered(index as u64);
            Block::new(self, *kind, choices(index), seed, device)
        });
        let ModelConfig { width, heads, activation, dropout, .. } = *self;
        let mlp = MlpConfig { width, hidden: self.mlp, activation, dropout };
        let features = self.feature_width();
        let outputs = self.classes * self.mimo.as_ref().map_or(1, |mimo| mimo.members);
        let representation = self
            .representation
            .map(|size| Dense::new(features, size, seed.named("representation"), device));
        let head = (self.classes > 0)
            .then(|| Dense::zeros(self.representation.unwrap_or(features), outputs, device));
        Ok(VisionTransformer {
            embed: Embedding::new(self, seed.named("embedding"), device),
            blocks: blocks.collect::<Result<_>>()?,
            norm: Norm::new(width, device),
            pool: (self.pooling == Pooling::Map)
                .then(|| AttentionPooling::new(mlp, heads, seed.named("pool"), device)),
            representation,
            head,
            config: self.clone(),
        })
    }
}

impl VisionTransformer {
    /// What this model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Predictions for a batch, with dropout where the configuration asks for MC samples.
    ///
    /// - `images`: `[B, H, W, channels]`
    pub fn predict(&self, images: Tensor<4>) -> Result<Predictions> {
        Ok(self.forward(images, &self.config.prediction_mode())?.predictions)
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
        let images = self.checked(images)?;
        let mut x = self.embed.forward(images);
        observe(Stage::Embedded, &x);
        let [batch, tokens, _] = x.dims();
        let mut layout = Layout::new(batch, tokens);
        let mut routings = Vec::new();
        let tiling = self.tiling(mode)?;
        for (index, block) in self.blocks.iter().enumerate() {
            let here = tiling.filter(|tiling| tiling.block == index);
            if let Some(tiling) = here.filter(|tiling| tiling.before_attention) {
                x = tile(x, tiling.members);
                layout = layout.tiled(tiling.members);
            }
            x = block.attend(x);
            if let Some(tiling) = here.filter(|tiling| !tiling.before_attention) {
                x = tile(x, tiling.members);
                layout = layout.tiled(tiling.members);
            }
            let seed = mode.seed().named("block").numbered(index as u64);
            let output = block.feed(x, layout, mode, seed)?;
            (x, layout) = (output.tokens, output.layout);
            routings.extend(output.routing.map(|routing| (index, routing)));
            observe(Stage::Block(index), &x);
        }
        let features = self.pool(x, mode, &mut observe);
        let (features, predictions) = self.classify(features, layout.members);
        Ok(Output { predictions, features, routings })
    }

    /// MC samples are drawn at inference only; other members exist always.
    fn tiling(&self, mode: &Mode) -> Result<Option<Tiling>> {
        let samples = self.config.mc_samples > 1;
        Ok(self.config.tiling()?.filter(|_| !samples || matches!(mode, Mode::Sampling(_))))
    }

    fn checked(&self, images: Tensor<4>) -> Result<Tensor<4>> {
        let ModelConfig { channels, patch, .. } = self.config;
        let members = self.config.mimo.as_ref().map_or(1, |mimo| mimo.members);
        let [batch, height, width, found] = images.dims();
        if batch == 0 || height < patch || width < patch {
            let (expected, found) = (vec![1, patch, patch], vec![batch, height, width]);
            let what = "images, height and width are at least".to_owned();
            return Err(ModelError::Shape { what, expected, found });
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

    /// - `x`: `[B·M, T, D]`
    /// - returns: `[B·M, features]`
    fn pool(
        &self,
        x: Tensor<3>,
        mode: &Mode,
        observe: &mut impl FnMut(Stage, &Tensor<3>),
    ) -> Tensor<2> {
        let [rows, tokens, width] = x.dims();
        let patches = self.config.prefix_tokens()..tokens;
        let mean = |x: Tensor<3>, of: std::ops::Range<usize>| {
            x.slice([0..rows, of, 0..width]).mean_dim(1).reshape([rows, width])
        };
        if self.config.pooling == Pooling::PatchMean {
            observe(Stage::Encoded, &x);
            return self.norm.forward(mean(x, patches));
        }
        let x = self.norm.forward(x);
        observe(Stage::Encoded, &x);
        let class_token = |x: Tensor<3>| x.slice([0..rows, 0..1, 0..width]).reshape([rows, width]);
        match (self.config.pooling, &self.pool) {
            (Pooling::Map, Some(pool)) => {
                let dropout = mode.drops().then(|| mode.seed().named("pool"));
                pool.forward(x, dropout)
            }
            (Pooling::Token, _) => class_token(x),
            (Pooling::TokenAndMean, _) => {
                Tensor::cat(vec![class_token(x.clone()), mean(x, patches)], 1)
            }
            _ => mean(x, 0..tokens),
        }
    }

    /// - `features`: `[B·M, features]`
    /// - returns: `[M, B, features]` and what the classifier makes of it
    fn classify(&self, features: Tensor<2>, members: usize) -> (Tensor<3>, Predictions) {
        let features = match &self.representation {
            Some(representation) => representation.forward(features).tanh(),
            None => features,
        };
        let by_member = |x: Tensor<2>| {
            let [rows, width] = x.dims();
            x.reshape([rows / members, members, width]).swap_dims(0, 1)
        };
        let Some(head) = &self.head else {
            let features = by_member(features);
            return (features.clone(), Predictions { logits: features });
        };
        let logits = head.forward(features.clone());
        let logits = match &self.config.mimo {
            Some(mimo) => {
                let [rows, _] = logits.dims();
                let (batch, slots) = (rows / members, mimo.members);
                logits
                    .reshape([batch, members, slots, self.config.classes])
                    .permute([2, 1, 0, 3])
                    .reshape([slots * members, batch, self.config.classes])
            }
            None => by_member(logits),
        };
        (by_member(features), Predictions { logits })
    }
}
