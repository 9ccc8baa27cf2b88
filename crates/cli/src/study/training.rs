//! What trainings took: seconds of cores and by the clock, FLOPs, choices without room and load (paper 001 Figs. 1, 2).

use std::path::Path;

use anyhow::{Context, Result};
use omma_eval::{
    compare::{Comparison, Row, Table},
    metrics::Estimate,
    report::StudyFigure,
};
use omma_report::{Better, Dot, Scatter};
use omma_train::{
    logs::{Record, read_records},
    run::RunFolder,
};
use serde::Deserialize;

use super::Work;

/// One training, without what it began from.
struct Took {
    seconds: f64,
    /// Of all cores together; nothing of a run of an earlier version.
    cpu_seconds: Option<f64>,
    images: f64,
    /// Mean over layers in the last interval of the log, and the busiest expert of all; nothing without experts.
    dropped: Option<f64>,
    busiest: Option<f64>,
}

impl Took {
    fn read(run: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Reached {
            train_seconds: f64,
            train_cpu_seconds: Option<f64>,
            steps: u64,
        }
        let path = run.join("result.json");
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let Reached { train_seconds: seconds, train_cpu_seconds: cpu_seconds, steps } =
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        let (run, recipe) = RunFolder::open(run)?;
        let last = read_records(&run)?.into_iter().rev().find_map(|record| match record {
            Record::Train(record) => Some(record.routing),
            _ => None,
        });
        let layers = last.unwrap_or_default();
        let experts = !layers.is_empty();
        let dropped = layers.iter().map(|layer| layer.dropped_share).sum::<f64>();
        let busiest = layers.iter().map(|layer| layer.peak_load).fold(0.0, f64::max);
        Ok(Self {
            seconds,
            cpu_seconds,
            images: (steps * recipe.train.batch as u64) as f64,
            dropped: experts.then(|| dropped / layers.len() as f64),
            busiest: experts.then_some(busiest),
        })
    }
}

/// A system's trainings over its seeds, those of an ensemble's models together.
struct Trained<'a> {
    row: &'a Row,
    seconds: Estimate,
    /// Nothing unless all its runs have it.
    cpu_seconds: Option<Estimate>,
    teraflops: f64,
    dropped: Option<Estimate>,
    busiest: Option<Estimate>,
}

impl<'a> Trained<'a> {
    fn read(work: &Work, row: &'a Row) -> Result<Option<Self>> {
        let &Work { study, folder, options, .. } = work;
        let Some(system) = study.judged().find(|system| system.label == row.label) else {
            return Ok(None);
        };
        let mut seeds: Vec<Vec<Took>> = Vec::new();
        let numbers = options.numbers();
        for number in numbers.clone() {
            let models = study.models(system, number, &numbers).into_iter();
            let runs = models.map(|model| study.run_folder(folder, &model));
            seeds.push(runs.map(|run| Took::read(&run)).collect::<Result<_>>()?);
        }
        let seconds: Vec<f64> =
            seeds.iter().map(|models| models.iter().map(|took| took.seconds).sum()).collect();
        let cpu_seconds: Option<Vec<f64>> =
            seeds.iter().map(|models| models.iter().map(|took| took.cpu_seconds).sum()).collect();
        let mean = |of: fn(&Took) -> Option<f64>| {
            let values: Vec<f64> = seeds.iter().flatten().filter_map(of).collect();
            (!values.is_empty()).then(|| Estimate::of(&values))
        };
        let images = seeds.iter().flatten().map(|took| took.images).next().unwrap_or_default();
        Ok(Some(Self {
            row,
            seconds: Estimate::of(&seconds),
            cpu_seconds: cpu_seconds.map(|seconds| Estimate::of(&seconds)),
            teraflops: row.cost.training_flops as f64 * images / 1e12,
            dropped: mean(|took| took.dropped),
            busiest: mean(|took| took.busiest),
        }))
    }

    fn cells(&self) -> Vec<String> {
        let maybe = |value: Option<Estimate>, factor: f64| {
            value.map_or("—".to_owned(), |value| format!("{:.2}", value.times(factor)))
        };
        vec![
            self.row.label.clone(),
            self.cpu_seconds.map_or("—".to_owned(), |seconds| format!("{seconds:.1}")),
            format!("{:.1}", self.seconds),
            format!("{:.2}", self.teraflops),
            maybe(self.dropped, 100.0),
            maybe(self.busiest, 1.0),
        ]
    }
}

/// A table of the trainings, and quality against their time.
pub(crate) fn training_figures(work: &Work, comparison: &Comparison) -> Result<Vec<StudyFigure>> {
    let mut trained = Vec::new();
    for row in &comparison.rows {
        trained.extend(Trained::read(work, row)?);
    }
    let header = [
        "training",
        "CPU seconds",
        "seconds by the clock",
        "TFLOPs",
        "choices without room %",
        "busiest expert, × balanced",
    ];
    let table = Table {
        header: header.map(str::to_owned).to_vec(),
        rows: trained.iter().map(Trained::cells).collect(),
    };
    let shots = comparison.rows.iter().flat_map(|row| &row.few_shot).map(|one| one.shots).max();
    let few_shot = |row: &Row| {
        let found = row.few_shot.iter().find(|one| Some(one.shots) == shots)?;
        Some(found.mean?.times(100.0))
    };
    let accuracy = |row: &Row| {
        let error = row.error?.times(100.0);
        Some(Estimate { mean: 100.0 - error.mean, ..error })
    };
    let text = "Seconds of all models of a system in training steps, without what they began from: those that cores \
                have worked, all of them together, and those by the clock, which other work makes longer; choices \
                without room and the busiest expert at the end of training, under the capacity of training.";
    let first = StudyFigure {
        name: "accuracy-time".to_owned(),
        section: "What trainings took".to_owned(),
        text: text.to_owned(),
        svg: against_time("Accuracy against time", &trained, &accuracy),
        table: Some(table),
    };
    let transfer = shots.map(|shots| StudyFigure {
        name: "few-shot-time".to_owned(),
        section: "Transfer against time".to_owned(),
        text: "The mean accuracy on other data, from a few images of every class.".to_owned(),
        svg: against_time(&format!("{shots}-shot accuracy against time"), &trained, &few_shot),
        table: None,
    });
    Ok([Some(first), transfer].into_iter().flatten().collect())
}

/// Against CPU time, or by the clock where that of some system is not known.
fn against_time(title: &str, trained: &[Trained], of: &dyn Fn(&Row) -> Option<Estimate>) -> String {
    let by_cores = trained.iter().all(|one| one.cpu_seconds.is_some());
    let dot = |one: &Trained| {
        let value = of(one.row)?;
        let seconds = one.cpu_seconds.filter(|_| by_cores).unwrap_or(one.seconds);
        Some(Dot {
            label: one.row.label.clone(),
            x: seconds.mean,
            y: value.mean,
            x_error: seconds.standard_error,
            y_error: value.standard_error,
            ..Dot::default()
        })
    };
    let part = |sparse: bool| -> Vec<Dot> {
        let of = trained.iter().filter(|one| one.row.kind.experts.is_some() == sparse);
        of.filter_map(dot).collect()
    };
    let groups = [("dense", part(false)), ("with experts", part(true))].into_iter();
    Scatter {
        title: title.to_owned(),
        x_label: match by_cores {
            true => "CPU seconds of training".to_owned(),
            false => "seconds of training by the clock".to_owned(),
        },
        y_label: "%".to_owned(),
        groups: groups
            .filter(|(_, dots)| !dots.is_empty())
            .map(|(name, dots)| (name.to_owned(), dots))
            .collect(),
        pareto: Some((Better::Low, Better::High)),
        ..Scatter::default()
    }
    .svg()
}
