//! What is not as it was when a checkpoint was written.

use std::path::PathBuf;

use crate::{
    error::TrainError,
    recipe::Recipe,
    resolved::Splits,
    run::{DataIdentity, RunFolder, State},
};

/// What is not as it was when a checkpoint was written.
#[derive(Clone)]
pub(super) struct Changed {
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
///
/// `recipe` is the one that counted for the checkpoint: the run's, or that of an earlier stretch. `data` is nothing
/// where other images are wanted.
pub(super) fn changes(
    run: &RunFolder,
    recipe: &Recipe,
    data: Option<&Splits>,
    state: &State,
) -> Result<(), Changed> {
    let path = run.file("recipe.toml");
    let then = state.recipe.as_ref().map(|text| Recipe::parse_saved(text, &path));
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
    match (&state.data, data.map(DataIdentity::of)) {
        (Some(then), Some(now)) if *then != now => Err(Changed {
            path: PathBuf::from(&recipe.data.name),
            what: "the images have",
            changes: format!("{now} now; {then} then"),
        }),
        _ => Ok(()),
    }
}
