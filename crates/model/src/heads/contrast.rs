//! One vector per image and per text, in a space that they share.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::linear;

use super::AttentionPooling;
use crate::{
    config::{ContrastConfig, EncoderConfig, ModelConfig, Pooling, ScaleForm, TextPooling},
    layers::{MlpConfig, constant, xavier},
    mode::Mode,
    predictions::Predictions,
};

/// What is added to a vector's norm before it is divided by that, as vmoe does.
const NORM_EPSILON: f64 = 1e-8;

/// Features of a modality, projected into the space of all.
#[derive(Module, Debug)]
pub struct Projection {
    /// `[D, E]`.
    pub weight: Param<Tensor<2>>,
    /// `[E]`, if there is one.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Projection {
    fn new(width: usize, config: &ContrastConfig, seed: Seed, device: &Device) -> Self {
        let size = config.embedding;
        Self {
            weight: xavier([width, size], (width, size), seed, device),
            bias: config.projection_bias.then(|| constant([size], 0.0, device)),
        }
    }

    /// - `features`: `[B, D]`
    /// - returns: `[B, E]`, of length 1
    fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let bias = self.bias.as_ref().map(Param::val);
        normalised(linear(features, self.weight.val(), bias))
    }
}

/// Rows divided by their length.
fn normalised(rows: Tensor<2>) -> Tensor<2> {
    let norm = rows.clone().square().sum_dim(1).sqrt() + NORM_EPSILON;
    rows / norm
}

/// Pooling and a projection per modality, and what similarities are multiplied by.
#[derive(Module, Debug)]
pub struct Contrast {
    /// Attention pooling of images, if they are pooled so.
    pub pool: Option<AttentionPooling>,
    /// Attention pooling of texts, if they are pooled so.
    pub text_pool: Option<AttentionPooling>,
    /// Of images.
    pub image: Projection,
    /// Of texts.
    pub text: Projection,
    /// `[1]`: the factor of similarities, or its logarithm.
    pub scale: Param<Tensor<1>>,
    /// `[1]`: what is added to similarities, if anything is.
    pub bias: Option<Param<Tensor<1>>>,
    /// `[E, classes]`: the texts of classes, of a zero-shot classifier.
    pub labels: Option<Param<Tensor<2>>>,
    #[module(skip)]
    config: ContrastConfig,
    /// Tokens in front of the patches.
    #[module(skip)]
    prefix: usize,
}

impl Contrast {
    pub(super) fn new(
        config: &ContrastConfig,
        model: &ModelConfig,
        seed: Seed,
        device: &Device,
    ) -> Self {
        let pool = |encoder: &EncoderConfig, name| {
            let EncoderConfig { width, mlp, activation, dropout, heads, .. } = *encoder;
            let mlp = MlpConfig { width, hidden: mlp, activation, dropout };
            let pool = AttentionPooling::new(mlp, heads, seed.named(name), device);
            if encoder.qk_norm { pool.with_norms(device) } else { pool }
        };
        let texts = model.text_encoder().unwrap_or(&model.encoder);
        let start = match config.scale_form {
            ScaleForm::Exponential => config.scale.ln(),
            ScaleForm::Direct => config.scale,
        };
        let project = |width, name| Projection::new(width, config, seed.named(name), device);
        Self {
            pool: (config.pooling == Pooling::Map).then(|| pool(&model.encoder, "pool")),
            text_pool: (config.text_pooling == TextPooling::Map).then(|| pool(texts, "text pool")),
            image: project(model.encoder.width, "image projection"),
            text: project(texts.width, "text projection"),
            scale: constant([1], start, device),
            bias: config.logit_bias.map(|bias| constant([1], bias, device)),
            labels: (config.classes > 0)
                .then(|| constant([config.embedding, config.classes], 0.0, device)),
            config: config.clone(),
            prefix: model.image.prefix_tokens(),
        }
    }

    /// `[1]`: what similarities are multiplied by.
    pub fn scale(&self) -> Tensor<1> {
        match self.config.scale_form {
            ScaleForm::Exponential => self.scale.val().exp(),
            ScaleForm::Direct => self.scale.val(),
        }
    }

    /// - `tokens`: `[B, T, D]` of images
    /// - returns: `[B, D]`, and `[B, E]` of length 1
    pub fn images(&self, tokens: Tensor<3>, mode: &Mode) -> (Tensor<2>, Tensor<2>) {
        let [batch, length, width] = tokens.dims();
        let features = match (&self.pool, self.config.pooling) {
            (Some(pool), _) => pool.forward(tokens, dropout(mode, "pool")),
            (_, Pooling::Token) => tokens.narrow(1, 0, 1).reshape([batch, width]),
            (_, Pooling::PatchMean) => {
                mean(tokens.narrow(1, self.prefix, length - self.prefix), None)
            }
            _ => mean(tokens, None),
        };
        (features.clone(), self.image.forward(features))
    }

    /// - `tokens`: `[B, L, D]` of texts
    /// - `present`: `[B, L]`, 1 where there is a token and 0 where padding does not count
    /// - returns: `[B, D]`, and `[B, E]` of length 1
    pub fn texts(
        &self,
        tokens: Tensor<3>,
        present: Option<Tensor<2>>,
        mode: &Mode,
    ) -> (Tensor<2>, Tensor<2>) {
        let [batch, length, width] = tokens.dims();
        let features = match (&self.text_pool, self.config.text_pooling) {
            (Some(pool), _) => pool.forward_present(tokens, present, dropout(mode, "text pool")),
            (_, TextPooling::Last) => tokens.narrow(1, length - 1, 1).reshape([batch, width]),
            _ => mean(tokens, present),
        };
        (features.clone(), self.text.forward(features))
    }

    /// What a classifier gives: of a model with labels their logits, else the vectors themselves.
    pub(super) fn forward(&self, tokens: Tensor<3>, mode: &Mode) -> (Tensor<3>, Predictions) {
        let (features, vectors) = self.images(tokens, mode);
        let logits = match &self.labels {
            Some(labels) => linear(vectors, labels.val(), None) * self.scale().unsqueeze::<2>(),
            None => vectors,
        };
        (features.unsqueeze::<3>(), Predictions { logits: logits.unsqueeze::<3>() })
    }
}

fn dropout(mode: &Mode, name: &str) -> Option<Seed> {
    mode.drops().then(|| mode.seed().named(name))
}

/// `[B, T, D]` to `[B, D]`, over the tokens that are present.
fn mean(tokens: Tensor<3>, present: Option<Tensor<2>>) -> Tensor<2> {
    let [batch, _, width] = tokens.dims();
    match present {
        None => tokens.mean_dim(1).reshape([batch, width]),
        Some(present) => {
            let count = present.clone().sum_dim(1); // [B, 1]
            let kept = tokens * present.unsqueeze_dim::<3>(2);
            kept.sum_dim(1).reshape([batch, width]) / count
        }
    }
}
