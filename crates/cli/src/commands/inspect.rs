//! `omma inspect`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use omma_model::{
    EncoderConfig, FloatType, ImageConfig, ModelConfig, TensorInfo, checkpoint, import,
    open_tensors,
};
use serde::Serialize;

use super::{check_exists, note_margin};
use crate::table::{grouped, say, say_json, short, table};

/// Say what a checkpoint is: in a sentence, with its layers, experts, parameters and types.
///
/// Only the first bytes of the file are read. Checkpoints of other projects are shown too, as the model
/// that `omma convert` would make of them.
///
/// Examples:
///   omma inspect vmoe/
///   omma inspect vit_small.safetensors --tensors
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Inspect {
    /// A folder with a checkpoint, or a file
    checkpoint: PathBuf,
    /// What a checkpoint of another project does not say, such as heads=6
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Every tensor of the file
    #[arg(long)]
    tensors: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    format: String,
    /// In a sentence.
    model: String,
    parameters: u64,
    config: ModelConfig,
    layers: Vec<omma_model::cost::LayerCost>,
    tensors: Vec<TensorRow>,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    shape: Vec<usize>,
    dtype: String,
}

fn type_name(info: &TensorInfo) -> String {
    match &info.dtype {
        Ok(FloatType::F64) => "f64".to_owned(),
        Ok(FloatType::F32) => "f32".to_owned(),
        Ok(FloatType::F16) => "f16".to_owned(),
        Ok(FloatType::Bf16) => "bf16".to_owned(),
        Err(other) => other.to_lowercase(),
    }
}

impl Inspect {
    pub(crate) fn run(self) -> Result<()> {
        check_exists(&self.checkpoint)?;
        let report = self.report()?;
        note_margin(&report.config.image);
        if self.json {
            return say_json(&report);
        }
        self.show(&report)
    }

    fn report(&self) -> Result<Report> {
        let (format, config, tensors) = match checkpoint::is_ours(&self.checkpoint) {
            true => {
                let summary = checkpoint::summary(&self.checkpoint)?;
                ("omma".to_owned(), summary.config, summary.tensors)
            }
            false => {
                let source = open_tensors(&import::tensor_file(&self.checkpoint)?)?;
                let family = import::Family::of(source.as_ref())?;
                let config = import::configure(source.as_ref(), family, &self.settings)?;
                (family.to_string(), config, source.tensors().clone())
            }
        };
        let cost = config.cost(config.image.resolution)?;
        let tensors = tensors.iter().map(|(name, info)| TensorRow {
            name: name.clone(),
            shape: info.shape.clone(),
            dtype: type_name(info),
        });
        Ok(Report {
            format,
            model: config.in_words(),
            parameters: cost.params_total,
            config,
            layers: cost.layers,
            tensors: tensors.collect(),
        })
    }

    fn show(&self, report: &Report) -> Result<()> {
        let ModelConfig { image, encoder, .. } = &report.config;
        let ImageConfig { resolution, patch, .. } = *image;
        let EncoderConfig { width, depth, heads, .. } = *encoder;
        let classes = report.config.classes();
        say(&report.model)?;
        say(format!("{} checkpoint: {} parameters", report.format, grouped(report.parameters)))?;
        say(format!(
            "{depth} blocks of width {width}, {heads} heads, patches of {patch} at {resolution} px, {} \
             tokens, {classes} classes",
            image.tokens(resolution)
        ))?;
        if let Some(moe) = report.config.moe() {
            let blocks = moe.placement.blocks(depth)?;
            let blocks: Vec<String> = blocks.iter().map(usize::to_string).collect();
            say(format!(
                "experts: {} in blocks {} ({})",
                moe.router.experts,
                blocks.join(", "),
                moe.placement
            ))?;
            for pruned in &moe.pruned {
                let (block, left) = (pruned.block, moe.experts_in(pruned.block));
                let gone: Vec<String> = pruned.experts.iter().map(usize::to_string).collect();
                say(format!("block {block} has {left} of them left; gone: {}", gone.join(", ")))?;
            }
        }
        match report.config.members() {
            1 => {}
            members => say(format!("an ensemble: {members} predictions per image"))?,
        }
        let types: std::collections::BTreeSet<&str> =
            report.tensors.iter().map(|tensor| tensor.dtype.as_str()).collect();
        let types: Vec<&str> = types.into_iter().collect();
        say(format!("{} tensors of {}", report.tensors.len(), types.join(", ")))?;
        let rows = report.layers.iter().map(|layer| {
            [
                layer.name.clone(),
                layer.kind.clone(),
                grouped(layer.params),
                short(layer.params_active),
            ]
        });
        say(table(["layer", "kind", "parameters", "active"], rows, 2))?;
        if self.tensors {
            let rows = report.tensors.iter().map(|tensor| {
                [tensor.name.clone(), tensor.dtype.clone(), format!("{:?}", tensor.shape)]
            });
            say(table(["tensor", "type", "shape"], rows, 2))?;
        }
        Ok(())
    }
}
