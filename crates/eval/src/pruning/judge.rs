//! What a model scores that has less in it.

use burn::tensor::Device;
use omma_data::text::Tokenizer;
use omma_model::VisionTransformer;
use serde::{Deserialize, Serialize};

use super::Named;
use crate::{
    error::{EvalError, Result},
    metrics::ContrastiveAccuracy,
    prompts::Templates,
    protocols::test::{Test, TestProtocol},
    reader::{EmbeddedData, Reader},
    stream::{Images, Watcher},
    summary::Binning,
    system::System,
};

/// What models are judged by.
#[derive(Clone)]
pub struct Judge<'a> {
    /// Images, perhaps with classes or captions.
    pub images: &'a Images,
    /// How texts become tokens, for models that read.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Names of the classes and sentences for them, for such models.
    pub labels: Option<(&'a [String], &'a Templates)>,
    /// Images, or texts, per forward pass.
    pub batch: usize,
    /// The models' device, without gradients.
    pub device: &'a Device,
}

/// What a model scores.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct ModelScore {
    /// Share of the images that it is right about; of pairs alone, how many are told apart.
    pub accuracy: f64,
    /// Mean negative log-likelihood, in nats; nothing where there are no classes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll: Option<f64>,
}

impl ModelScore {
    /// Whether it is better than another: more accurate, or as accurate and likelier.
    pub fn beats(&self, other: &Self) -> bool {
        let key = |score: &Self| (score.accuracy, score.nll.map(|nll| -nll));
        key(self) > key(other)
    }
}

impl<'a> Judge<'a> {
    /// For models that do not read.
    pub fn new(images: &'a Images, batch: usize, device: &'a Device) -> Self {
        Self { images, tokenizer: None, labels: None, batch, device }
    }

    /// What the accuracy of a model is called; nothing where it has none on these images.
    pub fn measure(&self, model: &VisionTransformer) -> Option<&'static str> {
        let classes = self.images.data.classes().len();
        match (model.reads(), model.config().classes()) {
            (_, own @ 1..) => (own == classes).then_some("accuracy"),
            (false, 0) => None,
            (true, 0) if self.tokenizer.is_none() => None,
            (true, 0) if self.labels.is_some() => Some("zero-shot accuracy"),
            (true, 0) => self.images.data.has_captions().then_some("accuracy of pairs"),
        }
    }

    /// The names of classes in all their sentences.
    pub(super) fn prompts(&self) -> Vec<String> {
        let Some((names, templates)) = self.labels else { return Vec::new() };
        names.iter().flat_map(|name| templates.prompts(name)).collect()
    }

    /// What images score that pass one model, with texts that pass another, which may be the same.
    pub fn score(
        &self,
        what: &str,
        of_images: &VisionTransformer,
        of_texts: &VisionTransformer,
        watcher: &mut dyn Watcher,
    ) -> Result<ModelScore> {
        let watcher = &mut Named { name: what, watcher };
        let reads = of_images.reads() && of_images.config().classes() == 0;
        if reads && self.labels.is_none() {
            return self.score_pairs(of_images, of_texts, watcher);
        }
        let mut model = of_images.clone();
        if let Some((names, templates)) = self.labels.filter(|_| reads) {
            let reader = self.reader(of_texts)?;
            let (labels, _) = reader.classifier(names, templates, self.batch, watcher)?;
            model = model.with_labels(labels.tensor(self.device).transpose())?;
        }
        let system = System::new(vec![(what.to_owned(), model)], self.device)?;
        let protocol = TestProtocol { binning: Binning::default(), batch: self.batch };
        let test = Test::run(&system, self.images, protocol, watcher)?;
        Ok(ModelScore { accuracy: test.accuracy(), nll: Some(test.record.summary.nll) })
    }

    fn reader<'b>(&'b self, model: &'b VisionTransformer) -> Result<Reader<'b>> {
        let model_name = || "the model".to_owned();
        let tokenizer =
            self.tokenizer.ok_or_else(|| EvalError::NoTokenizer { model: model_name() })?;
        Reader::new(model, tokenizer, self.device)
    }

    /// Images, and their captions where they have any, as a model's vectors: what [`score_texts`](Self::score_texts)
    /// compares texts with.
    pub(super) fn embedded(
        &self,
        model: &VisionTransformer,
        watcher: &mut dyn Watcher,
    ) -> Result<EmbeddedData> {
        self.reader(model)?.data(self.images, self.batch, watcher)
    }

    /// What images score that have passed a model already, with texts that pass another.
    ///
    /// - `scale`: what similarities are multiplied by
    pub(super) fn score_texts(
        &self,
        what: &str,
        (images, scale): (&EmbeddedData, f64),
        of_texts: &VisionTransformer,
        watcher: &mut dyn Watcher,
    ) -> Result<ModelScore> {
        let watcher = &mut Named { name: what, watcher };
        let reader = self.reader(of_texts)?;
        if let Some((names, templates)) = self.labels {
            let (classes, _) = reader.classifier(names, templates, self.batch, watcher)?;
            let found = images.zero_shot(&classes, scale, Binning::default());
            return Ok(ModelScore { accuracy: 1.0 - found.error, nll: Some(found.nll) });
        }
        watcher.begins(what, images.captions.len());
        let (texts, counts) = reader.texts(&images.captions, self.batch, watcher)?;
        self.told_apart(&EmbeddedData { texts, counts, ..images.clone() }, watcher)
    }

    /// What images score that pass one model, with texts that pass another, by pairs alone.
    fn score_pairs(
        &self,
        of_images: &VisionTransformer,
        of_texts: &VisionTransformer,
        watcher: &mut dyn Watcher,
    ) -> Result<ModelScore> {
        let mut found = self.embedded(of_images, watcher)?;
        if !std::ptr::eq(of_images, of_texts) {
            let texts = self.reader(of_texts)?.texts(&found.captions, self.batch, watcher)?;
            (found.texts, found.counts) = texts;
        }
        self.told_apart(&found, watcher)
    }

    /// How many images find their own caption in a batch.
    fn told_apart(&self, found: &EmbeddedData, watcher: &mut dyn Watcher) -> Result<ModelScore> {
        let (record, _) = found
            .captions(ContrastiveAccuracy::BATCH, self.device, watcher)?
            .ok_or_else(|| EvalError::NoTexts { data: self.images.name.clone() })?;
        Ok(ModelScore { accuracy: record.accuracy.mean(), nll: None })
    }
}
