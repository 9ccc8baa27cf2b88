//! The page of one evaluation.

use omma_report::{Bars, Lines, Page, Series};

use super::{Report, file_name, percent};
use crate::{
    evaluate::Evaluation,
    ood::OodScore,
    shift::Shift,
    tally::{ReliabilityBin, Summary},
};

type Figure = (String, String);

/// Reliability, members, corruptions and images from outside on one page.
pub fn evaluation_page(evaluation: &Evaluation) -> Report {
    let title = format!("Evaluation of {}", evaluation.models.join(" + "));
    let about = format!("{} images of {}", evaluation.samples, evaluation.data);
    let mut all: Vec<Figure> = Vec::new();
    let mut keep = |figures: Vec<Figure>| -> Vec<String> {
        let shown = figures.iter().map(|(_, svg)| svg.clone()).collect();
        all.extend(figures);
        shown
    };
    let mut page = Page::new(title, about).facts(facts(evaluation));
    page = page
        .section("Calibration")
        .text(
            "Predictions are sorted into bins by how sure they are. On the diagonal, they are right as \
             often as they are sure; below it they are too sure of themselves.",
        )
        .figures(keep(calibration(evaluation)));
    if let Some(scaled) = &evaluation.temperature {
        page = page
            .text(&format!(
                "With all logits divided by {:.3}, fitted on {} held-out images:",
                scaled.value, scaled.fitted_on
            ))
            .table(
                &SCORES,
                &[score_row("as it is", &evaluation.summary), score_row("scaled", &scaled.summary)],
            );
    }
    if !evaluation.members.is_empty() {
        let mut rows = vec![score_row("all together", &evaluation.summary)];
        let member = |(place, scores): (usize, &Summary)| {
            score_row(&format!("member {}", place + 1), scores)
        };
        rows.extend(evaluation.members.iter().enumerate().map(member));
        page = page.section("Members").table(&SCORES, &rows).figures(keep(members(evaluation)));
        if let Some(diversity) = &evaluation.diversity {
            page = page.facts([
                ("KL between members", format!("{:.4}", diversity.kl), "nats".to_owned()),
                ("Cosine", format!("{:.4}", diversity.cosine), String::new()),
                (
                    "Disagreement",
                    format!("{:.3}", diversity.disagreement),
                    format!(
                        "× the error; on {} of the images",
                        percent(diversity.disagreement_share)
                    ),
                ),
            ]);
        }
    }
    if let Some(shift) = &evaluation.shift {
        page = page
            .section("Corrupted images")
            .text(&format!(
                "{} test images under fifteen corruptions in five severities; severity 0 is the test \
                 as it is.",
                shift.samples
            ))
            .figures(keep(corruptions(evaluation, shift)))
            .table(
                &["corruption", "error", "NLL", "Brier", "ECE", "error at severity 5"],
                &corruption_rows(shift),
            );
    }
    if !evaluation.ood.is_empty() {
        page = page
            .section("Images from outside")
            .text(&format!(
                "How well images of another kind are told from the test images by {}. They are the \
                 positive case.",
                match evaluation.ood_score {
                    OodScore::MaxProbability => "one minus the largest probability",
                    OodScore::Entropy => "the entropy of the probabilities",
                    OodScore::Energy => "the energy of the logits",
                }
            ))
            .table(
                &["data", "images", "AUROC", "AUPR", "FPR at 95 % TPR"],
                &outside_rows(evaluation),
            )
            .figures(keep(outside(evaluation)));
    }
    let millions = |count: u64| format!("{:.2} M", count as f64 / 1e6);
    let cost = evaluation.cost;
    let rows = [
        ("parameters", millions(cost.parameters)),
        ("multiply-adds per image", millions(cost.forward_macs)),
        ("training FLOPs per image", millions(cost.training_flops)),
        ("speed of this evaluation", format!("{:.0} images/s", evaluation.images_per_second)),
        (
            "peak memory",
            evaluation.peak_rss_bytes.map_or("—".to_owned(), |b| format!("{} MiB", b >> 20)),
        ),
    ];
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let html = page.section("Cost").table(&["", ""], &rows).html();
    Report { html, figures: all }
}

const SCORES: [&str; 5] = ["", "error", "NLL", "Brier", "ECE"];

fn score_row(name: &str, scores: &Summary) -> Vec<String> {
    let Summary { error, nll, brier, ece } = *scores;
    let nll = format!("{nll:.4}");
    vec![name.to_owned(), percent(error), nll, format!("{brier:.4}"), percent(ece)]
}

fn facts(evaluation: &Evaluation) -> Vec<(&'static str, String, String)> {
    let Summary { error, nll, brier, ece } = evaluation.summary;
    let mut facts = vec![
        ("Accuracy", percent(1.0 - error), format!("error {}", percent(error))),
        ("NLL", format!("{nll:.4}"), "nats".to_owned()),
        ("Brier score", format!("{brier:.4}"), String::new()),
        ("Calibration error", percent(ece), format!("{} bins", evaluation.binning.bins)),
    ];
    if let Some(shift) = &evaluation.shift {
        let note = format!("NLL {:.3}", shift.mean.summary.nll);
        facts.push(("Error on corrupted images", percent(shift.mean.summary.error), note));
    }
    let worst = evaluation.ood.iter().min_by(|a, b| a.1.auroc.total_cmp(&b.1.auroc));
    if let Some((name, record)) = worst {
        facts.push(("Lowest AUROC", format!("{:.3}", record.auroc), format!("against {name}")));
    }
    facts
}

fn reliability(name: &str, bins: &[ReliabilityBin]) -> Series {
    Series::new(name, bins.iter().map(|bin| (bin.sureness, bin.accuracy)).collect())
}

fn calibration(evaluation: &Evaluation) -> Vec<Figure> {
    let mut series = vec![reliability("as it is", &evaluation.reliability)];
    series.extend(
        evaluation
            .temperature
            .iter()
            .map(|scaled| Series { dashed: true, ..reliability("scaled", &scaled.reliability) }),
    );
    let diagram = Lines {
        title: "Reliability".to_owned(),
        x_label: "how sure".to_owned(),
        y_label: "share of right predictions".to_owned(),
        series,
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: Some("perfect".to_owned()),
        ..Lines::default()
    };
    let share =
        |bin: &ReliabilityBin| 100.0 * bin.samples as f64 / evaluation.samples.max(1) as f64;
    let sureness = Bars {
        title: "How sure predictions are".to_owned(),
        x_label: "mean sureness of the bin".to_owned(),
        y_label: "% of predictions".to_owned(),
        labels: evaluation.reliability.iter().map(|bin| format!("{:.2}", bin.sureness)).collect(),
        groups: vec![(
            "test images".to_owned(),
            evaluation.reliability.iter().map(share).collect(),
        )],
        reference: None,
    };
    let seen = evaluation.class_errors.iter().enumerate();
    let mut order: Vec<(usize, f64)> =
        seen.filter_map(|(class, error)| Some((class, (*error)?))).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.truncate(MOST_CLASSES);
    let classes = Bars {
        title: match evaluation.class_errors.len() > MOST_CLASSES {
            true => format!("The {MOST_CLASSES} hardest classes"),
            false => "Error by class".to_owned(),
        },
        x_label: String::new(),
        y_label: "% wrong".to_owned(),
        labels: order.iter().map(|(class, _)| evaluation.classes[*class].clone()).collect(),
        groups: vec![("error".to_owned(), order.iter().map(|(_, error)| 100.0 * error).collect())],
        reference: Some(("mean".to_owned(), 100.0 * evaluation.summary.error)),
    };
    vec![
        ("reliability".to_owned(), diagram.svg()),
        ("sureness".to_owned(), sureness.svg()),
        ("classes".to_owned(), classes.svg()),
    ]
}

/// Classes that a figure shows.
const MOST_CLASSES: usize = 20;

fn members(evaluation: &Evaluation) -> Vec<Figure> {
    let labels: Vec<String> =
        (0..evaluation.members.len()).map(|member| format!("member {}", member + 1)).collect();
    let bars = |name: &str, title: &str, y_label: &str, of: fn(&Summary) -> f64| {
        let figure = Bars {
            title: title.to_owned(),
            x_label: String::new(),
            y_label: y_label.to_owned(),
            labels: labels.clone(),
            groups: vec![("alone".to_owned(), evaluation.members.iter().map(of).collect())],
            reference: Some(("together".to_owned(), of(&evaluation.summary))),
        };
        (name.to_owned(), figure.svg())
    };
    vec![
        bars("members-error", "Error of the members", "%", |scores| 100.0 * scores.error),
        bars("members-nll", "NLL of the members", "nats", |scores| scores.nll),
    ]
}

fn corruptions(evaluation: &Evaluation, shift: &Shift) -> Vec<Figure> {
    let lines = |name: &str, title: &str, y_label: &str, of: fn(&Summary) -> f64| {
        let points = |severities: &[Summary]| {
            let clean = std::iter::once(&evaluation.summary);
            clean.chain(severities).enumerate().map(|(s, scores)| (s as f64, of(scores))).collect()
        };
        let mut by_effect: Vec<_> = shift.corruptions.iter().collect();
        by_effect.sort_by(|a, b| of(&b.1.summary).total_cmp(&of(&a.1.summary)));
        let ends = [by_effect.first(), by_effect.last()];
        let mut series = vec![Series::new("mean of all", points(&shift.mean.severities))];
        series.extend(ends.into_iter().flatten().map(|(name, record)| Series {
            dashed: true,
            ..Series::new(name.replace('_', " "), points(&record.severities))
        }));
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        let x_label = "severity".to_owned();
        (name.to_owned(), Lines { title, x_label, y_label, series, ..Lines::default() }.svg())
    };
    let labels: Vec<String> =
        shift.corruptions.keys().map(|corruption| corruption.replace('_', " ")).collect();
    let errors = shift.corruptions.values().map(|record| 100.0 * record.summary.error).collect();
    let bars = Bars {
        title: "Error by corruption".to_owned(),
        x_label: String::new(),
        y_label: "%, mean over severities".to_owned(),
        labels,
        groups: vec![("error".to_owned(), errors)],
        reference: Some(("as it is".to_owned(), 100.0 * evaluation.summary.error)),
    };
    vec![
        lines("shift-accuracy", "Accuracy", "%", |scores| 100.0 * (1.0 - scores.error)),
        lines("shift-nll", "NLL", "nats", |scores| scores.nll),
        lines("shift-ece", "Calibration error", "%", |scores| 100.0 * scores.ece),
        ("shift-corruptions".to_owned(), bars.svg()),
    ]
}

fn corruption_rows(shift: &Shift) -> Vec<Vec<String>> {
    let records = shift.corruptions.iter().map(|(name, record)| (name.replace('_', " "), record));
    records
        .chain([("mean".to_owned(), &shift.mean)])
        .map(|(name, record)| {
            let mut row = score_row(&name, &record.summary);
            row.push(record.severities.last().map(|last| percent(last.error)).unwrap_or_default());
            row
        })
        .collect()
}

fn outside_rows(evaluation: &Evaluation) -> Vec<Vec<String>> {
    let row = |(name, record): (&String, &crate::ood::OodRecord)| {
        vec![
            name.clone(),
            record.samples.to_string(),
            format!("{:.4}", record.auroc),
            format!("{:.4}", record.aupr),
            percent(record.fpr95),
        ]
    };
    evaluation.ood.iter().map(row).collect()
}

fn outside(evaluation: &Evaluation) -> Vec<Figure> {
    let curves = evaluation
        .ood
        .iter()
        .map(|(name, record)| Series::new(name.clone(), record.roc.clone()))
        .collect();
    let roc = Lines {
        title: "ROC".to_owned(),
        x_label: "test images taken for outside".to_owned(),
        y_label: "images from outside that are found".to_owned(),
        series: curves,
        x_range: Some((0.0, 1.0)),
        y_range: Some((0.0, 1.0)),
        diagonal: Some("chance".to_owned()),
        ..Lines::default()
    };
    let mut figures = vec![("ood-roc".to_owned(), roc.svg())];
    for (name, record) in &evaluation.ood {
        let steps = |shares: &[f64]| -> Vec<(f64, f64)> {
            let mut points: Vec<(f64, f64)> = record
                .edges
                .iter()
                .zip(shares)
                .map(|(edge, share)| (*edge, 100.0 * share))
                .collect();
            if let (Some(end), Some(share)) = (record.edges.last(), shares.last()) {
                points.push((*end, 100.0 * share));
            }
            points
        };
        let series = |label: &str, shares: &[f64]| Series {
            steps: true,
            ..Series::new(label, steps(shares))
        };
        let histogram = Lines {
            title: format!("Scores of {name}"),
            x_label: "score: further outside to the right".to_owned(),
            y_label: "% of the images".to_owned(),
            series: vec![series("test images", &record.inside), series(name, &record.outside)],
            ..Lines::default()
        };
        figures.push((format!("ood-scores-{}", file_name(name)), histogram.svg()));
    }
    figures
}
