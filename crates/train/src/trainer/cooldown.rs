//! Cooldowns: runs of their own that go on from a checkpoint of another and let the learning rate fall to zero
//! (paper 002 App. A.3).

use std::path::Path;

use burn::tensor::Device;
use omma_data::formats;

use super::Trainer;
use crate::{
    error::{Result, TrainError},
    recipe::{Recipe, recipe_error},
    resolved::Resolved,
    run::{Origin, Place, RunFolder, Stretch},
    start::{Begin, Resume},
};

/// A cooldown that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooldown {
    /// Steps in which the learning rate falls to zero.
    pub steps: u64,
    /// The checkpoint to begin from; nothing for the newest.
    pub from_step: Option<u64>,
    /// What is different from here on, such as `data.name=photos`.
    pub settings: Vec<String>,
}

impl Trainer {
    /// A new run that goes on from a checkpoint of another, with its weights and what its optimiser remembers. The
    /// other run is only read: it may be under way, and may have any number of cooldowns.
    ///
    /// - `place`: where it goes; nothing for beside the other, as `RUN-cooldown-1` and so on
    pub fn cooldown(
        path: &Path,
        place: Option<Place>,
        cooldown: &Cooldown,
        how: Resume,
        device: &Device,
    ) -> Result<Self> {
        let (trunk, _) = RunFolder::open(path)?;
        let step = chosen(&trunk, cooldown.from_step)?;
        let Led { mut by, mut earlier } = Led::to(&trunk, step)?;
        let total = match by.train.steps {
            0 => by.total_steps(Resolved::again(by.clone(), Some(path), device)?.data.train.len()),
            steps => steps,
        };
        let recipe = by.cooling_down(step, total, cooldown.steps, &cooldown.settings)?;
        let resolved = Resolved::again(recipe, Some(path), device)?;
        let device = device.clone().autodiff();
        let (begin, weights) = Begin::cooling_down(&trunk, &by, step, &resolved, how, &device)?;
        // Passes over other images would be another number of steps.
        by.train.steps = total;
        earlier.push(Stretch { until: step, recipe: by });
        let run = std::fs::canonicalize(path).map_err(TrainError::io(path))?;
        let origin = Origin { run, step, weights };
        let place = place.unwrap_or(Place::Beside(path));
        let run = RunFolder::create_cooldown(place, &resolved.recipe, &origin, &earlier)?;
        Self::new(resolved, run, begin, device)
    }
}

/// The step of the checkpoint to begin from.
fn chosen(trunk: &RunFolder, wanted: Option<u64>) -> Result<u64> {
    let kept = trunk.checkpoints().steps()?;
    let Some(newest) = kept.last() else {
        let path = trunk.path().to_owned();
        return Err(TrainError::NoCheckpoint { path, why: String::new() });
    };
    match wanted {
        Some(step) if !kept.contains(&step) => {
            let kept: Vec<String> = kept.iter().map(u64::to_string).collect();
            Err(recipe_error(format!(
                "{} has no checkpoint of step {step}; it has those of {} (train.keep_every=N keeps every N-th)",
                trunk.path().display(),
                kept.join(", ")
            )))
        }
        wanted => Ok(wanted.unwrap_or(*newest)),
    }
}

/// What led a run to a step.
struct Led {
    /// The recipe of the stretch that the step is the end or a part of.
    by: Recipe,
    /// The stretches before that.
    earlier: Vec<Stretch>,
}

impl Led {
    fn to(trunk: &RunFolder, step: u64) -> Result<Self> {
        let (_, mut recipe) = RunFolder::open(trunk.path())?;
        // As checkpoints remember it.
        recipe.data.name = formats::whole_name(&recipe.data.name);
        let (earlier, rest): (Vec<Stretch>, Vec<Stretch>) =
            trunk.earlier_stretches()?.into_iter().partition(|stretch| stretch.until < step);
        let by = rest.into_iter().next().map_or(recipe, |stretch| stretch.recipe);
        Ok(Self { by, earlier })
    }
}
