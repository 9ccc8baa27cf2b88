//! `omma convert`

use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::Seed;
use omma_model::{
    checkpoint,
    import::{Imported, import, largest_difference, tensor_file},
    open_tensors,
    systems::reconfigure,
};
use serde_json::json;

use super::{check_exists, check_output, load_any, note_margin, save, written};
use crate::{
    resolution::ResolutionArguments,
    screen::{Activity, is_quiet},
    table::{say, table},
};

/// Make a checkpoint of ours from a timm, DINOv2, Hugging Face, Google ViT or vmoe one.
///
/// IN is a .safetensors, .npz, .pt or .pth file, or a folder as Hugging Face lays it out. Pickles are
/// read, never executed. What a file's shapes cannot tell is set by hand: heads of a timm model whose
/// heads are not 64 wide, experts per token of a vmoe model. With --quiet it does not print which tensor
/// became which. A checkpoint of ours is converted too: to another resolution, or with other settings of
/// its predictions.
///
/// Examples:
///   omma convert vit_small.safetensors small/ --check
///   omma convert vmoe_b16.npz vmoe/ --set moe.k=1
///   omma convert dinov2.pth small/ --resolution 392
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Convert {
    /// The checkpoint to read
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The folder to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// A setting on top of what the file says, such as heads=6
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Run a seeded image through the model and through the other project's definition, and print the
    /// largest difference
    #[arg(long)]
    check: bool,
    /// Seed of that image
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    resolution: ResolutionArguments,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print what was read and written, and which tensor became which, as JSON
    #[arg(long)]
    json: bool,
}

/// Two results of the same sums in another order differ by less, relative to their size.
const TOLERANCE: f32 = 1e-3;

impl Convert {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_exists(&self.input)?;
        check_output(&self.output, self.force)?;
        let settings = self.resolution.on_top_of(&self.settings);
        if checkpoint::is_ours(&self.input) {
            return self.convert_own(&settings, device);
        }
        let activity = Activity::new(format!("reading {}", self.input.display()));
        let imported = import(&self.input, &settings, device)?;
        drop(activity);
        note_margin(&imported.model.config().image);
        if !self.json {
            say(format!("{} is a {} checkpoint", self.input.display(), imported.family))?;
        }
        if !self.json && !is_quiet() {
            let rows = imported.mapping.iter().map(|mapped| {
                [
                    mapped.tensors.join("\n"),
                    mapped.parameter.clone().unwrap_or_else(|| "(not needed)".to_owned()),
                    mapped.how.clone(),
                    format!("{:?}", mapped.shape),
                ]
            });
            say(table(["their tensor", "our parameter", "how", "shape"], rows, 3))?;
        }
        let difference = self.difference(&imported, device)?;
        save(&imported.model, &self.output)?;
        let mapping = imported.mapping.iter().map(|mapped| {
            json!({
                "tensors": mapped.tensors,
                "parameter": mapped.parameter,
                "how": mapped.how,
                "shape": mapped.shape,
            })
        });
        let found = self.json.then(|| {
            json!({
                "family": imported.family.to_string(),
                "mapping": mapping.collect::<Vec<_>>(),
                "largest_difference": difference,
            })
        });
        written(&imported.model, &self.output, found)
    }

    /// How far the model is from the other project's definition, where that is asked for and known.
    fn difference(&self, imported: &Imported, device: &Device) -> Result<Option<f32>> {
        if !self.check {
            return Ok(None);
        }
        let activity = Activity::new("comparing with the other project's definition");
        let mut source = open_tensors(&tensor_file(&self.input)?)?;
        let seed = Seed::new(self.seed);
        let difference = largest_difference(source.as_mut(), imported, seed, device)?;
        drop(activity);
        if !self.json {
            say(match difference {
                Some(difference) => {
                    format!("largest difference to the definition: {difference:.2e}")
                }
                None if imported.model.config().image.position_resolution.is_some() => {
                    "the definition has no interpolated positions: not checked".to_owned()
                }
                None => {
                    "no definition is written down for this kind of model: not checked".to_owned()
                }
            })?;
        }
        match difference {
            Some(difference) if difference.is_nan() || difference > TOLERANCE => {
                bail!("the two differ by {difference:.2e}; nothing was written")
            }
            difference => Ok(difference),
        }
    }

    /// One of our own checkpoints, with settings on top of its own.
    fn convert_own(&self, settings: &[String], device: &Device) -> Result<()> {
        let input = self.input.display();
        if settings.is_empty() {
            bail!(
                "{input} is a checkpoint of ours already; say what to change, as in --resolution 384"
            );
        }
        if self.check {
            bail!("{input} is a checkpoint of ours; --check compares with another project's");
        }
        let model = reconfigure(load_any(&self.input, device)?, settings, device)?;
        note_margin(&model.config().image);
        save(&model, &self.output)?;
        written(&model, &self.output, self.json.then(|| json!({ "family": "omma" })))
    }
}
