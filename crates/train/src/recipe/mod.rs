//! Everything that makes a run: data, model, optimiser, schedule, length.
//!
//! A recipe is a TOML file; `--set key=value` goes on top of it, and the last one wins. What comes out
//! is a [`Recipe`] with every value in it, and that is what is saved with a run.

mod builtin;
mod file;
mod layers;
mod length;
mod ranges;
mod request;
mod within_run;

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use omma_base::range::{OutOfRange, check_all};
use omma_data::{
    Captioned, HoldingOut, Mixture, Pixels, Selection, Shared, Split, TargetKind, TrainOptions,
    augment::{Augmentation, Mixing},
    formats::{self, Columns, DataSpec},
    text::TokenizerKind,
};
use omma_eval::pixels_for;
use omma_model::{ModelConfig, ModelError, Precision, short_name};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::ranges::RANGES;
pub use self::{
    builtin::{BUILT_IN, built_in},
    request::Request,
};
use crate::{
    error::{Result, TrainError},
    freezing::Freeze,
    optimiser::{OptimiserConfig, Schedule},
    task::{ContrastLoss, TaskKind},
};

/// Which texts belong to images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Captions {
    /// Their captions.
    #[default]
    Own,
    /// The names of their classes (paper 002 App. A.3).
    Classes,
}

/// Where images come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataRecipe {
    /// `world`, `fashion-mnist`, or a path.
    pub name: String,
    /// Which columns of a table are what, `image=photo,label=3`, by name or by number from 1.
    pub columns: Option<Columns>,
    /// Training scenes of the built-in world.
    pub train_samples: usize,
    /// Test scenes of the built-in world.
    pub test_samples: usize,
    /// Seed of the built-in world; another one is another world.
    pub world_seed: u64,
    /// Training images that are used at most, evenly spread over the data; 0 for all of them.
    pub limit: usize,
    /// Share of the training images that is held out to choose the best checkpoint by; 0 for none. Stratified,
    /// at least 100 or a tenth are held out, whichever is fewer.
    pub validation: f64,
    /// Which texts belong to images, where these are held against each other.
    pub captions: Captions,
    /// What becomes of a class's name where that is the text, `a photo of a {}`; nothing for the name alone.
    pub template: String,
    /// Other data that training images are mixed with, each with its share, as in `labels/=1` (paper 002 App.
    /// A.3); where these have no captions, names of classes are their texts.
    pub mix: Vec<String>,
    /// The share of the data itself beside these.
    pub share: u32,
    /// How these are held out, and a tenth for testing where data has no splits.
    #[serde(default = "HoldingOut::of_before")]
    pub holding_out: HoldingOut,
    /// Share of files that may be unreadable before the run stops.
    pub bad_share: f64,
    /// Whether what the frozen part makes of the images is computed once and kept on disk.
    pub cache: bool,
    /// Draws of the augmentation of every image that are kept; 0 for the image as in evaluations.
    pub cache_augmentations: usize,
    /// Threads that make batches.
    pub workers: usize,
    /// Batches made ahead of time.
    pub prefetch: usize,
}

impl Default for DataRecipe {
    fn default() -> Self {
        Self {
            name: "world".to_owned(),
            columns: None,
            train_samples: 100_000,
            test_samples: 2_000,
            world_seed: 0,
            limit: 0,
            validation: 0.02,
            captions: Captions::default(),
            template: String::new(),
            mix: Vec::new(),
            share: 1,
            holding_out: HoldingOut::default(),
            bad_share: 0.01,
            cache: false,
            cache_augmentations: 0,
            workers: 2,
            prefetch: 2,
        }
    }
}

impl DataRecipe {
    /// Whether the same images are asked for, however they are loaded.
    pub(crate) fn same_images(&self, other: &Self) -> bool {
        let images = |data: &Self| Self { workers: 0, prefetch: 0, ..data.clone() };
        images(self) == images(other)
    }

    /// The data with the texts that are asked for.
    pub fn captioned(&self, data: Shared) -> Shared {
        match self.captions {
            Captions::Own => data,
            Captions::Classes => Captioned::by_classes(data, &self.template),
        }
    }

    /// What training images are mixed with: a name and a share each.
    fn mixed(&self) -> Result<Vec<(&str, u32)>> {
        fn part(text: &String) -> Result<(&str, u32)> {
            let found = text.rsplit_once('=').and_then(|(name, share)| {
                Some((name.trim(), share.trim().parse().ok().filter(|share| *share > 0)?))
            });
            found.ok_or_else(|| TrainError::BadSetting {
                key: "data.mix".to_owned(),
                value: format!("{text:?}"),
                why: "write data and its share, as in photos.csv=1".to_owned(),
            })
        }
        self.mix.iter().map(part).collect()
    }

    /// Training images and what they are mixed with.
    ///
    /// - `spec`: of the data itself
    pub(crate) fn mixture(&self, train: Shared, spec: &DataSpec) -> Result<Shared> {
        let others = self.mixed()?;
        if others.is_empty() {
            return Ok(train);
        }
        let mut parts = vec![(train, self.share)];
        for (name, share) in others {
            let name = formats::whole_name(name);
            let spec = DataSpec { name, columns: None, ..spec.clone() };
            let data = formats::open(&spec, Split::Train)?;
            let data = match data.has_captions() {
                true => data,
                false => Captioned::by_classes(data, &self.template),
            };
            parts.push((data, share));
        }
        Ok(Arc::new(Mixture::new(parts)?))
    }

    /// The images to learn from and those held out of them, of all training images.
    pub fn parts(&self, all: &Shared) -> (Shared, Shared) {
        let used = match self.limit {
            0 => all.clone(),
            limit => Selection::spread(all, limit),
        };
        self.holding_out.for_validation(&used, self.validation)
    }
}

/// How long, and in what portions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainRecipe {
    /// Steps; 0 where `epochs` says it, as it does where it was given last.
    pub steps: u64,
    /// Passes over the training images, where `steps` is 0.
    pub epochs: f64,
    /// Images per step.
    pub batch: usize,
    /// Parts that a step's images are computed in one after the other, for less memory.
    pub accumulation: usize,
    /// Parts of those that are computed side by side, each on its own threads and with its own routing,
    /// as on so many devices.
    pub shards: usize,
    /// What the products of a step are computed in: `f32`, `bf16` or `f16`. Weights, their gradients' sums, routing and
    /// losses are in single precision in any case, and so is whatever the model is judged by.
    pub precision: Precision,
    /// Ranks that the experts of every layer are spread over, at most, each with some of them and what the optimiser
    /// remembers of these; 1 for all experts on every rank.
    pub expert_parallel: usize,
    /// Whether every rank moves some elements of every parameter and remembers nothing of the others (ZeRO stage 1);
    /// the bits are the same.
    pub spread_optimiser: bool,
    /// Whether ranks sum gradients while the backward pass goes on, which pays where they are on several machines; the
    /// bits are the same.
    pub overlap: bool,
    /// What does not learn, such as `["embed", "0-9"]`: no gradients, nothing remembered, and run as in
    /// predictions where nothing below it learns.
    pub freeze: Freeze,
    /// Share of every target that is spread over all classes.
    pub label_smoothing: f64,
    /// Decay of the moving average of the weights; 0 for none.
    pub ema: f64,
    /// Steps between two evaluations on held-out images; 0 for a tenth of the run.
    pub evaluate_every: u64,
    /// Steps between two checkpoints; 0 for none by steps.
    pub checkpoint_every: u64,
    /// Minutes between two checkpoints; 0 for none by time.
    pub checkpoint_minutes: f64,
    /// Checkpoints that are kept, beside the best one.
    pub keep: usize,
    /// Steps between two checkpoints that are kept for good, to cool down from or to average; 0 for none.
    pub keep_every: u64,
    /// Steps between two lines of the log.
    pub log_every: u64,
    /// A loss this many times as large as that of guessing stops the run.
    pub explosion: f64,
    /// Whether a linear classifier on pixels is fitted for comparison at the end.
    pub linear_baseline: bool,
    /// Share of the test images that the trained model is judged by at the end, evenly spread over them; 0 leaves
    /// the test out, for a model that something else judges.
    pub test_share: f64,
}

impl Default for TrainRecipe {
    fn default() -> Self {
        Self {
            steps: 0,
            epochs: 1.0,
            batch: 128,
            accumulation: 1,
            shards: 1,
            precision: Precision::default(),
            expert_parallel: 1,
            spread_optimiser: false,
            overlap: false,
            freeze: Freeze::default(),
            label_smoothing: 0.0,
            ema: 0.0,
            evaluate_every: 0,
            checkpoint_every: 0,
            checkpoint_minutes: 1.0,
            keep: 2,
            keep_every: 0,
            log_every: 10,
            explosion: 20.0,
            linear_baseline: true,
            test_share: 1.0,
        }
    }
}

impl TrainRecipe {
    /// Parts that a step's images are cut into in all.
    pub fn parts(&self) -> usize {
        self.accumulation.saturating_mul(self.shards)
    }
}

/// How images and texts are held against each other.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContrastRecipe {
    /// The loss of a batch.
    pub loss: ContrastLoss,
    /// A `tokenizer.json`; without one, that of the checkpoint to start from, or else one that is learned from
    /// the captions, of at most `model.text.vocabulary` tokens.
    pub tokenizer: Option<PathBuf>,
    /// How that is learned: `unigram`, as T5's is, or `bpe`.
    pub vocabulary: TokenizerKind,
}

/// Everything that makes a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// What it is called.
    pub name: String,
    /// What it is for, in a sentence.
    pub about: String,
    /// What the model is trained for.
    pub task: TaskKind,
    /// Where every random number comes from.
    pub seed: u64,
    /// A checkpoint to start from, ours or converted.
    pub init: Option<PathBuf>,
    /// Where images come from.
    pub data: DataRecipe,
    /// What happens to every training image.
    pub augment: Augmentation,
    /// What happens to every training batch.
    pub mixing: Mixing,
    /// How parameters follow their gradients.
    pub optimiser: OptimiserConfig,
    /// How the learning rate goes up and down.
    pub schedule: Schedule,
    /// How long, and in what portions.
    pub train: TrainRecipe,
    /// How images and texts are held against each other, where that is the task.
    pub contrast: ContrastRecipe,
    /// What is trained. The number of classes is that of the data.
    pub model: ModelConfig,
}

impl Recipe {
    /// The data set that is asked for.
    pub fn data_spec(&self) -> DataSpec {
        DataSpec {
            name: self.data.name.clone(),
            columns: self.data.columns.clone(),
            holding_out: self.data.holding_out,
            resolution: self.model.image.resolution,
            train_samples: self.data.train_samples,
            test_samples: self.data.test_samples,
            seed: self.data.world_seed,
        }
    }

    /// What pixels become for this model.
    pub fn pixels(&self) -> Pixels {
        pixels_for(&self.model.image)
    }

    /// How training batches are made.
    pub(crate) fn loading(&self, targets: TargetKind) -> TrainOptions {
        TrainOptions {
            batch: self.train.batch / self.train.parts().max(1),
            pixels: self.pixels(),
            augmentation: self.augment,
            mixing: self.mixing,
            targets,
            prefetch: self.data.prefetch,
            workers: self.data.workers,
            bad_share: self.data.bad_share,
        }
    }

    /// Steps of the whole run over so many training images.
    pub fn total_steps(&self, images: usize) -> u64 {
        match self.train.steps {
            0 => {
                (self.train.epochs * images as f64 / self.train.batch as f64).ceil().max(1.0) as u64
            }
            steps => steps,
        }
    }

    /// Settings in which two recipes differ: the key, its value here and there.
    pub(crate) fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let [here, there] = [self, other].map(|recipe| recipe.settings());
        let keys: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
        let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
        let differ = keys.into_iter().filter(|key| here.get(*key) != there.get(*key));
        let short = |key: &str| match key.strip_prefix("model.") {
            Some(key) => format!("model.{}", short_name(key)),
            None => key.to_owned(),
        };
        differ.map(|key| (short(key), text(here.get(key)), text(there.get(key)))).collect()
    }

    /// Says what cannot be.
    pub fn check(&self) -> Result<()> {
        self.model.check().map_err(of_model)?;
        let mut tree = serde_json::to_value(self).expect("a recipe can be written");
        if let Some(fields) = tree.as_object_mut() {
            fields.remove("model");
        }
        check_all(RANGES, &tree).map_err(out_of_range)?;
        check_name(&self.name)?;
        if self.init.as_ref().is_some_and(|init| init.as_os_str().is_empty()) {
            return Err(recipe_error("init names no checkpoint".to_owned()));
        }
        self.check_magnitude()?;
        self.check_cache()?;
        if !self.data.mix.is_empty() && self.task != TaskKind::Contrast {
            return Err(recipe_error(
                "data.mix is for task = \"contrast\": other data has other classes".to_owned(),
            ));
        }
        self.data.mixed()?;
        let train = &self.train;
        if train.steps == 0 && train.epochs == 0.0 {
            return Err(recipe_error("train.steps and train.epochs are both 0".to_owned()));
        }
        if !train.batch.is_multiple_of(train.parts()) {
            return Err(recipe_error(format!(
                "a batch of {} cannot be cut into {} equal parts (train.accumulation × train.shards)",
                train.batch,
                train.parts()
            )));
        }
        self.check_expert_parallel()?;
        if ![1, 3].contains(&self.model.image.channels) {
            return Err(recipe_error(format!(
                "images have 3 channels here, or their mean alone, and the model takes {}",
                self.model.image.channels
            )));
        }
        Ok(())
    }

    /// Activations are of single images, as they are or as they were drawn.
    fn check_cache(&self) -> Result<()> {
        let data = &self.data;
        if !data.cache {
            return match data.cache_augmentations {
                0 => Ok(()),
                _ => Err(recipe_error(
                    "data.cache_augmentations is of data.cache=true, which is not set".to_owned(),
                )),
            };
        }
        let mixes = self.mixing != Mixing::default();
        match () {
            () if mixes => Err(recipe_error(
                "data.cache keeps activations of single images, and mixing.mixup or mixing.cutmix \
                 mixes pixels of two: set both to 0, or data.cache=false"
                    .to_owned(),
            )),
            () if self.model.mimo.is_some() => Err(recipe_error(
                "data.cache keeps activations of single images, and MIMO puts several into one; set \
                 data.cache=false"
                    .to_owned(),
            )),
            () => Ok(()),
        }
    }

    /// Experts can be spread where each learns by itself.
    fn check_expert_parallel(&self) -> Result<()> {
        let ranks = self.train.expert_parallel;
        let fault = |why: String| {
            let (key, value) = ("train.expert_parallel".to_owned(), ranks.to_string());
            Err(TrainError::BadSetting { key, value, why })
        };
        if ranks <= 1 {
            return Ok(());
        }
        if self.train.precision != Precision::F32 {
            return fault("rows travel in single precision: set train.precision=f32".to_owned());
        }
        if self.data.cache {
            return fault("what data.cache keeps is made by one rank with all experts".to_owned());
        }
        let texts = self.model.text.as_ref().and_then(|text| text.tower.as_ref());
        let encoders = [Some(&self.model.encoder), texts].into_iter().flatten();
        let layers = encoders.filter_map(|encoder| Some((encoder, encoder.moe.as_ref()?)));
        match layers.clone().map(|(_, moe)| moe.router.experts).min() {
            None => return fault("the model has no experts".to_owned()),
            Some(experts) if experts < ranks => {
                return fault(format!("a layer has {experts} experts"));
            }
            Some(_) => {}
        }
        let mut shapes = layers.flat_map(|(encoder, moe)| {
            let (width, hidden) = (encoder.width, moe.hidden.unwrap_or(encoder.mlp));
            let of_expert = [vec![width, hidden], vec![hidden], vec![hidden, width], vec![width]];
            of_expert.map(|shape| [vec![moe.router.experts], shape].concat())
        });
        let together = shapes.any(|shape| !self.optimiser.takes_parts(&shape, ranks));
        match together {
            true => fault(
                "this optimiser looks at all experts of a layer at once; adam-w and sgd look at each value by itself"
                    .to_owned(),
            ),
            false => Ok(()),
        }
    }

    /// How far magnitudes go depends on the policy.
    fn check_magnitude(&self) -> Result<()> {
        let Augmentation { policy, magnitude, .. } = self.augment;
        let largest = policy.largest_magnitude();
        if magnitude <= largest {
            return Ok(());
        }
        let why = format!("with augment.policy \"{}\" it is at most {largest}", policy.name());
        let (key, value) = ("augment.magnitude".to_owned(), magnitude.to_string());
        Err(TrainError::BadSetting { key, value, why })
    }
}

/// Refuses a name that could not name a folder, which that of a recipe or a study does.
pub fn check_name(name: &str) -> Result<()> {
    let odd = |symbol: char| symbol.is_control() || "/\\:".contains(symbol);
    let why = match name {
        _ if name.contains(odd) => "it has a slash, a colon or a control character in it",
        _ if name.starts_with('.') => "it begins with a dot",
        _ if name.len() > 100 => "it is longer than 100 bytes",
        _ => return Ok(()),
    };
    let (key, value) = ("name".to_owned(), format!("{name:?}"));
    Err(TrainError::BadSetting {
        key,
        value,
        why: format!("{why}, and a run's folder is called so"),
    })
}

/// An error about a model's setting, as it is called in a recipe.
fn of_model(error: ModelError) -> TrainError {
    match error {
        ModelError::Range(error) => {
            out_of_range(OutOfRange { key: format!("model.{}", error.key), ..error })
        }
        ModelError::UnknownSetting { key, hint } => {
            let hint = hint.replace("mean \"", "mean \"model.");
            TrainError::UnknownSetting { key: format!("model.{key}"), hint }
        }
        ModelError::UnusedSetting { key, router } => {
            TrainError::UnusedSetting { key: format!("model.{key}"), router }
        }
        ModelError::BadSetting { key, value, why } => {
            TrainError::BadSetting { key: format!("model.{key}"), value, why }
        }
        other => other.into(),
    }
}

fn out_of_range(OutOfRange { key, value, range }: OutOfRange) -> TrainError {
    TrainError::BadSetting { key, value, why: format!("it is {range}") }
}

pub(crate) fn recipe_error(what: String) -> TrainError {
    TrainError::Recipe { what }
}
