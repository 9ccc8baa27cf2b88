//! `omma adapt`

use std::{fmt::Display, path::PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use omma_base::Seed;
use omma_model::{
    BatchEnsembleConfig, MimoConfig, ModelConfig, MoeConfig, apply_settings,
    systems::{Target, adapt, permute_experts},
};

use serde::Deserialize;
use serde_json::json;

use super::{check_output, load_any, save, written};
use crate::screen::Activity;

/// Make an efficient ensemble from a checkpoint (paper 000 App. B).
///
/// Examples:
///   omma adapt vmoe/ e3/ --to e3 --set moe.members=2 --set moe.k=1
///   omma adapt vmoe/ overlap/ --to e3 --set moe.overlap=8 --permute
///   omma adapt vmoe/ tiling/ --to e3 --set moe.own_experts=false \
///       --set moe.inference_noise=1
///   omma adapt vmoe/ parts/ --to e3 --set moe.partition=2
///   omma adapt vit/ be/ --to be --set batch_ensemble.fast_weights=gaussian
///   omma adapt vmoe/ mimo/ --to mimo --set mimo.members=2
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Adapt {
    /// The checkpoint, of ours or of another project
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The folder to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// What it becomes
    #[arg(long, value_enum)]
    to: Kind,
    /// A setting of what it becomes
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Put the experts of every layer into another order before they are shared out (paper 000 App. H.3)
    #[arg(long)]
    permute: bool,
    /// Seed of BatchEnsemble's fast weights and of --permute
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

/// What a checkpoint becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// E³ or one of its ablations, from a V-MoE: its router is cut, every parameter stays
    E3,
    /// BatchEnsemble, from a ViT: fast weights are added
    Be,
    /// MIMO, from anything: embedding and classifier are replicated
    Mimo,
}

impl Adapt {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.output, self.force)?;
        self.to.check(&self.settings, self.permute)?;
        let seed = Seed::new(self.seed);
        let mut model = load_any(&self.input, device)?;
        if self.permute {
            model = permute_experts(&model, seed.named("experts"), device)
                .with_context(|| self.input.display().to_string())?;
        }
        let target = self.to.target(model.config(), &self.settings, &self.input.display())?;
        let activity = Activity::new("making the members");
        let adapted = adapt(&model, &target, seed, device)?;
        drop(activity);
        save(&adapted, &self.output)?;
        let found = self.json.then(|| json!({ "input": self.input.display().to_string() }));
        written(&adapted, &self.output, found)
    }
}

impl Kind {
    /// Refuses what has nothing to do with it.
    pub(crate) fn check(self, settings: &[String], permute: bool) -> Result<()> {
        let section = match self {
            Self::E3 => "moe.",
            Self::Be => "batch_ensemble.",
            Self::Mimo => "mimo.",
        };
        if let Some(other) = settings.iter().find(|s| !s.trim().starts_with(section)) {
            bail!("\"{other}\" does not begin with {section}; everything else stays as it is");
        }
        if permute && self != Self::E3 {
            bail!("--permute is about experts that are shared out, as by --to e3");
        }
        Ok(())
    }

    /// What a model becomes by settings.
    ///
    /// - `base`: what it is
    /// - `name`: what it is called
    pub(crate) fn target(
        self,
        base: &ModelConfig,
        settings: &[String],
        name: &dyn Display,
    ) -> Result<Target> {
        Ok(match self {
            Self::E3 => {
                if base.moe().is_none() {
                    bail!("{name} has no experts; make some with `omma upcycle`");
                }
                if base.moe().and_then(MoeConfig::k).is_none() {
                    bail!("in {name} experts choose, and in an E³ tokens do");
                }
                // The paper's (K, M) = (1, 2) unless told otherwise; ablations without members keep K.
                let alone = ["moe.partition", "moe.multi_pred", "moe.router.pool"];
                let without_members = settings.iter().any(|setting| {
                    alone.contains(&setting.split('=').next().unwrap_or_default().trim())
                });
                let defaults: &[&str] =
                    if without_members { &[] } else { &["moe.k=1", "moe.members=2"] };
                let own = settings.iter().map(String::as_str);
                let settings: Vec<&str> = defaults.iter().copied().chain(own).collect();
                let moe = apply_settings(base, &settings)?.encoder.moe;
                Target::Experts(moe.unwrap_or_default().into())
            }
            Self::Be => {
                let mut start = base.clone();
                start.encoder.batch_ensemble = Some(BatchEnsembleConfig::default());
                let config = apply_settings(&start, settings)?;
                Target::BatchEnsemble(config.encoder.batch_ensemble.unwrap_or_default())
            }
            Self::Mimo => {
                let start = ModelConfig { mimo: Some(MimoConfig::default()), ..base.clone() };
                Target::Mimo(apply_settings(&start, settings)?.mimo.unwrap_or_default())
            }
        })
    }
}
