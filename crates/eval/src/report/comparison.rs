//! The page of several evaluations beside each other.

use omma_report::{Bars, Better, Dot, Lines, Mark, Page, Scatter, Series, ValueMap};

use super::{Report, file_name};
use crate::{
    compare::{Comparison, Gain, Grid, Row, Table, factor},
    metrics::Estimate,
};

/// The table of all systems, the fronts of quality against cost, gains and the grid.
pub fn comparison_page(comparison: &Comparison, title: &str, about: &str) -> Report {
    study_page(comparison, title, about, &[])
}

/// A figure that a study has of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyFigure {
    /// Its file, without the ending.
    pub name: String,
    /// What its section of the page is called.
    pub section: String,
    /// What it shows.
    pub text: String,
    /// The figure.
    pub svg: String,
    /// What stands above it, if there is something.
    pub table: Option<Table>,
}

/// [`comparison_page`] with a study's own figures.
pub fn study_page(
    comparison: &Comparison,
    title: &str,
    about: &str,
    own: &[StudyFigure],
) -> Report {
    let mut figures = fronts(comparison);
    let mut page = with_table(
        Page::new(title, about).section("Systems").text(
            "Means over seeds, with their standard errors; of a single run, with 95 % intervals by a bootstrap \
             over its images. Less is better, and ★ is the best of a column; KL says how much the members of \
             an ensemble differ.",
        ),
        &comparison.systems_table(),
    );
    if let Some(table) = comparison.members_table() {
        let text = "How the members of an ensemble differ: KL divergence, cosine of their probabilities, and how often \
                    two of them decide differently; then the Brier score, and NLL after temperature scaling.";
        page = with_table(page.section("Members").text(text), &table);
    }
    if let Some(table) = comparison.contrast_table() {
        let text = "Zero-shot accuracy is that of classes which are known by their names alone. Then how often a \
                    text finds its image among the first 1, 5 and 10 of all, how often an image finds any of its \
                    texts, and how often the pairs of a batch are told apart. More is better.";
        page = with_table(page.section("Images and texts").text(text), &table);
    }
    if let Some(positive) = comparison.ood_positive {
        let text = format!(
            "The positive class are the {} images. More is better for AUROC and AUPR, less for the share \
             of the other images that are taken for positive where 95 % of the positive are found (FPR95).",
            positive.in_words()
        );
        page = page.section("Out-of-distribution images").text(&text);
        page = comparison.ood_tables().iter().fold(page, with_table);
    }
    let few_shot = comparison.few_shot_tables();
    if !few_shot.is_empty() {
        let text = format!(
            "The accuracy of a linear classifier on frozen features, from a few images of every class of other data; \
             the last column has the mean of the accuracies in units of those of {} (paper 000 App. A.5). More is \
             better.",
            comparison.baseline
        );
        page = page.section("Few shots of other data").text(&text);
        page = few_shot.iter().fold(page, with_table);
    }
    if !figures.is_empty() {
        page = page
            .section("Quality against cost")
            .text(
                "What no other system beats at its cost is on the dashed front. A square is around the \
                 baseline, a ring around the best.",
            )
            .figures(figures.iter().map(|(_, svg)| svg.clone()).collect::<Vec<_>>());
    }
    let bars = system_figures(comparison);
    if !bars.is_empty() {
        let text = "Bars are means over seeds, whiskers their standard errors.";
        let svgs = bars.iter().map(|(_, svg)| svg.clone()).collect::<Vec<_>>();
        page = page.section("System by system").text(text).figures(svgs);
        figures.extend(bars);
    }
    if let Some(table) = comparison.gains_table() {
        let gains = gain_figure(comparison);
        let text = format!(
            "Percent less than {0}; a factor such as 3.2× is so many times as much as {0}. Shifted NLL is that \
             on corrupted images (paper 000, Table 24).",
            comparison.baseline
        );
        page = with_table(page.section("Gains").text(&text), &table).figures([gains.1.clone()]);
        figures.push(gains);
    }
    page = paired(page, comparison);
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
    if let Some(subsets) = &comparison.subsets {
        page = subsets.section(page, &mut figures);
    }
    for StudyFigure { name, section, text, svg, table } in own {
        page = page.section(section).text(text);
        page = table.iter().fold(page, with_table).figures([svg.clone()]);
        figures.push((name.clone(), svg.clone()));
    }
    if !comparison.notes.is_empty() {
        let page_with = page.section("Not compared");
        page = comparison.notes.iter().fold(page_with, |page, note| page.text(note));
    }
    Report { html: page.html(), figures }
}

/// Which systems can be told from the baseline.
fn paired(page: Page, comparison: &Comparison) -> Page {
    let verdicts = comparison.verdicts();
    if verdicts.is_empty() {
        return page;
    }
    let text = "The same images, one by one, so that what is hard for all does not count: the system's number \
                less the baseline's, with a 95 % interval by a bootstrap over the images. Seeds are paired in their \
                order and drawn as well; McNemar's exact test asks whether more images are right by one system \
                alone than by the other, and of several seeds it is twice the median p-value.";
    let page = page.section("Told apart?").text(text);
    let page = verdicts.iter().fold(page, |page, verdict| page.text(&format!("{verdict}.")));
    comparison.paired_table().iter().fold(page, with_table)
}

fn with_table(page: Page, table: &Table) -> Page {
    let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
    page.table(&header, &table.rows)
}

fn fronts(comparison: &Comparison) -> Vec<(String, String)> {
    let front = |name: &str, title: &str, y_label: &str, of: &dyn Fn(&Row) -> Option<Estimate>| {
        let values = || comparison.rows.iter().filter_map(|row| Some(of(row)?.mean));
        let best = values().reduce(f64::min).filter(|_| values().count() > 1);
        let dot = |row: &Row| {
            let value = of(row)?;
            let several = comparison.rows.len() > 1;
            let marks = [
                (several && row.label == comparison.baseline).then_some(Mark::Baseline),
                (best == Some(value.mean)).then_some(Mark::Best),
            ];
            Some(Dot {
                marks: marks.into_iter().flatten().collect(),
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
                log_x: spans(comparison.rows.iter().map(|row| row.cost.training_flops)),
                pareto: Some((Better::Low, Better::Low)),
                ..Scatter::default()
            };
            (name.to_owned(), figure.svg())
        })
    };
    let percent = |value: Option<Estimate>| value.map(|value| value.times(100.0));
    let mut figures = vec![
        front("nll", "NLL", "nats", &|row| row.nll),
        front("error", "Error", "%", &|row| percent(row.error)),
        front("ece", "Calibration error", "%", &|row| percent(row.ece)),
        front("shift-nll", "NLL on corrupted images", "nats", &|row| row.shift_nll),
        front("shift-error", "Error on corrupted images", "%", &|row| percent(row.shift_error)),
    ];
    for name in comparison.ood_sets() {
        let title = format!("FPR at 95 % TPR against {name}");
        figures.push(front(&format!("fpr95-{}", file_name(name)), &title, "%", &|row| {
            percent(row.fpr95.get(name).copied())
        }));
    }
    let mut shots: Vec<usize> =
        comparison.rows.iter().flat_map(|row| &row.few_shot).map(|one| one.shots).collect();
    shots.sort_unstable();
    shots.dedup();
    for shots in shots {
        let title = format!("{shots}-shot error on other data");
        figures.push(front(&format!("few-shot-{shots}"), &title, "%", &|row| {
            let found = row.few_shot.iter().find(|one| one.shots == shots)?.mean?;
            Some(Estimate { mean: 1.0 - found.mean, ..found }.times(100.0))
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
            errors: Vec::new(),
        };
        figures.push(("kl".to_owned(), bars.svg()));
    }
    figures
}

/// How images and texts find each other, and what pixels are taken for, system by system.
fn system_figures(comparison: &Comparison) -> Vec<(String, String)> {
    let told_apart: &[Share] =
        &[("images", |row| row.images_told_apart), ("texts", |row| row.texts_told_apart)];
    let recall: &[Share] = &[
        ("text to image", |row| Some(row.text_to_image?.at_1)),
        ("image to text", |row| Some(row.image_to_text?.at_1)),
    ];
    let zero_shot: &[Share] = &[("accuracy", |row| {
        let error = row.error.filter(|_| row.reads)?;
        Some(Estimate { mean: 1.0 - error.mean, ..error })
    })];
    let mean_iou: &[Share] = &[("mean IoU", |row| row.mean_iou)];
    let figures = [
        bars_of(comparison, "zero-shot", "Zero-shot accuracy", zero_shot),
        bars_of(comparison, "told-apart", "Pairs told apart", told_apart),
        bars_of(comparison, "recall", "Recall at 1", recall),
        bars_of(comparison, "mean-iou", "Mean intersection over union", mean_iou),
    ];
    figures.into_iter().flatten().collect()
}

/// What a group of bars is called, and a share that systems have.
type Share = (&'static str, fn(&Row) -> Option<Estimate>);

/// Shares of all systems that have them, in per cent, with standard errors; nothing where none has.
fn bars_of(
    comparison: &Comparison,
    file: &str,
    title: &str,
    shares: &[Share],
) -> Option<(String, String)> {
    let has = |row: &&Row| shares.iter().all(|(_, of)| of(row).is_some());
    let rows: Vec<&Row> = comparison.rows.iter().filter(has).collect();
    let values = |of: fn(&Row) -> Option<Estimate>, number: fn(Estimate) -> f64| {
        rows.iter().filter_map(|row| Some(100.0 * number(of(row)?))).collect::<Vec<f64>>()
    };
    let bars = Bars {
        title: title.to_owned(),
        x_label: String::new(),
        y_label: "%".to_owned(),
        labels: rows.iter().map(|row| row.label.clone()).collect(),
        groups: shares
            .iter()
            .map(|(name, of)| ((*name).to_owned(), values(*of, |one| one.mean)))
            .collect(),
        reference: None,
        errors: shares
            .iter()
            .map(|(_, of)| values(*of, |one| one.standard_error.unwrap_or_default()))
            .collect(),
    };
    (!rows.is_empty()).then(|| (file.to_owned(), bars.svg()))
}

/// Whether costs are so far apart that only a logarithmic axis shows all of them: by about a decade.
fn spans(flops: impl Iterator<Item = u64> + Clone) -> bool {
    let (low, high) = (flops.clone().min().unwrap_or(0), flops.max().unwrap_or(0));
    low > 0 && high / low >= 8
}

fn gain_figure(comparison: &Comparison) -> (String, String) {
    let of = |value: fn(&Gain) -> Option<f64>| {
        comparison.gains.iter().map(|gain| value(gain).unwrap_or(f64::NAN)).collect::<Vec<f64>>()
    };
    let mut groups =
        vec![("NLL".to_owned(), of(|gain| gain.nll)), ("error".to_owned(), of(|gain| gain.error))];
    if comparison.gains.iter().any(|gain| gain.shift_nll.is_some()) {
        groups.insert(1, ("shifted NLL".to_owned(), of(|gain| gain.shift_nll)));
    }
    // Percentages of what is many times as much would hide all others.
    let as_factors =
        groups.iter().flat_map(|(_, values)| values).any(|gain| factor(*gain).is_some());
    if as_factors {
        let values = groups.iter_mut().flat_map(|(_, values)| values);
        values.for_each(|gain| *gain = 1.0 - *gain / 100.0);
    }
    let bars = Bars {
        title: match as_factors {
            true => format!("Times as much as {}", comparison.baseline),
            false => format!("Gains over {}", comparison.baseline),
        },
        x_label: String::new(),
        y_label: if as_factors { "times" } else { "% less" }.to_owned(),
        labels: comparison.gains.iter().map(|gain| gain.label.clone()).collect(),
        groups,
        reference: as_factors.then(|| (comparison.baseline.clone(), 1.0)),
        errors: Vec::new(),
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
            log_y: name == "grid-flops" && spans(grid.cells.iter().map(|cell| cell.flops)),
            ..Lines::default()
        };
        (name.to_owned(), figure.svg())
    };
    let map =
        |name: &str, title: &str, digits: usize, of: fn(&crate::compare::Cell) -> Option<f64>| {
            let value = |m: usize, k: usize| {
                grid.cells.iter().find(|cell| (cell.k, cell.m) == (k, m)).and_then(of)
            };
            let figure = ValueMap {
                title: title.to_owned(),
                row_label: "models".to_owned(),
                column_label: "experts per token".to_owned(),
                rows: grid.ms.iter().map(|m| format!("M = {m}")).collect(),
                columns: grid.ks.iter().map(|k| format!("K = {k}")).collect(),
                values: grid
                    .ms
                    .iter()
                    .map(|m| grid.ks.iter().map(|k| value(*m, *k)).collect())
                    .collect(),
                digits,
            };
            (name.to_owned(), figure.svg())
        };
    vec![
        map("grid-nll-map", "NLL", 4, |cell| Some(cell.nll.mean)),
        map("grid-flops-map", "Training MFLOPs", 1, |cell| Some(cell.flops as f64 / 1e6)),
        map("grid-gain-map", "Log of the gain per GFLOP", 2, |cell| cell.log_gain_per_gflop),
        lines("grid-nll", "NLL over K and M", "nats", |cell| cell.nll.mean),
        lines("grid-flops", "Cost over K and M", "training MFLOPs", |cell| cell.flops as f64 / 1e6),
    ]
}
