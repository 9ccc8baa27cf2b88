//! Routing of every modality by itself (paper 002 Figs. 9, 38).

use std::collections::BTreeMap;

use omma_eval::routing::{LayerHealth, ModalityHealth, modality_name};
use omma_report::{Bars, Figure, Lines, Page, Series};
use omma_routing::Loss;

use crate::{logs::TrainRecord, recipe::Recipe};

/// A section on the layers whose tokens were of several modalities; nothing where there are none.
pub(super) fn section(page: Page, recipe: &Recipe, train: &[TrainRecord]) -> Page {
    let Some(last) = train.last().filter(|last| last.routing.iter().any(has_several)) else {
        return page;
    };
    page.section("Experts by modality")
        .text(
            "The same for the tokens of each modality by themselves, in training: one of them may collapse while the \
             layer as a whole looks well. A modality that is spread over S experts has S = e^H of the entropy H of \
             its mean gates; dashed lines are the thresholds below which the routers pay for it.",
        )
        .figures(figures(recipe, train, last))
}

fn has_several(layer: &LayerHealth) -> bool {
    !layer.modalities.is_empty()
}

/// By modality, the number of experts that a loss asks for at least.
fn thresholds(recipe: &Recipe) -> BTreeMap<usize, f64> {
    let losses = recipe.model.moe().map_or(&[][..], |moe| &moe.router.losses);
    let terms = losses.iter().filter_map(|term| match term.loss {
        Loss::GlobalEntropy { threshold: Some(threshold) } => {
            Some((term.modality?, threshold.exp()))
        }
        _ => None,
    });
    terms.collect()
}

fn figures(recipe: &Recipe, train: &[TrainRecord], last: &TrainRecord) -> Vec<Figure> {
    let over_time =
        |title: &str, y_label: &str, caption: &str, value: fn(&ModalityHealth) -> f64| {
            let mut series = Vec::new();
            for layer in &last.routing {
                for one in &layer.modalities {
                    let found = |record: &TrainRecord| {
                        let layers = record.routing.iter();
                        let layer = layers.clone().find(|other| other.block == layer.block)?;
                        let own = layer.modalities.iter().find(|m| m.modality == one.modality)?;
                        Some((record.step as f64, value(own)))
                    };
                    let name = format!("{}, block {}", one.name(), layer.block);
                    series.push(Series::new(name, train.iter().filter_map(found).collect()));
                }
            }
            (title.to_owned(), y_label.to_owned(), caption.to_owned(), series)
        };
    let drawn = |(title, y_label, caption, series): (String, String, String, Vec<Series>)| {
        let x_label = "step".to_owned();
        let lines = Lines { title, x_label, y_label, series, ..Lines::default() };
        Figure::from((lines.svg(), caption.as_str()))
    };
    let caption =
        "As many experts as the mean gates of a modality are spread over; 1 is a collapse.";
    let mut experts = over_time("Experts in use", "e^H", caption, |one| one.experts);
    let ends = train.first().map_or(0.0, |first| first.step as f64)..last.step as f64;
    experts.3.extend(thresholds(recipe).into_iter().map(|(modality, threshold)| Series {
        dashed: true,
        ..Series::new(
            format!("threshold of {}", modality_name(modality)),
            vec![(ends.start, threshold), (ends.end, threshold)],
        )
    }));
    let caption = "Choices that found room at their expert.";
    let success = over_time("Success rate", "%", caption, |one| 100.0 * one.success_rate());
    let caption = "How undecided the router is about one token: 0 where one expert has it all.";
    let local = over_time("Local entropy", "nats", caption, |one| one.local_entropy);
    let caption = "The mean weight of a token's first expert.";
    let largest = over_time("Largest gate", "", caption, |one| one.largest_gate);
    let mut figures: Vec<Figure> = [experts, success, local, largest].map(drawn).into();
    for layer in last.routing.iter().filter(|layer| has_several(layer)) {
        let groups = layer.modalities.iter().map(|one| {
            (one.name(), one.load.iter().map(|load| 100.0 * load).collect::<Vec<f64>>())
        });
        let bars = Bars {
            title: format!("Load by modality in block {}", layer.block),
            x_label: "expert".to_owned(),
            y_label: "% of the modality's choices".to_owned(),
            labels: (0..layer.load.len()).map(|expert| expert.to_string()).collect(),
            groups: groups.collect(),
            reference: Some(("balanced".to_owned(), 100.0 / layer.load.len().max(1) as f64)),
            errors: Vec::new(),
        };
        let caption = "Who goes where at the end of training.";
        figures.push(Figure::from((bars.svg(), caption)));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{recipe::Request, task::TaskScores};

    fn record(step: u64, modalities: Vec<ModalityHealth>) -> TrainRecord {
        let layer = LayerHealth {
            block: 1,
            peak_load: 1.0,
            dropped_share: 0.0,
            dead: 0,
            pruned: 0,
            gate_entropy: 0.5,
            load: vec![0.5, 0.5],
            modalities,
        };
        TrainRecord {
            step,
            epoch: 0.0,
            loss: 1.0,
            auxiliary_loss: 0.0,
            scores: TaskScores::default(),
            learning_rate: 0.1,
            gradient_norm: 1.0,
            loss_scale: None,
            images_per_second: 1.0,
            communication: None,
            transfer: None,
            routing: vec![layer],
        }
    }

    fn health(modality: usize) -> ModalityHealth {
        ModalityHealth {
            modality,
            dropped_share: 0.1,
            local_entropy: 0.2,
            global_entropy: 0.5,
            experts: 0.5_f64.exp(),
            largest_gate: 0.9,
            load: vec![0.75, 0.25],
        }
    }

    #[test]
    fn a_section_is_there_where_there_are_several_modalities() {
        let settings = [
            r#"model.moe.losses=[{"loss": {"global-entropy": {"threshold": 0.5}}, "weight": 1.0, "modality": 1}]"#,
        ];
        let recipe = Recipe::find("vmoe", &Request::of(&settings)).unwrap();
        let page = |records: &[TrainRecord]| {
            section(Page::new("t".to_owned(), String::new()), &recipe, records).html()
        };
        let with = page(&[1, 2].map(|step| record(step, vec![health(0), health(1)])));
        for part in
            ["Experts by modality", "texts, block 1", "images, block 1", "threshold of texts"]
        {
            assert!(with.contains(part), "{part}");
        }
        assert!(!with.contains("threshold of images"));
        assert!(!page(&[record(1, Vec::new())]).contains("by modality"));
        assert!(!page(&[]).contains("by modality"));
    }
}
