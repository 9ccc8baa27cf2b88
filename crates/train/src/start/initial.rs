//! The model that a run begins with: fresh, or from a checkpoint.

use burn::tensor::Device;
use omma_base::Seed;
use omma_model::{VisionTransformer, checkpoint, parameter_values, with_values};

use crate::{error::Result, recipe::recipe_error, resolved::Resolved};

/// The model of a recipe. Of a checkpoint, everything is taken that has a place in the recipe's model;
/// a classifier for other classes starts fresh, learned positions are kept at their own grid and
/// interpolated, and anything else that does not fit is an error.
pub(super) fn starting_model(resolved: &Resolved, device: &Device) -> Result<VisionTransformer> {
    let recipe = &resolved.recipe;
    let seed = Seed::new(recipe.seed).named("model");
    let model = recipe.model.init(seed, device)?;
    let Some(path) = &recipe.init else { return Ok(model) };
    let source = checkpoint::load(path, &resolved.device)?;
    let known: std::collections::HashMap<String, _> = parameter_values(&source)
        .into_iter()
        .map(|value| (value.parameter.name.clone(), value))
        .collect();
    let mut wrong = Vec::new();
    let model = with_values(model, |parameter| {
        let is_head = parameter.name.starts_with("head.");
        match known.get(&parameter.name) {
            Some(value) if value.parameter.shape == parameter.shape => Ok(Some(value.read())),
            _ if is_head => Ok(None),
            Some(value) => {
                let (own, other) = (&parameter.shape, &value.parameter.shape);
                wrong.push(format!("{} is {other:?} there and {own:?} here", parameter.name));
                Ok(None)
            }
            None => {
                wrong.push(format!("it has no {}", parameter.name));
                Ok(None)
            }
        }
    })?;
    match wrong.is_empty() {
        true => Ok(model),
        false => Err(recipe_error(format!(
            "{} is not the recipe's model: {}{}; change it with `omma upcycle` or `omma adapt` first",
            path.display(),
            wrong[..wrong.len().min(3)].join("; "),
            if wrong.len() > 3 { format!("; and {} more", wrong.len() - 3) } else { String::new() }
        ))),
    }
}
