//! `sweep.html`: the table, and the score over every setting that was swept.

use std::collections::BTreeMap;

use omma_report::{Bars, Lines, Page, Series};
use omma_train::Unit;

use super::summary::{Row, Summary};

/// Lines that a figure can tell apart.
const MOST_LINES: usize = 8;
/// Values that span this much are set on a logarithmic axis.
const SPAN: f64 = 10.0;
/// How much of a failure a cell says.
const LONGEST: usize = 400;

/// The page of a sweep of a recipe.
pub(crate) fn page(summary: &Summary, recipe: &str) -> String {
    let mut page = Page::new(format!("Sweep of {recipe}"), "One recipe, a grid of settings");
    let done = summary.rows.iter().filter(|row| row.held_out.is_some()).count();
    let mut facts =
        vec![("settings", format!("{done} of {}", summary.rows.len()), "trained".to_owned())];
    if let Some(best) = &summary.best {
        let name = format!("by held-out {}", summary.decides);
        facts.insert(0, ("best", best.held_out.clone(), format!("{name}: {}", best.settings)));
    }
    page = page.facts(facts).section("Scores").text(&format!(
        "Sorted by the {} of the best checkpoint on held-out images, which also chooses. Test scores are those of \
         the trained model after its last step; they are there to be reported and have no say in the choice.",
        summary.decides
    ));
    for warning in summary.warnings() {
        page = page.text(&format!("Note: {warning}."));
    }
    let (header, rows) = summary.table(LONGEST);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    page = page.table(&header, &rows);
    let figures: Vec<String> =
        summary.columns.iter().filter_map(|key| figure(summary, key)).collect();
    if !figures.is_empty() {
        page = page
            .section("Held-out score over what was swept")
            .text("Settings that failed, or are still to be trained, are left out.")
            .figures(figures);
    }
    if let Some(best) = &summary.best {
        let row = |what: &str, command: &String| vec![what.to_owned(), command.clone()];
        let train = best.train.iter().map(|command| row("train it again", command));
        let evaluate = best.evaluate.iter().map(|command| row("evaluate it", command));
        let rows: Vec<Vec<String>> = train.chain(evaluate).collect();
        page = page.section("The best").table(&["", "command"], &rows);
    }
    page.html()
}

/// The mean score of rows over a setting, one line for every combination of the others; of too many lines
/// the highest envelope.
fn figure(summary: &Summary, key: &str) -> Option<String> {
    let measure = summary.measure()?;
    let factor = if measure.unit == Unit::Share { 100.0 } else { 1.0 };
    let scored: Vec<(&Row, f64, f64)> = summary
        .rows
        .iter()
        .filter_map(|row| {
            let score = row.held_out?.times(factor);
            Some((row, score.mean, score.standard_error.unwrap_or(0.0)))
        })
        .collect();
    let mut groups: BTreeMap<String, Vec<(&str, f64, f64)>> = BTreeMap::new();
    for (row, score, error) in &scored {
        let Some(value) = row.value(key) else { continue };
        let others = summary.columns.iter().filter(|other| *other != key);
        let others = others.filter_map(|other| Some(format!("{other}={}", row.value(other)?)));
        let name = others.collect::<Vec<_>>().join(", ");
        groups.entry(name).or_default().push((value, *score, *error));
    }
    if groups.len() > MOST_LINES {
        let mut best: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        // Rows are in the order of their scores: the first of a value is its best.
        for (row, score, error) in &scored {
            if let Some(value) = row.value(key) {
                best.entry(value).or_insert((*score, *error));
            }
        }
        let points = best.into_iter().map(|(value, (score, error))| (value, score, error));
        groups = BTreeMap::from([("best of the other settings".to_owned(), points.collect())]);
    }
    let values = || groups.values().flatten().map(|(value, _, _)| *value);
    if values().all(|value| values().next() == Some(value)) {
        return None;
    }
    let title = format!("Held-out {} over {key}", summary.decides);
    let y_label = if measure.unit == Unit::Share { "%" } else { "nats" }.to_owned();
    let named = |name: &String| match name.as_str() {
        "" => format!("held-out {}", summary.decides),
        _ => name.clone(),
    };
    let numbers: Option<Vec<f64>> = values().map(|value| value.parse().ok()).collect();
    let Some(numbers) = numbers else {
        return Some(bars(title, key, y_label, &groups, named));
    };
    let series = groups.iter().map(|(name, points)| {
        let mut points: Vec<(f64, f64, f64)> = points
            .iter()
            .filter_map(|(value, score, error)| Some((value.parse().ok()?, *score, *error)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let error = Some(points.iter().map(|(_, _, error)| *error).collect());
        let points = points.into_iter().map(|(x, y, _)| (x, y)).collect();
        Series { error, ..Series::new(named(name), points) }
    });
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lines = Lines {
        title,
        x_label: key.to_owned(),
        y_label,
        series: series.collect(),
        log_x: low > 0.0 && high / low >= SPAN,
        ..Lines::default()
    };
    Some(lines.svg())
}

/// The same where values are names.
fn bars(
    title: String,
    key: &str,
    y_label: String,
    groups: &BTreeMap<String, Vec<(&str, f64, f64)>>,
    named: impl Fn(&String) -> String,
) -> String {
    let mut labels: Vec<String> = Vec::new();
    for (value, _, _) in groups.values().flatten() {
        if labels.iter().all(|label| label != value) {
            labels.push((*value).to_owned());
        }
    }
    let heights = |points: &Vec<(&str, f64, f64)>| {
        let of = |label: &String| points.iter().find(|(value, _, _)| value == label);
        labels.iter().map(|label| of(label).map_or(f64::NAN, |(_, score, _)| *score)).collect()
    };
    let groups = groups.iter().map(|(name, points)| (named(name), heights(points))).collect();
    Bars { title, x_label: key.to_owned(), y_label, labels, groups, ..Bars::default() }.svg()
}

#[cfg(test)]
mod tests {
    use crate::sweep::{
        Summary, page,
        summary::tests::{reach, sweep},
    };

    /// The page of a sweep whose points did better and better.
    fn shown(settings: &[&str]) -> String {
        let here = tempfile::tempdir().unwrap();
        let folder = sweep(here.path(), settings, 1);
        for point in 0..folder.points.len() {
            let score = 0.01 * (point + 1) as f64;
            reach(&folder, point, &format!(r#"{{"step": 9, "score": {score}}}"#), 0.5);
        }
        page(&Summary::read(&folder, &Default::default()).unwrap(), "vit")
    }

    #[test]
    fn every_swept_setting_has_a_figure_of_lines_or_of_bars() {
        let html =
            shown(&["optimiser.learning_rate=1e-4,1e-3,1e-2", "schedule.kind=cosine,constant"]);
        assert_eq!(html.matches("<figure>").count(), 2);
        assert!(html.contains("Held-out accuracy over optimiser.learning_rate"));
        assert!(html.contains("schedule.kind=constant at 0.01: 6"), "a line for every other value");
        assert!(html.contains("constant, optimiser.learning_rate=1e-2: 6"), "and bars for names");
        assert!(html.contains("omma train vit --set optimiser.learning_rate=1e-2"));
    }

    #[test]
    fn a_setting_that_spans_much_has_a_logarithmic_axis() {
        // The middle of three is in the middle only on such an axis.
        let middle = |values: &str| {
            let html = shown(&[&format!("optimiser.learning_rate={values}")]);
            let places: Vec<f64> = html
                .split("<circle cx=\"")
                .skip(1)
                .filter_map(|rest| rest.split('"').next()?.parse().ok())
                .collect();
            assert_eq!(places.len(), 3, "{places:?}");
            (places[1] - places[0]) / (places[2] - places[0])
        };
        assert!((middle("1e-4,1e-3,1e-2") - 0.5).abs() < 0.01);
        assert!((middle("2e-3,3e-3,4e-3") - 0.5).abs() < 0.01);
    }

    #[test]
    fn many_combinations_are_drawn_as_their_best() {
        let html = shown(&[
            "optimiser.learning_rate=1e-3,1e-2",
            "train.batch=8,16,32,64,128,256,512,1024,2048",
        ]);
        assert!(html.contains("best of the other settings"));
    }
}
