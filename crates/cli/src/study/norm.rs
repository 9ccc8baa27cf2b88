//! `‖X‖₂` by Soft MoE layers of one and of several experts (paper 004 App. C).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use omma_base::{
    Seed,
    files::{FolderLock, write_atomically},
};
use omma_eval::{
    compare::Table,
    metrics::Estimate,
    report::{Report, write_report},
};
use omma_report::{Lines, Page};
use omma_train::{
    Stop,
    norm::{NormLesson, loss_of_a_constant},
};
use serde::{Deserialize, Serialize};

use crate::{
    interrupt::Interrupted,
    screen::Activity,
    table::{note, say, table_of},
};

/// The one that comes with the program.
const BUILT_IN: &str = include_str!("../../studies/norm/study.toml");
/// Steps at the end of a lesson whose mean loss is its result.
const LAST: usize = 20;

/// `study.toml` with a table `[norm]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NormStudy {
    pub(crate) name: String,
    about: String,
    /// Seeds per lesson.
    seeds: usize,
    norm: Lessons,
}

/// Every input with every number of experts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lessons {
    /// Tokens, and their width.
    inputs: Vec<(usize, usize)>,
    /// Numbers of experts, increasing.
    experts: Vec<usize>,
    steps: u64,
    batch: usize,
    learning_rate: f64,
}

/// What a lesson left, `curves/5x2-n1-0.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Curve {
    lesson: NormLesson,
    seed: u64,
    /// The mean squared error of every step.
    losses: Vec<f64>,
}

/// The study's record, `study.json`.
#[derive(Debug, Serialize)]
struct NormRecord<'a> {
    inputs: Vec<InputRecord>,
    curves: &'a [Curve],
}

/// One way to cut inputs into tokens.
#[derive(Debug, PartialEq, Serialize)]
struct InputRecord {
    tokens: usize,
    width: usize,
    /// What the best constant loses.
    constant: f64,
    /// By the number of experts: the loss at the end, over seeds.
    losses: BTreeMap<usize, Estimate>,
    /// Seeds in which every larger number of experts ends with less.
    monotone_seeds: usize,
    seeds: usize,
}

impl NormStudy {
    /// The study of this name, or of this folder; nothing where it is of another kind.
    pub(crate) fn find(name: &str) -> Result<Option<Self>> {
        let file = Path::new(name).join("study.toml");
        let text = match name {
            "norm" => BUILT_IN.to_owned(),
            _ => match std::fs::read_to_string(&file) {
                Ok(text) => text,
                Err(_) => return Ok(None),
            },
        };
        let table = text.parse::<toml::Table>();
        if !table.is_ok_and(|table| table.contains_key("norm")) {
            return Ok(None);
        }
        let study: Self = toml::from_str(&text).with_context(|| file.display().to_string())?;
        study.check().with_context(|| file.display().to_string())?;
        omma_train::recipe::check_name(&study.name)?;
        Ok(Some(study))
    }

    fn check(&self) -> Result<()> {
        let Lessons { inputs, experts, steps, batch, learning_rate } = &self.norm;
        if !(1..=1_000).contains(&self.seeds) {
            bail!("seeds is from 1 to 1000, not {}", self.seeds);
        }
        if !(1..=1_000_000).contains(steps) || !(1..=1_000_000).contains(batch) {
            bail!("steps and batch are from 1 to 1000000");
        }
        if !(*learning_rate > 0.0 && *learning_rate <= 1_000.0) {
            bail!("learning_rate is above 0 and at most 1000, not {learning_rate}");
        }
        if inputs.is_empty() || experts.is_empty() || !experts.is_sorted_by(|a, b| a < b) {
            bail!("there are inputs, and numbers of experts that increase");
        }
        for lesson in self.lessons() {
            let NormLesson { tokens, width, experts, .. } = lesson;
            if !(1..=1_024).contains(&tokens) || !(1..=1_024).contains(&width) {
                bail!("an input has 1 to 1024 tokens of as many features, not {tokens} of {width}");
            }
            if experts == 0 || !(10 * width).is_multiple_of(experts) {
                bail!("{} hidden units cannot be shared out among {experts} experts", 10 * width);
            }
            lesson.model().check()?;
        }
        Ok(())
    }

    /// The same with what a user sets: `steps`, `batch`, `learning_rate`, and the number of seeds.
    pub(crate) fn with(&self, settings: &[String], seeds: Option<usize>) -> Result<Self> {
        let mut study = self.clone();
        study.seeds = seeds.unwrap_or(self.seeds);
        for setting in settings {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            let wrong = || format!("{key} cannot be \"{value}\"");
            match key.trim() {
                "steps" => study.norm.steps = value.trim().parse().with_context(wrong)?,
                "batch" => study.norm.batch = value.trim().parse().with_context(wrong)?,
                "learning_rate" => {
                    study.norm.learning_rate = value.trim().parse().with_context(wrong)?;
                }
                _ => bail!("{} has the settings steps, batch and learning_rate", self.name),
            }
        }
        study.check()?;
        Ok(study)
    }

    fn lessons(&self) -> impl Iterator<Item = NormLesson> {
        let Lessons { inputs, experts, steps, batch, learning_rate } = self.norm.clone();
        inputs.into_iter().flat_map(move |(tokens, width)| {
            let lesson =
                NormLesson { steps, batch, learning_rate, ..NormLesson::new(tokens, width, 1) };
            experts.clone().into_iter().map(move |experts| NormLesson { experts, ..lesson })
        })
    }

    pub(crate) fn show_plan(&self) -> Result<()> {
        let lessons = self.lessons().count() * self.seeds;
        say(format!("{}: {}", self.name, self.about))?;
        say(format!(
            "{lessons} lessons of {} steps with batches of {}",
            self.norm.steps, self.norm.batch
        ))
    }

    /// Every lesson that is not there yet, then the page.
    pub(crate) fn run(&self, folder: &Path, json: bool, stop: &Stop) -> Result<()> {
        let curves = folder.join("curves");
        std::fs::create_dir_all(&curves).with_context(|| curves.display().to_string())?;
        let _owned = FolderLock::take(folder).with_context(|| folder.display().to_string())?;
        let mut all = Vec::new();
        for (lesson, seed) in
            self.lessons().flat_map(|lesson| (0..self.seeds as u64).map(move |seed| (lesson, seed)))
        {
            all.push(learned(&curves, lesson, seed, stop)?);
        }
        let inputs: Vec<InputRecord> = self
            .norm
            .inputs
            .iter()
            .map(|input| InputRecord::of(*input, &self.norm.experts, &all))
            .collect();
        let table = ends(&inputs, &self.norm.experts);
        let verdicts: Vec<String> = inputs.iter().map(InputRecord::in_words).collect();
        let figures: Vec<(String, String)> =
            self.norm.inputs.iter().map(|input| self.figure(*input, &all)).collect();
        let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
        let text = "The mean squared error of the sum of a layer's outputs, where every batch is drawn anew and seen \
                    once. All layers have as many parameters of experts.";
        let page = Page::new(format!("Study {}", self.name), &self.about)
            .section("The length of the input")
            .text(text)
            .table(&header, &table.rows);
        let page = verdicts.iter().fold(page, |page, verdict| page.text(verdict));
        let svgs: Vec<String> = figures.iter().map(|(_, svg)| svg.clone()).collect();
        let html = page.section("Learning curves").figures(svgs).html();
        let record = NormRecord { inputs, curves: &all };
        write_report(folder, "study", &Report { html, figures }, &record)?;
        write(&folder.join("table.md"), &table.markdown())?;
        if json {
            return say(serde_json::to_string_pretty(&record)?);
        }
        say(table_of(&table.header, &table.rows, 1))?;
        verdicts.iter().try_for_each(say)?;
        say(format!("report: {}", folder.join("study.html").display()))
    }

    /// Fig. 4.
    fn figure(&self, (tokens, width): (usize, usize), all: &[Curve]) -> (String, String) {
        let series = self.norm.experts.iter().map(|experts| {
            let own: Vec<&Curve> =
                all.iter().filter(|curve| curve.is_of(tokens, width, *experts)).collect();
            let steps = 0..own.first().map_or(0, |curve| curve.losses.len());
            let means = steps.map(|step| {
                let losses: Vec<f64> = own.iter().map(|curve| curve.losses[step]).collect();
                (step as f64 + 1.0, Estimate::of(&losses))
            });
            super::line(&format!("n = {experts}"), means)
        });
        let lines = Lines {
            title: format!("{tokens} tokens of {width}"),
            x_label: "step".to_owned(),
            y_label: "mean squared error".to_owned(),
            series: series.collect(),
            log_y: true,
            ..Lines::default()
        };
        (format!("norm-{tokens}x{width}"), lines.svg())
    }
}

/// A lesson's curve from its file, which is learned first where it is not there.
fn learned(folder: &Path, lesson: NormLesson, seed: u64, stop: &Stop) -> Result<Curve> {
    let NormLesson { tokens, width, experts, .. } = lesson;
    let path: PathBuf = folder.join(format!("{tokens}x{width}-n{experts}-{seed}.json"));
    let context = || path.display().to_string();
    if !path.try_exists().with_context(context)? {
        let several = if experts == 1 { "" } else { "s" };
        let what = format!("{tokens} tokens of {width}, {experts} expert{several}, seed {seed}");
        let begun = std::time::Instant::now();
        let activity = Activity::counted(&what, "step", 0, lesson.steps);
        let losses = lesson.learn(Seed::new(seed), &Device::flex(), |step| {
            activity.reach(step, None);
            stop.why().is_none()
        })?;
        drop(activity);
        if (losses.len() as u64) < lesson.steps {
            let how = "stopped; the same command goes on from here".to_owned();
            return Err(Interrupted::new(stop, how).into());
        }
        let curve = Curve { lesson, seed, losses };
        write(&path, &serde_json::to_string(&curve)?)?;
        let seconds = begun.elapsed().as_secs_f64();
        note(format!("{what}: loss {:.4} in {seconds:.0} s", curve.end()));
    }
    let bytes = std::fs::read(&path).with_context(context)?;
    let curve: Curve = serde_json::from_slice(&bytes).with_context(context)?;
    if curve.lesson != lesson || curve.losses.len() as u64 != lesson.steps {
        bail!(
            "{} is of other steps, batches or learning rates; choose another folder with --out",
            path.display()
        );
    }
    Ok(curve)
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |file| std::fs::write(file, text))
        .with_context(|| path.display().to_string())
}

impl Curve {
    fn is_of(&self, tokens: usize, width: usize, experts: usize) -> bool {
        let lesson = &self.lesson;
        (lesson.tokens, lesson.width, lesson.experts) == (tokens, width, experts)
    }

    /// The mean loss of the last steps.
    fn end(&self) -> f64 {
        let last = &self.losses[self.losses.len().saturating_sub(LAST)..];
        last.iter().sum::<f64>() / last.len().max(1) as f64
    }
}

impl InputRecord {
    fn of((tokens, width): (usize, usize), experts: &[usize], all: &[Curve]) -> Self {
        let ends = |experts: &usize| -> Vec<f64> {
            all.iter()
                .filter(|curve| curve.is_of(tokens, width, *experts))
                .map(Curve::end)
                .collect()
        };
        let by_experts: Vec<Vec<f64>> = experts.iter().map(ends).collect();
        let seeds = by_experts.first().map_or(0, Vec::len);
        let falls = |seed: &usize| by_experts.windows(2).all(|two| two[1][*seed] < two[0][*seed]);
        let losses = experts.iter().zip(&by_experts);
        Self {
            tokens,
            width,
            constant: loss_of_a_constant(tokens * width),
            losses: losses.map(|(experts, ends)| (*experts, Estimate::of(ends))).collect(),
            monotone_seeds: (0..seeds).filter(falls).count(),
            seeds,
        }
    }

    fn in_words(&self) -> String {
        let Self { tokens, width, monotone_seeds, seeds, constant, .. } = self;
        format!(
            "{tokens} tokens of {width}: more experts end with less, from each number to the next, in \
             {monotone_seeds} of {seeds} seeds; the best constant loses {constant:.3}."
        )
    }
}

/// The losses at the end.
fn ends(inputs: &[InputRecord], experts: &[usize]) -> Table {
    let names = inputs.iter().map(|input| format!("{} tokens of {}", input.tokens, input.width));
    let rows = experts.iter().map(|experts| {
        let losses = inputs.iter().map(|input| match input.losses.get(experts) {
            Some(loss) => format!("{loss:.4}"),
            None => "—".to_owned(),
        });
        std::iter::once(experts.to_string()).chain(losses).collect()
    });
    Table {
        header: std::iter::once("experts".to_owned()).chain(names).collect(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// App. C: 5 × 2 and 2 × 5, 1, 2, 5 and 10 experts, batches of 10,000, 500 epochs, a learning rate of 1e-3.
    #[test]
    fn the_study_is_that_of_appendix_c() {
        let study = NormStudy::find("norm").unwrap().unwrap();
        let mut lessons = Vec::new();
        for (tokens, width) in [(5, 2), (2, 5)] {
            lessons.extend([1, 2, 5, 10].map(|experts| NormLesson::new(tokens, width, experts)));
        }
        assert_eq!(study.lessons().collect::<Vec<_>>(), lessons);
        assert!(study.seeds >= 3);
        assert!(NormStudy::find("e3").unwrap().is_none() && NormStudy::find("").unwrap().is_none());
    }

    #[test]
    fn what_cannot_be_learned_is_refused() {
        let study = NormStudy::find("norm").unwrap().unwrap();
        for (setting, why) in [
            ("steps=0", "steps"),
            ("batch=x", "batch"),
            ("learning_rate=nan", "learning_rate"),
            ("k=1", "settings"),
        ] {
            let message = format!("{:#}", study.with(&[setting.to_owned()], None).unwrap_err());
            assert!(message.contains(why), "{message}");
        }
        let with = |change: fn(&mut Lessons)| {
            let mut study = study.clone();
            change(&mut study.norm);
            study.check()
        };
        assert!(with(|norm| norm.experts = vec![3]).is_err(), "20 units, 3 experts");
        assert!(with(|norm| norm.experts = vec![2, 1]).is_err());
        assert!(with(|norm| norm.experts = vec![0]).is_err());
        assert!(with(|norm| norm.inputs = vec![(0, 2)]).is_err());
        assert!(with(|norm| norm.inputs = vec![]).is_err());
        assert!(with(|_| ()).is_ok());
    }

    #[test]
    fn losses_fall_with_experts_seed_by_seed() {
        let curve = |experts, seed, loss| Curve {
            lesson: NormLesson::new(5, 2, experts),
            seed,
            losses: vec![9.0, loss],
        };
        let all = [curve(1, 0, 7.0), curve(1, 1, 5.0), curve(2, 0, 3.0), curve(2, 1, 6.0)];
        let found = InputRecord::of((5, 2), &[1, 2], &all);
        assert_eq!((found.monotone_seeds, found.seeds), (1, 2));
        assert_eq!(found.losses[&1].mean, 7.5, "the last of two steps are both");
        assert_eq!(ends(&[found], &[1, 2]).rows[0][1], "7.5000 ± 0.5000");
    }
}
