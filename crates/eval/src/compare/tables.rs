//! A comparison in tables, alike on the page, in the terminal and in Markdown.

use std::collections::{BTreeMap, BTreeSet};

use super::{Comparison, Gain, Row};
use crate::metrics::Estimate;

/// One table; the first column has names, the others numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub header: Vec<String>,
    /// As many cells each.
    pub rows: Vec<Vec<String>>,
}

/// What is not known.
const NOTHING: &str = "—";

fn cell(estimate: Option<Estimate>, factor: f64, digits: usize) -> String {
    estimate.map_or(NOTHING.to_owned(), |value| format!("{:.digits$}", value.times(factor)))
}

/// A column: its name, and what a row has in it.
type Column<'a, R> = (String, Box<dyn Fn(&R) -> String + 'a>);

fn column<'a, R>(name: impl Into<String>, of: impl Fn(&R) -> String + 'a) -> Column<'a, R> {
    (name.into(), Box::new(of))
}

impl Table {
    fn new<R>(rows: &[R], columns: &[Column<R>]) -> Self {
        let row = |row: &R| columns.iter().map(|(_, of)| of(row)).collect();
        Self {
            header: columns.iter().map(|(name, _)| name.clone()).collect(),
            rows: rows.iter().map(row).collect(),
        }
    }

    /// In Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = (0..self.header.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned());
        let mut text = line(&self.header) + &line(&rule.collect::<Vec<String>>());
        self.rows.iter().for_each(|row| text += &line(row));
        text
    }
}

impl Comparison {
    /// Names of all out-of-distribution data sets.
    pub(crate) fn ood_sets(&self) -> BTreeSet<&String> {
        self.rows.iter().flat_map(|row| row.auroc.keys()).collect()
    }

    /// All tables that there is something for.
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.systems_table()];
        tables.extend(self.ood_tables());
        tables.extend(self.gains_table());
        tables
    }

    /// All tables in Markdown.
    pub fn markdown(&self) -> String {
        self.tables().iter().map(Table::markdown).collect::<Vec<String>>().join("\n")
    }

    /// The scores of every system, as it is and under corruptions.
    pub(crate) fn systems_table(&self) -> Table {
        let mut columns: Vec<Column<Row>> = vec![
            column("system", |row: &Row| row.label.clone()),
            column("runs", |row: &Row| row.runs.to_string()),
            column("error %", |row: &Row| cell(Some(row.error), 100.0, 2)),
            column("NLL", |row: &Row| cell(Some(row.nll), 1.0, 4)),
            column("ECE %", |row: &Row| cell(Some(row.ece), 100.0, 2)),
            column("KL", |row: &Row| cell(row.kl, 1.0, 4)),
            column("MFLOPs", |row: &Row| format!("{:.1}", row.cost.training_flops as f64 / 1e6)),
        ];
        if self.rows.iter().any(|row| row.shift_error.is_some()) {
            columns.extend([
                column("shifted error %", |row: &Row| cell(row.shift_error, 100.0, 2)),
                column("shifted NLL", |row: &Row| cell(row.shift_nll, 1.0, 4)),
                column("shifted ECE %", |row: &Row| cell(row.shift_ece, 100.0, 2)),
            ]);
        }
        if self.rows.iter().any(|row| row.shift_kl.is_some()) {
            columns.push(column("shifted KL", |row: &Row| cell(row.shift_kl, 1.0, 4)));
        }
        Table::new(&self.rows, &columns)
    }

    /// How well every system tells out-of-distribution images, one table per data set.
    pub(crate) fn ood_tables(&self) -> Vec<Table> {
        let percent = |values: &BTreeMap<String, Estimate>, name: &String| {
            cell(values.get(name).copied(), 100.0, 2)
        };
        let table = |name: &String| {
            let columns: [Column<Row>; 4] = [
                column(format!("against {name}"), |row: &Row| row.label.clone()),
                column("AUROC %", |row: &Row| percent(&row.auroc, name)),
                column("AUPR %", |row: &Row| percent(&row.aupr, name)),
                column("FPR95 %", |row: &Row| percent(&row.fpr95, name)),
            ];
            Table::new(&self.rows, &columns)
        };
        self.ood_sets().into_iter().map(table).collect()
    }

    /// Gains over the baseline; nothing if it is alone.
    pub(crate) fn gains_table(&self) -> Option<Table> {
        let signed =
            |gain: Option<f64>| gain.map_or(NOTHING.to_owned(), |gain| format!("{gain:+.1} %"));
        let columns: [Column<Gain>; 7] = [
            column(format!("gain over {}", self.baseline), |gain: &Gain| gain.label.clone()),
            column("NLL", |gain: &Gain| signed(gain.nll)),
            column("shifted NLL", |gain: &Gain| signed(gain.shift_nll)),
            column("error", |gain: &Gain| signed(gain.error)),
            column("ECE", |gain: &Gain| signed(gain.ece)),
            column("training FLOPs", |gain: &Gain| signed(gain.flops)),
            column("NLL, normalised", |gain: &Gain| signed(gain.normalised_nll)),
        ];
        (!self.gains.is_empty()).then(|| Table::new(&self.gains, &columns))
    }
}
