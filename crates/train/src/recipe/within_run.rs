//! What may change of a recipe while its run goes on.

use super::{
    Recipe,
    layers::{Layer, Setting},
    length::Length,
    recipe_error,
};
use crate::{
    error::{Result, TrainError},
    optimiser::ScheduleKind,
};

/// Settings that neither the weights, nor what the optimiser remembers, nor the order of the images depends
/// on; and all of `schedule`.
const MAY_CHANGE: &[&str] = &[
    "train.steps",
    "train.epochs",
    "train.evaluate_every",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    "train.keep",
    "train.keep_every",
    "train.log_every",
    "train.test_share",
    "train.precision",
    "train.expert_parallel",
    "train.spread_optimiser",
    "train.overlap",
    "optimiser.learning_rate",
    "data.workers",
    "data.prefetch",
];

fn may_change(key: &str) -> bool {
    MAY_CHANGE.contains(&key) || key.starts_with("schedule.")
}

/// What a cooldown's own length and its run's schedule decide.
fn is_of_length(key: &str) -> bool {
    ["train.steps", "train.epochs"].contains(&key) || key.starts_with("schedule.")
}

/// Settings beside those above that a cooldown may have to itself: what it learns from, and how that is drawn.
const OF_COOLDOWNS: &[&str] = &["seed", "train.label_smoothing", "train.linear_baseline"];
const SECTIONS_OF_COOLDOWNS: &[&str] = &["data.", "augment.", "mixing."];

fn may_change_in_cooldown(key: &str) -> bool {
    let own = OF_COOLDOWNS.contains(&key)
        || SECTIONS_OF_COOLDOWNS.iter().any(|section| key.starts_with(section));
    own || may_change(key) && !is_of_length(key)
}

impl Recipe {
    /// The recipe of a run with settings that may change while it goes on, and what there is to say of them.
    pub(crate) fn within_run(&self, settings: &[String]) -> Result<(Self, Vec<String>)> {
        let parsed =
            settings.iter().map(|text| Setting::parse(text)).collect::<Result<Vec<_>>>()?;
        let layer = Layer::new(parsed, None);
        let mut length = Length::saved(&self.train, "the run");
        let mut recipe = self.clone();
        for setting in &layer.settings {
            let with = recipe.clone().with(setting);
            // What does not exist is said first.
            if !may_change(&setting.key) && !matches!(with, Err(TrainError::UnknownSetting { .. }))
            {
                return Err(recipe_error(format!(
                    "{} cannot change within a run; start a new one from its model: omma train RECIPE \
                     --init RUN --set {}={}. What can: {}, schedule.*",
                    setting.key,
                    setting.key,
                    setting.text,
                    MAY_CHANGE.join(", ")
                )));
            }
            recipe = with?;
            length.follow(setting, &layer, &mut recipe.train);
        }
        recipe.check()?;
        Ok((recipe, length.notes))
    }

    /// The recipe of a cooldown over so many steps that begins after `from` steps of this one, with settings of
    /// its own. The reverse square root goes on as if the run did, and falls to zero in a line.
    ///
    /// - `total`: steps of the run that it begins in
    pub(crate) fn cooling_down(
        &self,
        from: u64,
        total: u64,
        steps: u64,
        settings: &[String],
    ) -> Result<Self> {
        if self.schedule.kind != ScheduleKind::ReverseSqrt {
            return Err(recipe_error(
                "a cooldown goes on from a reverse square root, and the run has another schedule: train one \
                 with --set schedule.kind=reverse-sqrt --set schedule.cooldown=0"
                    .to_owned(),
            ));
        }
        if let Some(first) = self.schedule.cooled_from(total).filter(|first| from > *first) {
            return Err(recipe_error(format!(
                "step {from} is in the run's own cooldown, which begins after step {first}: choose an earlier \
                 checkpoint with --from-step, or train a run without one (--set schedule.cooldown=0 --set \
                 train.keep_every=…)"
            )));
        }
        let mut recipe = self.clone();
        for text in settings {
            let setting = Setting::parse(text)?;
            let with = recipe.clone().with(&setting);
            // What does not exist is said first.
            let unknown = matches!(with, Err(TrainError::UnknownSetting { .. }));
            let key = &setting.key;
            if !unknown && is_of_length(key) {
                return Err(recipe_error(format!(
                    "{key} follows from --cooldown and from the run's own schedule"
                )));
            }
            if !unknown && !may_change_in_cooldown(key) {
                return Err(recipe_error(format!(
                    "{key} cannot change in a cooldown, which goes on with the run's model and with what its \
                     optimiser remembers. What can: data.*, augment.*, mixing.*, {}",
                    OF_COOLDOWNS
                        .iter()
                        .chain(MAY_CHANGE)
                        .copied()
                        .filter(|key| !is_of_length(key))
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
            recipe = with?;
        }
        let end = from.checked_add(steps).filter(|_| steps > 0);
        let end = end.ok_or_else(|| recipe_error("a cooldown has at least one step".to_owned()))?;
        recipe.train.steps = end;
        recipe.schedule = self.schedule.cooling_down(total, end, steps);
        recipe.check()?;
        Ok(recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Request;

    fn within_run(settings: &[&str]) -> Result<(Recipe, Vec<String>)> {
        let recipe = Recipe::find("vit", &Request::default()).unwrap();
        recipe.within_run(&settings.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn every_setting_that_may_change_exists() {
        let settings = Recipe::default().settings();
        for key in MAY_CHANGE {
            assert!(settings.contains_key(*key), "{key}");
        }
    }

    #[test]
    fn length_and_schedule_may_change_and_the_model_may_not() {
        let (recipe, notes) =
            within_run(&["train.steps=2000", "schedule.kind=constant", "data.workers=1"]).unwrap();
        assert_eq!((recipe.train.steps, recipe.data.workers, notes.len()), (2000, 1, 0));
        let (recipe, notes) = within_run(&["train.epochs=3"]).unwrap();
        assert_eq!(recipe.train.steps, 0);
        assert_eq!(notes, ["train.epochs=3 from --set goes before train.steps=1600 of the run"]);
        for setting in ["model.depth=3", "model.preset=vit-tiny", "train.batch=4", "seed=1"] {
            let message = within_run(&["train.steps=2000", setting]).unwrap_err().to_string();
            let key = setting.split('=').next().unwrap();
            assert!(message.starts_with(key) && message.contains("--init"), "{message}");
        }
        let message = within_run(&["train.step=2000"]).unwrap_err().to_string();
        assert!(message.contains("\"train.steps\""), "{message}");
    }

    /// A reverse square root over a thousand steps with a tenth of warm-up, cooled down from step 600 on.
    fn cooled(trunk: &[&str], from: u64, settings: &[&str]) -> Result<(Recipe, Recipe)> {
        let mut all = vec!["schedule.kind=reverse-sqrt", "schedule.warmup=0.1", "train.steps=1000"];
        all.extend(trunk);
        let trunk = Recipe::find("vit", &Request::of(&all)).unwrap();
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        let recipe = trunk.cooling_down(from, 1000, 50, &settings)?;
        Ok((trunk, recipe))
    }

    #[test]
    fn a_cooldown_goes_on_where_the_run_is_and_falls_to_zero_in_a_line() {
        let (trunk, recipe) = cooled(&["schedule.cooldown=0"], 600, &["seed=5"]).unwrap();
        assert_eq!((recipe.train.steps, recipe.seed), (650, 5));
        for step in 600..650 {
            let left = (650 - step) as f64 / 50.0;
            let expected = left * trunk.schedule.share(step, 1000);
            assert!((recipe.schedule.share(step, 650) - expected).abs() < 1e-15, "step {step}");
        }
    }

    #[test]
    fn a_cooldown_learns_from_other_images_and_not_with_another_model_or_length() {
        let trunk = &["schedule.cooldown=0"];
        let (_, recipe) = cooled(trunk, 600, &["data.limit=7", "mixing.mixup=0.5"]).unwrap();
        assert_eq!((recipe.data.limit, recipe.mixing.mixup), (7, 0.5));
        for (setting, part) in [
            ("model.depth=3", "cannot change in a cooldown"),
            ("optimiser.kind=sgd", "cannot change in a cooldown"),
            ("train.batch=4", "cannot change in a cooldown"),
            ("train.steps=700", "--cooldown"),
            ("schedule.timescale=5", "--cooldown"),
            ("data.limits=5", "data.limit"),
        ] {
            let message = cooled(trunk, 600, &[setting]).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_cooldown_does_not_begin_within_another_or_off_another_schedule() {
        cooled(&["schedule.cooldown=0.4"], 600, &[]).unwrap();
        let message = cooled(&["schedule.cooldown=0.4"], 601, &[]).unwrap_err().to_string();
        assert!(message.contains("begins after step 600"), "{message}");
        let message = cooled(&["schedule.kind=cosine"], 600, &[]).unwrap_err().to_string();
        assert!(message.contains("schedule.kind=reverse-sqrt"), "{message}");
    }
}
