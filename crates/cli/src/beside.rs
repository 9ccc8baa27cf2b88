//! Files that belong to a model and lie beside it, or in the folder of its run.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use omma_base::files::write_atomically;
use omma_data::text::Tokenizer;
use omma_model::checkpoint;
use omma_train::{Recipe, run::RunFolder};

use crate::subject::Candidate;

/// A file's name, and what is in it.
pub(crate) type Beside = (&'static str, Vec<u8>);

/// Files that belong to a model, and to what is made of it.
const KEPT: [&str; 2] = ["classes.json", "tokenizer.json"];

/// The run that a path is, or that it is a checkpoint of.
fn run_of(path: &Path) -> Option<PathBuf> {
    let is_run = |path: &Path| path.join("recipe.toml").is_file();
    if is_run(path) {
        return Some(path.to_owned());
    }
    let whole = std::fs::canonicalize(path).ok()?;
    let checkpoints = whole.parent().filter(|folder| folder.ends_with("checkpoints"))?;
    checkpoints.parent().filter(|run| is_run(run)).map(Path::to_owned)
}

/// All recipes that a model was trained by; none where that is not known.
pub(crate) fn recipes(path: &Path) -> Result<Vec<Recipe>> {
    let Some(run) = run_of(path) else { return Ok(Vec::new()) };
    let (run, recipe) = RunFolder::open(&run)?;
    let earlier = run.earlier_stretches()?.into_iter().map(|stretch| stretch.recipe);
    Ok(std::iter::once(recipe).chain(earlier).collect())
}

/// Files that lie beside the models or in their runs, each once; fails where two differ.
pub(crate) fn kept_files(paths: &[PathBuf]) -> Result<Vec<Beside>> {
    let mut kept = Vec::new();
    for name in KEPT {
        let mut first: Option<(PathBuf, Vec<u8>)> = None;
        for path in paths {
            let places = [Some(path.clone()), run_of(path)].into_iter().flatten();
            let Some(place) = places.map(|folder| folder.join(name)).find(|file| file.is_file())
            else {
                continue;
            };
            let text = std::fs::read(&place).with_context(|| place.display().to_string())?;
            let means = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
            match &first {
                Some((other, known)) if *known != text && means(known) != means(&text) => bail!(
                    "{} and {} are not the same: what they belong to cannot be averaged",
                    other.display(),
                    place.display()
                ),
                Some(_) => {}
                None => first = Some((place, text)),
            }
        }
        kept.extend(first.map(|(_, text)| (name, text)));
    }
    Ok(kept)
}

/// Gives a candidate what lies in its run's folder instead of beside it.
pub(crate) fn complete(candidate: &mut Candidate, kept: &[Beside]) -> Result<()> {
    let text = |wanted: &str| kept.iter().find(|(name, _)| *name == wanted).map(|(_, text)| text);
    if let (None, 1.., Some(text)) =
        (&candidate.classes, candidate.model.config().classes(), text("classes.json"))
    {
        candidate.classes = Some(serde_json::from_slice(text)?);
    }
    if let (None, true, Some(text)) =
        (&candidate.tokenizer, candidate.model.reads(), text(checkpoint::TOKENIZER))
    {
        candidate.tokenizer = Some(Tokenizer::parse(text)?);
    }
    Ok(())
}

/// Writes them beside a model that was made.
pub(crate) fn write_beside(folder: &Path, kept: &[Beside]) -> Result<()> {
    for (name, text) in kept {
        let path = folder.join(name);
        write_atomically(&path, |temporary| std::fs::write(temporary, text))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}
