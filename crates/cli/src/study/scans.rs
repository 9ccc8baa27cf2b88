//! Scores over a setting that a study goes through, such as the number of layers with experts.

use anyhow::{Result, bail};
use omma_eval::{
    compare::{Comparison, Row},
    metrics::Estimate,
    report::StudyFigure,
};
use omma_report::Lines;
use serde::Deserialize;

use crate::names::slug;

/// A figure of systems in the order of a setting.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scan {
    /// What the figure is called.
    title: String,
    /// What the setting is called.
    x: String,
    lines: Vec<ScanLine>,
}

/// Systems that differ in the setting alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScanLine {
    label: String,
    /// The setting's value, and the system that has it.
    points: Vec<(f64, String)>,
}

impl Scan {
    /// Fails where a system that it names does not exist.
    pub(crate) fn check(&self, known: impl Fn(&str) -> bool) -> Result<()> {
        let named = self.lines.iter().flat_map(|line| &line.points);
        match named.map(|(_, label)| label).find(|label| !known(label)) {
            Some(label) => {
                bail!("\"{label}\" of the scan \"{}\" is none of the systems", self.title)
            }
            None => Ok(()),
        }
    }

    /// The accuracy of the systems, or of those that label pixels their mean IoU, in percent.
    pub(crate) fn figure(&self, comparison: &Comparison) -> StudyFigure {
        let row = |label: &str| comparison.rows.iter().find(|row| row.label == *label);
        let pixels = comparison.rows.iter().any(|row| row.mean_iou.is_some());
        let y_label = if pixels { "mean IoU, %" } else { "accuracy, %" };
        let series = self.lines.iter().map(|line| {
            let points = line.points.iter();
            let scores = points.filter_map(|(x, label)| Some((*x, score(row(label)?)?)));
            super::line(&line.label, scores)
        });
        let lines = Lines {
            title: self.title.clone(),
            x_label: self.x.clone(),
            y_label: y_label.to_owned(),
            series: series.collect(),
            ..Lines::default()
        };
        StudyFigure {
            name: slug(&self.title),
            section: self.title.clone(),
            text: "Means over seeds with their standard errors.".to_owned(),
            svg: lines.svg(),
            table: None,
        }
    }
}

/// More is better, in percent.
fn score(row: &Row) -> Option<Estimate> {
    match row.mean_iou {
        Some(iou) => Some(iou.times(100.0)),
        None => {
            let error = row.error?.times(100.0);
            Some(Estimate { mean: 100.0 - error.mean, ..error })
        }
    }
}
