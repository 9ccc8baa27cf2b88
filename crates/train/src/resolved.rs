//! A recipe with everything that it names: data opened, classes known, device chosen. Nothing of it
//! changes afterwards.

use std::{path::Path, sync::Arc};

use burn::tensor::Device;
use omma_data::{Selection, Shared, formats, text::Tokenizer};
use omma_model::{Precision, checkpoint};

use crate::{
    error::Result,
    memory::StepMemory,
    recipe::Recipe,
    task::{Task, TaskKind},
};

/// The images of a run, and what each part of them is for.
#[derive(Clone)]
pub(crate) struct Splits {
    /// To learn from.
    pub(crate) train: Shared,
    /// Held out of these, to choose the best checkpoint by.
    pub(crate) validation: Shared,
    /// To judge by, once.
    pub(crate) test: Shared,
}

impl Splits {
    /// The same with a share of the test images, evenly spread over them and at least one; nothing where that share
    /// is 0.
    pub(crate) fn with_tests(&self, share: f64) -> Option<Self> {
        let some = ((share * self.test.len() as f64).round() as usize).max(1);
        (share > 0.0).then(|| Self { test: Selection::spread(&self.test, some), ..self.clone() })
    }
}

/// A recipe, ready to be trained.
#[derive(Clone)]
pub struct Resolved {
    pub(crate) recipe: Recipe,
    pub(crate) task: Arc<dyn Task>,
    pub(crate) data: Splits,
    /// Where tensors are, without gradients.
    pub(crate) device: Device,
    /// What a step takes.
    pub(crate) memory: StepMemory,
    /// What is worth knowing before it begins.
    pub(crate) notes: Vec<String>,
}

impl Resolved {
    /// Opens what the recipe of a new run names, and gives its model what follows from that: the data's
    /// classes, and the grid of positions of the checkpoint that it starts from. A batch that would not fit
    /// into memory is cut into parts.
    pub fn new(mut recipe: Recipe, device: &Device) -> Result<Self> {
        recipe.train.precision.check(device)?;
        if let Some(path) = &recipe.init {
            let from = checkpoint::summary(path)?.config.image;
            if from.learns_positions() && from.resolution != recipe.model.image.resolution {
                let grid = from.position_resolution.unwrap_or(from.resolution);
                recipe.model.image.position_resolution = Some(grid);
            }
        }
        let mut resolved = Self::again(recipe, None, device)?;
        match resolved.recipe.task {
            TaskKind::Classification => {
                formats::check_several_classes(&resolved.recipe.data_spec(), &resolved.data.train)?
            }
            TaskKind::Segmentation | TaskKind::Contrast => {}
        }
        let precision = resolved.recipe.train.precision;
        if precision != Precision::F32 && *device == Device::flex() {
            resolved.notes.push(format!(
                "the cpu computes in {precision} by plain operations, not by those that are made for it"
            ));
        }
        // The parts belong to the recipe from now on: a run that goes on elsewhere has the same.
        resolved.notes.extend(resolved.recipe.fit_into_memory()?);
        resolved.memory = resolved.recipe.step_memory()?;
        Ok(resolved)
    }

    /// The same for a run that goes on, whose recipe has everything but open data.
    ///
    /// - `run`: its folder
    pub(crate) fn again(recipe: Recipe, run: Option<&Path>, device: &Device) -> Result<Self> {
        let own = run.map(|run| run.join(checkpoint::TOKENIZER)).filter(|path| path.exists());
        let tokenizer = own.map(|path| Tokenizer::read(&path)).transpose()?;
        Self::with_tokenizer(recipe, tokenizer, device)
    }

    /// The same with the tokenizer of a run that goes on, where it has one.
    pub(crate) fn with_tokenizer(
        mut recipe: Recipe,
        tokenizer: Option<Tokenizer>,
        device: &Device,
    ) -> Result<Self> {
        // A run may be resumed from another folder.
        recipe.data.name = formats::whole_name(&recipe.data.name);
        let spec = recipe.data_spec();
        let (all, test) = formats::open_splits(&spec)?;
        let (train, validation) = recipe.data.parts(&recipe.data.captioned(all));
        let train = recipe.data.mixture(train, &spec)?;
        let data = Splits { train, validation, test: recipe.data.captioned(test) };
        let task = TaskKind::of(&recipe, &data, tokenizer)?;
        recipe.model = task.fitted(recipe.model);
        recipe.check()?;
        let memory = recipe.step_memory()?;
        Ok(Self { recipe, task, data, device: device.clone(), memory, notes: Vec::new() })
    }

    /// The recipe with everything in it.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }
}
