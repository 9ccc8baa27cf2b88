//! What a model is trained for. A task is a value: trainer, shards, logs, state and report know what a
//! [`Task`] says of itself, and nothing else.
//!
//! A new task is a file here, a variant of [`TaskKind`], and the head that it needs.

mod classification;
mod contrast;
mod mimo;
mod scores;
mod segmentation;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use omma_base::Seed;
use omma_data::{Shared, TargetKind, text::Tokenizer};
use omma_eval::{Watcher, routing::LayerHealth};
use omma_model::{ModelConfig, VisionTransformer};
use omma_ranks::World;
use omma_report::Page;
use omma_routing::Routing;
use serde::{Deserialize, Serialize};

pub(crate) use self::contrast::{Part, Pull};
use self::{
    classification::Classification,
    contrast::{Contrast, found_tokenizer},
    segmentation::Segmentation,
};
pub use self::{
    contrast::ContrastLoss,
    scores::{Measure, TaskScores, Unit},
};
use crate::{
    error::Result,
    recipe::Recipe,
    resolved::Splits,
    trainer::{Examples, Learner, Stop},
};

/// The tasks by name, as a recipe says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskKind {
    /// What does the image show?
    #[default]
    Classification,
    /// What does every pixel belong to?
    Segmentation,
    /// Which text belongs to which image?
    Contrast,
}

impl TaskKind {
    /// The scores that it is judged by; the first decides which checkpoint is best.
    pub fn measures(self) -> &'static [Measure] {
        match self {
            Self::Classification => classification::MEASURES,
            Self::Segmentation => segmentation::MEASURES,
            Self::Contrast => contrast::MEASURES,
        }
    }

    /// The task of a recipe on its data.
    ///
    /// - `tokenizer`: that of a run that goes on
    pub(crate) fn of(
        recipe: &Recipe,
        data: &Splits,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Arc<dyn Task>> {
        match recipe.task {
            Self::Classification => Ok(Arc::new(Classification::new(recipe, data)?)),
            Self::Segmentation => Ok(Arc::new(Segmentation::new(recipe, data)?)),
            Self::Contrast => {
                Contrast::check(recipe, data)?;
                let found = || found_tokenizer(recipe, &data.train);
                let tokenizer = tokenizer.map_or_else(found, Ok)?;
                Ok(Arc::new(Contrast::new(recipe, tokenizer)))
            }
        }
    }
}

/// What a model is trained for.
pub(crate) trait Task: Send + Sync {
    /// The model, with what the data says of it.
    fn fitted(&self, model: ModelConfig) -> ModelConfig;

    /// What batches hold besides images.
    fn targets(&self) -> TargetKind;

    /// The scores that it is judged by; the first decides which checkpoint is best.
    fn measures(&self) -> &'static [Measure];

    /// The loss of a model that knows nothing, in nats.
    fn chance(&self) -> f64;

    /// What there is to say of how it learns, if it is not plain.
    fn about_learning(&self) -> Option<String>;

    /// Why a run cannot go on with the data as it is, where that has changed too much for its model.
    fn conflict(&self, trained: &ModelConfig) -> Option<String>;

    /// Names of the classes that the model tells apart; nothing where it tells none.
    fn class_names(&self) -> Option<&[String]>;

    /// Files that belong beside the weights, each with its name.
    fn files(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// What compares the examples of a whole batch with each other, where a batch cannot be cut into parts
    /// that know nothing of each other.
    fn whole_batch(&self) -> Option<&dyn WholeBatch> {
        None
    }

    /// Runs training examples forwards. Everything random comes from the seed.
    fn forward(
        &self,
        learner: &Learner,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Forward>;

    /// Judges a model, which is not on a device with gradients, on images that it has not seen.
    fn judge(&self, model: &VisionTransformer, images: &Shared, at: Judging) -> Result<TaskScores>;

    /// Does the part of another rank than the first, which judges a model on the same images: computes some of them, or
    /// at least with the experts that it has.
    fn help(&self, model: &VisionTransformer, _: &Shared, _: Judging) -> Result<()> {
        Ok(model.serve_experts()?)
    }

    /// Judges a trained model by the test images, with everything that a report shows of it.
    fn test(
        &self,
        model: &VisionTransformer,
        data: &Splits,
        at: Judging,
        doing: &mut dyn FnMut(&str),
    ) -> Result<Tested>;
}

/// A loss over a whole batch that is computed in parts.
pub(crate) trait WholeBatch: Send + Sync {
    /// What a part gives to it, by a model without gradients.
    fn embed(
        &self,
        model: &VisionTransformer,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Part>;

    /// What it gives back to every part.
    fn compare(&self, parts: Vec<Part>, device: &Device) -> Vec<Pull>;

    /// Runs a part forwards again, with the gradients of the whole.
    fn forward_part(
        &self,
        learner: &Learner,
        examples: Examples,
        pull: Pull,
        seed: Seed,
        device: &Device,
    ) -> Result<Forward>;
}

/// Where and how a model is judged.
#[derive(Clone, Copy)]
pub(crate) struct Judging<'a> {
    pub(crate) device: &'a Device,
    /// Images per forward pass.
    pub(crate) batch: usize,
    pub(crate) stop: &'a Stop,
    /// All ranks, of which the first judges.
    pub(crate) world: &'a World,
}

/// What a training batch gives before its gradients.
pub(crate) struct Forward {
    /// Examples in it.
    pub(crate) examples: usize,
    /// `[1]`: the mean loss without the routers' own.
    pub(crate) loss: Tensor<1>,
    /// What is said to be the loss, where that is not the value of what gradients are taken of.
    pub(crate) value: Option<f64>,
    /// `[1]`: the routers' own, if they pay.
    pub(crate) auxiliary_loss: Option<Tensor<1>>,
    /// Sums over the examples.
    pub(crate) scores: TaskScores,
    /// The blocks with experts, and who went where in them.
    pub(crate) routings: Vec<(usize, Routing)>,
}

/// A number with its name, and what else to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What it is.
    pub name: &'static str,
    /// As it is shown.
    pub value: String,
    /// In small print.
    pub note: String,
}

/// What a trained model scores, and how that is shown.
pub(crate) struct Tested {
    /// As in `result.json`.
    pub(crate) scores: TaskScores,
    /// Its layers with experts.
    pub(crate) routing: Vec<LayerHealth>,
    /// The scores in words.
    pub(crate) facts: Vec<Fact>,
    /// Adds the test's sections to a page.
    pub(crate) sections: Box<dyn FnOnce(Page) -> Page>,
}

impl Default for Tested {
    /// Of a model that nobody has tested.
    fn default() -> Self {
        let (scores, routing, facts) = (TaskScores::default(), Vec::new(), Vec::new());
        Self { scores, routing, facts, sections: Box::new(|page| page) }
    }
}

/// Hears the wish to stop.
struct Ear<'a>(&'a Stop);

impl Watcher for Ear<'_> {
    fn begins(&mut self, _: &str, _: usize) {}
    fn done(&mut self, _: usize) {}
    fn stopped(&self) -> bool {
        self.0.why().is_some()
    }
}
