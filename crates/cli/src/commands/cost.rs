//! `omma cost`

use std::{collections::BTreeMap, path::Path};

use anyhow::Result;
use clap::Args;
use omma_base::Resolution;
use omma_model::{ModelConfig, apply_settings, checkpoint, cost::Counted, preset};
use serde::Serialize;

use crate::table::{grouped, say, say_json, short, table};

/// Count the parameters and FLOPs of a model from its configuration alone.
///
/// Examples:
///   omma cost vmoe-b32
///   omma cost e3-l16 --set moe.k=2 --resolution 384 --json
///   omma cost vimoe-s14 --set moe.experts=4 --set moe.placement=tail-3
///   omma cost limoe-b16                     an image and its text, and each alone
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Cost {
    /// vit-, vmoe-, e3-, softmoe-, vimoe- or limoe- followed by a size such as s32, b16, l16, h14, dinos14 or
    /// tiny; softlayer- and a number of experts; or a checkpoint
    model: String,
    /// A setting on top of it, such as moe.experts=8; may be given several times, the last one wins
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Side of the images in pixels, or HEIGHTxWIDTH [default: what the model is made for]
    #[arg(long)]
    resolution: Option<Resolution>,
    /// Classes [default: what the model has, 1000 for most presets]
    #[arg(long)]
    classes: Option<usize>,
    /// Every layer too
    #[arg(long)]
    layers: bool,
    /// As one JSON object, with every layer
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    #[serde(flatten)]
    cost: &'a omma_model::cost::Cost,
    /// Of images and texts by themselves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    alone: BTreeMap<&'a str, omma_model::cost::Cost>,
}

impl Cost {
    pub(crate) fn run(self) -> Result<()> {
        let config = self.config()?;
        let cost = config.cost(config.image.resolution)?;
        let alone = Self::alone(&config)?;
        if self.json {
            let alone = alone.into_iter().collect();
            let report = Report { model: &self.model, cost: &cost, alone };
            return say_json(&report);
        }
        if self.layers {
            let rows = cost.layers.iter().map(|layer| {
                [
                    layer.name.clone(),
                    layer.kind.clone(),
                    short(layer.params),
                    short(layer.params_active),
                    short(layer.forward_macs),
                    short(layer.training_flops),
                ]
            });
            let header =
                ["layer", "kind", "parameters", "active", "forward MACs", "training FLOPs"];
            say(table(header, rows, 2))?;
        }
        let Cost { model, .. } = &self;
        let size = format!("{} px, {} tokens", cost.resolution, cost.tokens);
        let members = match cost.members {
            1 => String::new(),
            members => format!(", {members} members"),
        };
        say(format!("{model} at {size}{members}"))?;
        let rows = [
            ("parameters", cost.params_total),
            ("active per image", cost.params_active),
            ("forward multiply-adds per image", cost.forward_macs),
            ("training FLOPs per image", cost.training_flops),
        ];
        let each = if alone.is_empty() { "image" } else { "image and its text" };
        let mut rows: Vec<(String, u64)> =
            rows.map(|(name, value)| (name.replace("image", each), value)).to_vec();
        for (what, alone) in &alone {
            rows.push((format!("active per {what} alone"), alone.params_active));
            rows.push((format!("forward multiply-adds per {what} alone"), alone.forward_macs));
        }
        let rows = rows.into_iter().map(|(name, value)| [name, grouped(value), short(value)]);
        say(table(["", "exactly", ""], rows, 1))
    }

    /// What images and texts cost by themselves, where a model takes both (paper 002 App. D.2).
    fn alone(config: &ModelConfig) -> Result<Vec<(&'static str, omma_model::cost::Cost)>> {
        if config.text.is_none() {
            return Ok(Vec::new());
        }
        let cost = |counted| config.cost_of(counted, config.image.resolution);
        Ok(vec![("image", cost(Counted::Images)?), ("text", cost(Counted::Texts)?)])
    }

    fn config(&self) -> Result<ModelConfig> {
        let path = Path::new(&self.model);
        let base = match path.exists() {
            true => checkpoint::summary(path)?.config,
            false => preset(&self.model)?,
        };
        let resolution = self
            .resolution
            .map(|resolution| format!("resolution=[{}, {}]", resolution.height, resolution.width));
        let classes = self.classes.map(|classes| format!("classes={classes}"));
        let settings: Vec<&String> =
            self.settings.iter().chain(&resolution).chain(&classes).collect();
        Ok(apply_settings(&base, &settings)?)
    }
}
