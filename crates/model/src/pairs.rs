//! Images and texts as vectors in one space (paper 002).

use burn::tensor::{Int, Tensor, TensorData};
use omma_base::transfer;
use omma_routing::{Layout, Routing, Sequences};

use crate::{
    config::{ModelConfig, TextConfig},
    encoder::Encoded,
    error::{ModelError, Result},
    heads::{Contrast, Head},
    inputs::TextTower,
    layers::present,
    mode::Mode,
    parameters::with_values,
    vit::{IMAGES, VisionTransformer, auxiliary_loss},
};

/// The modality of texts, for routers that tell modalities apart.
pub const TEXTS: usize = 1;

/// Images, or texts, as vectors.
#[derive(Debug)]
pub struct Embedded {
    /// `[B, E]`, of length 1.
    pub embeddings: Tensor<2>,
    /// `[B, D]`: what they are projected from.
    pub features: Tensor<2>,
    /// The blocks with experts, and who went where in them.
    pub routings: Vec<(usize, Routing)>,
}

/// Images and their texts as vectors.
#[derive(Debug)]
pub struct Pairs {
    /// `[B, E]`, of length 1.
    pub images: Tensor<2>,
    /// `[B, E]`, of length 1.
    pub texts: Tensor<2>,
    /// `[1]`: what similarities are multiplied by.
    pub scale: Tensor<1>,
    /// `[1]`: what is added to them, if anything is.
    pub bias: Option<Tensor<1>>,
    /// The blocks with experts, and who went where in them. The blocks of a second tower are counted on
    /// from those of the first.
    pub routings: Vec<(usize, Routing)>,
}

impl Pairs {
    /// `[1]`: the sum of the layers' auxiliary losses; nothing if no router pays.
    pub fn auxiliary_loss(&self) -> Option<Tensor<1>> {
        auxiliary_loss(&self.routings)
    }
}

impl VisionTransformer {
    /// Whether it compares images with texts.
    pub fn reads(&self) -> bool {
        self.text.is_some()
    }

    /// Images as vectors.
    ///
    /// - `images`: `[B, H, W, channels]`
    pub fn embed_images(&self, images: Tensor<4>, mode: &Mode) -> Result<Embedded> {
        let (contrast, _) = self.contrast()?;
        let tokens = self.embed.forward(self.checked(images)?);
        let shape = tokens.dims();
        let layout = Layout::of(vec![kind(shape, IMAGES)]);
        let Encoded { tokens, routings, .. } = self.encoder.forward(rows(tokens), layout, mode)?;
        let (features, embeddings) = contrast.images(tokens.reshape(shape), mode);
        Ok(Embedded { embeddings, features, routings })
    }

    /// Texts as vectors.
    ///
    /// - `ids`: `[B, L]`, tokens below the vocabulary, padded with [`TextConfig::PAD`]
    pub fn embed_texts(&self, ids: Tensor<2, Int>, mode: &Mode) -> Result<Embedded> {
        let (contrast, tower) = self.contrast()?;
        check_texts(tower.config(), &ids)?;
        let absent = tower.absent(&ids);
        let tokens = tower.forward(ids);
        let shape = tokens.dims();
        let layout = with_absent(Layout::of(vec![kind(shape, TEXTS)]), absent);
        let encoder = tower.encoder.as_ref().unwrap_or(&self.encoder);
        let Encoded { tokens, layout, routings } = encoder.forward(rows(tokens), layout, mode)?;
        let tokens = tokens.reshape(shape);
        let present = layout.absent().map(|absent| present(absent, &tokens));
        let (features, embeddings) = contrast.texts(tokens, present, mode);
        Ok(Embedded { embeddings, features, routings: self.counted_on(routings) })
    }

    /// Images and their texts as vectors. In one tower, a layer of experts routes the tokens of all images
    /// and all texts together, and they share its capacity (paper 002 App. F.3); attention stays inside
    /// each.
    ///
    /// - `images`: `[B, H, W, channels]`
    /// - `ids`: `[B, L]`, tokens below the vocabulary, padded with [`TextConfig::PAD`]
    pub fn embed_pairs(
        &self,
        images: Tensor<4>,
        ids: Tensor<2, Int>,
        mode: &Mode,
    ) -> Result<Pairs> {
        let (contrast, tower) = self.contrast()?;
        let (scale, bias) = (contrast.scale(), contrast.bias.as_ref().map(|bias| bias.val()));
        if tower.encoder.is_some() {
            let images = self.embed_images(images, mode)?;
            let texts = self.embed_texts(ids, mode)?;
            let routings = images.routings.into_iter().chain(texts.routings).collect();
            let (images, texts) = (images.embeddings, texts.embeddings);
            return Ok(Pairs { images, texts, scale, bias, routings });
        }
        check_texts(tower.config(), &ids)?;
        let absent = tower.absent(&ids);
        let (images, texts) = (self.embed.forward(self.checked(images)?), tower.forward(ids));
        let (image_shape, text_shape) = (images.dims(), texts.dims());
        let layout = Layout::of(vec![kind(image_shape, IMAGES), kind(text_shape, TEXTS)]);
        let of_images = image_shape[0] * image_shape[1];
        let absent = absent.map(|absent| [vec![false; of_images], absent].concat());
        let tokens = Tensor::cat(vec![rows(images), rows(texts)], 0);
        let Encoded { tokens, layout, routings } =
            self.encoder.forward(tokens, with_absent(layout, absent), mode)?;
        let of_texts = text_shape[0] * text_shape[1];
        let images = tokens.clone().narrow(0, 0, of_images).reshape(image_shape);
        let texts = tokens.narrow(0, of_images, of_texts).reshape(text_shape);
        let present = layout.absent().map(|absent| present(&absent[of_images..], &texts));
        let (_, images) = contrast.images(images, mode);
        let (_, texts) = contrast.texts(texts, present, mode);
        Ok(Pairs { images, texts, scale, bias, routings })
    }

    /// The same model as a zero-shot classifier, whose logits are the scaled similarities of an image to
    /// the texts of its classes.
    ///
    /// - `labels`: `[E, classes]`, columns of length 1
    pub fn with_labels(self, labels: Tensor<2>) -> Result<Self> {
        self.contrast()?;
        let [_, classes] = labels.dims();
        let config = self.config().clone().with_classes(classes);
        let device = labels.device();
        let labels: Vec<f32> = labels.try_into_vec_as().expect("labels are floats");
        let values: std::collections::HashMap<_, _> = crate::parameter_values(&self)
            .into_iter()
            .map(|values| (values.parameter.name.clone(), values))
            .collect();
        with_values(config.init(omma_base::Seed::new(0), &device)?, |parameter| {
            Ok(Some(match parameter.name.as_str() {
                LABELS => labels.clone(),
                name => values[name].read(),
            }))
        })
    }

    /// What similarities are multiplied by; 1 for a model that compares nothing.
    pub fn scale(&self) -> f64 {
        let scale = self.head.contrast().map(|contrast| contrast.scale().into_scalar::<f32>());
        scale.map_or(1.0, f64::from)
    }

    fn contrast(&self) -> Result<(&Contrast, &TextTower)> {
        match (&self.head, &self.text) {
            (Head::Contrast(contrast), Some(text)) => Ok((contrast, text)),
            _ => Err(ModelError::ReadsNoText),
        }
    }

    /// The blocks of a second tower, counted on from those of the first.
    fn counted_on(&self, routings: Vec<(usize, Routing)>) -> Vec<(usize, Routing)> {
        let before = match ModelConfig::text_tower(self.config()) {
            Some(_) => self.encoder.blocks.len(),
            None => 0,
        };
        routings.into_iter().map(|(block, routing)| (before + block, routing)).collect()
    }
}

/// The parameter that holds the texts of classes.
const LABELS: &str = "head.labels";

/// Tokens of a batch as a tensor on a device.
///
/// - `ids`: `[B, L]`, row by row
pub fn text_tensor(ids: Vec<i32>, length: usize, device: &burn::tensor::Device) -> Tensor<2, Int> {
    let count = ids.len() / length.max(1);
    transfer::brought(&ids);
    Tensor::from_data(TensorData::new(ids, [count, length]), device)
}

fn kind([count, tokens, _]: [usize; 3], modality: usize) -> Sequences {
    Sequences { count, tokens, modality: Some(modality) }
}

fn rows(tokens: Tensor<3>) -> Tensor<2> {
    let [count, length, width] = tokens.dims();
    tokens.reshape([count * length, width])
}

fn with_absent(layout: Layout, absent: Option<Vec<bool>>) -> Layout {
    match absent {
        Some(absent) => layout.without(absent),
        None => layout,
    }
}

/// Fails on texts of another length, and on tokens that the model has no vector for.
fn check_texts(config: &TextConfig, ids: &Tensor<2, Int>) -> Result<()> {
    let [batch, length] = ids.dims();
    if batch == 0 || length != config.length {
        let what = "texts and their tokens".to_owned();
        let (expected, found) = (vec![batch.max(1), config.length], vec![batch, length]);
        return Err(ModelError::Shape { what, expected, found });
    }
    let largest: i32 = ids.clone().max().into_scalar();
    let least: i32 = ids.clone().min().into_scalar();
    transfer::fetched(&[largest, least]);
    match usize::try_from(least).is_ok() && (largest as usize) < config.vocabulary {
        true => Ok(()),
        false => Err(ModelError::UnknownToken {
            token: if least < 0 { least } else { largest },
            vocabulary: config.vocabulary,
        }),
    }
}
