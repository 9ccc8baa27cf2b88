//! `omma embed`

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::{
    read_regular,
    tensors::{Floats, write_tensors},
    write_npy,
};
use omma_data::Picture;
use rayon::prelude::*;
use serde_json::json;

use crate::{
    predict::{Input, Inputs},
    screen::Activity,
    search::Embedder,
    table::{grouped, note, say, say_json},
};

/// Turn images and texts into vectors that can be compared.
///
/// A row of length 1 per image and per text, images first, in the order in which they are given; the
/// product of two rows is how much they are alike. A .npy file has the rows alone, a .safetensors file a
/// tensor "embeddings" and the rows' names as a JSON list in its metadata.
///
/// Examples:
///   omma embed runs/limoe-1 photos/ -o photos.npy
///   omma embed runs/limoe-1 a.jpg b.jpg --texts "a cat" "a dog" --json
///   omma embed runs/limoe-1 --texts-file captions.txt -o x.safetensors
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Embed {
    /// The folder of a run of a model that reads text, or its checkpoint
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subject: PathBuf,
    /// Images, folders of images, patterns such as 'photos/*.jpg', tables (.csv, .tsv), or - for
    /// standard input
    #[arg(value_name = "IMAGES")]
    images: Vec<String>,
    /// Texts
    #[arg(long, num_args = 1.., value_name = "TEXT")]
    texts: Vec<String>,
    /// A file with a text on every line
    #[arg(long, value_name = "FILE")]
    texts_file: Option<PathBuf>,
    /// Leave out files that cannot be read, instead of stopping at the first
    #[arg(long)]
    skip: bool,
    /// The column of a table that has the paths, if it is not called image, path, file, filepath or
    /// filename
    #[arg(long, value_name = "NAME")]
    image_column: Option<String>,
    /// Images or texts per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Write to a file that ends with .npy or .safetensors
    #[arg(long, short, value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// Print shape and names as JSON, and the rows where they are not written to a file
    #[arg(long)]
    json: bool,
}

/// Bytes of a file of texts.
const MOST_BYTES: u64 = 1 << 30;
/// Files that are named when they cannot be read; more are only counted.
const NAMED: usize = 20;

/// Rows and what they are of.
#[derive(Default)]
struct Rows {
    names: Vec<String>,
    /// `[N, E]`
    values: Vec<f32>,
    width: usize,
}

#[derive(Clone, Copy)]
enum Format {
    Npy,
    Safetensors,
}

impl Embed {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let format = self.output.as_deref().map(format_of).transpose()?;
        let mut texts = self.texts.clone();
        if let Some(path) = &self.texts_file {
            texts.extend(lines_of(path)?);
        }
        let activity = Activity::new("looking for images");
        let inputs = Inputs::of(&self.images, self.image_column.as_deref())?;
        drop(activity);
        if inputs.images.is_empty() && texts.is_empty() {
            bail!("name images, or texts with --texts or --texts-file");
        }
        let embedder = Embedder::read(&self.subject, device)?;
        let mut rows = Rows { width: embedder.width(), ..Rows::default() };
        self.embed_images(&embedder, &inputs.images, &mut rows)?;
        if !texts.is_empty() {
            rows.values.extend(embedder.texts(&texts, self.batch.into())?);
            rows.names.extend(texts);
        }
        let shape = rows.shape();
        if let (Some(path), Some(format)) = (&self.output, format) {
            rows.write(path, format)?;
        }
        match (self.json, &self.output) {
            (true, Some(path)) => {
                say_json(&json!({ "shape": shape, "names": rows.names, "output": path }))
            }
            (true, None) => {
                let embeddings: Vec<&[f32]> = rows.values.chunks(rows.width.max(1)).collect();
                say_json(&json!({ "shape": shape, "names": rows.names, "embeddings": embeddings }))
            }
            (false, Some(path)) => {
                let [count, width] = shape;
                say(format!("wrote {} ({} rows of {width})", path.display(), grouped(count as u64)))
            }
            (false, None) => Ok(()),
        }
    }

    fn embed_images(&self, embedder: &Embedder, images: &[Input], rows: &mut Rows) -> Result<()> {
        let activity = Activity::counted("images", "image", 0, images.len() as u64);
        let mut refused = 0;
        for batch in images.chunks(self.batch.into()) {
            let open = |input: &Input| input.open().map(|picture| embedder.fitted(&picture));
            let opened: Vec<_> = batch.par_iter().map(open).collect();
            let mut pictures: Vec<Picture> = Vec::with_capacity(batch.len());
            for (input, opened) in batch.iter().zip(opened) {
                match opened {
                    Ok(picture) => {
                        pictures.push(picture);
                        rows.names.push(input.name.clone());
                    }
                    Err(error) if !self.skip => {
                        return Err(error).context("--skip leaves out what cannot be read");
                    }
                    Err(error) => {
                        if refused < NAMED {
                            note(format!("left out: {error}"));
                        }
                        refused += 1;
                    }
                }
            }
            rows.values.extend(embedder.pictures(&pictures)?);
            activity.add(batch.len() as u64);
        }
        drop(activity);
        if refused > 0 {
            let (bad, all) = (grouped(refused as u64), grouped(images.len() as u64));
            note(format!("{bad} of {all} files could not be read and were left out"));
        }
        match !images.is_empty() && rows.names.is_empty() {
            true => {
                bail!("none of {} files could be read as an image", grouped(images.len() as u64))
            }
            false => Ok(()),
        }
    }
}

impl Rows {
    fn shape(&self) -> [usize; 2] {
        [self.names.len(), self.width]
    }

    fn write(&self, path: &Path, format: Format) -> Result<()> {
        let written = match format {
            Format::Npy => write_npy(path, self.shape(), &self.values),
            Format::Safetensors => {
                let names = serde_json::to_string(&self.names)?;
                write_tensors(path, ("names", names), std::slice::from_ref(self))
            }
        };
        written.with_context(|| path.display().to_string())
    }
}

impl Floats for Rows {
    fn name(&self) -> &str {
        "embeddings"
    }

    fn shape(&self) -> Cow<'_, [usize]> {
        Cow::Owned(Rows::shape(self).to_vec())
    }

    fn values(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(&self.values)
    }
}

fn format_of(path: &Path) -> Result<Format> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("npy") => Ok(Format::Npy),
        Some("safetensors") => Ok(Format::Safetensors),
        _ => bail!("{} should end with .npy or .safetensors", path.display()),
    }
}

/// The texts of a file, one per line; an empty line is an empty text.
fn lines_of(path: &Path) -> Result<Vec<String>> {
    let bytes = read_regular(path, MOST_BYTES).with_context(|| path.display().to_string())?;
    let text = String::from_utf8(bytes)
        .with_context(|| format!("{} is not text in UTF-8", path.display()))?;
    Ok(text.trim_start_matches('\u{feff}').lines().map(str::to_owned).collect())
}
