//! What a run begins with, or goes on with.

mod changes;
mod initial;

use burn::tensor::Device;
use omma_model::{
    VisionTransformer,
    checkpoint::{self, Identity},
};

use self::{changes::changes, initial::starting_model};

use crate::{
    error::{Result, TrainError},
    freezing::Freezing,
    optimiser::Optimiser,
    recipe::{Recipe, recipe_error},
    resolved::Resolved,
    run::{Origin, Progress, RunFolder, State, Stretch},
    trainer::{Average, Interval, Weights},
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
    pub(crate) freezing: Freezing,
    pub(crate) progress: Progress,
    /// Sums of the steps since the last line of the log.
    pub(crate) interval: Interval,
    /// The step of the checkpoint that it goes on from.
    pub(crate) from: Option<u64>,
}

impl Begin {
    /// From the start.
    pub(crate) fn fresh(resolved: &Resolved, device: &Device) -> Result<Self> {
        let model = starting_model(resolved, device)?;
        Self::with(&resolved.recipe, model)
    }

    /// With a model, nothing remembered yet.
    pub(crate) fn with(recipe: &Recipe, model: VisionTransformer) -> Result<Self> {
        let freezing = recipe.train.freeze.of(&model)?;
        if recipe.data.cache && freezing.trunk.is_none() {
            return Err(recipe_error(
                "data.cache keeps what a frozen part makes of the images, and nothing is frozen from \
                 the embedding on: set train.freeze=embed,0-9 as well, or backbone"
                    .to_owned(),
            ));
        }
        let model = freezing.apply(model);
        let weights = Weights::learning(&model, &freezing);
        let parameters = weights.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice()));
        let optimiser = Optimiser::new(recipe.optimiser, recipe.model.encoder.depth, parameters);
        let decay = recipe.train.ema;
        let average = (decay > 0.0).then(|| Average::new(decay, &weights.values));
        let (progress, interval, from) = (Progress::begin(), Interval::default(), None);
        Ok(Self { model, weights, average, optimiser, freezing, progress, interval, from })
    }

    /// From the newest checkpoint that can be read. Those that were read and found damaged are set aside
    /// once a good one is found; before that, and for any other error, everything stays as it is.
    pub(crate) fn again(
        run: &RunFolder,
        resolved: &Resolved,
        earlier: &[Stretch],
        how: Resume,
        device: &Device,
    ) -> Result<Self> {
        let checkpoints = run.checkpoints();
        let mut damaged = Vec::new();
        let mut found = None;
        for step in checkpoints.steps()?.into_iter().rev() {
            let stretch = earlier.iter().find(|stretch| step <= stretch.until);
            let trained_by = stretch.map_or(&resolved.recipe, |stretch| &stretch.recipe);
            match Self::at(run, resolved, trained_by, step, how, device) {
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
        match (found, run.origin()?) {
            (Some(begin), _) => Ok(begin),
            (None, Some(origin)) => Self::at_origin(&origin, resolved, device),
            (None, None) => Self::fresh(resolved, device),
        }
    }

    /// A cooldown that has no checkpoint of its own yet.
    fn at_origin(origin: &Origin, resolved: &Resolved, device: &Device) -> Result<Self> {
        let Origin { run, step, weights } = origin;
        let (trunk, _) = RunFolder::open(run)?;
        let Read { model, weights: found, state } = Read::checkpoint(&trunk, *step, device)?;
        if found != *weights {
            return Err(TrainError::NoCheckpoint {
                path: run.clone(),
                why: format!(
                    ": the one of step {step} is not the one that this cooldown began with"
                ),
            });
        }
        Ok(Self::restored(&trunk, resolved, model, &state, true)?.begun_anew())
    }

    /// From a checkpoint of another run, which `trained_by` has led to; and what tells its weights from others.
    pub(crate) fn cooling_down(
        trunk: &RunFolder,
        trained_by: &Recipe,
        step: u64,
        resolved: &Resolved,
        how: Resume,
        device: &Device,
    ) -> Result<(Self, Identity)> {
        let Read { model, weights, state } = Read::checkpoint(trunk, step, device)?;
        let same = resolved.recipe.data.same_images(&trained_by.data);
        let changed = changes(trunk, trained_by, same.then_some(&resolved.data), &state);
        if let Some(changed) = changed.as_ref().err().filter(|_| !how.accept_changes) {
            return Err(changed.clone().into());
        }
        check_classes(trunk, &model, resolved)?;
        let begin = Self::restored(trunk, resolved, model, &state, changed.is_ok())?;
        Ok((begin.begun_anew(), weights))
    }

    /// As the first state of a run of its own, which has neither saved nor judged it.
    fn begun_anew(self) -> Self {
        let progress = Progress { best: None, evaluated: None, ..self.progress };
        Self { progress, interval: Interval::default(), from: None, ..self }
    }

    /// From the checkpoint after a step, which a recipe has led to.
    fn at(
        run: &RunFolder,
        resolved: &Resolved,
        trained_by: &Recipe,
        step: u64,
        how: Resume,
        device: &Device,
    ) -> Result<Self> {
        let Read { model, state, .. } = Read::checkpoint(run, step, device)?;
        let changed = changes(run, trained_by, Some(&resolved.data), &state);
        if let Some(conflict) = resolved.task.conflict(model.config()) {
            return Err(recipe_error(conflict));
        }
        if let Some(changed) = changed.as_ref().err().filter(|_| !how.accept_changes) {
            return Err(changed.clone().into());
        }
        Self::restored(run, resolved, model, &state, changed.is_ok())
    }

    /// A model and its state by a recipe, `as_it_was` or changed since.
    fn restored(
        run: &RunFolder,
        Resolved { recipe, .. }: &Resolved,
        model: VisionTransformer,
        state: &State,
        as_it_was: bool,
    ) -> Result<Self> {
        // The checkpoint's model would be trained, whatever the recipe says of it.
        if *model.config() != recipe.model {
            return Err(recipe_error(format!(
                "the settings of the model in {} have changed, and cannot within a run; put them back, or \
                 start a new run with --init",
                run.file("recipe.toml").display()
            )));
        }
        let mut begin = Self::with(recipe, model)?;
        let raw = state.restore(&mut begin.optimiser, begin.average.is_some());
        // What does not fit a changed recipe is not damaged.
        let raw = raw.map_err(|error| match as_it_was {
            true => error,
            false => recipe_error(format!("the recipe has changed too much: {error}")),
        })?;
        if let (Some(raw), Some(average)) = (raw, &mut begin.average) {
            average.values = std::mem::replace(&mut begin.weights.values, raw);
            begin.model = begin.weights.put(begin.model)?;
        }
        let (progress, interval) = (state.progress, state.interval.clone());
        Ok(Self { progress, interval, from: Some(progress.step), ..begin })
    }
}

/// A checkpoint of a run, read.
struct Read {
    model: VisionTransformer,
    /// What tells the model from others.
    weights: Identity,
    state: State,
}

impl Read {
    fn checkpoint(run: &RunFolder, step: u64, device: &Device) -> Result<Self> {
        let folder = run.checkpoints().at(step);
        let (model, weights) = checkpoint::load_identified(&folder, device)?;
        let state = State::load(&folder, step, &weights)?;
        Ok(Self { model, weights, state })
    }
}

/// Fails where a cooldown's images have other classes than those that its model tells apart.
fn check_classes(trunk: &RunFolder, model: &VisionTransformer, resolved: &Resolved) -> Result<()> {
    let path = trunk.file("classes.json");
    let (Ok(text), 1..) = (std::fs::read(&path), model.config().classes()) else { return Ok(()) };
    let own: Vec<String> = serde_json::from_slice(&text)
        .map_err(|error| TrainError::Damaged { path, why: error.to_string() })?;
    let other = resolved.data.train.classes();
    let different = own.iter().zip(other).position(|(own, other)| own != other);
    match different {
        _ if own.len() != other.len() => Err(recipe_error(format!(
            "{} has {} classes, and the model tells {} apart",
            resolved.recipe.data.name,
            other.len(),
            own.len()
        ))),
        Some(class) => Err(recipe_error(format!(
            "class {class} is \"{}\" in {}, and the model has learned it as \"{}\"",
            other[class], resolved.recipe.data.name, own[class]
        ))),
        None => Ok(()),
    }
}
