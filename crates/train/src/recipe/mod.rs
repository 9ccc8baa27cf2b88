//! Everything that makes a run: data, model, optimiser, schedule, length.
//!
//! A recipe is a TOML file; `--set key=value` goes on top of it, and the last one wins. What comes out
//! is a [`Recipe`] with every value in it, and that is what is saved with a run.

mod builtin;
mod file;

use std::path::PathBuf;

use omma_data::{
    Pixels, Selection, Shared, TrainOptions,
    augment::{Augmentation, Mixing},
    formats::DataSpec,
};
use omma_model::ModelConfig;
use serde::{Deserialize, Serialize};

pub use self::builtin::{BUILT_IN, built_in};
use crate::{
    error::{Result, TrainError},
    optimiser::OptimiserConfig,
    schedule::Schedule,
};

/// Where images come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataRecipe {
    /// `world`, `fashion-mnist`, or a path.
    pub name: String,
    /// Training scenes of the built-in world.
    pub train_samples: usize,
    /// Test scenes of the built-in world.
    pub test_samples: usize,
    /// Seed of the built-in world; another one is another world.
    pub world_seed: u64,
    /// Training images that are used at most, evenly spread over the data; 0 for all of them.
    pub limit: usize,
    /// Share of the training images that is held out to choose the best checkpoint by.
    pub validation: f64,
    /// Share of files that may be unreadable before the run stops.
    pub bad_share: f64,
    /// Threads that make batches.
    pub workers: usize,
    /// Batches made ahead of time.
    pub prefetch: usize,
}

impl Default for DataRecipe {
    fn default() -> Self {
        Self {
            name: "world".to_owned(),
            train_samples: 100_000,
            test_samples: 2_000,
            world_seed: 0,
            limit: 0,
            validation: 0.02,
            bad_share: 0.01,
            workers: 2,
            prefetch: 2,
        }
    }
}

impl DataRecipe {
    /// The images to learn from and those held out of them, of all training images.
    pub fn parts(&self, all: &Shared) -> (Shared, Shared) {
        let used = match self.limit {
            0 => all.clone(),
            limit => Selection::spread(all, limit),
        };
        Selection::hold_out(&used, self.validation)
    }
}

/// How long, and in what portions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainRecipe {
    /// Steps; 0 where `epochs` says it.
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
    /// Steps between two lines of the log.
    pub log_every: u64,
    /// A loss this many times as large as that of guessing stops the run.
    pub explosion: f64,
    /// Whether a linear classifier on pixels is fitted for comparison at the end.
    pub linear_baseline: bool,
}

impl Default for TrainRecipe {
    fn default() -> Self {
        Self {
            steps: 0,
            epochs: 1.0,
            batch: 128,
            accumulation: 1,
            shards: 1,
            label_smoothing: 0.0,
            ema: 0.0,
            evaluate_every: 0,
            checkpoint_every: 0,
            checkpoint_minutes: 1.0,
            keep: 2,
            log_every: 10,
            explosion: 20.0,
            linear_baseline: true,
        }
    }
}

impl TrainRecipe {
    /// Parts that a step's images are cut into in all.
    pub fn parts(&self) -> usize {
        self.accumulation.saturating_mul(self.shards)
    }
}

/// Everything that makes a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// What it is called.
    pub name: String,
    /// What it is for, in a sentence.
    pub about: String,
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
    /// What is trained. The number of classes is that of the data.
    pub model: ModelConfig,
}

impl Recipe {
    /// The data set that is asked for.
    pub fn data_spec(&self) -> DataSpec {
        DataSpec {
            name: self.data.name.clone(),
            size: self.model.resolution,
            train_samples: self.data.train_samples,
            test_samples: self.data.test_samples,
            seed: self.data.world_seed,
        }
    }

    /// What pixels become for this model.
    pub fn pixels(&self) -> Pixels {
        let normalisation = self.model.normalisation;
        let (mean, deviation) = (normalisation.mean, normalisation.deviation);
        Pixels { side: self.model.resolution, mean, deviation }
    }

    /// How training batches are made.
    pub fn loading(&self) -> TrainOptions {
        TrainOptions {
            batch: self.train.batch / self.train.parts().max(1),
            pixels: self.pixels(),
            augmentation: self.augment,
            mixing: self.mixing,
            label_smoothing: self.train.label_smoothing,
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

    /// Says what cannot be.
    pub fn check(&self) -> Result<()> {
        self.model.check()?;
        let positive = |name: &str, value: f64| match value > 0.0 && value.is_finite() {
            true => Ok(()),
            false => Err(recipe_error(format!("{name} must be above 0, not {value}"))),
        };
        let share = |name: &str, value: f64| match (0.0..1.0).contains(&value) {
            true => Ok(()),
            false => Err(recipe_error(format!("{name} is at least 0 and below 1, not {value}"))),
        };
        let train = &self.train;
        positive("train.batch", train.batch as f64)?;
        positive("train.accumulation", train.accumulation as f64)?;
        positive("train.shards", train.shards as f64)?;
        positive("train.log_every", train.log_every as f64)?;
        positive("train.keep", train.keep as f64)?;
        positive("train.explosion", train.explosion)?;
        positive("optimiser.learning_rate", self.optimiser.learning_rate)?;
        positive("optimiser.layer_decay", self.optimiser.layer_decay)?;
        positive("schedule.timescale", self.schedule.timescale)?;
        if train.steps == 0 {
            positive("train.epochs (or train.steps)", train.epochs)?;
        }
        if !train.batch.is_multiple_of(train.parts()) {
            return Err(recipe_error(format!(
                "a batch of {} cannot be cut into {} equal parts (train.accumulation × train.shards)",
                train.batch,
                train.parts()
            )));
        }
        share("train.label_smoothing", train.label_smoothing)?;
        share("train.ema", train.ema)?;
        share("data.validation", self.data.validation)?;
        share("optimiser.beta1", self.optimiser.beta1)?;
        share("optimiser.beta2", self.optimiser.beta2)?;
        for (name, value) in [
            ("optimiser.weight_decay", self.optimiser.weight_decay),
            ("optimiser.clip_norm", self.optimiser.clip_norm),
            ("schedule.warmup", self.schedule.warmup),
            ("schedule.cooldown", self.schedule.cooldown),
            ("data.bad_share", self.data.bad_share),
            ("mixing.mixup", self.mixing.mixup),
            ("mixing.cutmix", self.mixing.cutmix),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(recipe_error(format!("{name} cannot be {value}")));
            }
        }
        if self.model.channels != 3 {
            return Err(recipe_error(format!(
                "images have 3 channels here, and the model takes {}",
                self.model.channels
            )));
        }
        Ok(())
    }
}

pub(crate) fn recipe_error(what: String) -> TrainError {
    TrainError::Recipe { what }
}
