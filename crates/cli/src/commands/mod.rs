//! One file per command.

pub(crate) mod adapt;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod convert;
pub(crate) mod cost;
pub(crate) mod devices;
pub(crate) mod embed;
pub(crate) mod eval;
pub(crate) mod fewshot;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod look;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod probe;
pub(crate) mod prune;
pub(crate) mod recipes;
pub(crate) mod routes;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod soup;
pub(crate) mod study;
pub(crate) mod sweep;
pub(crate) mod thin;
pub(crate) mod train;
pub(crate) mod upcycle;

use std::path::Path;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use omma_base::nearest;
use omma_model::{ImageConfig, VisionTransformer, checkpoint, import};
use serde_json::Value;

use crate::{
    screen::Activity,
    table::{grouped, note, note_once, say, say_json},
};

/// Reads one of our checkpoints, or one of another project.
pub(crate) fn load_any(path: &Path, device: &Device) -> Result<VisionTransformer> {
    check_exists(path)?;
    let _activity = Activity::new(format!("reading {}", path.display()));
    if checkpoint::is_ours(path) {
        return Ok(checkpoint::load(path, device)?);
    }
    let none: [&str; 0] = [];
    let imported = import::import(path, &none, device)
        .with_context(|| format!("{} is none of our checkpoints", path.display()))?;
    note(format!("read {} as {}", path.display(), imported.family));
    Ok(imported.model)
}

/// Fails where there is nothing at a path, with what is there and called alike.
pub(crate) fn check_exists(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let beside = std::fs::read_dir(folder.unwrap_or(Path::new("."))).into_iter().flatten();
    // A dot in a file's name is not one between a setting's parts.
    let dotless = |name: &str| name.replace('.', "\u{0}");
    let beside: Vec<String> =
        beside.flatten().map(|entry| dotless(&entry.file_name().to_string_lossy())).collect();
    let hint = match nearest(&dotless(&name), beside.iter().map(String::as_str)) {
        hint if hint.is_empty() => {
            "; name the folder of a run or of a checkpoint, or a file of weights".to_owned()
        }
        hint => hint.replace('\u{0}', "."),
    };
    bail!("{} does not exist{hint}", path.display())
}

/// Refuses to write over something that is not a checkpoint of ours, or over one without being told.
fn check_output(path: &Path, force: bool) -> Result<()> {
    if path.exists() && !path.is_dir() {
        bail!("{} is not a folder; a checkpoint is one", path.display());
    }
    let weights = checkpoint::weights_path(path);
    if weights.exists() && !force {
        bail!("{} has a checkpoint already; --force replaces it", path.display());
    }
    Ok(())
}

/// Says what was written: in one line, or as JSON together with what was found on the way.
fn written(model: &VisionTransformer, path: &Path, found: Option<Value>) -> Result<()> {
    let parameters = omma_model::parameters(model);
    let count: usize = parameters.iter().map(|p| p.shape.iter().product::<usize>()).sum();
    if let Some(mut found) = found {
        found["output"] = path.display().to_string().into();
        found["model"] = model.config().in_words().into();
        found["parameters"] = count.into();
        found["tensors"] = parameters.len().into();
        return say_json(&found);
    }
    say(format!(
        "wrote {} ({} parameters in {} tensors): {}",
        path.display(),
        grouped(count as u64),
        parameters.len(),
        model.config().in_words()
    ))
}

/// Writes a checkpoint, which takes a while if it is large.
fn save(model: &VisionTransformer, path: &Path) -> Result<()> {
    let _activity = Activity::new(format!("writing {}", path.display()));
    checkpoint::save(model, path)?;
    Ok(())
}

/// Says what no patch of a model's images covers.
pub(crate) fn note_margin(image: &ImageConfig) {
    if let Some(margin) = image.margin(image.resolution) {
        note_once(margin);
    }
}
