//! `omma predict`

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Error, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::write_atomically;
use omma_data::Picture;
use omma_eval::{System, Templates, predict, segment};

use super::eval::WindowsWord;
use crate::{
    precision::PrecisionArguments,
    predict::{Format, Input, Inputs, MaskWriter, Printer},
    resolution::ResolutionArguments,
    screen::{Activity, Stdout},
    subject::{Candidate, system},
    subset::SubsetArguments,
    table::{grouped, note},
    zero_shot::Labels,
};

/// Say what is in images.
///
/// The likeliest classes with their probabilities, how far the members of an ensemble are apart, and
/// the entropy of the prediction. A file that cannot be read is named and left out; where none can, the exit
/// code is 1. A .csv or .tsv file is a table with a column of paths, whose other columns are kept. `-` is
/// standard input: a path per line, or one image. A model that labels pixels writes a mask for every image, a
/// PNG whose values are classes, and one to look at, in which the classes' colours lie over the image.
///
/// Examples:
///   omma predict runs/default-1 photo.jpg
///   omma predict runs/e3-1 photos/ --json
///   omma predict vit.safetensors 'photos/*.png' --top 3
///   omma predict runs/e3-1 labels.csv -o answers.csv
///   omma predict runs/limoe-1 photo.jpg --labels cat,dog,"a red bird"
///   omma predict runs/segment-1 streets/ --masks masks
///   find photos -name '*.jpg' | omma predict runs/e3-1 - --format csv
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Predict {
    /// The folder of a run, or a checkpoint
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subject: PathBuf,
    /// Images, folders of images, patterns such as 'photos/*.jpg', tables (.csv, .tsv), or - for
    /// standard input
    #[arg(required = true, value_name = "IMAGES")]
    images: Vec<String>,
    /// More runs or checkpoints, for a deep ensemble
    #[arg(long, value_name = "RUN_OR_CHECKPOINT")]
    with: Vec<PathBuf>,
    /// Classes that are named
    #[arg(long, default_value_t = 5)]
    top: usize,
    /// What images may show, separated by commas, for models that compare images with texts
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    labels: Vec<String>,
    /// Sentences for these, one per line with {} in its place; without it, eight plain ones
    #[arg(long, value_name = "FILE", requires = "labels")]
    templates: Option<PathBuf>,
    /// Where masks go, of models that label pixels; a folder that is new or empty
    #[arg(long, value_name = "FOLDER", default_value = "masks")]
    masks: PathBuf,
    /// How images of another shape than the model's are looked at, by such models
    #[arg(long, value_enum, default_value_t = WindowsWord::Sliding)]
    windows: WindowsWord,
    /// A setting of predictions on top of the model's own, such as moe.k=4, moe.inference_noise=1,
    /// moe.inference_capacity_ratio=8 or mc_samples=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    subset: SubsetArguments,
    #[command(flatten)]
    resolution: ResolutionArguments,
    #[command(flatten)]
    precision: PrecisionArguments,
    /// Where MC samples and the noise of routers come from, in predictions that are drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Images per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// The column of a table that has the paths, if it is not called image, path, file, filepath or
    /// filename
    #[arg(long, value_name = "NAME")]
    image_column: Option<String>,
    /// How answers are written [default: as FILE is called, else text]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The same as --format jsonl: one line of JSON per image
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write to a file, which appears when everything is done
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Files that are named when they cannot be read; more are only counted.
const NAMED: usize = 20;

impl Predict {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let activity = Activity::new("looking for images");
        let inputs = Inputs::of(&self.images, self.image_column.as_deref())?;
        drop(activity);
        match &self.output {
            Some(path) => self.write(path, &inputs, device),
            None => {
                let shown = io::stdout().is_terminal();
                self.answer(&inputs, shown, &mut Stdout, device)
            }
        }
    }

    /// Writes a file that is whole or not there.
    fn write(&self, path: &Path, inputs: &Inputs, device: &Device) -> Result<()> {
        let mut failure = None;
        let done = write_atomically(path, |temporary| {
            let mut file = BufWriter::new(File::create(temporary)?);
            match self.answer(inputs, false, &mut file, device) {
                Ok(()) => file.flush(),
                Err(error) => {
                    failure = Some(error);
                    Err(io::ErrorKind::Other.into())
                }
            }
        });
        match (failure, done) {
            (Some(error), _) => Err(error),
            (None, done) => done.with_context(|| path.display().to_string()),
        }
    }

    fn format(&self) -> Format {
        let extension = self.output.as_ref().and_then(|path| path.extension());
        match (self.format, extension.and_then(|extension| extension.to_str())) {
            (Some(format), _) => format,
            _ if self.json => Format::Jsonl,
            (None, Some("csv")) => Format::Csv,
            (None, Some("jsonl" | "json" | "ndjson")) => Format::Jsonl,
            (None, _) => Format::Text,
        }
    }

    fn answer(
        &self,
        inputs: &Inputs,
        shown: bool,
        to: &mut dyn Write,
        device: &Device,
    ) -> Result<()> {
        let subjects = std::iter::once(&self.subject).chain(&self.with);
        let settings = self.resolution.on_top_of(&self.subset.on_top_of(&self.settings));
        let candidates = Candidate::read_all(subjects, &settings, device)?;
        let candidates = self.precision.of(candidates, device)?;
        let mut names = candidates.iter().find_map(|one| one.classes.clone()).unwrap_or_default();
        if let Some(other) =
            candidates.iter().find(|one| !self.labels.is_empty() && !one.model.reads())
        {
            bail!(
                "{} does not compare images with texts; it knows classes of its own, not --labels",
                other.name()
            );
        }
        let mut system = system(candidates, self.seed, device)?;
        if !self.labels.is_empty() {
            names = self.labels.iter().map(|label| label.trim().to_owned()).collect();
            if names.iter().any(String::is_empty) {
                bail!("one of the labels is empty; --labels are names, separated by commas");
            }
            let templates = self.templates.as_deref().map(Templates::read).transpose()?;
            let labels = Labels { names: names.clone(), templates: templates.unwrap_or_default() };
            system = labels.given_to(system, self.batch.into(), &mut ())?;
        }
        if system.labels_pixels() {
            return self.segment(&system, inputs, &names, shown, to);
        }
        let resolution = system.pixels().resolution;
        let mut printer = Printer::new(self.format(), &inputs.columns, shown, to);
        // At the model's size: a batch of photographs as they are may not fit into memory.
        let small = |picture: Picture| picture.centre_crop(resolution, 1.0);
        read_in_batches(inputs, self.batch.into(), small, |opened, pictures, before| {
            let predictions = predict(&system, pictures, before, &names, self.top)?;
            let answers = opened.iter().zip(&predictions);
            answers.into_iter().try_for_each(|(input, prediction)| printer.print(input, prediction))
        })
    }

    /// Masks of images, one image at a time, since each is as large as it is.
    fn segment(
        &self,
        system: &System,
        inputs: &Inputs,
        names: &[String],
        shown: bool,
        to: &mut dyn Write,
    ) -> Result<()> {
        let format = self.format();
        let mut writer = MaskWriter::new(&self.masks, format, names, self.top, shown, to)?;
        let (windows, batch) = (self.windows.into(), self.batch.into());
        read_in_batches(
            inputs,
            1,
            |picture| picture,
            |opened, pictures, before| {
                let maps = segment(system, pictures, before, windows, batch)?;
                let masks = opened.iter().zip(pictures).zip(&maps);
                masks
                    .into_iter()
                    .try_for_each(|((input, picture), map)| writer.write(input, picture, map))
            },
        )
    }
}

/// Shows images to `each` in batches, with how many came before. One that cannot be read is named and left out;
/// fails where none can.
fn read_in_batches(
    inputs: &Inputs,
    batch: usize,
    made: impl Fn(Picture) -> Picture,
    mut each: impl FnMut(&[&Input], &[Picture], usize) -> Result<()>,
) -> Result<()> {
    let (all, mut read) = (inputs.images.len(), 0);
    let mut refused = Vec::new();
    let activity = Activity::counted("images", "image", 0, all as u64);
    for batch in inputs.images.chunks(batch) {
        let (mut opened, mut pictures): (Vec<&Input>, Vec<Picture>) = Default::default();
        for input in batch {
            match input.open() {
                Ok(picture) => {
                    opened.push(input);
                    pictures.push(made(picture));
                }
                Err(error) => {
                    if refused.len() < NAMED {
                        note(format!("left out: {error}"));
                    }
                    refused.push(Error::from(error));
                }
            }
        }
        if !pictures.is_empty() {
            each(&opened, &pictures, read)?;
        }
        read += pictures.len();
        activity.add(batch.len() as u64);
    }
    drop(activity);
    let (bad, all) = (grouped(refused.len() as u64), grouped(all as u64));
    match refused.pop() {
        Some(error) if read == 0 => {
            Err(error.context(format!("none of {all} files could be read as an image")))
        }
        Some(_) => {
            note(format!("{bad} of {all} files could not be read and were left out"));
            Ok(())
        }
        None => Ok(()),
    }
}
