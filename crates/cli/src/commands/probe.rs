//! `omma probe`

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use omma_base::{Seed, files::write_atomically};
use omma_data::{Selection, Shared, formats::Columns};
use omma_eval::{
    Binning, FittedProbe, Images, ProbeKind, ProbeProtocol, System, Test, TestProtocol, fit_probe,
};
use omma_model::{VisionTransformer, systems::truncated, with_values};
use omma_train::recipe::DataRecipe;
use rand::seq::SliceRandom;
use serde::Serialize;

use super::check_output;
use crate::{
    resolution::ResolutionArguments,
    subject::{Candidate, Data, Part},
    table::{grouped, note, say, say_json, table},
    watch::Watch,
};

/// Put a linear classifier on frozen features, and keep it as a model.
///
/// Nothing of the model itself is trained: its features of the images are computed once, a classifier is
/// fitted to them, and both are written as a checkpoint that every command takes. Held-out images choose
/// how strongly it is regularised, how many of the model's blocks it stands on (the last ones often know
/// less), and its temperature; the test images are looked at once, at the end.
///
/// Examples:
///   omma probe dinov2.safetensors --data photos/ -o probe/
///   omma probe small/ --data photos/ -o probe/ --resolution 98 --blocks 8-12
///   omma probe runs/vmoe-1 --data photos/ --shots 10 -o probe/
///   omma predict probe/ photo.jpg
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Probe {
    /// The folder of a run, or a checkpoint
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subject: PathBuf,
    /// What to learn from; without it, what the run was trained on
    #[arg(long)]
    data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS")]
    columns: Option<Columns>,
    /// Where to write the model
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
    /// How the classifier is fitted: least squares in closed form, or softmax regression
    #[arg(long, value_enum, default_value_t = Head::Ridge)]
    head: Head,
    /// Learn from so many images of each class alone
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    shots: Option<u32>,
    /// Blocks that features are taken behind, counted from 1: one number, or a range to choose from; by
    /// default the last third of a dense model, and all blocks of one with experts or members
    #[arg(long, value_name = "N|FIRST-LAST")]
    blocks: Option<String>,
    /// Strengths of the regularisation to choose from
    #[arg(long, value_delimiter = ',')]
    l2: Vec<f64>,
    /// A setting of the model on top of its own, such as pooling=token
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    resolution: ResolutionArguments,
    /// Where shots are drawn from
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Images per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Write over a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Head {
    Ridge,
    Linear,
}

/// `probe.json`
#[derive(Serialize)]
struct Record<'a> {
    /// What the features are of.
    model: String,
    data: &'a str,
    classes: usize,
    shots: Option<u32>,
    #[serde(flatten)]
    found: &'a FittedProbe,
    test_images: usize,
    test_accuracy: f64,
    test_nll: f64,
}

/// Training images that are held out to choose by, as a share.
const CHOOSING: f64 = 0.1;
/// The same for each class where the classifier learns from a few shots, as in few-shot probes.
const CHOOSING_SHOTS: usize = 25;

impl Probe {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.out, self.force)?;
        if let Some(bad) = self.l2.iter().find(|l2| !(**l2 > 0.0 && l2.is_finite())) {
            bail!("a regularisation is above 0, not {bad}");
        }
        let mut watch = Watch::new();
        let settings = self.resolution.on_top_of(&self.settings);
        let candidates = Candidate::read_all([&self.subject], &settings, device)?;
        let data = Data::of(self.data.as_deref(), self.columns.as_ref(), &candidates)?;
        let [candidate] = candidates.as_slice() else { bail!("one model, please") };
        let model = &candidate.model;
        let (train, choosing) = self.parts(&data)?;
        let (_, test) = data.part(Some(Part::Test), None)?;
        let classes = test.data.classes().to_vec();
        let kind = match self.head {
            Head::Ridge => ProbeKind::Ridge,
            Head::Linear => ProbeKind::Linear,
        };
        note(format!(
            "{} classes; {} images to fit on, {} to choose by, {} for the test",
            classes.len(),
            grouped(train.data.len() as u64),
            grouped(choosing.data.len() as u64),
            grouped(test.data.len() as u64)
        ));
        let protocol = ProbeProtocol {
            train,
            choosing,
            kind,
            l2: if self.l2.is_empty() { kind.default_l2() } else { self.l2.clone() },
            depths: self.depths(model)?,
            batch: self.batch.into(),
        };
        let found = fit_probe(model, &protocol, device, &mut watch);
        let tested = found.map_err(anyhow::Error::from).and_then(|found| {
            let model = with_head(model, &found, classes.len(), device)?;
            let system = System::new(vec![(candidate.name(), model.clone())], device)?;
            let asked = TestProtocol { binning: Binning::default(), batch: self.batch.into() };
            let test = Test::run(&system, &test, asked, &mut watch)?;
            Ok((found, model, test))
        });
        let (found, model, tested) = tested?;
        let record = Record {
            model: candidate.name(),
            data: &test.name,
            classes: classes.len(),
            shots: self.shots,
            found: &found,
            test_images: tested.record.samples,
            test_accuracy: tested.accuracy(),
            test_nll: tested.record.summary.nll,
        };
        super::save(&model, &self.out)?;
        self.write("classes.json", &classes)?;
        self.write("probe.json", &record)?;
        if self.json {
            return say_json(&record);
        }
        self.show(&record)?;
        super::written(&model, &self.out, None)
    }

    /// The images to fit on, and those that choose.
    fn parts(&self, data: &Data) -> Result<(Images, Images)> {
        let Images { name, data: all, .. } = data.part(Some(Part::Train), None)?.1;
        let (train, choosing) = match self.shots {
            None => {
                let recipe = DataRecipe { validation: CHOOSING, ..DataRecipe::default() };
                recipe.parts(&all)
            }
            Some(shots) => self.few(&all, shots as usize)?,
        };
        if choosing.is_empty() {
            bail!("{name} has {} training images: too few to fit and to choose by", all.len());
        }
        Ok((Images::new(name.clone(), train), Images::new(name, choosing)))
    }

    /// So many images of each class, and up to 25 others of it.
    fn few(&self, all: &Shared, shots: usize) -> Result<(Shared, Shared)> {
        let mut by_class = vec![Vec::new(); all.classes().len()];
        (0..all.len()).for_each(|index| by_class[all.label(index)].push(index));
        let (mut train, mut choosing) = (Vec::new(), Vec::new());
        for (class, indices) in by_class.iter_mut().enumerate() {
            if indices.len() <= shots {
                bail!(
                    "class \"{}\" has {} training images; --shots {shots} leaves none to choose by",
                    all.classes()[class],
                    indices.len()
                );
            }
            indices.shuffle(&mut Seed::new(self.seed).named("probe").numbered(class as u64).rng());
            train.extend(&indices[..shots]);
            choosing.extend(indices[shots..].iter().take(CHOOSING_SHOTS));
        }
        let part = |indices| -> Shared { Arc::new(Selection::new(all.clone(), indices)) };
        Ok((part(train), part(choosing)))
    }

    /// Numbers of blocks to take features behind.
    fn depths(&self, model: &VisionTransformer) -> Result<Vec<usize>> {
        let encoder = &model.config().encoder;
        let depth = encoder.depth;
        let plain = encoder.moe.is_none() && encoder.batch_ensemble.is_none();
        let Some(text) = &self.blocks else {
            return Ok(match plain {
                true => (depth - depth / 3..=depth).collect(),
                false => vec![depth],
            });
        };
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let range = match text.split_once('-') {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(text).map(|block| (block, block)),
        };
        match range.filter(|(first, last)| 1 <= *first && first <= last && *last <= depth) {
            Some((first, last)) => Ok((first..=last).collect()),
            None => bail!("--blocks is a number or a range within 1-{depth}, not {text}"),
        }
    }

    fn write(&self, name: &str, content: &impl Serialize) -> Result<()> {
        let path = self.out.join(name);
        let text = serde_json::to_string_pretty(content)?;
        write_atomically(&path, |temporary| std::fs::write(temporary, text))
            .with_context(|| path.display().to_string())
    }

    fn show(&self, record: &Record) -> Result<()> {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let row = |trial: &omma_eval::ProbeTrial| {
            let chosen = if *trial == record.found.chosen { " ←" } else { "" };
            [
                format!("{}{chosen}", trial.depth),
                percent(trial.accuracy),
                format!("{:.3}", trial.nll),
                format!("{:.3e}", trial.l2),
            ]
        };
        let rows = record.found.trials.iter().map(row);
        say(table(["blocks", "accuracy, choosing", "NLL", "l2"], rows, 1))?;
        say(format!(
            "{} on {} test images, NLL {:.3}",
            percent(record.test_accuracy),
            grouped(record.test_images as u64),
            record.test_nll
        ))
    }
}

/// The model up to the chosen block, with the classifier on it.
fn with_head(
    model: &VisionTransformer,
    found: &FittedProbe,
    classes: usize,
    device: &Device,
) -> Result<VisionTransformer> {
    let model = truncated(model, found.chosen.depth, classes, device)?;
    let floats = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<f32>>();
    Ok(with_values(model, |parameter| {
        Ok(match parameter.name.as_str() {
            "head.weight" => Some(floats(&found.head.weights)),
            "head.bias" => Some(floats(&found.head.bias)),
            _ => None,
        })
    })?)
}
