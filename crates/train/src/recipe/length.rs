//! How long a run is: `train.steps` or `train.epochs`, whichever was given last.
//!
//! A recipe holds both, and steps that are not 0 count. So epochs that come later than steps put these to 0,
//! and steps that come later than epochs only have to be there.

use serde_json::Value;

use super::{
    TrainRecipe,
    layers::{Layer, Setting},
    recipe_error,
};
use crate::error::Result;

const STEPS: &str = "train.steps";
const EPOCHS: &str = "train.epochs";

/// Which of the two was given last, followed layer by layer.
#[derive(Default)]
pub(super) struct Length {
    given: Option<Given>,
    /// What went before something else, in sentences.
    pub(super) notes: Vec<String>,
}

struct Given {
    key: &'static str,
    text: String,
    /// Where it was given, in words.
    place: String,
}

impl Length {
    /// That of a saved recipe, in which steps go before epochs.
    pub(super) fn saved(train: &TrainRecipe, file: &str) -> Self {
        let (key, text) = match train.steps {
            0 => (EPOCHS, train.epochs.to_string()),
            steps => (STEPS, steps.to_string()),
        };
        let given = Given { key, text, place: format!("of {file}") };
        Self { given: Some(given), notes: Vec::new() }
    }

    /// Refuses a file that gives both: the order of its keys means nothing.
    pub(super) fn check(layer: &Layer) -> Result<()> {
        let gives = |key: &str| layer.settings.iter().any(|one| one.key == key && !is_zero(one));
        match layer.file.is_some() && gives(STEPS) && gives(EPOCHS) {
            false => Ok(()),
            true => Err(recipe_error(format!(
                "{STEPS} and {EPOCHS} are both given; leave one of them out"
            ))),
        }
    }

    /// Takes a setting into account that was put into a recipe.
    pub(super) fn follow(&mut self, setting: &Setting, layer: &Layer, train: &mut TrainRecipe) {
        let Some(key) = [STEPS, EPOCHS].into_iter().find(|key| *key == setting.key) else { return };
        if is_zero(setting) {
            // It leaves the length to the other one.
            self.given.take_if(|given| given.key == key);
            return;
        }
        if key == EPOCHS {
            train.steps = 0;
        }
        let place = match &layer.file {
            Some(file) => format!("of {file}"),
            None => "from --set".to_owned(),
        };
        let given = Given { key, text: setting.text.clone(), place };
        if let Some(old) = self.given.replace(given).filter(|old| old.key != key) {
            let (text, place) = (&setting.text, self.given.as_ref().map_or("", |new| &new.place));
            self.notes.push(format!(
                "{key}={text} {place} goes before {}={} {}",
                old.key, old.text, old.place
            ));
        }
    }
}

fn is_zero(setting: &Setting) -> bool {
    setting.value.as_f64() == Some(0.0) || setting.value == Value::Null
}

#[cfg(test)]
mod tests {
    use crate::recipe::{Recipe, Request};

    fn length(recipe: &Recipe) -> (u64, f64) {
        (recipe.train.steps, recipe.train.epochs)
    }

    #[test]
    fn the_one_given_last_wins_and_the_other_is_named() {
        let find = |settings: &[&str]| {
            Recipe::find_with_notes("fashion-vit", &Request::of(settings)).unwrap()
        };
        let (recipe, notes) = find(&[]);
        assert_eq!((length(&recipe), notes.len()), ((0, 16.0), 0));
        let (recipe, notes) = find(&["train.steps=500"]);
        assert_eq!(recipe.total_steps(1_000_000), 500);
        let expected =
            "train.steps=500 from --set goes before train.epochs=16 of recipe fashion-vit";
        assert_eq!(notes, [expected]);
        // Both from the user, in either order.
        let (recipe, notes) = find(&["train.steps=500", "train.epochs=3"]);
        assert_eq!(length(&recipe), (0, 3.0));
        assert!(notes[1].contains("train.epochs=3 from --set goes before train.steps=500"));
        let (recipe, _) = find(&["train.epochs=3", "train.steps=500"]);
        assert_eq!(recipe.train.steps, 500);
        // Twice the same key is no contest, and 0 leaves the length to the other.
        assert!(find(&["train.epochs=2", "train.epochs=3"]).1.is_empty());
        let (recipe, notes) = find(&["train.steps=0"]);
        assert_eq!((length(&recipe), notes.len()), ((0, 16.0), 0));
    }

    #[test]
    fn epochs_from_the_user_go_before_steps_of_the_recipe() {
        let (recipe, notes) =
            Recipe::find_with_notes("vit", &Request::of(&["train.epochs=3"])).unwrap();
        assert_eq!(length(&recipe), (0, 3.0));
        let expected = "train.epochs=3 from --set goes before train.steps=1600 of recipe vit";
        assert_eq!(notes, [expected]);
        assert_eq!(recipe.total_steps(1280), 60, "of 64 images each");
        let again = Recipe::parse::<&str>(&recipe.to_toml(), "saved".as_ref(), &[]).unwrap();
        assert_eq!(again, recipe);
    }

    #[test]
    fn a_file_goes_before_its_base_and_cannot_give_both() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Recipe::find_with_notes(path.to_str().unwrap(), &Request::default())
        };
        let (recipe, notes) = read("base = 'vit'\ntrain.epochs = 2").unwrap();
        assert_eq!(length(&recipe), (0, 2.0));
        assert!(notes[0].ends_with("mine.toml goes before train.steps=1600 of recipe vit"));
        let (recipe, _) = read("base = 'fashion-vit'\ntrain.steps = 7").unwrap();
        assert_eq!(recipe.train.steps, 7);
        let message = read("base = 'vit'\n[train]\nsteps = 5\nepochs = 2").unwrap_err().to_string();
        assert!(message.contains("mine.toml") && message.contains("both given"), "{message}");
        let (recipe, _) = read("base = 'vit'\n[train]\nsteps = 0\nepochs = 2").unwrap();
        assert_eq!(length(&recipe), (0, 2.0));
    }

    #[test]
    fn a_saved_recipe_reads_as_before() {
        let mut recipe = Recipe::find("vit", &Request::default()).unwrap();
        recipe.train.epochs = 3.0;
        let text = recipe.to_toml();
        let again = Recipe::parse::<&str>(&text, "saved.toml".as_ref(), &[]).unwrap();
        assert_eq!(length(&again), (1600, 3.0));
        assert_eq!(again.total_steps(1280), 1600);
        let other = Recipe::parse(&text, "saved.toml".as_ref(), &["train.epochs=5"]).unwrap();
        assert_eq!(length(&other), (0, 5.0));
    }
}
