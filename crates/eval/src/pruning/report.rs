//! What was pruned, and what it cost, as a record and as a page.

use std::collections::BTreeMap;

use omma_report::{Bars, Lines, Page, Series};
use omma_routing::PruneMode;
use serde::{Deserialize, Serialize};

use super::{
    curve::{CurvePoint, PruningCurve},
    judge::ModelScore,
};
use crate::report::{Draft, Figure, Report};

/// `prune.json`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PruningRecord {
    /// What the whole model is called.
    pub model: String,
    /// What was counted and scored by.
    pub data: String,
    /// Images of it.
    pub images: usize,
    /// Whose tokens were counted, where one modality was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modality: Option<String>,
    /// What the router does about experts that are gone; nothing where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PruneMode>,
    /// Every layer with experts.
    pub layers: Vec<LayerRecord>,
    /// What the accuracies are called; nothing where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<String>,
    /// The whole model.
    pub before: ModelRecord,
    /// What is left; nothing where only curves were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<ModelRecord>,
    /// How much faster that is, round by round, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_ratio: Option<f64>,
    /// Scores against experts left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<PruningCurve>,
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Which block.
    pub block: usize,
    /// The experts that it keeps; nothing where only curves were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Vec<usize>>,
    /// Share of the choices of tokens that these served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<f64>,
    /// `[E]`: share of the tokens' choices that each expert served.
    pub shares: Vec<f64>,
    /// The same of every modality, where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modalities: BTreeMap<String, Vec<f64>>,
}

/// A model before or after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelRecord {
    /// All parameters.
    pub parameters: u64,
    /// What they take in a file.
    pub bytes: u64,
    /// Images, or texts, per second, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// What it scores, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<ModelScore>,
}

impl LayerRecord {
    /// The share of the busiest one, two, … experts together (paper 002 Fig. 13).
    fn coverages(shares: &[f64]) -> Vec<(f64, f64)> {
        let mut sorted = shares.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let mut sum = 0.0;
        let mut add = |share: f64| {
            sum += share;
            sum
        };
        sorted
            .iter()
            .enumerate()
            .map(|(place, share)| ((place + 1) as f64, 100.0 * add(*share)))
            .collect()
    }
}

/// The page.
pub fn pruning_page(record: &PruningRecord) -> Report {
    let PruningRecord { before, after, .. } = record;
    let whose = match &record.modality {
        Some(modality) => format!("the {modality} tokens of "),
        None => String::new(),
    };
    let subtitle = format!("Counted by {whose}{} images: {}", record.images, record.data);
    let page = Page::new(format!("Fewer experts: {}", record.model), subtitle);
    let mut facts = Vec::new();
    let percent = |score: &ModelScore| format!("{:.1} %", 100.0 * score.accuracy);
    if let Some(after) = after {
        let share = 100.0 * after.parameters as f64 / before.parameters.max(1) as f64;
        facts.push(("Parameters left", format!("{share:.1} %"), after.parameters.to_string()));
        if let (Some(ratio), Some(new)) = (record.speed_ratio, after.per_second) {
            facts.push(("Speed", format!("{ratio:.2} ×"), format!("{new:.0} per second")));
        }
        if let (Some(old), Some(new)) = (&before.score, &after.score) {
            let measure = record.measure.clone().unwrap_or_default();
            facts.push(("Score", percent(new), format!("{measure}; {} before", percent(old))));
        }
    } else if let Some(score) = &before.score {
        let measure = record.measure.clone().unwrap_or_default();
        facts.push(("The whole model", percent(score), measure));
    }
    let mut draft = Draft::new(page.facts(facts));
    if let Some(curve) = &record.curve {
        draft = curve_section(draft, curve);
    }
    layers_section(draft, record).finish()
}

const LINES: [(&str, PruneMode, bool); 4] = [
    ("router-pred, the busiest", PruneMode::Predict, true),
    ("router-drop, the busiest", PruneMode::Drop, true),
    ("router-pred, any", PruneMode::Predict, false),
    ("router-drop, any", PruneMode::Drop, false),
];

fn curve_section(draft: Draft, curve: &PruningCurve) -> Draft {
    let text = "Every layer keeps the same number of experts, without any training afterwards. By router-pred the \
                router still predicts gates for those that are gone, and the others keep the weights that they were \
                trained with; by router-drop the softmax is over those that are left. Beside the busiest, experts \
                that were drawn: the mean of several draws and its standard deviation.";
    let lines = |title: &str, y_label: &str, of: &dyn Fn(&CurvePoint) -> f64| {
        let series = LINES.iter().filter_map(|(name, mode, by_rank)| {
            let points = curve.series(*mode, *by_rank, of);
            let error = (!by_rank).then(|| points.iter().map(|(_, _, error)| *error).collect());
            let points: Vec<(f64, f64)> =
                points.into_iter().map(|(x, y, _)| (x as f64, y)).collect();
            let dashed = !by_rank;
            (!points.is_empty()).then(|| Series { error, dashed, ..Series::new(*name, points) })
        });
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        let x_label = "experts left in every layer".to_owned();
        Lines { title, x_label, y_label, series: series.collect(), ..Lines::default() }.svg()
    };
    let mut figures: Vec<Figure> = vec![(
        "pruning-accuracy".to_owned(),
        lines(&capital(&curve.measure), "%", &|point| 100.0 * point.score.accuracy),
    )];
    if curve.whole.nll.is_some() {
        let nll = lines("NLL", "nats", &|point| point.score.nll.unwrap_or(f64::NAN));
        figures.push(("pruning-nll".to_owned(), nll));
    }
    draft
        .add(|page| page.section("Scores against experts left").text(text))
        .figures(figures)
        .add(|page| page.table(&PruningCurve::HEADER, &curve.rows()))
}

impl PruningCurve {
    /// What the columns of [`rows`](Self::rows) are.
    pub const HEADER: [&'static str; 7] = [
        "experts",
        "coverage, %",
        "coverage of any",
        "router-pred",
        "router-drop",
        "router-pred, any",
        "router-drop, any",
    ];

    /// Of every number of experts: coverages and accuracies in per cent, of the busiest and of any.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let counts: Vec<usize> = self
            .series(PruneMode::Predict, true, |_| 0.0)
            .into_iter()
            .map(|(count, ..)| count)
            .collect();
        let rows = counts.iter().map(|count| {
            let at = |mode, by_rank, of: &dyn Fn(&CurvePoint) -> f64| {
                let all = self.series(mode, by_rank, of).into_iter();
                all.into_iter().find(|(own, ..)| own == count).map(|(_, mean, error)| (mean, error))
            };
            let share = |found: Option<(f64, f64)>, spread: bool| match found {
                Some((mean, error)) if spread => {
                    format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * error)
                }
                Some((mean, _)) => format!("{:.1}", 100.0 * mean),
                None => String::new(),
            };
            let coverage =
                |by_rank| share(at(PruneMode::Predict, by_rank, &|one| one.coverage), !by_rank);
            let scores = LINES.map(|(_, mode, by_rank)| {
                share(at(mode, by_rank, &|one| one.score.accuracy), !by_rank)
            });
            let first = [count.to_string(), coverage(true), coverage(false)];
            first.into_iter().chain(scores).collect::<Vec<String>>()
        });
        rows.collect()
    }
}

fn layers_section(draft: Draft, record: &PruningRecord) -> Draft {
    let text = "Which share of the tokens' choices each expert serves, and how much the busiest serve together.";
    let named = |layer: &LayerRecord, name: &str| match name {
        "" => format!("block {}", layer.block),
        name => format!("block {}, {name}", layer.block),
    };
    let series = record.layers.iter().flat_map(|layer| {
        let own = LayerRecord::coverages(&layer.shares);
        let all = layer
            .modalities
            .iter()
            .map(|(name, shares)| Series::new(named(layer, name), LayerRecord::coverages(shares)));
        let all: Vec<Series> = all.collect();
        match all.is_empty() {
            true => vec![Series::new(named(layer, ""), own)],
            false => all,
        }
    });
    let coverage = Lines {
        title: "Coverage".to_owned(),
        x_label: "busiest experts".to_owned(),
        y_label: "% of the choices".to_owned(),
        series: series.collect(),
        y_range: Some((0.0, 100.0)),
        ..Lines::default()
    };
    let mut figures = vec![("pruning-coverage".to_owned(), coverage.svg())];
    for layer in &record.layers {
        let percent = |shares: &[f64]| shares.iter().map(|share| 100.0 * share).collect();
        let groups = match layer.modalities.is_empty() {
            true => vec![("tokens".to_owned(), percent(&layer.shares))],
            false => {
                let own = layer.modalities.iter();
                own.map(|(name, shares)| (name.clone(), percent(shares))).collect()
            }
        };
        let bars = Bars {
            title: format!("Block {}", layer.block),
            x_label: "expert".to_owned(),
            y_label: "% of the choices".to_owned(),
            labels: (0..layer.shares.len()).map(|expert| expert.to_string()).collect(),
            groups,
            reference: None,
            errors: Vec::new(),
        };
        figures.push((format!("pruning-block-{}", layer.block), bars.svg()));
    }
    let rows = record.layers.iter().filter_map(|layer| {
        let kept = layer.kept.as_ref()?;
        let names: Vec<String> = kept.iter().map(usize::to_string).collect();
        let coverage = format!("{:.2}", 100.0 * layer.coverage.unwrap_or_default());
        let count = format!("{} of {}", kept.len(), layer.shares.len());
        Some(vec![layer.block.to_string(), count, coverage, names.join(", ")])
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let draft = draft.add(|page| page.section("Who serves how much").text(text)).figures(figures);
    match rows.is_empty() {
        true => draft,
        false => draft.add(|page| {
            page.subsection("What was kept")
                .table(&["block", "experts", "coverage, %", "which"], &rows)
        }),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pruning::KeptBy;

    #[test]
    fn coverage_grows_from_the_busiest_to_all() {
        let found = LayerRecord::coverages(&[0.125, 0.5, 0.0, 0.375]);
        assert_eq!(found, [(1.0, 50.0), (2.0, 87.5), (3.0, 100.0), (4.0, 100.0)]);
    }

    #[test]
    fn a_page_shows_every_layer_and_every_line() {
        let point = |experts, mode, kept_by, accuracy| CurvePoint {
            experts,
            mode,
            kept_by,
            coverage: 0.5,
            score: ModelScore { accuracy, nll: Some(1.0) },
        };
        let modes = [PruneMode::Predict, PruneMode::Drop];
        let ways = [KeptBy::Rank, KeptBy::Chance { seed: 0 }, KeptBy::Chance { seed: 1 }];
        let points = [1, 2].into_iter().flat_map(|experts| {
            modes.into_iter().flat_map(move |mode| {
                ways.map(move |kept_by| point(experts, mode, kept_by, 0.25 * experts as f64))
            })
        });
        let whole = ModelScore { accuracy: 0.5, nll: Some(1.0) };
        let model = |parameters| ModelRecord {
            parameters,
            bytes: 4 * parameters,
            per_second: Some(100.0),
            score: Some(whole),
        };
        let layer = |block| LayerRecord {
            block,
            kept: Some(vec![1]),
            coverage: Some(0.75),
            shares: vec![0.25, 0.75],
            modalities: BTreeMap::new(),
        };
        let record = PruningRecord {
            model: "vmoe".to_owned(),
            data: "world".to_owned(),
            images: 20,
            modality: None,
            mode: Some(PruneMode::Predict),
            layers: vec![layer(1), layer(3)],
            measure: Some("accuracy".to_owned()),
            before: model(1000),
            after: Some(model(600)),
            speed_ratio: Some(1.25),
            curve: Some(PruningCurve {
                measure: "accuracy".to_owned(),
                experts: 2,
                whole,
                points: points.collect(),
            }),
        };
        let Report { html, figures } = pruning_page(&record);
        let names: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            "pruning-accuracy",
            "pruning-nll",
            "pruning-coverage",
            "pruning-block-1",
            "pruning-block-3",
        ];
        assert_eq!(names, expected);
        for word in ["60.0 %", "1.25 ×", "router-drop, any", "25.0 ± 0.0", "1 of 2", "75.00"] {
            assert!(html.contains(word), "{word}");
        }
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<PruningRecord>(&text).unwrap(), record);
    }
}
