//! `omma convert`

use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::Seed;
use omma_model::{
    checkpoint,
    import::{import, largest_difference, tensor_file},
    open_tensors,
};

use super::{check_output, written};
use crate::table::{say, table};

/// Make a checkpoint of ours from a timm, DINOv2, Hugging Face, Google ViT or vmoe one.
///
/// IN is a .safetensors, .npz, .pt or .pth file, or a folder as Hugging Face lays it out. Pickles are
/// read, never executed. What a file's shapes cannot tell is set by hand: heads of a timm model whose
/// heads are not 64 wide, experts per token of a vmoe model.
///
/// Examples:
///   omma convert vit_small.safetensors small/ --check
///   omma convert vmoe_b16.npz vmoe/ --set moe.k=1
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
    /// Do not print which tensor became which
    #[arg(long, short)]
    quiet: bool,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
}

/// Two results of the same sums in another order differ by less, relative to their size.
const TOLERANCE: f32 = 1e-3;

impl Convert {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        if !self.input.exists() {
            bail!("{} does not exist", self.input.display());
        }
        check_output(&self.output, self.force)?;
        let imported = import(&self.input, &self.settings, device)?;
        say(format!("{} is a {} checkpoint", self.input.display(), imported.family))?;
        if !self.quiet {
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
        if self.check {
            let mut source = open_tensors(&tensor_file(&self.input)?)?;
            let seed = Seed::new(self.seed);
            match largest_difference(source.as_mut(), &imported, seed, device)? {
                Some(difference) => {
                    say(format!("largest difference to the definition: {difference:.2e}"))?;
                    if difference.is_nan() || difference > TOLERANCE {
                        bail!("the two do not agree; nothing was written");
                    }
                }
                None => say("no definition is written down for this kind of model: not checked")?,
            }
        }
        checkpoint::save(&imported.model, &self.output)?;
        written(&imported.model, &self.output)
    }
}
