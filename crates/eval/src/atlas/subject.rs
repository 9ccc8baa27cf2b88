//! A model whose routes are looked at, and what it makes of a batch.

use burn::tensor::Device;
use omma_base::Seed;
use omma_data::{
    Batch, Dataset, Pixels,
    text::{PAD, Tokenizer},
};
use omma_model::{FeedForward, MoeLayer, Padding, VisionTransformer, text_tensor};
use omma_ranks::World;
use omma_routing::Routing;
use serde::{Deserialize, Serialize};

use super::{
    rows::BatchShape,
    words::{Pieces, WordKind},
};
use crate::{
    error::{EvalError, Result},
    inputs::{images_of, pixels_for},
    together::Said,
};

/// A model, and what it takes to run it.
#[derive(Debug, Clone)]
pub struct RoutedModel<'a> {
    /// What it is called.
    pub name: String,
    /// How a command names it.
    pub path: String,
    /// The model, on a device without gradients.
    pub model: &'a VisionTransformer,
    /// How texts become its tokens, if it reads.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Where the model is.
    pub device: &'a Device,
    /// Where MC samples and the noise of routers come from, in predictions that are drawn.
    pub seed: Seed,
    /// Those who look at images together, each at some of the batches.
    pub world: World,
}

/// Texts as ids, with the kinds of their words.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Texts {
    /// `[texts, L]`
    pub(super) ids: Vec<u32>,
    /// `[texts, L]`
    pub(super) kinds: Vec<WordKind>,
    /// Tokens of each, `L`.
    pub(super) length: usize,
}

/// Where the tokens of a batch went.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Routed {
    /// Blocks with experts, and who went where in them.
    pub(super) routings: Vec<(usize, Routing)>,
    /// What passes the blocks of the images' encoder.
    pub(super) shape: BatchShape,
    /// What passes the texts' own, whose blocks are counted on.
    pub(super) tower: Option<BatchShape>,
}

impl Said for Routed {
    type Words = Self;

    fn words(&self) -> Self {
        self.clone()
    }

    fn heard(words: Self) -> Self {
        words
    }
}

impl<'a> RoutedModel<'a> {
    pub(super) fn pixels(&self) -> Pixels {
        pixels_for(&self.model.config().image)
    }

    /// Blocks with experts: the block, and its layer. Those of the texts' own encoder are counted on.
    pub(super) fn layers(&self) -> Vec<(usize, &'a MoeLayer)> {
        let tower = self.model.text.as_ref().and_then(|text| text.encoder.as_ref());
        let blocks = self.model.encoder.blocks.iter();
        let blocks = blocks.chain(tower.into_iter().flat_map(|tower| &tower.blocks));
        let layer = |(number, block): (usize, &'a omma_model::Block)| match &block.feed_forward {
            FeedForward::Moe(layer) => Some((number, layer)),
            _ => None,
        };
        blocks.enumerate().filter_map(layer).collect()
    }

    /// Blocks of the images' encoder.
    pub(super) fn depth(&self) -> usize {
        self.model.encoder.blocks.len()
    }

    pub(super) fn tokens(&self) -> usize {
        let image = &self.model.config().image;
        image.tokens(image.resolution)
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.layers().is_empty() {
            true => Err(EvalError::NoExperts { model: self.name.to_owned() }),
            false => Ok(()),
        }
    }

    /// Texts as its tokens; nothing for a model that reads none.
    pub(super) fn texts(&self, texts: &[String], pieces: Option<&Pieces>) -> Option<Texts> {
        let (tokenizer, config) = (self.tokenizer?, self.model.config().text.as_ref()?);
        let (ids, _) = tokenizer.encode_all(texts, config.length);
        let ids: Vec<u32> = ids.into_iter().map(|id| u32::try_from(id).unwrap_or(PAD)).collect();
        let (mut kinds, mut own) = (Vec::with_capacity(ids.len()), Vec::new());
        for text in ids.chunks_exact(config.length.max(1)) {
            match pieces {
                Some(pieces) => pieces.kinds(text, &mut own),
                None => own = vec![WordKind::Other; text.len()],
            }
            kinds.extend_from_slice(&own);
        }
        Some(Texts { ids, kinds, length: config.length })
    }

    /// The first captions of a batch's images; images without any have no text.
    pub(super) fn captions(&self, batch: &Batch, data: &dyn Dataset) -> Result<Vec<String>> {
        let mut all = Vec::with_capacity(batch.len());
        for index in &batch.indices {
            all.extend(data.captions(*index)?.into_iter().next());
        }
        Ok(all)
    }

    /// A batch through the model, with texts if there are any. The batch gives its pixels away.
    pub(super) fn routed(&self, batch: &mut Batch, texts: Option<&Texts>) -> Result<Routed> {
        let (config, tokens) = (self.model.config(), self.tokens());
        let first = batch.indices.first().map_or(0, |index| *index as u64);
        let mode = config.prediction_mode(self.seed.named("prediction").numbered(first));
        let shape = BatchShape::of_images(batch.len(), tokens);
        let images = images_of(batch, self.device);
        if !self.model.reads() {
            let routings = self.model.forward(images, &mode)?.routings;
            return Ok(Routed { routings, shape, tower: None });
        }
        let Some(texts) = texts.filter(|texts| !texts.ids.is_empty()) else {
            let routings = self.model.embed_images(images, &mode)?.routings;
            return Ok(Routed { routings, shape, tower: None });
        };
        let ids: Vec<i32> = texts.ids.iter().map(|id| *id as i32).collect();
        let ids = text_tensor(ids, texts.length, self.device);
        let routings = self.model.embed_pairs(images, ids, &mode)?.routings;
        let of_texts = self.text_shape(texts);
        let own_tower = self.model.text.as_ref().is_some_and(|text| text.encoder.is_some());
        Ok(match own_tower {
            true => Routed { routings, shape, tower: Some(of_texts) },
            false => {
                let shape = BatchShape { images: shape.images, ..of_texts };
                Routed { routings, shape, tower: None }
            }
        })
    }

    /// Texts alone, for which padding may hold no token.
    fn text_shape(&self, texts: &Texts) -> BatchShape {
        let masked = self.model.config().text.as_ref().map(|text| text.padding);
        let absent = match masked {
            // The first place of an empty text holds a token all the same.
            Some(Padding::Masked) => {
                let place =
                    |(at, id): (usize, &u32)| *id == PAD && !at.is_multiple_of(texts.length);
                texts.ids.iter().enumerate().map(place).collect()
            }
            _ => Vec::new(),
        };
        let count = texts.ids.len() / texts.length.max(1);
        BatchShape { images: (0, 0), texts: (count, texts.length), absent }
    }
}
