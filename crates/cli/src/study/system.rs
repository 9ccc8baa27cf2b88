//! A system of a study: what is trained, from what, and how it is judged.

use anyhow::{Context, Result, bail};
use omma_model::{ModelConfig, apply_settings};
use serde::Deserialize;

use crate::commands::adapt::Kind;

/// One row of the study's table, or what such rows begin from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StudySystem {
    pub(crate) label: String,
    /// A file beside `study.toml`.
    pub(crate) recipe: String,
    /// On top of the recipe.
    #[serde(default)]
    pub(crate) settings: Vec<String>,
    /// The system that it begins from, by its label.
    pub(crate) from: Option<String>,
    /// Which of that system's models each of its own begins from.
    #[serde(default)]
    pub(crate) from_seed: FromSeed,
    /// Experts that what it begins from is given before it is trained: settings of `omma upcycle`.
    #[serde(default)]
    pub(crate) upcycle: Vec<String>,
    /// What becomes of that then, and before it is trained.
    pub(crate) adapt: Option<Adaptation>,
    /// Settings of predictions, as of `omma eval`, that it is judged with.
    #[serde(default)]
    pub(crate) judged_with: Vec<String>,
    /// Whether it is judged, or only there to begin from.
    #[serde(default = "yes")]
    pub(crate) judged: bool,
    /// Models that are trained for themselves and judged together.
    #[serde(default = "one")]
    pub(crate) ensemble: usize,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

/// Which model of another system a model begins from, by its seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FromSeed {
    /// All from the first: one upstream training, as paper 000 has it; ensembles are its down-DE (§5).
    #[default]
    First,
    /// The models of an ensemble from the first, the second and so on: up-DE (paper 000 App. J).
    Place,
    /// From the one that has the same seed.
    Own,
}

/// `omma adapt`, as a system of a study asks for it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Adaptation {
    pub(crate) to: Kind,
    #[serde(default)]
    pub(crate) settings: Vec<String>,
    /// Whether experts are put into another order first (paper 000 App. H.3).
    #[serde(default)]
    pub(crate) permute: bool,
}

impl StudySystem {
    /// Whether both train the same models, if from the same seeds.
    pub(crate) fn trains_as(&self, other: &Self) -> bool {
        self.recipe == other.recipe && self.settings == other.settings && self.begins_as(other)
    }

    /// Whether both begin from the same.
    pub(crate) fn begins_as(&self, other: &Self) -> bool {
        self.from == other.from && self.upcycle == other.upcycle && self.adapt == other.adapt
    }

    /// Whether what it begins from is changed before it is trained.
    pub(crate) fn prepares(&self) -> bool {
        !self.upcycle.is_empty() || self.adapt.is_some()
    }

    /// What becomes of a model that it begins from.
    pub(crate) fn prepared(&self, model: ModelConfig) -> Result<ModelConfig> {
        let model = match self.upcycle.is_empty() {
            true => model,
            false => apply_settings(&model, &self.upcycle).context("upcycle")?,
        };
        let Some(Adaptation { to, settings, permute }) = &self.adapt else { return Ok(model) };
        to.check(settings, *permute)
            .and_then(|()| Ok(to.target(&model, settings, &"what it begins from")?.of(&model)))
            .context("adapt")
    }

    /// Refuses what only makes sense together with something to begin from.
    pub(super) fn check_beginning(&self, has_one: bool) -> Result<()> {
        let label = &self.label;
        if self.prepares() && !has_one {
            bail!(
                "{label} is to be upcycled or adapted, and nothing is said to begin from; add from = \"SYSTEM\", \
                 or from_checkpoint = true"
            );
        }
        if self.from_seed != FromSeed::First && self.from.is_none() {
            bail!(
                "{label} has from_seed, and nothing is said to begin from; add from = \"SYSTEM\""
            );
        }
        Ok(())
    }
}
