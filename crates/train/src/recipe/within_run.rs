//! What may change of a recipe while its run goes on.

use super::{
    Recipe,
    layers::{Layer, Setting},
    length::Length,
    recipe_error,
};
use crate::error::{Result, TrainError};

/// Settings that neither the weights, nor what the optimiser remembers, nor the order of the images depends
/// on; and all of `schedule`.
const MAY_CHANGE: &[&str] = &[
    "train.steps",
    "train.epochs",
    "train.evaluate_every",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    "train.keep",
    "train.log_every",
    "optimiser.learning_rate",
    "data.workers",
    "data.prefetch",
];

fn may_change(key: &str) -> bool {
    MAY_CHANGE.contains(&key) || key.starts_with("schedule.")
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
}
