//! What a user asks for on top of a recipe.

use std::path::PathBuf;

use serde_json::Value;

use super::{layers::Setting, recipe_error};
use crate::error::Result;

/// Flags and settings of a command, in the order in which they count: the settings go on top.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// The data set.
    pub data: Option<String>,
    /// Which columns of a table are what.
    pub columns: Option<String>,
    /// Where every random number comes from.
    pub seed: Option<u64>,
    /// A checkpoint to start from.
    pub init: Option<PathBuf>,
    /// `key=value`, such as `train.steps=500`.
    pub settings: Vec<String>,
}

impl Request {
    /// Settings alone.
    pub fn of<S: AsRef<str>>(settings: &[S]) -> Self {
        let settings = settings.iter().map(|setting| setting.as_ref().to_owned()).collect();
        Self { settings, ..Self::default() }
    }

    pub(super) fn settings(&self) -> Result<Vec<Setting>> {
        let mut all = Vec::new();
        all.extend(self.data.iter().map(|data| Setting::new("data.name", data.as_str().into())));
        let columns = self.columns.iter();
        all.extend(columns.map(|said| Setting::new("data.columns", said.as_str().into())));
        all.extend(self.seed.iter().map(|seed| Setting::new("seed", Value::from(*seed))));
        if let Some(init) = &self.init {
            if !init.exists() {
                return Err(recipe_error(format!("{} does not exist", init.display())));
            }
            // Recipes are text.
            let text = init.to_str().ok_or_else(|| {
                recipe_error(format!("the path {} is not UTF-8; rename it", init.display()))
            })?;
            all.push(Setting::new("init", text.into()));
        }
        for setting in &self.settings {
            all.push(Setting::parse(setting)?);
        }
        Ok(all)
    }
}
