//! `omma init`

use std::path::PathBuf;

use anyhow::Result;
use burn::tensor::Device;
use clap::Args;
use omma_base::Seed;
use omma_model::{apply_settings, preset};
use serde_json::json;

use super::{check_output, note_margin, save, written};

/// Write a fresh model with random parameters.
///
/// Example:
///   omma init vmoe-tiny fresh/ --set classes=100 --seed 1
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Init {
    /// A preset, as `omma cost` knows them
    preset: String,
    /// The folder to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// A setting on top of it, such as moe.experts=8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Where every random number comes from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

impl Init {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.output, self.force)?;
        let config = apply_settings(&preset(&self.preset)?, &self.settings)?;
        config.check_memory()?;
        let model = config.init(Seed::new(self.seed), device)?;
        note_margin(&config.image);
        save(&model, &self.output)?;
        written(&model, &self.output, self.json.then(|| json!({ "preset": self.preset })))
    }
}
