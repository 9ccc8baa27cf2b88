//! Contrast: which text belongs to which image (paper 002)?

mod text;
mod whole;

use burn::tensor::{Device, Tensor};
use omma_base::{Seed, transfer};
use omma_data::{Shared, TargetKind, Targets, text::Tokenizer};
use omma_eval::{
    ContrastProtocol, Images, Reader, Templates, Watcher, contrast, metrics::ContrastiveAccuracy,
    report::add_contrast,
};
use omma_model::{
    Mode, ModelConfig, Pairs, VisionTransformer, checkpoint::TOKENIZER, sigmoid_contrast,
    similarities, softmax_contrast, text_tensor,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    text::found_tokenizer,
    whole::{Part, Pull},
};
use super::{Ear, Fact, Forward, Judging, Measure, Task, TaskScores, Tested, Unit, WholeBatch};
use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
    resolved::Splits,
    trainer::{Examples, InputTensor, Learner},
};

const ACCURACY: Measure = Measure { key: "accuracy", title: "pairs found", unit: Unit::Share };
const RECALL: Measure = Measure { key: "recall_at_1", title: "recall at 1", unit: Unit::Share };
/// The first decides.
pub(super) const MEASURES: &[Measure] = &[ACCURACY, RECALL];

/// Held-out pairs that are looked at, at most: some batches of paper 002's evaluations.
const JUDGED: usize = 4096;

/// How images and texts are held against each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContrastLoss {
    /// Every image against all texts of the batch, and the other way round (CLIP, paper 002).
    #[default]
    Softmax,
    /// Every pair by itself (SigLIP).
    Sigmoid,
}

impl ContrastLoss {
    fn of(
        self,
        images: Tensor<2>,
        texts: Tensor<2>,
        scale: Tensor<1>,
        bias: Option<Tensor<1>>,
    ) -> Tensor<1> {
        match self {
            Self::Softmax => softmax_contrast(images, texts, scale, bias),
            Self::Sigmoid => sigmoid_contrast(images, texts, scale, bias),
        }
    }
}

/// Images and texts that belong together.
pub(super) struct Contrast {
    data: String,
    tokenizer: Tokenizer,
    loss: ContrastLoss,
    length: usize,
    batch: usize,
}

impl Contrast {
    /// Fails on a model that does not read, and on data without captions.
    pub(super) fn check(recipe: &Recipe, data: &Splits) -> Result<()> {
        if recipe.model.text.is_none() {
            return Err(recipe_error(
                "task = \"contrast\" is for models that read, such as model.preset = \"limoe-tiny\""
                    .to_owned(),
            ));
        }
        if !recipe.train.freeze.is_empty() && recipe.data.cache {
            return Err(recipe_error(
                "data.cache keeps what becomes of images, and contrast is between images and texts"
                    .to_owned(),
            ));
        }
        for (which, part) in [("training", &data.train), ("test", &data.test)] {
            if !part.has_captions() {
                return Err(recipe_error(format!(
                    "{}: the {which} images have no captions, and contrast is between images and texts; \
                     where they have classes, data.captions = \"classes\" takes the names of these",
                    recipe.data.name
                )));
            }
        }
        Ok(())
    }

    /// - `recipe`: one that was checked
    pub(super) fn new(recipe: &Recipe, tokenizer: Tokenizer) -> Self {
        Self {
            data: recipe.data.name.clone(),
            tokenizer,
            loss: recipe.contrast.loss,
            length: recipe.model.text.as_ref().map_or(0, |text| text.length),
            batch: recipe.train.batch,
        }
    }

    /// Images and texts of a part, through the model.
    fn pairs(
        &self,
        model: &VisionTransformer,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Pairs> {
        let Targets::Texts(texts) = examples.targets else {
            return Err(recipe_error("contrast is learned from captions".to_owned()));
        };
        let InputTensor::Images(images) = examples.input.tensor(device) else {
            return Err(recipe_error(
                "contrast is learned from images, not from kept activations".to_owned(),
            ));
        };
        let (ids, _) = self.tokenizer.encode_all(&texts, self.length);
        let ids = text_tensor(ids, self.length, device);
        Ok(model.embed_pairs(images, ids, &Mode::Training(seed))?)
    }
}

/// Images of a batch whose own text is the most alike: a hint for the progress bar, not a result.
fn found(images: Tensor<2>, texts: Tensor<2>) -> f64 {
    let one = Tensor::ones([1], &images.device());
    let logits = similarities(images, texts, one, None);
    let [rows, _] = logits.dims();
    let best: Vec<i64> = logits.argmax(1).try_into_vec_as().expect("places are integers");
    transfer::fetched(&best);
    let right = best.into_iter().take(rows).enumerate().filter(|(row, best)| *row as i64 == *best);
    right.count() as f64
}

impl Task for Contrast {
    fn fitted(&self, mut model: ModelConfig) -> ModelConfig {
        if let Some(text) = &mut model.text {
            text.vocabulary = self.tokenizer.vocabulary();
        }
        model.with_classes(0)
    }

    fn targets(&self) -> TargetKind {
        TargetKind::Texts
    }

    fn measures(&self) -> &'static [Measure] {
        MEASURES
    }

    /// That of a model to which all texts are equally alike.
    fn chance(&self) -> f64 {
        let batch = self.batch as f64;
        match self.loss {
            ContrastLoss::Softmax => batch.ln().max(0.1),
            ContrastLoss::Sigmoid => batch * 2.0_f64.ln(),
        }
    }

    fn about_learning(&self) -> Option<String> {
        Some(format!(
            "Training pairs are told apart among the {} of their batch, held-out ones among up to {}, which is \
             harder.",
            self.batch,
            ContrastiveAccuracy::BATCH
        ))
    }

    fn conflict(&self, trained: &ModelConfig) -> Option<String> {
        let then = trained.text.as_ref().map_or(0, |text| text.vocabulary);
        let now = self.tokenizer.vocabulary();
        (then != now).then(|| {
            format!("the tokenizer has {now} tokens, and the run was trained with one of {then}; put it back")
        })
    }

    fn class_names(&self) -> Option<&[String]> {
        None
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        vec![(TOKENIZER, self.tokenizer.json())]
    }

    fn whole_batch(&self) -> Option<&dyn WholeBatch> {
        Some(self)
    }

    fn forward(
        &self,
        learner: &Learner,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Forward> {
        let pairs = self.pairs(learner.model(), examples, seed, device)?;
        let auxiliary_loss = pairs.auxiliary_loss();
        let Pairs { images, texts, scale, bias, routings } = pairs;
        let right = found(images.clone().detach(), texts.clone().detach());
        Ok(Forward {
            examples: images.dims()[0],
            loss: self.loss.of(images, texts, scale, bias),
            value: None,
            auxiliary_loss,
            scores: TaskScores::from_iter([(ACCURACY.key, right)]),
            routings,
        })
    }

    fn judge(&self, model: &VisionTransformer, images: &Shared, at: Judging) -> Result<TaskScores> {
        let reader = Reader::new(model, &self.tokenizer, at.device)?;
        let images = Images::new(&self.data, images.clone());
        let protocol = ContrastProtocol {
            templates: None,
            batch: at.batch,
            limit: Some(JUDGED),
            ..ContrastProtocol::default()
        };
        let found = contrast(&reader, &images, &protocol, &mut Ear(at.stop))?;
        let captions = found.record.captions.iter();
        Ok(captions.flat_map(|record| scores("", record)).collect())
    }

    fn test(
        &self,
        model: &VisionTransformer,
        data: &Splits,
        at: Judging,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Tested> {
        doing("testing");
        let reader = Reader::new(model, &self.tokenizer, at.device)?;
        let images = Images::new(&self.data, data.test.clone());
        let templates = Some(Templates::default());
        let protocol =
            ContrastProtocol { templates, batch: at.batch, ..ContrastProtocol::default() };
        let watcher: &mut dyn Watcher = &mut Ear(at.stop);
        let found = contrast(&reader, &images, &protocol, watcher)?;
        let resolution = model.config().image.resolution;
        let mut all = Vec::new();
        let mut facts = Vec::new();
        let mut fact = |name, value: f64, note: String| {
            facts.push(Fact { name, value: ACCURACY.show(value), note });
        };
        if let Some(zero_shot) = &found.zero_shot {
            let accuracy = 1.0 - zero_shot.error;
            all.push(("test_zero_shot_accuracy".to_owned(), accuracy));
            all.push(("test_zero_shot_nll".to_owned(), zero_shot.nll));
            let classes = data.test.classes().len();
            fact("zero-shot accuracy", accuracy, format!("{classes} classes by their names"));
        }
        if let Some(record) = &found.record.captions {
            all.extend(scores("test_", record));
            let batch = format!("of the {} in a batch", record.accuracy.batch);
            fact("own text found", record.accuracy.images, batch);
            let (t2i, i2t) = (&record.retrieval.text_to_image, &record.retrieval.image_to_text);
            let among = format!("among {} images", record.images);
            fact("text to image, recall at 1", t2i.recall.at_1, among);
            fact("image to text, recall at 1", i2t.recall.at_1, String::new());
        }
        Ok(Tested {
            scores: TaskScores::from_iter(all),
            routing: Vec::new(),
            facts,
            sections: Box::new(move |page| add_contrast(page, &found, resolution)),
        })
    }
}

/// Scores of pairs by name.
fn scores(prefix: &str, record: &omma_eval::CaptionRecord) -> Vec<(String, f64)> {
    let recall = |recall: &omma_eval::metrics::Recall| recall.recall.at_1;
    let (t2i, i2t) = (&record.retrieval.text_to_image, &record.retrieval.image_to_text);
    [
        (ACCURACY.key, record.accuracy.mean()),
        (RECALL.key, (recall(t2i) + recall(i2t)) / 2.0),
        ("text_to_image_recall_at_1", recall(t2i)),
        ("image_to_text_recall_at_1", recall(i2t)),
    ]
    .map(|(key, value)| (format!("{prefix}{key}"), value))
    .to_vec()
}
