//! `omma upcycle`

use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use omma_base::Seed;
use omma_model::{
    apply_settings,
    systems::{self, Upcycling, step_zero_difference, upcycle},
};

use serde::Deserialize;
use serde_json::json;

use super::{check_output, load_any, note_margin, save, written};
use crate::{screen::Activity, table::say};

/// Make a model with experts from a dense one.
///
/// The feed-forward networks of the chosen blocks become experts. By default the new model says exactly
/// what the dense one says (--start equal): with a shared expert, that one keeps the dense weights and
/// the last layer of the routed ones is 0; without one, every expert is a copy and the weights of a
/// token's experts add up to 1. --start copies makes plain copies, as paper 003 does.
///
/// Examples:
///   omma upcycle small/ vmoe/ --set moe.experts=8 --set moe.k=1
///   omma upcycle small/ vimoe/ --set moe.experts=8 --set moe.placement=tail-2 \
///       --set moe.shared_expert=true --set moe.scope=image --set moe.k=1
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Upcycle {
    /// The dense checkpoint, of ours or of another project
    dense: PathBuf,
    /// The folder to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// What the experts are, such as moe.experts=8 or moe.placement=tail-2
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// What experts start as
    #[arg(long, value_enum, default_value_t = Start::Equal)]
    start: Start,
    /// Noise on the copies, in units of each matrix's standard deviation
    #[arg(long, default_value_t = 0.0)]
    noise: f32,
    /// Seed of the routers and of the noise
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print what was written, and how far it is from the dense model, as JSON
    #[arg(long)]
    json: bool,
}

/// What experts start as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Start {
    /// The new model says what the dense one says
    #[default]
    Equal,
    /// Every expert is a copy of the dense network
    Copies,
}

impl Upcycle {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.output, self.force)?;
        if !(self.noise.is_finite() && self.noise >= 0.0) {
            bail!("noise is 0 or more, not {}", self.noise);
        }
        let dense = load_any(&self.dense, device)?;
        if let Some(other) = self.settings.iter().find(|setting| !setting.trim().starts_with("moe"))
        {
            bail!("\"{other}\" is not about the experts; everything else stays as it is");
        }
        let Some(moe) = apply_settings(dense.config(), &self.settings)?.encoder.moe else {
            bail!("say what the experts are, for example --set moe.experts=8");
        };
        let start = match self.start {
            Start::Equal => systems::Start::Equal,
            Start::Copies => systems::Start::Copies,
        };
        let seed = Seed::new(self.seed);
        let how = Upcycling { moe, start, noise: self.noise, seed };
        note_margin(&dense.config().image);
        let activity = Activity::new("making experts");
        let model = upcycle(&dense, &how, device)?;
        let blocks = how.blocks(dense.config())?;
        activity.turn_to("comparing with the dense model", "", 0);
        let (difference, scale) = step_zero_difference(&dense, &model, seed, device)?;
        drop(activity);
        if !self.json {
            let blocks: Vec<String> = blocks.iter().map(usize::to_string).collect();
            say(format!("experts in blocks {}", blocks.join(", ")))?;
            say(format!(
                "difference to the dense model at step 0: {difference:.2e} (its largest output is {scale:.2e})"
            ))?;
        }
        save(&model, &self.output)?;
        let found = self.json.then(
            || json!({ "blocks": blocks, "difference": difference, "largest_output": scale }),
        );
        written(&model, &self.output, found)
    }
}
