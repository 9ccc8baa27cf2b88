//! The model that a run starts with: fresh, or from a checkpoint.

use std::path::PathBuf;

use burn::tensor::Device;
use omma_base::Seed;
use omma_model::{Position, VisionTransformer, checkpoint, parameter_values, with_values};

use crate::{
    average::Average,
    error::{Result, TrainError},
    optimiser::Optimiser,
    recipe::{Recipe, recipe_error},
    run::{Progress, RunFolder, State},
    splits::Splits,
    weights::Weights,
};

/// How a run may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resume {
    /// From its start, if none of its checkpoints can be read.
    pub from_start: bool,
    /// By its recipe and on its images as they are now, if those are not what its checkpoint was trained by.
    pub accept_changes: bool,
}

/// What training begins with, or goes on with.
pub(crate) struct Begin {
    pub(crate) model: VisionTransformer,
    /// Those that are trained.
    pub(crate) weights: Weights,
    pub(crate) average: Option<Average>,
    pub(crate) optimiser: Optimiser,
    pub(crate) progress: Progress,
    /// The step of the checkpoint that it goes on from.
    pub(crate) from: Option<u64>,
}

impl Begin {
    /// From the start.
    pub(crate) fn fresh(recipe: &mut Recipe, device: &Device) -> Result<Self> {
        recipe.check_memory()?;
        let model = starting_model(recipe, device)?;
        Ok(Self::with(recipe, model))
    }

    fn with(recipe: &Recipe, model: VisionTransformer) -> Self {
        let weights = Weights::of(&model);
        let parameters = weights.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice()));
        let optimiser = Optimiser::new(recipe.optimiser, recipe.model.depth, parameters);
        let decay = recipe.train.ema;
        let average = (decay > 0.0).then(|| Average::new(decay, &weights.values));
        Self { model, weights, average, optimiser, progress: Progress::default(), from: None }
    }

    /// From the newest checkpoint that can be read. Those that were read and found damaged are set aside
    /// once a good one is found; before that, and for any other error, everything stays as it is.
    pub(crate) fn again(
        run: &RunFolder,
        recipe: &mut Recipe,
        data: &Splits,
        how: Resume,
        device: &Device,
    ) -> Result<Self> {
        let checkpoints = run.checkpoints();
        let mut damaged = Vec::new();
        let mut found = None;
        for step in checkpoints.steps()?.into_iter().rev() {
            match Self::at(run, (recipe, data), step, how, device) {
                Err(error) if error.is_damage() => damaged.push((step, error)),
                other => {
                    found = Some(other?);
                    break;
                }
            }
        }
        if found.is_none() && checkpoints.ever()? && !how.from_start {
            let why = match damaged.first() {
                None => ", but it had some: they are gone".to_owned(),
                Some((_, error)) => format!(": none of them can be read ({error})"),
            };
            let why = format!("{why}; --from-start begins it again");
            return Err(TrainError::NoCheckpoint { path: run.path().to_owned(), why });
        }
        for (step, error) in damaged {
            let aside = checkpoints.set_aside(step)?;
            tracing::warn!("{error}; it is now {}", aside.display());
        }
        found.map_or_else(|| Self::fresh(recipe, device), Ok)
    }

    /// From the checkpoint after a step.
    fn at(
        run: &RunFolder,
        (recipe, data): (&Recipe, &Splits),
        step: u64,
        how: Resume,
        device: &Device,
    ) -> Result<Self> {
        let folder = run.checkpoints().at(step);
        let (model, identity) = checkpoint::load_identified(&folder, device)?;
        let state = State::load(&folder, step, &identity)?;
        let (then, now) = (model.config().classes, recipe.model.classes);
        if then != now {
            return Err(recipe_error(format!(
                "{} has {now} classes now, and the run was trained to tell {then} apart; put the images \
                 back, or start a new run with --init",
                recipe.data.name
            )));
        }
        let changed = changes(run, (recipe, data), &state);
        if let Some(changed) = changed.as_ref().err().filter(|_| !how.accept_changes) {
            return Err(changed.clone().into());
        }
        let mut begin = Self::with(recipe, model);
        let raw = state.restore(&mut begin.optimiser, begin.average.is_some());
        // What does not fit a changed recipe is not damaged.
        let raw = raw.map_err(|error| match changed {
            Ok(()) => error,
            Err(_) => recipe_error(format!("the recipe has changed too much: {error}")),
        })?;
        if let (Some(raw), Some(average)) = (raw, &mut begin.average) {
            average.values = std::mem::replace(&mut begin.weights.values, raw);
            begin.model = begin.weights.put(begin.model)?;
        }
        Ok(Self { progress: state.progress, from: Some(step), ..begin })
    }
}

/// What is not as it was when a checkpoint was written.
#[derive(Clone)]
struct Changed {
    path: PathBuf,
    what: &'static str,
    changes: String,
}

impl From<Changed> for TrainError {
    fn from(Changed { path, what, changes }: Changed) -> Self {
        Self::Changed { path, what, changes }
    }
}

/// Fails where recipe or images are not those that a checkpoint was trained by. A bit that turned over in a
/// recipe, or a picture more in a folder, would make another model of the same name.
fn changes(
    run: &RunFolder,
    (recipe, data): (&Recipe, &Splits),
    state: &State,
) -> Result<(), Changed> {
    let path = run.file("recipe.toml");
    let then = state.recipe.as_ref().map(|text| Recipe::parse::<&str>(text, &path, &[]));
    // One that this version of the program does not understand cannot be compared.
    if let Some(Ok(then)) = then {
        let changes = recipe.differences(&then);
        let shown = changes.iter().take(3);
        let shown = shown.map(|(key, now, then)| format!("{key} is {now} and was {then}"));
        let mut text = shown.collect::<Vec<_>>().join(", ");
        if changes.len() > 3 {
            text += &format!(", and {} more", changes.len() - 3);
        }
        if !changes.is_empty() {
            return Err(Changed { path, what: "the recipe has", changes: text });
        }
    }
    match &state.data {
        Some(then) if *then != data.identity() => Err(Changed {
            path: PathBuf::from(&recipe.data.name),
            what: "the images have",
            changes: format!("{} now; {then} then", data.identity()),
        }),
        _ => Ok(()),
    }
}

/// The model of a recipe. Of a checkpoint, everything is taken that has a place in the recipe's model;
/// a classifier for other classes starts fresh, learned positions are kept at their own grid and
/// interpolated, and anything else that does not fit is an error.
fn starting_model(recipe: &mut Recipe, device: &Device) -> Result<VisionTransformer> {
    let seed = Seed::new(recipe.seed).named("model");
    let Some(path) = recipe.init.clone() else { return Ok(recipe.model.init(seed, device)?) };
    let source = checkpoint::load(&path, &Device::flex())?;
    let from = source.config();
    let learned = matches!(from.position, Position::Learned | Position::LearnedPatches);
    if learned && from.resolution != recipe.model.resolution {
        let grid = from.position_resolution.unwrap_or(from.resolution);
        recipe.model.position_resolution = Some(grid);
    }
    let model = recipe.model.init(seed, device)?;
    let known: std::collections::HashMap<String, _> = parameter_values(&source)
        .into_iter()
        .map(|value| (value.parameter.name.clone(), value))
        .collect();
    let mut wrong = Vec::new();
    let model = with_values(model, |parameter| {
        let is_head = parameter.name.starts_with("head.");
        match known.get(&parameter.name) {
            Some(value) if value.parameter.shape == parameter.shape => Ok(Some(value.read())),
            _ if is_head => Ok(None),
            Some(value) => {
                let (own, other) = (&parameter.shape, &value.parameter.shape);
                wrong.push(format!("{} is {other:?} there and {own:?} here", parameter.name));
                Ok(None)
            }
            None => {
                wrong.push(format!("it has no {}", parameter.name));
                Ok(None)
            }
        }
    })?;
    match wrong.is_empty() {
        true => Ok(model),
        false => Err(recipe_error(format!(
            "{} is not the recipe's model: {}{}; change it with `omma upcycle` or `omma adapt` first",
            path.display(),
            wrong[..wrong.len().min(3)].join("; "),
            if wrong.len() > 3 { format!("; and {} more", wrong.len() - 3) } else { String::new() }
        ))),
    }
}
