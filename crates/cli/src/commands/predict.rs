//! `omma predict`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::files_below;
use omma_data::{Picture, formats::is_image};
use omma_eval::{Prediction, predict};
use serde::Serialize;

use crate::{
    subject::{Candidate, system},
    table::{note, say},
};

/// Say what is in images.
///
/// The likeliest classes with their probabilities, how far the members of an ensemble are apart, and
/// the entropy of the prediction. A file that cannot be read is named and left out.
///
/// Examples:
///   omma predict runs/default-1 photo.jpg
///   omma predict runs/e3-1 photos/ --json
///   omma predict vit.safetensors 'photos/*.png' --top 3
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Predict {
    /// The folder of a run, or a checkpoint
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subject: PathBuf,
    /// Images, folders of images, or patterns such as 'photos/*.jpg'
    #[arg(required = true, value_name = "IMAGES")]
    images: Vec<String>,
    /// More runs or checkpoints, for a deep ensemble
    #[arg(long, value_name = "RUN_OR_CHECKPOINT")]
    with: Vec<PathBuf>,
    /// Classes that are named
    #[arg(long, default_value_t = 5)]
    top: usize,
    /// A setting of predictions on top of the model's own, such as moe.k=4, moe.inference_noise=1,
    /// moe.inference_capacity_ratio=8 or mc_samples=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Where MC samples and the noise of routers come from, in predictions that are drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Images per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// One line of JSON per image
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    image: String,
    #[serde(flatten)]
    prediction: &'a Prediction,
}

impl Predict {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let mut files = Vec::new();
        for text in &self.images {
            files.extend(expand(text)?);
        }
        let subjects = std::iter::once(&self.subject).chain(&self.with);
        let candidates = Candidate::read_all(subjects, &self.settings, device)?;
        let names = candidates.iter().find_map(|one| one.classes.clone()).unwrap_or_default();
        let system = system(candidates, self.seed, device)?;
        let resolution = system.pixels().resolution;
        let mut read = 0;
        for files in files.chunks(self.batch.into()) {
            let (mut paths, mut pictures) = (Vec::new(), Vec::new());
            for path in files {
                match Picture::open(path) {
                    // At the model's size: a batch of photographs as they are may not fit into memory.
                    Ok(picture) => {
                        paths.push(path);
                        pictures.push(picture.centre_crop(resolution, 1.0));
                    }
                    Err(error) => note(format!("left out: {error}")),
                }
            }
            let predictions = predict(&system, &pictures, read, &names, self.top)?;
            for (path, prediction) in paths.iter().zip(&predictions) {
                self.show(path, prediction)?;
            }
            read += pictures.len();
        }
        match read {
            0 => bail!("none of {} files could be read as an image", files.len()),
            _ => Ok(()),
        }
    }

    fn show(&self, path: &Path, prediction: &Prediction) -> Result<()> {
        if self.json {
            let line = Line { image: path.display().to_string(), prediction };
            return say(serde_json::to_string(&line)?);
        }
        let several = prediction.members > 1;
        let guesses = prediction.top.iter().map(|guess| {
            let spread =
                if several { format!(" ± {:.1}", 100.0 * guess.spread) } else { String::new() };
            format!("{} {:.1}{spread} %", guess.class, 100.0 * guess.probability)
        });
        let disagreement = match several {
            true => format!(", of which disagreement {:.2}", prediction.mutual_information),
            false => String::new(),
        };
        say(format!(
            "{}: {}  (entropy {:.2}{disagreement})",
            path.display(),
            guesses.collect::<Vec<_>>().join(", "),
            prediction.entropy
        ))
    }
}

/// The images that a text means: a file, all below a folder, or those that match a pattern.
fn expand(text: &str) -> Result<Vec<PathBuf>> {
    let path = Path::new(text);
    let below = |folder: &Path| {
        files_below(folder, is_image)
            .map_err(|(path, error)| anyhow!(error).context(path.display().to_string()))
    };
    let mut found = Vec::new();
    if path.is_dir() {
        found = below(path)?;
    } else if path.exists() {
        found.push(path.to_owned());
    } else {
        let matches = glob::glob(text).with_context(|| format!("{text} is not a pattern"))?;
        for entry in matches {
            let entry = entry?;
            match entry.is_dir() {
                true => found.extend(below(&entry)?),
                false => found.push(entry),
            }
        }
    }
    if found.is_empty() {
        bail!("there is no image at {text}");
    }
    found.sort();
    Ok(found)
}
