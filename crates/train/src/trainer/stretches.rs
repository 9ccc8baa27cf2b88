//! A run that is extended: a new stretch, with what the optimiser remembers and with another end.

use std::path::Path;

use burn::tensor::Device;

use super::{Observer, Trainer};
use crate::{
    error::Result,
    logs::StretchRecord,
    optimiser::Schedule,
    recipe::{Recipe, recipe_error},
    resolved::Resolved,
    run::{RunFolder, Stretch},
    start::{Begin, Resume},
};

/// The learning rate of every step of a run. Each stretch computes it as if the run had always had the length
/// that it has since then; so a cosine that had come down may rise where a new stretch begins.
pub(super) struct Stretches {
    earlier: Vec<(Stretch, Rate)>,
    now: Rate,
    /// Where each stretch after the first begins.
    beginnings: Vec<StretchRecord>,
}

struct Rate {
    highest: f64,
    schedule: Schedule,
    /// Steps of the run.
    steps: u64,
}

impl Rate {
    fn new(recipe: &Recipe, images: usize) -> Self {
        let (highest, schedule) = (recipe.optimiser.learning_rate, recipe.schedule);
        Self { highest, schedule, steps: recipe.total_steps(images) }
    }

    fn at(&self, step: u64) -> f64 {
        self.highest * self.schedule.share(step, self.steps)
    }
}

impl Stretches {
    /// Of a run over so many training images.
    pub(super) fn new(earlier: Vec<Stretch>, recipe: &Recipe, images: usize) -> Self {
        let rated = |stretch: Stretch| {
            let rate = Rate::new(&stretch.recipe, images);
            (stretch, rate)
        };
        let earlier: Vec<(Stretch, Rate)> = earlier.into_iter().map(rated).collect();
        let now = Rate::new(recipe, images);
        let mut stretches = Self { earlier, now, beginnings: Vec::new() };
        let recipes = stretches.earlier.iter().map(|(stretch, _)| &stretch.recipe);
        let next = recipes.skip(1).chain([recipe]);
        stretches.beginnings = stretches
            .earlier
            .iter()
            .zip(next)
            .map(|((Stretch { until: step, recipe: old }, _), new)| StretchRecord {
                step: *step,
                steps: new.total_steps(images),
                learning_rate_before: step.checked_sub(1).map(|step| stretches.rate(step)),
                learning_rate: stretches.rate(*step),
                changes: changes(old, new),
            })
            .collect();
        stretches
    }

    /// The learning rate of a step, counted from 0.
    pub(super) fn rate(&self, step: u64) -> f64 {
        let earlier = self.earlier.iter().find(|(stretch, _)| step < stretch.until);
        earlier.map_or(&self.now, |(_, rate)| rate).at(step)
    }

    /// The recipe of the earlier stretch that led to a step; nothing for the stretch that the run is in.
    pub(super) fn led_to(&self, step: u64) -> Option<&Recipe> {
        let earlier = self.earlier.iter().find(|(stretch, _)| step <= stretch.until);
        earlier.map(|(stretch, _)| &stretch.recipe)
    }

    /// Steps after which stretches have ended.
    pub(super) fn ends(&self) -> impl Iterator<Item = u64> {
        self.earlier.iter().map(|(stretch, _)| stretch.until)
    }

    /// The stretch that begins after a step.
    fn beginning(&self, step: u64) -> Option<&StretchRecord> {
        self.beginnings.iter().find(|record| record.step == step)
    }
}

fn changes(old: &Recipe, new: &Recipe) -> Vec<String> {
    let said = |(key, old, new): (String, String, String)| format!("{key} was {old} and is {new}");
    old.differences(new).into_iter().map(said).collect()
}

impl Trainer {
    /// Goes on with a run, finished or not, by other settings, from its newest checkpoint that can be read.
    /// What it had reached is kept beside what it will. Also says what a user may not expect of the settings.
    pub fn extend(
        path: &Path,
        settings: &[String],
        how: Resume,
        device: &Device,
    ) -> Result<(Self, Vec<String>)> {
        let (run, recipe) = RunFolder::open(path)?;
        // What cannot change is said before anything is read.
        recipe.within_run(settings)?;
        let run = run.own()?;
        run.tidy()?;
        let mut resolved = Resolved::again(recipe, Some(path), device)?;
        let device = device.clone().autodiff();
        let begin = Begin::again(&run, &resolved, &run.earlier_stretches()?, how, &device)?;
        let (recipe, notes) = resolved.recipe.within_run(settings)?;
        recipe.train.precision.check(&device)?;
        let taken = begin.progress.step;
        let steps = recipe.total_steps(resolved.data.train.len());
        if steps <= taken {
            return Err(recipe_error(format!(
                "{} has taken {taken} steps already, and would end after {steps}; give it more with --set \
                 train.steps=… or train.epochs=…",
                path.display()
            )));
        }
        if recipe != resolved.recipe {
            run.begin_stretch(taken, &recipe)?;
            resolved.recipe = recipe;
        }
        Ok((Self::new(resolved, run, begin, device)?, notes))
    }

    /// Writes down that a stretch begins here, if one does; its checkpoint stays.
    pub(super) fn begin_stretch(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let Some(record) = self.stretches.beginning(self.progress.step) else { return Ok(()) };
        self.logs.begin_stretch(record)?;
        observer.extended(record);
        match self.progress.step {
            0 => Ok(()),
            _ => self.save(observer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Request;

    /// A cosine over 400 steps that is extended to 800 after its end, and to 1000 after step 600.
    #[test]
    fn every_stretch_has_the_rates_of_its_own_length() {
        let recipe = |steps: u64| {
            let settings = [format!("train.steps={steps}"), "schedule.warmup=0".to_owned()];
            Recipe::find("vit", &Request::of(&settings)).unwrap()
        };
        let earlier = vec![
            Stretch { until: 400, recipe: recipe(400) },
            Stretch { until: 600, recipe: recipe(800) },
        ];
        let stretches = Stretches::new(earlier, &recipe(1000), 1);
        let cosine =
            |step: f64, steps: f64| 0.5e-3 * (1.0 + (std::f64::consts::PI * step / steps).cos());
        for (step, steps) in
            [(0, 400), (399, 400), (400, 800), (599, 800), (600, 1000), (999, 1000)]
        {
            let expected = cosine(step as f64, f64::from(steps));
            assert!((stretches.rate(step) - expected).abs() < 1e-15, "step {step}");
        }
        assert_eq!(stretches.ends().collect::<Vec<_>>(), [400, 600]);
        let first = stretches.beginning(400).unwrap();
        assert_eq!(
            (first.steps, first.changes.clone()),
            (800, vec!["train.steps was 400 and is 800".to_owned()])
        );
        assert!(first.learning_rate_before.unwrap() < 1e-7, "it had come down");
        assert!((first.learning_rate - 0.5e-3).abs() < 1e-12, "and is half way again");
        assert!(stretches.beginning(500).is_none());
    }
}
