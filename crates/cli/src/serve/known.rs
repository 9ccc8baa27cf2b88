//! What a run knows of its model.

use std::path::Path;

use anyhow::Result;
use omma_base::files::read_regular;
use omma_eval::{Evaluation, routing::LayerHealth};
use omma_serve::ExpertLoad;
use serde::Deserialize;

use crate::{evals, subject::Candidate};

/// Options of an evaluation after which its temperature is not the model's own.
const OTHERWISE: [&str; 5] = ["--set", "--subset", "--resolution", "--precision", "--class-subset"];
/// Bytes of `result.json`, which has some kilobytes.
const MOST_BYTES: u64 = 64 << 20;

/// The temperature that was fitted for a run by itself, the first that `omma eval` has left in its folder.
pub(super) fn temperature(candidate: &Candidate) -> Result<Option<f64>> {
    if candidate.recipe.is_none() {
        return Ok(None);
    }
    let plain = |evaluation: &Evaluation| {
        let options = evaluation.options.as_deref().unwrap_or_default();
        evaluation.kind.models == 1
            && evaluation.judged_classes.is_none()
            && !options.iter().any(|option| OTHERWISE.contains(&&**option))
    };
    let all = evals::of_run(&candidate.path)?.into_iter().filter(plain);
    let mut fitted = all.filter_map(|evaluation| evaluation.temperature);
    Ok(fitted.find(|fitted| !fitted.is_at_end()).map(|fitted| fitted.value))
}

/// What the experts of a run had to do on its test images, which its result says.
pub(super) fn training_load(candidate: &Candidate) -> Vec<ExpertLoad> {
    #[derive(Deserialize)]
    struct Outcome {
        #[serde(default)]
        routing: Vec<LayerHealth>,
    }
    let path: &Path = &candidate.path;
    let bytes = read_regular(&path.join("result.json"), MOST_BYTES).unwrap_or_default();
    let outcome: Option<Outcome> = serde_json::from_slice(&bytes).ok();
    let layer = |layer: LayerHealth| ExpertLoad {
        part: candidate.name(),
        block: layer.block,
        load: layer.load,
    };
    outcome.map(|outcome| outcome.routing).unwrap_or_default().into_iter().map(layer).collect()
}
