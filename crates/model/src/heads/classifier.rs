//! One prediction per image.

use std::ops::Range;

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use omma_base::Seed;

use super::AttentionPooling;
use crate::{
    config::{ClassifierConfig, ModelConfig, Pooling},
    layers::{Dense, MlpConfig, Norm},
    mode::Mode,
    predictions::Predictions,
};

/// Pooling, perhaps a hidden representation, and a linear classifier of every member's copy.
#[derive(Module, Debug)]
pub struct Classifier {
    /// Behind the pooling, where the encoder does not normalise.
    pub norm: Option<Norm>,
    /// Attention pooling, if tokens are pooled so.
    pub pool: Option<AttentionPooling>,
    /// A hidden representation with tanh, if there is one.
    pub representation: Option<Dense>,
    /// From features to logits, if there is a classifier.
    pub linear: Option<Dense>,
    #[module(skip)]
    config: ClassifierConfig,
    /// Tokens in front of the patches.
    #[module(skip)]
    prefix: usize,
    /// Images that lie beside each other in an input, each with a prediction.
    #[module(skip)]
    images: usize,
}

impl Classifier {
    pub(super) fn new(
        config: &ClassifierConfig,
        model: &ModelConfig,
        seed: Seed,
        device: &Device,
    ) -> Self {
        let encoder = &model.encoder;
        let (width, heads) = (encoder.width, encoder.heads);
        let mlp = MlpConfig {
            width,
            hidden: encoder.mlp,
            activation: encoder.activation,
            dropout: encoder.dropout,
        };
        let features = model.feature_width();
        let images = model.images_per_input();
        let representation = config
            .representation
            .map(|size| Dense::new(features, size, seed.named("representation"), device));
        let inputs = config.representation.unwrap_or(features);
        Self {
            norm: (model.head.normalises_features() && encoder.norm)
                .then(|| Norm::new(width, device)),
            pool: (config.pooling == Pooling::Map)
                .then(|| AttentionPooling::new(mlp, heads, seed.named("pool"), device)),
            representation,
            linear: (config.classes > 0)
                .then(|| Dense::zeros(inputs, config.classes * images, device)),
            config: config.clone(),
            prefix: model.image.prefix_tokens(),
            images,
        }
    }

    /// - `tokens`: `[B·M, T, D]`, `members` copies of an image next to each other
    /// - returns: `[M, B, features]`, and what the classifier makes of it
    pub fn forward(
        &self,
        tokens: Tensor<3>,
        members: usize,
        mode: &Mode,
    ) -> (Tensor<3>, Predictions) {
        let features = self.pooled(tokens, mode);
        let features = match &self.representation {
            Some(representation) => representation.forward(features).tanh(),
            None => features,
        };
        let by_member = |x: Tensor<2>| {
            let [rows, width] = x.dims();
            x.reshape([rows / members, members, width]).swap_dims(0, 1)
        };
        let Some(linear) = &self.linear else {
            let features = by_member(features);
            return (features.clone(), Predictions { logits: features });
        };
        let logits = linear.forward(features.clone());
        let logits = match self.images {
            1 => by_member(logits),
            images => {
                let [rows, _] = logits.dims();
                let (batch, classes) = (rows / members, self.config.classes);
                logits.reshape([batch, members, images, classes]).permute([2, 1, 0, 3]).reshape([
                    images * members,
                    batch,
                    classes,
                ])
            }
        };
        (by_member(features), Predictions { logits })
    }

    /// - `x`: `[B·M, T, D]`
    /// - returns: `[B·M, features]`
    fn pooled(&self, x: Tensor<3>, mode: &Mode) -> Tensor<2> {
        let [rows, tokens, width] = x.dims();
        let mean = |x: Tensor<3>, of: Range<usize>| {
            x.slice([0..rows, of, 0..width]).mean_dim(1).reshape([rows, width])
        };
        let class_token = |x: Tensor<3>| x.slice([0..rows, 0..1, 0..width]).reshape([rows, width]);
        let features = match (self.config.pooling, &self.pool) {
            (Pooling::Map, Some(pool)) => {
                let dropout = mode.drops().then(|| mode.seed().named("pool"));
                pool.forward(x, dropout)
            }
            (Pooling::Token, _) => class_token(x),
            (Pooling::TokenAndMean, _) => {
                Tensor::cat(vec![class_token(x.clone()), mean(x, self.prefix..tokens)], 1)
            }
            (Pooling::PatchMean, _) => mean(x, self.prefix..tokens),
            (Pooling::Flat, _) => x.reshape([rows, tokens * width]),
            _ => mean(x, 0..tokens),
        };
        match &self.norm {
            Some(norm) => norm.forward(features),
            None => features,
        }
    }
}
