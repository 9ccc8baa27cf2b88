//! `omma eval`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::{Args, ValueEnum};
use omma_base::files::fresh_folder;
use omma_data::{
    corrupt::Corruption,
    formats::{Columns, CorruptedSet, whole_name},
};
use omma_eval::{
    BinKind, Binning, Corrupted, Evaluation, Images, OodPositive, OodProtocol, OodScore,
    PredictionFormat, Protocol, ShiftProtocol, System, TransferProtocol, Windows, evaluate,
    report::write_evaluation,
};
use omma_ranks::World;

use crate::{
    class_subset,
    evals::{EVALS, folder_name},
    evaluation_table::show,
    precision::PrecisionArguments,
    ranks,
    resolution::ResolutionArguments,
    subject::{
        Candidate, Data, Part, check_distinct, check_names, data_meanings, few_shot_sets, ood_sets,
        system,
    },
    subset::{SubsetArguments, SubsetsArguments},
    table::{note, say},
    watch::Watch,
    zero_shot,
};

/// Judge a run, a checkpoint, or several as one deep ensemble.
///
/// Error, NLL, Brier score and calibration error of every member and of their average with 95 % intervals, how
/// the members differ, and the same after temperature scaling. A model that compares images with texts is given the
/// classes by their names, and where the images have captions, it is judged by how images and texts find each
/// other. A model that labels pixels is judged by masks: intersection over union, pixels that are right, and their
/// calibration. Writes eval.json, eval.html, images.safetensors
/// and figures/*.svg into a folder of its own below the run's evals/, one per data set and protocol.
///
/// Examples:
///   omma eval runs/default-1
///   omma eval runs/default-1 --shift --ood world-near-ood,world-far-ood
///   omma eval runs/cifar10-1 --shift-data CIFAR-10-C
///   omma eval runs/default-1 --few-shot textures=dtd/,photos/ --shots 10
///   omma eval runs/vmoe-1 runs/vmoe-2       a deep ensemble of two
///   omma eval runs/fashion-vmoe-1 --ood kmnist=data/kmnist --ood-score energy
///   omma eval vit.safetensors --data photos.zip --json
///   omma eval vit.safetensors --data photos/ --resolution 384
///   omma eval vit.safetensors --data imagenet-a/ --class-subset \
///       --model-classes imagenet.txt
///   omma eval runs/vmoe-1 --set moe.k=4     more experts than in training
///   omma eval runs/soft-moe-1 --subsets     how far some of its experts come
///   omma eval runs/vmoe-1 --predictions predictions.csv
///   omma eval runs/limoe-1                  zero-shot, by names and captions
///   omma eval runs/segment-1 --data camvid/ --windows whole
///   omma eval runs/limoe-1 --data cifar10/ --templates sentences.txt
#[derive(Args, Clone)]
#[command(verbatim_doc_comment)]
pub(crate) struct Eval {
    /// Folders of runs, checkpoints of ours, or of timm, DINOv2, Hugging Face or vmoe
    #[arg(required = true, value_name = "RUN_OR_CHECKPOINT")]
    pub(crate) subjects: Vec<PathBuf>,
    /// What to judge by; without it, what the runs were trained on
    #[arg(long)]
    pub(crate) data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS", requires = "data")]
    pub(crate) columns: Option<Columns>,
    /// Which part of the data; without it, all of data without splits that no model was trained on, else the
    /// test images
    #[arg(long, value_enum)]
    pub(crate) split: Option<Part>,
    /// Judge by so many images at most, evenly spread over the data
    #[arg(long, value_name = "IMAGES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Judge among the data's classes alone, which are found among the models' by their names; logits of
    /// the others are left out before the softmax
    #[arg(long)]
    pub(crate) class_subset: bool,
    /// Names of the models' classes, one per line or as a JSON list; runs know theirs
    #[arg(long, value_name = "FILE", requires = "class_subset")]
    pub(crate) model_classes: Option<PathBuf>,
    /// Judge by data whose classes have other names than the model's, in the same order
    #[arg(long)]
    pub(crate) ignore_names: bool,
    /// Sentences for the names of classes, one per line with {} in its place; for models that compare images
    /// with texts, which have eight plain ones of their own
    #[arg(long, value_name = "FILE")]
    pub(crate) templates: Option<PathBuf>,
    /// Names of the data's classes in their order, one per line or as a JSON list, for such models; without
    /// it, as the data call them
    #[arg(long, value_name = "FILE", conflicts_with = "class_subset")]
    pub(crate) class_names: Option<PathBuf>,
    /// How images of another shape than the model's are looked at, by models that label pixels
    #[arg(long, value_enum, default_value_t = WindowsWord::Sliding)]
    pub(crate) windows: WindowsWord,
    /// Fifteen corruptions in five severities as well
    #[arg(long)]
    pub(crate) shift: bool,
    /// Corrupted images as they were published, instead of making them: a folder in CIFAR-10-C's layout
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["shift", "shift_seed"])]
    pub(crate) shift_data: Option<PathBuf>,
    /// Images per corruption and severity
    #[arg(long, value_name = "IMAGES", default_value_t = SHIFT_SAMPLES, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) shift_samples: u32,
    /// Where the corruptions' random numbers come from
    #[arg(long, default_value_t = 0)]
    pub(crate) shift_seed: u64,
    /// Out-of-distribution data sets, as NAME=PATH or PATH, separated by commas
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    pub(crate) ood: Vec<String>,
    /// The score that out-of-distribution images are told by
    #[arg(long, value_enum, default_value_t = Score::MaxProbability)]
    pub(crate) ood_score: Score,
    /// Which images AUPR and FPR95 are to find; paper 000's tables have the test images, which are in
    /// distribution
    #[arg(long, value_enum, default_value_t = Positive::InDistribution)]
    pub(crate) ood_positive: Positive,
    /// Other data sets that features are judged by from a few images of every class, as NAME=PATH or PATH, separated
    /// by commas
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    pub(crate) few_shot: Vec<String>,
    /// How many images of every class that is; drawn three times
    #[arg(long, value_delimiter = ',', default_values_t = SHOTS, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) shots: Vec<u32>,
    /// How the calibration error's bins are cut
    #[arg(long, value_enum, default_value_t = Bins::EqualWidth)]
    pub(crate) binning: Bins,
    /// How many there are
    #[arg(long, default_value_t = BINS, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) bins: u16,
    /// A setting of predictions on top of the model's own, such as moe.k=4, moe.inference_noise=1,
    /// moe.inference_capacity_ratio=8 or mc_samples=5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
    #[command(flatten)]
    pub(crate) subset: SubsetArguments,
    #[command(flatten)]
    pub(crate) subsets: SubsetsArguments,
    #[command(flatten)]
    pub(crate) resolution: ResolutionArguments,
    #[command(flatten)]
    pub(crate) precision: PrecisionArguments,
    /// Where MC samples and the noise of routers come from, in predictions that are drawn
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Images per forward pass
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) batch: u16,
    /// Leave temperature scaling out
    #[arg(long)]
    pub(crate) no_temperature: bool,
    /// What the system is called in the report; for `omma compare`, evaluations of one name whose
    /// settings differ in nothing but the seed are one system
    #[arg(long)]
    pub(crate) label: Option<String>,
    /// Write every prediction to a file: .csv, .jsonl, or .parquet with the feature of that name
    #[arg(long, value_name = "FILE")]
    pub(crate) predictions: Option<PathBuf>,
    /// Where to write; without it, into a folder of a single run's evals/ that this protocol has for itself,
    /// else into a fresh one below evals/
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Print eval.json instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Images per corruption and severity, and bins of the calibration error, unless others are asked for.
const SHIFT_SAMPLES: u32 = 10_000;
const BINS: u16 = 15;
/// Images per class (paper 000 App. A.5), and how many times they are drawn.
const SHOTS: [u32; 4] = [1, 5, 10, 25];
const DRAWS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WindowsWord {
    /// Through windows of the model's size that overlap
    Sliding,
    /// All at once, with interpolated positions
    Whole,
}

impl From<WindowsWord> for Windows {
    fn from(word: WindowsWord) -> Self {
        match word {
            WindowsWord::Sliding => Self::Sliding,
            WindowsWord::Whole => Self::Whole,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Score {
    MaxProbability,
    Entropy,
    Energy,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Positive {
    InDistribution,
    OutOfDistribution,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bins {
    EqualWidth,
    EqualMass,
}

/// Everything that was asked for, read and checked.
struct Prepared {
    system: System,
    protocol: Protocol,
    /// Where the report goes, if not into a fresh folder of this name.
    folder: Option<PathBuf>,
    name: String,
}

impl Prepared {
    fn among(self, world: &World) -> Self {
        Self { system: self.system.among(world), ..self }
    }

    /// Judges and writes the report.
    fn judge(self, watch: &mut Watch) -> Result<(Evaluation, PathBuf)> {
        // Made before the work, not after it: what cannot be written should not be computed first.
        let folder = self.folder.map_or_else(|| fresh(&self.name), Ok)?;
        let figures = folder.join("figures");
        std::fs::create_dir_all(&figures).with_context(|| {
            format!("{} cannot be made; a report goes into a folder", figures.display())
        })?;
        let judged = evaluate(&self.system, &self.protocol, watch);
        let (mut evaluation, gallery) = judged.inspect_err(|_| {
            // Only folders that are still empty go.
            let above = folder.parent().filter(|above| above.ends_with(EVALS));
            let _ = std::fs::remove_dir(&figures)
                .and_then(|()| std::fs::remove_dir(&folder))
                .and_then(|()| above.map_or(Ok(()), std::fs::remove_dir));
        })?;
        watch.turn_to("writing the report");
        write_evaluation(&folder, &mut evaluation, &gallery)?;
        Ok((evaluation, folder))
    }

    /// Computes what is this rank's to compute.
    fn help(self, watch: &mut Watch) -> Result<()> {
        let protocol = Protocol { predictions: None, ..self.protocol };
        evaluate(&self.system, &protocol, watch)?;
        Ok(())
    }
}

impl Eval {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let world = ranks::connect()?;
        let mut watch = Watch::new();
        let prepared = self.prepare(&mut watch, device);
        if !world.leads() {
            let Ok(prepared) = ranks::agree(&world, prepared) else { return Ok(()) };
            return ranks::ended(&world, prepared.among(&world).help(&mut watch));
        }
        let prepared = ranks::agree(&world, prepared)?.among(&world);
        let (evaluation, folder) = ranks::led(&world, prepared.judge(&mut watch))?;
        drop(watch);
        if self.json {
            return say(serde_json::to_string_pretty(&evaluation)?);
        }
        show(&evaluation)?;
        if let Some(file) = &self.predictions {
            say(format!("predictions: {}", file.display()))?;
        }
        say(format!("report: {}", folder.join("eval.html").display()))
    }

    /// What is asked beside the plain test, in the words of a command, each in one way: what tells protocols
    /// apart, and makes the same evaluation of another run.
    fn options(&self, part: Part) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut say = |flag: &str, value: Option<String>| {
            words.push(flag.to_owned());
            words.extend(value);
        };
        let word = |value: clap::builder::PossibleValue| value.get_name().to_owned();
        let path = |path: &Path| whole_name(&path.to_string_lossy());
        if let Some(data) = &self.data {
            say("--data", Some(whole_name(data)));
        }
        if let Some(columns) = &self.columns {
            say("--columns", Some(columns.to_string()));
        }
        if part != Part::Test {
            say("--split", part.to_possible_value().map(word));
        }
        if let Some(limit) = self.limit {
            say("--limit", Some(limit.to_string()));
        }
        if self.class_subset {
            say("--class-subset", None);
        }
        if let Some(file) = &self.model_classes {
            say("--model-classes", Some(path(file)));
        }
        if self.ignore_names {
            say("--ignore-names", None);
        }
        if let Some(file) = &self.templates {
            say("--templates", Some(path(file)));
        }
        if let Some(file) = &self.class_names {
            say("--class-names", Some(path(file)));
        }
        if self.windows != WindowsWord::Sliding {
            say("--windows", self.windows.to_possible_value().map(word));
        }
        if self.shift {
            say("--shift", None);
        }
        if let Some(folder) = &self.shift_data {
            say("--shift-data", Some(path(folder)));
        }
        if self.shift || self.shift_data.is_some() {
            if self.shift_samples != SHIFT_SAMPLES {
                say("--shift-samples", Some(self.shift_samples.to_string()));
            }
            if self.shift_seed != 0 {
                say("--shift-seed", Some(self.shift_seed.to_string()));
            }
        }
        if !self.ood.is_empty() {
            say("--ood", Some(named(&self.ood)));
            if self.ood_score != Score::MaxProbability {
                say("--ood-score", self.ood_score.to_possible_value().map(word));
            }
            if self.ood_positive != Positive::InDistribution {
                say("--ood-positive", self.ood_positive.to_possible_value().map(word));
            }
        }
        if !self.few_shot.is_empty() {
            say("--few-shot", Some(named(&self.few_shot)));
            if self.shots != SHOTS {
                let shots: Vec<String> = self.shots.iter().map(u32::to_string).collect();
                say("--shots", Some(shots.join(",")));
            }
        }
        if self.binning != Bins::EqualWidth {
            say("--binning", self.binning.to_possible_value().map(word));
        }
        if self.bins != BINS {
            say("--bins", Some(self.bins.to_string()));
        }
        for setting in self.resolution.on_top_of(&self.subset.on_top_of(&self.settings)) {
            say("--set", Some(setting));
        }
        if let Some(precision) = self.precision.word() {
            say("--precision", Some(precision.to_owned()));
        }
        if let Some(subsets) = self.subsets.words() {
            say(&subsets, None);
        }
        if self.seed != 0 {
            say("--seed", Some(self.seed.to_string()));
        }
        if self.no_temperature {
            say("--no-temperature", None);
        }
        words
    }

    /// Judges and writes the report.
    pub(crate) fn judge(
        &self,
        watch: &mut Watch,
        device: &Device,
    ) -> Result<(Evaluation, PathBuf)> {
        self.prepare(watch, device)?.judge(watch)
    }

    /// Reads what is judged, and what by.
    fn prepare(&self, watch: &mut Watch, device: &Device) -> Result<Prepared> {
        check_distinct(&self.subjects)?;
        self.predictions.as_deref().map(PredictionFormat::of).transpose()?;
        let subsets = self.subsets.protocol()?;
        let settings = self.resolution.on_top_of(&self.subset.on_top_of(&self.settings));
        let candidates = Candidate::read_all(&self.subjects, &settings, device)?;
        let candidates = self.precision.of(candidates, device)?;
        let data = Data::of(self.data.as_deref(), self.columns.as_ref(), &candidates)?;
        let limit = self.limit.map(|limit| limit as usize);
        let reads = candidates.iter().any(|one| one.model.reads());
        let of_pixels = candidates.iter().any(|one| one.model.config().head.segmenter().is_some());
        if of_pixels && self.class_subset {
            bail!("--class-subset is of classes of images, and this model labels pixels");
        }
        let (part, test) = match reads || of_pixels {
            true => data.part_of_any(self.split, limit)?,
            false => data.part(self.split, limit)?,
        };
        let names = zero_shot::Names {
            templates: self.templates.as_deref(),
            classes: self.class_names.as_deref(),
        };
        let (labels, test) = names.of(&candidates, test)?;
        let captions_alone =
            labels.is_none() && candidates.iter().all(|one| one.model.config().classes() == 0);
        let without_classes = captions_alone && reads || of_pixels;
        let shift = self.shift(&test)?;
        let judged = match self.class_subset {
            true => Some(class_subset::places(&candidates, self.model_classes.as_deref(), &test)?),
            false => None,
        };
        if judged.is_none() && !self.ignore_names {
            check_names(&candidates, &test)?;
        }
        let held_out = data.held_out()?;
        let chose = held_out.as_ref().map(|images| images.data.len());
        let scales = !self.no_temperature && !self.class_subset && part == Part::Test;
        let validation = held_out.filter(|_| scales && !without_classes);
        if validation.is_none() && !self.no_temperature && !without_classes {
            note(match self.class_subset {
                true => {
                    "no temperature is fitted: images that training held out are of all classes, and the \
                     models are judged among some (--class-subset)"
                }
                false => {
                    "no temperature is fitted: it takes images that all models held out of training, \
                     which are known for runs of one data set, judged by its test images"
                }
            });
        }
        let label = self.label.clone().unwrap_or_else(|| match candidates.as_slice() {
            [one] => one.label(),
            several => format!("{} ×{}", several[0].label(), several.len()),
        });
        let options = self.options(part);
        let own_data = |one: &Candidate| {
            one.recipe.as_ref().is_some_and(|recipe| recipe.data.name == data.spec.name)
        };
        let folder = match (&self.out, candidates.as_slice()) {
            (Some(folder), _) => Some(folder.clone()),
            (None, [one]) if one.has_folder() => {
                let name = folder_name(&test.name, own_data(one), &options);
                Some(one.path.join(EVALS).join(name))
            }
            _ => None,
        };
        let images = crate::table::grouped(test.data.len() as u64);
        note(format!("judging by {images} images of {}: {}", test.name, part.reason(self.split)));
        if let Some(images) = chose {
            let images = crate::table::grouped(images as u64);
            note(format!("training held {images} images out to choose its best checkpoint by"));
        }
        let fingerprints: Vec<String> = candidates.iter().map(Candidate::fingerprint).collect();
        let mut system = system(candidates, self.seed, device)?;
        if let Some(labels) = labels {
            system = labels.given_to(system, self.batch.into(), watch)?;
        }
        if let Some(judged) = judged {
            system = system.restricted_to(judged)?;
        }
        let resolution = system.pixels().resolution;
        let name = label.clone();
        let protocol = Protocol {
            label,
            fingerprint: fingerprints.join("+"),
            test,
            validation,
            shift,
            subsets,
            ood: OodProtocol {
                sets: ood_sets(&self.ood, resolution, limit)?,
                score: match self.ood_score {
                    Score::MaxProbability => OodScore::MaxProbability,
                    Score::Entropy => OodScore::Entropy,
                    Score::Energy => OodScore::Energy,
                },
                positive: match self.ood_positive {
                    Positive::InDistribution => OodPositive::InDistribution,
                    Positive::OutOfDistribution => OodPositive::OutOfDistribution,
                },
            },
            few_shot: TransferProtocol {
                sets: few_shot_sets(&self.few_shot, resolution, limit)?,
                shots: self.shots.iter().map(|shots| *shots as usize).collect(),
                draws: DRAWS,
                seed: self.seed,
            },
            windows: self.windows.into(),
            binning: Binning {
                kind: match self.binning {
                    Bins::EqualWidth => BinKind::EqualWidth,
                    Bins::EqualMass => BinKind::EqualMass,
                },
                bins: self.bins.into(),
            },
            batch: self.batch.into(),
            predictions: self.predictions.clone(),
            options,
        };
        Ok(Prepared { system, protocol, folder, name })
    }

    /// Corrupted images, if they are asked for.
    fn shift(&self, test: &Images) -> Result<Option<ShiftProtocol>> {
        let corrupted = match &self.shift_data {
            None if !self.shift => return Ok(None),
            None => Corrupted::Made { seed: self.shift_seed },
            Some(path) => {
                let set = CorruptedSet::open(path, test.data.classes())?;
                let (found, all) = (set.counted().len(), Corruption::ALL.len());
                if (1..all).contains(&found) {
                    let path = path.display();
                    note(format!(
                        "{path} has {found} of the {all} corruptions; the mean is over these"
                    ));
                }
                Corrupted::published(path, set)?
            }
        };
        // Images that are made are made of the test images, which are limited already.
        let samples = self.shift_samples.min(self.limit.unwrap_or(u32::MAX)) as usize;
        Ok(Some(ShiftProtocol { samples, corrupted }))
    }
}

/// Data sets by name and whole path, as a command takes them.
fn named(texts: &[String]) -> String {
    let meaning = |(name, path): (String, String)| match name == path {
        true => name,
        false => format!("{name}={path}"),
    };
    data_meanings(texts).into_iter().map(meaning).collect::<Vec<String>>().join(",")
}

/// A folder of its own for what has none.
fn fresh(label: &str) -> Result<PathBuf> {
    let plain = |symbol: char| if symbol.is_alphanumeric() { symbol } else { '-' };
    let name: String = label.chars().map(plain).take(60).collect();
    fresh_folder(Path::new(EVALS), &name).context(EVALS)
}
