//! `omma soup`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::write_atomically;
use omma_data::formats::Columns;
use omma_eval::{
    Binning, Images, SoupScore, SoupStep, System, Test, TestProtocol, Watcher, greedy_soup,
};
use omma_model::{
    VisionTransformer,
    systems::{first_difference, soup},
};
use omma_train::{Recipe, run::RunFolder};
use serde::Serialize;

use super::{check_output, save, written};
use crate::{
    subject::{Candidate, Data, Part, check_distinct, check_names},
    table::{grouped, note, say, say_json, table},
    watch::Watch,
};

/// Average the weights of several checkpoints into one (paper 002 App. A.3).
///
/// Checkpoints have one configuration, and mostly come from one run: those that it has kept, or the ends of
/// several cooldowns (omma train --resume RUN --cooldown STEPS). Without --greedy, all of them are averaged.
/// With it, the one that scores best is taken first, and then in each round the one that raises the score most,
/// each as often as it helps. The score is the accuracy on held-out images, and among equals the likelihood;
/// test images are only looked at if --split says so, and would then be no test any more.
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
    nll: f64,
}

impl From<SoupScore> for ScoreRecord {
    fn from(SoupScore { accuracy, log_likelihood }: SoupScore) -> Self {
        Self { accuracy, nll: -log_likelihood }
    }
}

impl ScoreRecord {
    fn in_words(self) -> String {
        format!("{:.2} %, NLL {:.4}", 100.0 * self.accuracy, self.nll)
    }
}

/// How often each candidate is averaged, and what was found on the way.
struct Chosen {
    counts: Vec<usize>,
    own: Vec<Option<ScoreRecord>>,
    steps: Vec<StepRecord>,
    score: Option<ScoreRecord>,
}

/// Files that belong to a model and are the same for all that are averaged.
const KEPT: [&str; 2] = ["classes.json", "tokenizer.json"];

impl Soup {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        check_output(&self.out, self.force)?;
        let mut watch = Watch::new();
        let paths = self.paths()?;
        let kept = kept_files(&paths)?;
        let mut candidates = Candidate::read_all(&paths, &[], device)?;
        check_alike(&candidates)?;
        for candidate in candidates.iter_mut().filter(|candidate| candidate.classes.is_none()) {
            let classes = kept.iter().find(|(name, _)| *name == "classes.json");
            candidate.classes =
                classes.map(|(_, text)| serde_json::from_slice(text)).transpose()?;
        }
        let images = match self.greedy || self.data.is_some() || self.split.is_some() {
            true => Some(self.images(&paths, &candidates)?),
            false => None,
        };
        let mut kitchen = Kitchen { candidates: &candidates, device, batch: self.batch.into() };
        let chosen = match (&images, self.greedy) {
            (Some(images), true) => self.choose(&mut kitchen, images, &mut watch)?,
            (images, _) => kitchen.all(images.as_ref(), &mut watch)?,
        };
        watch.turn_to("averaging");
        let model = kitchen.mix(&chosen.counts)?;
        drop(watch);
        save(&model, &self.out)?;
        for (name, text) in &kept {
            self.write(name, text)?;
        }
        let ingredients = paths.iter().zip(&chosen.counts).zip(&chosen.own);
        let ingredients = ingredients.map(|((path, count), score)| Ingredient {
            path: path.clone(),
            count: *count,
            score: *score,
        });
        let record = Record {
            kind: if self.greedy { "greedy" } else { "uniform" },
            data: images.as_ref().map(|images| images.name.clone()),
            images: images.as_ref().map(|images| images.data.len()),
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

    /// The images to score by.
    fn images(&self, paths: &[PathBuf], candidates: &[Candidate]) -> Result<Images> {
        let recipes = paths.iter().map(|path| recipes(path)).collect::<Result<Vec<_>>>()?;
        let resolution = candidates[0].model.config().image.resolution;
        let data =
            Data::of_soup(self.data.as_deref(), self.columns.as_ref(), &recipes, resolution)?;
        let part = self.split.unwrap_or(Part::Val);
        let limit = self.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (_, images) = data.part(Some(part), limit)?;
        check_names(candidates, &images)?;
        if part == Part::Test && self.greedy {
            note("the soup is chosen by test images: what it scores on them is no test of it");
        }
        note(format!("scored by {} images: {}", grouped(images.data.len() as u64), images.name));
        Ok(images)
    }

    fn choose(&self, kitchen: &mut Kitchen, images: &Images, watch: &mut Watch) -> Result<Chosen> {
        let candidates = kitchen.candidates;
        let (count, most) = (candidates.len(), usize::from(self.max));
        let path = |place: usize| candidates[place].path.clone();
        let mut steps: Vec<StepRecord> = Vec::new();
        let score = |counts: &[usize]| {
            let found = kitchen.score(counts, images, watch)?;
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
    batch: usize,
}

impl Kitchen<'_> {
    fn mix(&self, counts: &[usize]) -> Result<VisionTransformer> {
        let models = self.candidates.iter().map(|candidate| &candidate.model);
        let models: Vec<_> = models.zip(counts.iter().copied()).collect();
        Ok(soup(&models, self.device)?)
    }

    fn score(&self, counts: &[usize], images: &Images, watch: &mut Watch) -> Result<SoupScore> {
        let names = taken(counts).into_iter().map(|place| self.candidates[place].name());
        let name = names.collect::<Vec<String>>().join(" + ");
        let mut tasting = Tasting { name: &name, watch };
        score(&name, self.mix(counts)?, images, self.batch, self.device, &mut tasting)
    }

    /// Every candidate once; what they and their mean score, where there are images.
    fn all(&self, images: Option<&Images>, watch: &mut Watch) -> Result<Chosen> {
        let count = self.candidates.len();
        let counts = vec![1; count];
        let Some(images) = images else {
            let (own, steps, score) = (vec![None; count], Vec::new(), None);
            return Ok(Chosen { counts, own, steps, score });
        };
        let alone = |place: usize| (0..count).map(|other| usize::from(other == place)).collect();
        let mut own = Vec::new();
        for place in 0..count {
            let alone: Vec<usize> = alone(place);
            let found = ScoreRecord::from(self.score(&alone, images, watch)?);
            let path = self.candidates[place].path.display();
            note(format!("{path} by itself: {}", found.in_words()));
            own.push(Some(found));
        }
        let score = Some(self.score(&counts, images, watch)?.into());
        Ok(Chosen { counts, own, steps: Vec::new(), score })
    }
}

/// What a model scores on images: the accuracy of a classifier.
fn score(
    name: &str,
    model: VisionTransformer,
    images: &Images,
    batch: usize,
    device: &Device,
    watcher: &mut dyn Watcher,
) -> Result<SoupScore> {
    let system = System::new(vec![(name.to_owned(), model)], device)?;
    let protocol = TestProtocol { binning: Binning::default(), batch };
    let test = Test::run(&system, images, protocol, watcher)?;
    Ok(SoupScore { accuracy: test.accuracy(), log_likelihood: -test.record.summary.nll })
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

/// The run that a path is, or that it is a checkpoint of.
fn run_of(path: &Path) -> Option<PathBuf> {
    let is_run = |path: &Path| path.join("recipe.toml").is_file();
    if is_run(path) {
        return Some(path.to_owned());
    }
    let whole = std::fs::canonicalize(path).ok()?;
    let checkpoints = whole.parent().filter(|folder| folder.ends_with("checkpoints"))?;
    checkpoints.parent().filter(|run| is_run(run)).map(Path::to_owned)
}

/// All recipes that a model was trained by; none where that is not known.
fn recipes(path: &Path) -> Result<Vec<Recipe>> {
    let Some(run) = run_of(path) else { return Ok(Vec::new()) };
    let (run, recipe) = RunFolder::open(&run)?;
    let earlier = run.earlier_stretches()?.into_iter().map(|stretch| stretch.recipe);
    Ok(std::iter::once(recipe).chain(earlier).collect())
}

/// Files that lie beside the models or in their runs, each once; fails where two differ.
fn kept_files(paths: &[PathBuf]) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut kept = Vec::new();
    for name in KEPT {
        let mut first: Option<(PathBuf, Vec<u8>)> = None;
        for path in paths {
            let places = [Some(path.clone()), run_of(path)].into_iter().flatten();
            let Some(place) = places.map(|folder| folder.join(name)).find(|file| file.is_file())
            else {
                continue;
            };
            let text = std::fs::read(&place).with_context(|| place.display().to_string())?;
            let means = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).ok();
            match &first {
                Some((other, known)) if *known != text && means(known) != means(&text) => bail!(
                    "{} and {} are not the same: what they belong to cannot be averaged",
                    other.display(),
                    place.display()
                ),
                Some(_) => {}
                None => first = Some((place, text)),
            }
        }
        kept.extend(first.map(|(_, text)| (name, text)));
    }
    Ok(kept)
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
        Some(score) => [format!("{:.2} %", 100.0 * score.accuracy), format!("{:.4}", score.nll)],
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
