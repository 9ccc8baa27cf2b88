//! One file per command.

pub(crate) mod adapt;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod cost;
pub(crate) mod eval;
pub(crate) mod fewshot;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod predict;
pub(crate) mod probe;
pub(crate) mod recipes;
pub(crate) mod study;
pub(crate) mod sweep;
pub(crate) mod train;
pub(crate) mod upcycle;

use std::path::Path;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use omma_model::{VisionTransformer, checkpoint, import};

/// Reads one of our checkpoints, or one of another project.
pub(crate) fn load_any(path: &Path, device: &Device) -> Result<VisionTransformer> {
    if !path.exists() {
        bail!("{} does not exist", path.display());
    }
    if checkpoint::is_ours(path) {
        return Ok(checkpoint::load(path, device)?);
    }
    let none: [&str; 0] = [];
    let imported = import::import(path, &none, device)
        .with_context(|| format!("{} is none of our checkpoints", path.display()))?;
    crate::table::note(format!("read {} as {}", path.display(), imported.family));
    Ok(imported.model)
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

/// What was written, in one line.
fn written(model: &VisionTransformer, path: &Path) -> Result<()> {
    let parameters = omma_model::parameters(model);
    let count: usize = parameters.iter().map(|p| p.shape.iter().product::<usize>()).sum();
    crate::table::say(format!(
        "wrote {} ({} parameters in {} tensors)",
        path.display(),
        crate::table::grouped(count as u64),
        parameters.len()
    ))
}
