//! `omma soup`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::write_atomically;
use omma_data::{formats::Columns, text::Tokenizer};
use omma_eval::{
    Binning, ContrastProtocol, EvalError, Images, Reader, SoupScore, SoupStep, System, Test,
    TestProtocol, Watcher, contrast, greedy_soup,
};
use omma_model::{
    VisionTransformer,
    systems::{first_difference, soup},
};
use omma_train::run::RunFolder;
use serde::Serialize;

use super::{check_output, save, written};
use crate::{
    beside::{complete, kept_files, recipes, write_beside},
    subject::{Candidate, Data, Part, check_distinct, check_names},
    table::{grouped, note, say, say_json, table},
    watch::Watch,
    zero_shot::{Labels, Names},
};

/// Average the weights of several checkpoints into one (paper 002 App. A.3).
///
/// Checkpoints have one configuration, and mostly come from one run: those that it has kept, or the ends of
/// several cooldowns (omma train --resume RUN --cooldown STEPS). Without --greedy, all of them are averaged.
/// With it, the one that scores best is taken first, and then in each round the one that raises the score most,
/// each as often as it helps. The score is the accuracy on held-out images, and among equals the likelihood; of
/// models that compare images with texts, the zero-shot accuracy, or without classes that of pairs. Test images
/// are only looked at if --split says so, and would then be no test any more.
///
/// Examples:
///   omma soup runs/vmoe-1-cooldown-* -o soup/
///   omma soup --all-of runs/vmoe-1 --greedy -o soup/
///   omma soup runs/a runs/b --greedy --data photos/ --max 4 -o soup/
///   omma eval soup/ --data photos/
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Soup {
    /// Runs and checkpoints to average
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    subjects: Vec<PathBuf>,
    /// All checkpoints that a run has kept, as well
    #[arg(long, value_name = "RUN")]
    all_of: Vec<PathBuf>,
    /// The folder to write
    #[arg(short, long, value_name = "FOLDER")]
    out: PathBuf,
    /// Choose which are averaged, and how often each, by their score
    #[arg(long)]
    greedy: bool,
    /// What to score by; without it, what the runs were trained on
    #[arg(long)]
    data: Option<String>,
    /// Which columns of a table are what, by name or by number from 1: image=photo,label=3
    #[arg(long, value_name = "COLUMNS")]
    columns: Option<Columns>,
    /// Which of its images; those that training held out if not given
    #[arg(long, value_enum)]
    split: Option<Part>,
    /// Sentences around the names of classes, one per line with {} in it, for models that compare images with texts
    #[arg(long, value_name = "FILE")]
    templates: Option<PathBuf>,
    /// Names of the data's classes for such models, one per line
    #[arg(long, value_name = "FILE")]
    class_names: Option<PathBuf>,
    /// Images to score by at most, evenly spread
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// With --greedy: checkpoints in the soup at most, each counted as often as it is taken
    #[arg(long, default_value_t = 8, requires = "greedy", value_parser = clap::value_parser!(u16).range(1..))]
    max: u16,
    /// Images per forward pass
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Replace a checkpoint that is there
    #[arg(long)]
    force: bool,
    /// Print soup.json instead of a table
    #[arg(long)]
    json: bool,
}

/// `soup.json`
#[derive(Serialize)]
struct Record {
    kind: &'static str,
    /// What it was scored by, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<usize>,
    /// What its accuracy is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    measure: Option<&'static str>,
    #[serde(flatten)]
    score: Option<ScoreRecord>,
    /// All that were to choose from, in the order in which they were given.
    ingredients: Vec<Ingredient>,
    /// Of a greedy soup, how it came to be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepRecord>,
}

#[derive(Serialize)]
struct Ingredient {
    path: PathBuf,
    /// How often it is in the soup.
    count: usize,
    /// What it scores by itself.
    #[serde(flatten)]
    score: Option<ScoreRecord>,
}

#[derive(Serialize)]
struct StepRecord {
    taken: PathBuf,
    #[serde(flatten)]
    score: ScoreRecord,
}

#[derive(Clone, Copy, Serialize)]
struct ScoreRecord {
    accuracy: f64,
    /// Nothing where there are no classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    nll: Option<f64>,
}

impl From<SoupScore> for ScoreRecord {
    fn from(SoupScore { accuracy, log_likelihood }: SoupScore) -> Self {
        Self { accuracy, nll: log_likelihood.map(|log| -log) }
    }
}

impl ScoreRecord {
    fn in_words(self) -> String {
        let nll = self.nll.map_or(String::new(), |nll| format!(", NLL {nll:.4}"));
        format!("{:.2} %{nll}", 100.0 * self.accuracy)
    }
}

/// How often each candidate is averaged, and what was found on the way.
struct Chosen {
    counts: Vec<usize>,
    own: Vec<Option<ScoreRecord>>,
    steps: Vec<StepRecord>,
    score: Option<ScoreRecord>,
}

impl Soup {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.out, self.force)?;
        let mut watch = Watch::new();
        let paths = self.paths()?;
        let kept = kept_files(&paths)?;
        let mut candidates = Candidate::read_all(&paths, &[], device)?;
        check_alike(&candidates)?;
        for candidate in &mut candidates {
            complete(candidate, &kept)?;
        }
        let asked = match self.greedy || self.data.is_some() || self.split.is_some() {
            true => Some(self.asked(&paths, &candidates)?),
            false => None,
        };
        let kitchen = Kitchen { candidates: &candidates, device };
        let chosen = match (&asked, self.greedy) {
            (Some(asked), true) => self.choose(&kitchen, asked, &mut watch)?,
            (asked, _) => kitchen.all(asked.as_ref(), &mut watch)?,
        };
        watch.turn_to("averaging");
        let model = kitchen.mix(&chosen.counts)?;
        drop(watch);
        save(&model, &self.out)?;
        write_beside(&self.out, &kept)?;
        let ingredients = paths.iter().zip(&chosen.counts).zip(&chosen.own);
        let ingredients = ingredients.map(|((path, count), score)| Ingredient {
            path: path.clone(),
            count: *count,
            score: *score,
        });
        let record = Record {
            kind: if self.greedy { "greedy" } else { "uniform" },
            data: asked.as_ref().map(|asked| asked.images.name.clone()),
            images: asked.as_ref().map(|asked| asked.images.data.len()),
            measure: asked.as_ref().map(|asked| asked.measure),
            score: chosen.score,
            ingredients: ingredients.collect(),
            steps: chosen.steps,
        };
        self.write("soup.json", serde_json::to_string_pretty(&record)?.as_bytes())?;
        if self.json {
            return say_json(&record);
        }
        show(&record)?;
        written(&model, &self.out, None)
    }

    /// Everything that may be averaged.
    fn paths(&self) -> Result<Vec<PathBuf>> {
        let mut paths = self.subjects.clone();
        for run in &self.all_of {
            let (folder, _) = RunFolder::open(run)?;
            let checkpoints = folder.checkpoints();
            let steps = checkpoints.steps()?;
            if steps.is_empty() {
                bail!("{} has kept no checkpoint", run.display());
            }
            paths.extend(steps.into_iter().map(|step| checkpoints.at(step)));
        }
        if paths.is_empty() {
            bail!(
                "name runs or checkpoints to average, or --all-of RUN for all that a run has kept"
            );
        }
        check_distinct(&paths)?;
        Ok(paths)
    }

    /// What they are scored by.
    fn asked(&self, paths: &[PathBuf], candidates: &[Candidate]) -> Result<Asked> {
        let recipes = paths.iter().map(|path| recipes(path)).collect::<Result<Vec<_>>>()?;
        let first = &candidates[0].model;
        let resolution = first.config().image.resolution;
        let data =
            Data::of_soup(self.data.as_deref(), self.columns.as_ref(), &recipes, resolution)?;
        let part = self.split.unwrap_or(Part::Val);
        let limit = self.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (_, images) = match first.reads() {
            true => data.part_of_any(Some(part), limit)?,
            false => data.part(Some(part), limit)?,
        };
        let names =
            Names { templates: self.templates.as_deref(), classes: self.class_names.as_deref() };
        let (labels, images) = names.of(&candidates[..1], images)?;
        check_names(candidates, &images)?;
        let measure = match first.config().classes() {
            1.. => "accuracy",
            0 if labels.is_some() => "zero-shot accuracy",
            0 => "accuracy of pairs",
        };
        if part == Part::Test && self.greedy {
            note("the soup is chosen by test images: what it scores on them is no test of it");
        }
        let count = grouped(images.data.len() as u64);
        note(format!("scored by {count} images ({measure}): {}", images.name));
        Ok(Asked { images, labels, measure, batch: self.batch.into() })
    }

    fn choose(&self, kitchen: &Kitchen, asked: &Asked, watch: &mut Watch) -> Result<Chosen> {
        let candidates = kitchen.candidates;
        let (count, most) = (candidates.len(), usize::from(self.max));
        let path = |place: usize| candidates[place].path.clone();
        let mut steps: Vec<StepRecord> = Vec::new();
        let score = |counts: &[usize]| {
            let found = kitchen.score(counts, asked, watch)?;
            if let ([only], 1) = (taken(counts).as_slice(), counts.iter().sum::<usize>()) {
                let words = ScoreRecord::from(found).in_words();
                note(format!("{} by itself: {words}", path(*only).display()));
            }
            Ok::<SoupScore, anyhow::Error>(found)
        };
        let heard = |step: &SoupStep<SoupScore>| {
            let (taken, score) = (path(step.taken), ScoreRecord::from(step.score));
            note(format!("{}. {}: {}", steps.len() + 1, taken.display(), score.in_words()));
            steps.push(StepRecord { taken, score });
        };
        let found = greedy_soup(count, most, score, heard)?;
        let score = steps.last().map(|step| step.score);
        let own = found.own.iter().map(|score| Some((*score).into())).collect();
        Ok(Chosen { counts: found.counts().to_vec(), own, steps, score })
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<()> {
        let path = self.out.join(name);
        write_atomically(&path, |temporary| std::fs::write(temporary, text))
            .with_context(|| path.display().to_string())
    }
}

/// Places of the candidates that are averaged.
fn taken(counts: &[usize]) -> Vec<usize> {
    (0..counts.len()).filter(|place| counts[*place] > 0).collect()
}

/// What soups are made of, and how they are tasted.
struct Kitchen<'a> {
    candidates: &'a [Candidate],
    device: &'a Device,
}

/// What a soup is scored by.
struct Asked {
    images: Images,
    /// The classes, for models that have none of their own.
    labels: Option<Labels>,
    /// What the score is called.
    measure: &'static str,
    /// Images per forward pass.
    batch: usize,
}

impl Kitchen<'_> {
    fn mix(&self, counts: &[usize]) -> Result<VisionTransformer> {
        let models = self.candidates.iter().map(|candidate| &candidate.model);
        let models: Vec<_> = models.zip(counts.iter().copied()).collect();
        Ok(soup(&models, self.device)?)
    }

    fn score(&self, counts: &[usize], asked: &Asked, watch: &mut Watch) -> Result<SoupScore> {
        let names = taken(counts).into_iter().map(|place| self.candidates[place].name());
        let name = names.collect::<Vec<String>>().join(" + ");
        let tokenizer = self.candidates[0].tokenizer.clone();
        let mut tasting = Tasting { name: &name, watch };
        let model = (name.clone(), self.mix(counts)?, tokenizer);
        score(model, asked, self.device, &mut tasting)
    }

    /// Every candidate once; what they and their mean score, where there are images.
    fn all(&self, asked: Option<&Asked>, watch: &mut Watch) -> Result<Chosen> {
        let count = self.candidates.len();
        let counts = vec![1; count];
        let Some(asked) = asked else {
            let (own, steps, score) = (vec![None; count], Vec::new(), None);
            return Ok(Chosen { counts, own, steps, score });
        };
        let alone = |place: usize| (0..count).map(|other| usize::from(other == place)).collect();
        let mut own = Vec::new();
        for place in 0..count {
            let alone: Vec<usize> = alone(place);
            let found = ScoreRecord::from(self.score(&alone, asked, watch)?);
            let path = self.candidates[place].path.display();
            note(format!("{path} by itself: {}", found.in_words()));
            own.push(Some(found));
        }
        let score = Some(self.score(&counts, asked, watch)?.into());
        Ok(Chosen { counts, own, steps: Vec::new(), score })
    }
}

/// What a model scores: the accuracy of a classifier, which one that compares images with texts is once it has the
/// names of classes; without these, how many images find their own caption in a batch.
fn score(
    (name, model, tokenizer): (String, VisionTransformer, Option<Tokenizer>),
    asked: &Asked,
    device: &Device,
    watcher: &mut dyn Watcher,
) -> Result<SoupScore> {
    let Asked { images, labels, batch, .. } = asked;
    if labels.is_none() && model.config().classes() == 0 && model.reads() {
        let tokenizer = tokenizer.ok_or(EvalError::NoTokenizer { model: name })?;
        let protocol =
            ContrastProtocol { templates: None, batch: *batch, ..ContrastProtocol::default() };
        let reader = Reader::new(&model, &tokenizer, device)?;
        let found = contrast(&reader, images, &protocol, watcher)?.record.captions;
        let accuracy = found.context("these images have no captions")?.accuracy.mean();
        return Ok(SoupScore { accuracy, log_likelihood: None });
    }
    let mut system = System::new(vec![(name, model)], device)?.reading(vec![tokenizer]);
    if let Some(labels) = labels {
        system = labels.given_to(system, *batch, watcher)?;
    }
    let protocol = TestProtocol { binning: Binning::default(), batch: *batch };
    let test = Test::run(&system, images, protocol, watcher)?;
    let log_likelihood = Some(-test.record.summary.nll);
    Ok(SoupScore { accuracy: test.accuracy(), log_likelihood })
}

/// What is scored, as it is seen at the terminal.
struct Tasting<'a> {
    name: &'a str,
    watch: &'a mut Watch,
}

impl Watcher for Tasting<'_> {
    fn begins(&mut self, _: &str, images: usize) {
        self.watch.begins(&format!("scoring {}", self.name), images);
    }

    fn done(&mut self, images: usize) {
        self.watch.done(images);
    }
}

/// Fails on two configurations.
fn check_alike(candidates: &[Candidate]) -> Result<()> {
    let Some((first, others)) = candidates.split_first() else { return Ok(()) };
    for other in others {
        let difference = first_difference(first.model.config(), other.model.config());
        if let Some((setting, left, right)) = difference {
            bail!(
                "{} and {} cannot be averaged: {setting} is {left} in the first and {right} in the second",
                first.path.display(),
                other.path.display()
            );
        }
    }
    Ok(())
}

fn show(record: &Record) -> Result<()> {
    let shown = |score: Option<ScoreRecord>| match score {
        Some(ScoreRecord { accuracy, nll }) => [
            format!("{:.2} %", 100.0 * accuracy),
            nll.map_or(String::new(), |nll| format!("{nll:.4}")),
        ],
        None => [String::new(), String::new()],
    };
    let row = |name: String, count: usize, score: Option<ScoreRecord>| {
        let [accuracy, nll] = shown(score);
        [name, count.to_string(), accuracy, nll]
    };
    let one = |one: &Ingredient| row(one.path.display().to_string(), one.count, one.score);
    let mut rows: Vec<_> = record.ingredients.iter().map(one).collect();
    let total = record.ingredients.iter().map(|one| one.count).sum();
    rows.push(row("the soup".to_owned(), total, record.score));
    say(table(["checkpoint", "taken", "accuracy", "NLL"], rows, 1))
}
