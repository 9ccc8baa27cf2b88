//! How much memory a step takes, before the first one.

use burn::tensor::Device;
use omma_base::{Seed, memory};
use omma_model::{Parameter, parameters};

use crate::{
    error::Result,
    freezing::Freezing,
    recipe::{Recipe, recipe_error},
    task::TaskKind,
    trainer::buckets,
};

/// What a training process holds at most, in bytes.
///
/// What is counted was compared with what processes really held: `crates/cli/tests/memory.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepMemory {
    /// The program, its threads, and the pages that its allocator keeps.
    pub program: u64,
    /// Weights, their gradients, what the optimiser remembers of them, their average.
    pub weights: u64,
    /// What the images that are computed at a time leave behind for the backward pass.
    pub images: u64,
    /// Batches that are made ahead.
    pub loading: u64,
}

/// How many parameters a model has, and how many of them learn.
pub(crate) struct ParameterCounts {
    pub(crate) all: u64,
    pub(crate) learning: u64,
    /// Those of routed experts, in all, and those that learn.
    pub(crate) experts: [u64; 2],
    /// Layers with experts.
    pub(crate) expert_layers: usize,
    /// Those that learn and whose gradients a backward pass finds last.
    pub(crate) found_last: u64,
    freezing: Freezing,
}

/// The program before it has read anything, and what its allocator keeps beside what is in use.
const PROGRAM: u64 = 40 << 20;
/// The share of what there is that a run is planned for; the rest is the system's.
const USABLE: f64 = 0.9;

impl StepMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        let Self { program, weights, images, loading } = *self;
        program.saturating_add(weights).saturating_add(images).saturating_add(loading)
    }

    /// `3.1 GiB (weights 0.4, images 2.5)`
    pub fn in_words(&self) -> String {
        let Self { weights, images, loading, .. } = *self;
        let rest = gibibytes(images.saturating_add(loading));
        format!("{} GiB (weights {}, images {rest})", gibibytes(self.total()), gibibytes(weights))
    }
}

/// Of so many floats.
fn bytes(floats: u64) -> u64 {
    floats.saturating_mul(4)
}

/// In gibibytes, with as many digits as mean something.
fn gibibytes(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 30) {
        few if few < 1.0 => format!("{few:.2}"),
        some => format!("{some:.1}"),
    }
}

impl Recipe {
    /// How many parameters there are.
    pub(crate) fn parameter_counts(&self) -> Result<ParameterCounts> {
        let model = self.model.init(Seed::new(0), &Device::flex())?;
        let freezing = self.train.freeze.of(&model)?;
        let (mut all, mut learning, mut experts) = (0_u64, 0_u64, [0_u64; 2]);
        let mut expert_layers = 0;
        let size_of = |parameter: &Parameter| {
            parameter.shape.iter().fold(1_u64, |n, side| n.saturating_mul(*side as u64))
        };
        let parameters = parameters(&model);
        for parameter in &parameters {
            let (size, learns) = (size_of(parameter), freezing.learns(parameter));
            all = all.saturating_add(size);
            if learns {
                learning = learning.saturating_add(size);
            }
            if parameter.name.contains(".experts.") {
                experts[0] = experts[0].saturating_add(size);
                experts[1] = experts[1].saturating_add(if learns { size } else { 0 });
                expert_layers += usize::from(parameter.name.ends_with(".up"));
            }
        }
        let learn = parameters.into_iter().filter(|parameter| freezing.learns(parameter));
        let learn: Vec<Parameter> = learn.collect();
        let last = buckets(&learn).pop().unwrap_or_default();
        let found_last = last.iter().map(|place| size_of(&learn[*place])).sum();
        Ok(ParameterCounts { all, learning, experts, expert_layers, found_last, freezing })
    }

    /// What a step takes.
    pub fn step_memory(&self) -> Result<StepMemory> {
        self.step_memory_on(1)
    }

    /// The same of a rank that has as many of the experts as any other of so many.
    pub(crate) fn step_memory_on(&self, ranks: usize) -> Result<StepMemory> {
        let ParameterCounts { all, learning, experts, freezing, .. } = self.parameter_counts()?;
        let elsewhere = experts.map(|experts| experts - experts / ranks as u64);
        let (all, learning) = (all - elsewhere[0], learning - elsewhere[1]);
        Ok(StepMemory {
            program: PROGRAM,
            weights: bytes(self.weights(all, learning)),
            images: bytes(self.images(&freezing)?),
            loading: bytes(self.loaded()),
        })
    }

    /// Floats of the model, and of what belongs to those of its weights that learn: a copy on the host, the
    /// optimiser's memory and the average, and beside them either the gradients of the parts that are
    /// computed at a time, twice, with their sum and the next weights, or what is being saved. Where shards are
    /// computed in several rounds, each has a sum of its own.
    fn weights(&self, all: u64, learning: u64) -> u64 {
        let remembered = self.optimiser.vectors_per_parameter();
        let average = u64::from(self.train.ema > 0.0);
        let sums = if self.train.accumulation > 1 { self.train.shards as u64 } else { 1 };
        let in_step = 2 * self.lanes() + 1 + sums;
        let in_save = remembered + 1;
        let copies = 1 + remembered + average + in_step.max(in_save);
        all.saturating_add(learning.saturating_mul(copies))
    }

    fn images(&self, freezing: &Freezing) -> Result<u64> {
        let image = self.model.image_memory(self.model.image.resolution, freezing.trunk)?;
        let parts = image.floats().saturating_mul(self.part()).saturating_mul(self.lanes());
        Ok(parts.saturating_add(self.similarities()).saturating_add(self.pixels_of_maps()))
    }

    /// Floats of the logits of all pixels of a part, with what the loss makes of them.
    fn pixels_of_maps(&self) -> u64 {
        const TENSORS: u64 = 8;
        let pixels = self.model.image.resolution.pixels() as u64;
        let maps = self.model.members() as u64 * self.part() * self.lanes();
        match self.task {
            TaskKind::Segmentation => TENSORS
                .saturating_mul(pixels)
                .saturating_mul(self.model.classes() as u64)
                .saturating_mul(maps),
            TaskKind::Classification | TaskKind::Contrast => 0,
        }
    }

    /// Floats of the similarities of all images and texts of a batch, with what the loss makes of them.
    pub(crate) fn similarities(&self) -> u64 {
        const TENSORS: u64 = 8;
        let batch = self.train.batch as u64;
        match self.task {
            TaskKind::Contrast => TENSORS.saturating_mul(batch).saturating_mul(batch),
            TaskKind::Classification | TaskKind::Segmentation => 0,
        }
    }

    /// Floats of the batches that are made ahead, and of those that are computed.
    fn loaded(&self) -> u64 {
        // A loss over the whole batch holds all of its parts.
        let held = match self.task {
            TaskKind::Contrast => 2 * self.train.parts(),
            TaskKind::Classification | TaskKind::Segmentation => self.train.shards,
        };
        let ahead = self.data.prefetch.max(self.data.workers).max(1) + 1 + held;
        let image = (self.model.image.resolution.pixels() * 3 + self.model.classes()) as u64;
        image.saturating_mul(self.part()).saturating_mul(ahead as u64)
    }

    /// Images of a part.
    fn part(&self) -> u64 {
        (self.train.batch / self.train.parts().max(1)).max(1) as u64
    }

    /// Parts that are computed at a time.
    fn lanes(&self) -> u64 {
        self.train.shards.min(rayon::current_num_threads()).max(1) as u64
    }

    /// Refuses what cannot fit into memory, however its batches are cut.
    pub fn check_memory(&self) -> Result<()> {
        self.clone().fit_into_memory().map(|_| ())
    }

    /// Cuts batches into as many parts as it takes for a step to fit into what there is; says what was
    /// changed, and fails where even single images do not fit.
    pub(crate) fn fit_into_memory(&mut self) -> Result<Option<String>> {
        match memory::available() {
            Some(available) => self.fit_into((available as f64 * USABLE) as u64, available),
            None => Ok(None),
        }
    }

    fn fit_into(&mut self, usable: u64, available: u64) -> Result<Option<String>> {
        let whole = self.step_memory()?;
        if whole.total() <= usable {
            return Ok(None);
        }
        let train = &self.train;
        let (batch, shards, before) = (train.batch, train.shards, train.accumulation);
        let in_parts = (before + 1..=batch).filter(|parts| {
            parts.checked_mul(shards).is_some_and(|parts| batch.is_multiple_of(parts))
        });
        for parts in in_parts {
            self.train.accumulation = parts;
            let memory = self.step_memory()?;
            if memory.total() <= usable {
                return Ok(Some(format!(
                    "a step would take about {}, and there are {}: every batch of {batch} is computed \
                     in {parts} parts (train.accumulation={parts}) for about {}; each part routes its \
                     own images",
                    whole.in_words(),
                    gibibytes(available),
                    memory.in_words()
                )));
            }
        }
        self.train.accumulation = before;
        let least = self.step_memory_of_one()?;
        Err(recipe_error(format!(
            "a step takes about {} (train.batch={batch} at {} pixels), and there are {} GiB; with one \
             image at a time it is still {}: take a smaller model or model.resolution, or freeze most of \
             it (train.freeze)",
            whole.in_words(),
            self.model.image.resolution,
            gibibytes(available),
            least.in_words()
        )))
    }

    fn step_memory_of_one(&self) -> Result<StepMemory> {
        let mut one = self.clone();
        one.train.batch = one.train.shards;
        one.train.accumulation = 1;
        one.step_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(settings: &[&str]) -> Recipe {
        Recipe::parse("model.preset = 'vit-s16'", "test".as_ref(), settings).unwrap()
    }

    #[test]
    fn a_batch_is_cut_until_it_fits() {
        let mut large = recipe(&["model.resolution=384", "train.batch=512"]);
        let whole = large.step_memory().unwrap();
        assert!(whole.total() > 30 << 30, "{}", whole.in_words());
        let said = large.fit_into(8 << 30, 9 << 30).unwrap().unwrap();
        let parts = large.train.accumulation;
        assert!(512_usize.is_multiple_of(parts) && parts > 1);
        assert!(large.step_memory().unwrap().total() <= 8 << 30);
        assert!(said.contains(&format!("train.accumulation={parts}")), "{said}");
        let fewer = (1..parts).rev().find(|parts| 512_usize.is_multiple_of(*parts)).unwrap();
        large.train.accumulation = fewer;
        assert!(large.step_memory().unwrap().total() > 8 << 30, "no more parts than needed");
        large.check().unwrap();
    }

    #[test]
    fn what_fits_is_left_alone_and_what_cannot_is_refused() {
        let mut small = recipe(&["train.batch=8"]);
        assert_eq!(small.fit_into(8 << 30, 9 << 30).unwrap(), None);
        assert_eq!(small.train.accumulation, 1);
        let message = small.fit_into(100 << 20, 100 << 20).unwrap_err().to_string();
        assert!(message.contains("train.freeze") && message.contains("0.10 GiB"), "{message}");
        assert_eq!(small.train.accumulation, 1);
    }

    #[test]
    fn what_is_frozen_needs_no_gradients() {
        let total = |settings: &[&str]| recipe(settings).step_memory().unwrap();
        let all = total(&["train.batch=32"]);
        let two = total(&["train.batch=32", "train.freeze=embed,0-9"]);
        assert!(two.images * 3 < all.images, "{} {}", two.in_words(), all.in_words());
        assert!(two.weights * 2 < all.weights, "{} {}", two.in_words(), all.in_words());
    }

    /// Bytes of a step with parts of eight images.
    fn images_of(task: &str, batch: usize, more: &[&str]) -> u64 {
        let parts = [format!("train.batch={batch}"), format!("train.accumulation={}", batch / 8)];
        let settings: Vec<&str> =
            parts.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let recipe = Recipe::parse(task, "test".as_ref(), &settings).unwrap();
        recipe.step_memory().unwrap().images
    }

    #[test]
    fn similarities_of_a_contrast_grow_with_the_square_of_its_batch() {
        let pairs = "task = 'contrast'\nmodel.preset = 'limoe-tiny'\nmodel.moe = 'none'";
        let images = |batch| images_of(pairs, batch, &[]);
        // Eight tensors of floats; what a part holds stays the same.
        let similarities = |batch: u64| 8 * 4 * batch * batch;
        assert_eq!(images(64) - images(32), similarities(64) - similarities(32));
        assert_eq!(images(512) - images(64), similarities(512) - similarities(64));
        let classes = "model.preset = 'vit-tiny'";
        assert_eq!(images_of(classes, 512, &[]), images_of(classes, 64, &[]));
    }

    #[test]
    fn maps_of_a_segmentation_grow_with_pixels_times_classes() {
        let floats = |resolution: usize, classes: usize| {
            let settings = [format!("model.resolution={resolution}"), "train.batch=8".to_owned()];
            let mut recipe = Recipe::parse(
                "task = 'segmentation'\nmodel.preset = 'vit-tiny'",
                "test".as_ref(),
                &settings,
            )
            .unwrap();
            recipe.model = recipe.model.into_segmenter(classes);
            recipe.train.shards = 1;
            recipe.pixels_of_maps()
        };
        // Eight tensors of a part of eight images.
        assert_eq!(floats(32, 3), 8 * 8 * 32 * 32 * 3);
        assert_eq!(floats(64, 3), 4 * floats(32, 3));
        assert_eq!(floats(32, 9), 3 * floats(32, 3));
        assert_eq!(recipe(&["train.batch=8"]).pixels_of_maps(), 0, "images have one row of logits");
    }
}
