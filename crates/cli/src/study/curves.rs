//! How systems learned: their losses, step by step.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Result;
use omma_eval::{metrics::Estimate, report::StudyFigure};
use omma_report::{Lines, Series};
use omma_train::{
    logs::{Record, read_records},
    run::RunFolder,
};

/// A figure of the losses of training: for every system its name and the runs of its seeds.
pub(crate) fn learning_curves(systems: &[(&str, Vec<PathBuf>)]) -> Result<StudyFigure> {
    let mut series = Vec::new();
    for (label, runs) in systems {
        let losses = runs.iter().map(|run| losses(run)).collect::<Result<Vec<_>>>()?;
        series.push(mean(label, &losses));
    }
    let lines = Lines {
        title: "Learning curves".to_owned(),
        x_label: "step".to_owned(),
        y_label: "loss of training".to_owned(),
        series,
        ..Lines::default()
    };
    Ok(StudyFigure {
        name: "curves".to_owned(),
        section: "Learning".to_owned(),
        text: "The loss of training, means over seeds with their standard errors.".to_owned(),
        svg: lines.svg(),
        table: None,
    })
}

/// The mean loss of every log interval of a run, by its last step.
fn losses(run: &Path) -> Result<BTreeMap<u64, f64>> {
    let (run, _) = RunFolder::open(run)?;
    let records = read_records(&run)?.into_iter();
    let losses = records.filter_map(|record| match record {
        Record::Train(record) => Some((record.step, record.loss)),
        _ => None,
    });
    Ok(losses.collect())
}

/// Means over runs with standard errors, at the steps that all of them have.
fn mean(label: &str, runs: &[BTreeMap<u64, f64>]) -> Series {
    let steps = runs.first().into_iter().flat_map(BTreeMap::keys);
    let means = steps.filter_map(|step| {
        let losses: Option<Vec<f64>> = runs.iter().map(|run| run.get(step).copied()).collect();
        Some((*step as f64, Estimate::of(&losses?)))
    });
    super::line(label, means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_means_at_the_steps_that_all_runs_have() {
        let run = |losses: &[(u64, f64)]| losses.iter().copied().collect::<BTreeMap<_, _>>();
        let runs = [run(&[(10, 2.0), (20, 1.0), (30, 0.5)]), run(&[(10, 4.0), (20, 1.0)])];
        let Series { name, points, error, .. } = mean("a", &runs);
        assert_eq!(name, "a");
        assert_eq!(points, [(10.0, 3.0), (20.0, 1.0)]);
        assert_eq!(error, Some(vec![1.0, 0.0]));
        let alone = mean("b", &runs[..1]);
        assert_eq!((alone.points.len(), alone.error), (3, None));
        assert!(mean("c", &[]).points.is_empty());
    }
}
