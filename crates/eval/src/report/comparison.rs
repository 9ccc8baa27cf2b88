//! The page of several evaluations beside each other.

use std::collections::BTreeSet;

use omma_report::{Bars, Better, Dot, Lines, Page, Scatter, Series};

use super::{Report, file_name};
use crate::{
    compare::{Comparison, Grid, Row},
    metrics::Estimate,
};

/// The table of all systems, the fronts of quality against cost, gains and the grid.
pub fn comparison_page(comparison: &Comparison, title: &str, about: &str) -> Report {
    let (header, rows) = comparison.table();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut figures = fronts(comparison);
    let mut page = Page::new(title, about)
        .section("Systems")
        .text(
            "Means over seeds, with their standard errors. Less is better but for AUROC; KL says how \
             much the members of an ensemble differ.",
        )
        .table(&header, &rows)
        .section("Quality against cost")
        .text("What no other system beats at its cost is on the dashed front.")
        .figures(figures.iter().map(|(_, svg)| svg.clone()).collect::<Vec<_>>());
    if !comparison.gains.is_empty() {
        let gains = gain_figure(comparison);
        page = page
            .section("Gains")
            .text(&format!("Percent less than {}.", comparison.baseline))
            .table(
                &["system", "NLL", "error", "ECE", "training FLOPs", "NLL, normalised"],
                &gain_rows(comparison),
            )
            .figures([gains.1.clone()]);
        figures.push(gains);
    }
    if let Some(grid) = &comparison.grid {
        let lines = grid_figures(grid);
        page = page
            .section("Experts per token and models")
            .text(
                "Adaptive combination along K, static combination along M (paper 000, Fig. 2). The \
                 last column is the logarithm of the gain in log-likelihood per GFLOP.",
            )
            .table(&["K", "M", "NLL", "GFLOPs", "log gain"], &grid_rows(grid))
            .figures(lines.iter().map(|(_, svg)| svg.clone()).collect::<Vec<_>>());
        figures.extend(lines);
    }
    Report { html: page.html(), figures }
}

fn cell(estimate: Option<Estimate>, factor: f64, digits: usize) -> String {
    estimate.map_or("—".to_owned(), |value| format!("{:.digits$}", value.times(factor)))
}

impl Comparison {
    /// Names of all out-of-distribution data sets.
    fn ood_sets(&self) -> BTreeSet<&String> {
        self.rows.iter().flat_map(|row| row.auroc.keys()).collect()
    }

    /// Header and rows of the table.
    pub fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let ood_sets = self.ood_sets();
        let shifted = self.rows.iter().any(|row| row.shift_error.is_some());
        let mut header: Vec<String> =
            ["system", "runs", "error %", "NLL", "ECE %", "KL", "MFLOPs"].map(str::to_owned).into();
        if shifted {
            header.extend(["shifted error %", "shifted NLL", "shifted ECE %"].map(str::to_owned));
        }
        header.extend(ood_sets.iter().map(|name| format!("AUROC % {name}")));
        let row = |row: &Row| {
            let mut cells = vec![
                row.label.clone(),
                row.runs.to_string(),
                cell(Some(row.error), 100.0, 2),
                cell(Some(row.nll), 1.0, 4),
                cell(Some(row.ece), 100.0, 2),
                cell(row.kl, 1.0, 4),
                format!("{:.1}", row.cost.training_flops as f64 / 1e6),
            ];
            if shifted {
                cells.push(cell(row.shift_error, 100.0, 2));
                cells.push(cell(row.shift_nll, 1.0, 4));
                cells.push(cell(row.shift_ece, 100.0, 2));
            }
            cells.extend(ood_sets.iter().map(|name| cell(row.auroc.get(*name).copied(), 100.0, 2)));
            cells
        };
        (header, self.rows.iter().map(row).collect())
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let (header, rows) = self.table();
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> =
            (0..header.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned()).collect();
        let mut text = line(&header) + &line(&rule);
        rows.iter().for_each(|row| text += &line(row));
        text
    }
}

fn fronts(comparison: &Comparison) -> Vec<(String, String)> {
    let front = |name: &str, title: &str, y_label: &str, of: &dyn Fn(&Row) -> Option<Estimate>| {
        let dot = |row: &Row| {
            let value = of(row)?;
            Some(Dot {
                label: row.label.clone(),
                x: row.cost.training_flops as f64 / 1e6,
                y: value.mean,
                x_error: None,
                y_error: value.standard_error,
            })
        };
        let part = |sparse: bool| -> Vec<Dot> {
            let rows = comparison.rows.iter();
            rows.filter(|row| row.kind.experts.is_some() == sparse).filter_map(dot).collect()
        };
        let groups: Vec<(String, Vec<Dot>)> =
            [("dense", part(false)), ("with experts", part(true))]
                .into_iter()
                .filter(|(_, dots)| !dots.is_empty())
                .map(|(name, dots)| (name.to_owned(), dots))
                .collect();
        (!groups.is_empty()).then(|| {
            let figure = Scatter {
                title: title.to_owned(),
                x_label: "training MFLOPs per image".to_owned(),
                y_label: y_label.to_owned(),
                groups,
                pareto: Some((Better::Low, Better::Low)),
                ..Scatter::default()
            };
            (name.to_owned(), figure.svg())
        })
    };
    let percent = |value: Option<Estimate>| value.map(|value| value.times(100.0));
    let mut figures = vec![
        front("nll", "NLL", "nats", &|row| Some(row.nll)),
        front("error", "Error", "%", &|row| percent(Some(row.error))),
        front("ece", "Calibration error", "%", &|row| percent(Some(row.ece))),
        front("shift-nll", "NLL on corrupted images", "nats", &|row| row.shift_nll),
        front("shift-error", "Error on corrupted images", "%", &|row| percent(row.shift_error)),
    ];
    for name in comparison.ood_sets() {
        let title = format!("FPR at 95 % TPR against {name}");
        figures.push(front(&format!("fpr95-{}", file_name(name)), &title, "%", &|row| {
            percent(row.fpr95.get(name).copied())
        }));
    }
    let mut figures: Vec<(String, String)> = figures.into_iter().flatten().collect();
    let with_kl: Vec<(&Row, Estimate)> =
        comparison.rows.iter().filter_map(|row| Some((row, row.kl?))).collect();
    if !with_kl.is_empty() {
        let bars = Bars {
            title: "KL between members".to_owned(),
            x_label: String::new(),
            y_label: "nats".to_owned(),
            labels: with_kl.iter().map(|(row, _)| row.label.clone()).collect(),
            groups: vec![("KL".to_owned(), with_kl.iter().map(|(_, kl)| kl.mean).collect())],
            reference: None,
        };
        figures.push(("kl".to_owned(), bars.svg()));
    }
    figures
}

fn gain_rows(comparison: &Comparison) -> Vec<Vec<String>> {
    let signed =
        |value: Option<f64>| value.map_or("—".to_owned(), |value| format!("{value:+.1} %"));
    let gains = comparison.gains.iter().map(|gain| {
        let mut row = vec![gain.label.clone()];
        let all = [gain.nll, gain.error, gain.ece, gain.flops, gain.normalised_nll];
        row.extend(all.map(signed));
        row
    });
    gains.collect()
}

fn gain_figure(comparison: &Comparison) -> (String, String) {
    let of = |value: fn(&crate::compare::Gain) -> Option<f64>| {
        comparison.gains.iter().map(|gain| value(gain).unwrap_or(0.0)).collect::<Vec<f64>>()
    };
    let bars = Bars {
        title: format!("Gains over {}", comparison.baseline),
        x_label: String::new(),
        y_label: "% less".to_owned(),
        labels: comparison.gains.iter().map(|gain| gain.label.clone()).collect(),
        groups: vec![
            ("NLL".to_owned(), of(|gain| gain.nll)),
            ("error".to_owned(), of(|gain| gain.error)),
        ],
        reference: None,
    };
    ("gains".to_owned(), bars.svg())
}

fn grid_rows(grid: &Grid) -> Vec<Vec<String>> {
    let row = |cell: &crate::compare::Cell| {
        vec![
            cell.k.to_string(),
            cell.m.to_string(),
            format!("{:.4}", cell.nll),
            format!("{:.4}", cell.flops as f64 / 1e9),
            cell.log_gain_per_gflop.map_or("—".to_owned(), |gain| format!("{gain:.2}")),
        ]
    };
    grid.cells.iter().map(row).collect()
}

fn grid_figures(grid: &Grid) -> Vec<(String, String)> {
    let lines = |name: &str, title: &str, y_label: &str, of: fn(&crate::compare::Cell) -> f64| {
        let series = grid.ms.iter().map(|m| {
            let cells = grid.cells.iter().filter(|cell| cell.m == *m);
            Series::new(format!("M = {m}"), cells.map(|cell| (cell.k as f64, of(cell))).collect())
        });
        let figure = Lines {
            title: title.to_owned(),
            x_label: "experts per token, K".to_owned(),
            y_label: y_label.to_owned(),
            series: series.collect(),
            ..Lines::default()
        };
        (name.to_owned(), figure.svg())
    };
    vec![
        lines("grid-nll", "NLL over K and M", "nats", |cell| cell.nll.mean),
        lines("grid-flops", "Cost over K and M", "training MFLOPs", |cell| cell.flops as f64 / 1e6),
    ]
}
