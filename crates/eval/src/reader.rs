//! A model that compares images with texts: what it makes of each.

use std::sync::Arc;

use burn::tensor::Device;
use omma_base::Seed;
use omma_data::{
    Batch, Dataset, Sample, Shared,
    text::{TextCounts, Tokenizer},
};
use omma_model::{ModelError, TextConfig, VisionTransformer, text_tensor};
use omma_routing::Routing;

use crate::{
    error::{EvalError, Result},
    inputs::{images_of, pixels_for},
    metrics::{Embeddings, zero_shot_classifier},
    prompts::Templates,
    stream::{Images, Watcher},
};

/// A model that reads, with what turns texts into its tokens.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    model: &'a VisionTransformer,
    tokenizer: &'a Tokenizer,
    text: &'a TextConfig,
    device: &'a Device,
}

/// Images of a data set, and the captions of each.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EmbeddedData {
    /// `[I, E]`
    pub images: Embeddings,
    /// `[I]`: their places in the data.
    pub indices: Vec<usize>,
    /// `[I]`: their classes; 0 in data without.
    pub labels: Vec<usize>,
    /// `[T, E]`
    pub texts: Embeddings,
    /// `[T]`: the row of the image that each belongs to.
    pub owners: Vec<usize>,
    /// `[T]`: the texts themselves.
    pub captions: Vec<String>,
    /// What became of them on their way to tokens.
    pub counts: TextCounts,
}

impl<'a> Reader<'a> {
    /// Fails where the model reads nothing, or has no vectors for some of the tokens.
    ///
    /// - `device`: the model's, without gradients
    pub fn new(
        model: &'a VisionTransformer,
        tokenizer: &'a Tokenizer,
        device: &'a Device,
    ) -> Result<Self> {
        let text = model.config().text.as_ref().ok_or(ModelError::ReadsNoText)?;
        let (found, vocabulary) = (tokenizer.vocabulary(), text.vocabulary);
        match found > vocabulary {
            true => Err(EvalError::Vocabulary { found, vocabulary }),
            false => Ok(Self { model, tokenizer, text, device }),
        }
    }

    /// The model.
    pub fn model(&self) -> &'a VisionTransformer {
        self.model
    }

    /// Where it is.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The images of a batch as vectors, `[B, E]`, and who went where on the way. The batch gives its pixels away.
    pub fn images(&self, batch: &mut Batch) -> Result<(Embeddings, Vec<(usize, Routing)>)> {
        let first = batch.indices.first().copied().unwrap_or_default();
        let mode = self.model.config().prediction_mode(seed("images", first));
        let embedded = self.model.embed_images(images_of(batch, self.device), &mode)?;
        Ok((Embeddings::of(embedded.embeddings), embedded.routings))
    }

    /// Texts as vectors, `[T, E]`, and what became of them on their way to tokens.
    ///
    /// - `batch`: texts per forward pass
    pub fn texts(
        &self,
        texts: &[String],
        batch: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<(Embeddings, TextCounts)> {
        let (mut all, mut counts) = (Embeddings::default(), TextCounts::default());
        for (number, texts) in texts.chunks(batch.max(1)).enumerate() {
            if watcher.stopped() {
                return Err(EvalError::Interrupted);
            }
            let (ids, found) = self.tokenizer.encode_all(texts, self.text.length);
            counts += found;
            let mode = self.model.config().prediction_mode(seed("texts", number));
            let ids = text_tensor(ids, self.text.length, self.device);
            let embedded = Embeddings::of(self.model.embed_texts(ids, &mode)?.embeddings);
            if let Some(place) = embedded.first_broken() {
                return Err(EvalError::BrokenText { text: texts[place].clone() });
            }
            all.extend(embedded);
            watcher.done(texts.len());
        }
        Ok((all, counts))
    }

    /// One direction per class, `[C, E]`, from its name in every template.
    ///
    /// - `batch`: texts per forward pass
    pub fn classifier(
        &self,
        classes: &[String],
        templates: &Templates,
        batch: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<(Embeddings, TextCounts)> {
        let prompts: Vec<String> =
            classes.iter().flat_map(|class| templates.prompts(class)).collect();
        watcher.begins("names of classes", prompts.len());
        let (embedded, counts) = self.texts(&prompts, batch, watcher)?;
        Ok((zero_shot_classifier(&embedded, templates.len()), counts))
    }

    /// Images of a data set and all their captions.
    ///
    /// - `batch`: images, or texts, per forward pass
    pub fn data(
        &self,
        images: &Images,
        batch: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<EmbeddedData> {
        let data = &images.data;
        let source = Images { data: Arc::new(Unlabelled::new(data.clone())), ..images.clone() };
        watcher.begins("images", data.len());
        let mut found = EmbeddedData::default();
        source.batches(pixels_for(&self.model.config().image), batch, watcher, |batch| {
            let indices = batch.indices.clone();
            let (embedded, _) = self.images(batch)?;
            if let Some(place) = embedded.first_broken() {
                let (model, data) = ("the model".to_owned(), images.name.clone());
                return Err(EvalError::NotFinite { model, data, index: indices[place] });
            }
            for index in indices {
                let owner = found.indices.len();
                let captions = data.captions(index)?;
                found.owners.extend(captions.iter().map(|_| owner));
                found.captions.extend(captions);
                found.labels.push(data.label(index));
                found.indices.push(index);
            }
            found.images.extend(embedded);
            Ok(())
        })?;
        watcher.begins("texts", found.captions.len());
        (found.texts, found.counts) = self.texts(&found.captions, batch, watcher)?;
        Ok(found)
    }
}

/// What is drawn for predictions, where anything is.
fn seed(what: &str, number: usize) -> Seed {
    Seed::new(0).named("prediction").named(what).numbered(number as u64)
}

/// Data whose classes are not looked at, and need not be there.
pub(crate) struct Unlabelled {
    data: Shared,
    classes: Vec<String>,
}

impl Unlabelled {
    pub(crate) fn new(data: Shared) -> Self {
        Self { data, classes: vec![String::new()] }
    }
}

impl Dataset for Unlabelled {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.data.len()
    }

    fn label(&self, _: usize) -> usize {
        0
    }

    fn get(&self, index: usize) -> omma_data::Result<Sample> {
        Ok(Sample { label: 0, ..self.data.get(index)? })
    }

    fn name(&self, index: usize) -> String {
        self.data.name(index)
    }

    fn captions(&self, index: usize) -> omma_data::Result<Vec<String>> {
        self.data.captions(index)
    }

    fn has_captions(&self) -> bool {
        self.data.has_captions()
    }

    fn pixel_classes(&self) -> Option<&[String]> {
        self.data.pixel_classes()
    }
}
