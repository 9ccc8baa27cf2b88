//! The page at the end of a run.

use omma_base::Resolution;
use omma_data::augment::Mixing;
use omma_report::{Bars, HeatMap, Lines, Page, PictureCard, Series, png};

use crate::{
    error::Result,
    evaluate::{Evaluation, Example},
    finish::TrainingResult,
    health::LayerHealth,
    logs::{EvaluationRecord, Record, TrainRecord, read_records},
    recipe::Recipe,
    run::{Environment, RunFolder},
    trainer::Trained,
};

/// Larger sample images are made smaller for the page.
const LARGEST_PICTURE: usize = 128;

/// Curves, expert load, confusion matrix and sample predictions of a run, as one HTML document.
pub(crate) fn report(
    run: &RunFolder,
    recipe: &Recipe,
    trained: &Trained,
    test: &Evaluation,
    result: &TrainingResult,
) -> Result<String> {
    let (mut train, mut evaluations) = (Vec::new(), Vec::new());
    for record in read_records(run)? {
        match record {
            Record::Train(record) => train.push(record),
            Record::Evaluation(record) => evaluations.push(record),
        }
    }
    let classes = trained.test.classes();
    let mut page = Page::new(format!("Ommatidia: {}", recipe.name), recipe.about.clone())
        .facts(facts(result))
        .section("Learning");
    if recipe.mixing != Mixing::default() {
        page = page.text(
            "The model learns from mixtures of two images, of which the larger part counts as the right \
             answer: training accuracy is lower, and training loss higher, than on images as they are.",
        );
    }
    page = page.figures(curves(&train, &evaluations));
    if !test.routing.is_empty() {
        page = page
            .section("Experts")
            .text(
                "How the test images' tokens are spread over the experts of each layer, and how that \
                 came to be. A balanced layer has every bar at the dashed line.",
            )
            .figures(routing(&test.routing, &train));
    }
    page = page.section("Test").figures([confusion(test, classes)]).section("Predictions").text(
        "First images that the model got right, then those where it was most sure and wrong.",
    );
    let card = |example: &Example| -> Result<PictureCard> {
        let picture = trained.test.get(example.index)?.picture;
        let picture = match picture.width.max(picture.height) > LARGEST_PICTURE {
            true => picture.centre_crop(Resolution::square(LARGEST_PICTURE), 1.0),
            false => picture,
        };
        let name = |class: usize| classes.get(class).cloned().unwrap_or_default();
        let good = example.label == example.predicted;
        let is = if good { String::new() } else { format!("it is {}, ", name(example.label)) };
        Ok(PictureCard {
            png: png(&picture.pixels, picture.width as u32, picture.height as u32),
            caption: name(example.predicted),
            good: Some(good),
            detail: format!("{is}{:.0} % sure", 100.0 * example.probability),
        })
    };
    let cards = test.right.iter().chain(&test.wrong).map(card).collect::<Result<Vec<_>>>()?;
    let recipe_rows: Vec<Vec<String>> = about(recipe, trained, result);
    let page = page.pictures(cards).section("Run").table(&["", ""], &recipe_rows);
    Ok(page.html())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn facts(result: &TrainingResult) -> Vec<(&'static str, String, String)> {
    let mut facts = vec![("Test accuracy", percent(result.test_accuracy), String::new())];
    if let Some(linear) = result.linear_baseline_accuracy {
        let ahead = 100.0 * (result.test_accuracy - linear);
        let note = format!("{ahead:+.1} points for the model");
        facts.push(("A linear classifier on pixels", percent(linear), note));
    }
    facts.push(("Test NLL", format!("{:.3}", result.test_nll), "nats".to_owned()));
    let minutes = result.train_seconds / 60.0;
    let speed = format!("{:.0} images/s", result.images_per_second);
    facts.push(("Training", format!("{minutes:.1} min"), speed));
    if let Some(bytes) = result.peak_rss_bytes {
        facts.push((
            "Memory",
            format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64),
            "at most".into(),
        ));
    }
    facts
}

fn curves(train: &[TrainRecord], evaluations: &[EvaluationRecord]) -> Vec<String> {
    let of = |value: fn(&TrainRecord) -> f64| {
        train.iter().map(|r| (r.step as f64, value(r))).collect::<Vec<_>>()
    };
    let held_out = |value: fn(&EvaluationRecord) -> f64| {
        evaluations.iter().map(|r| (r.step as f64, value(r))).collect::<Vec<_>>()
    };
    let lines = |title: &str, y_label: &str, series: Vec<Series>| {
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        Lines { title, x_label: "step".to_owned(), y_label, series, ..Lines::default() }
    };
    vec![
        lines(
            "Accuracy",
            "%",
            vec![
                Series::new("training", of(|r| 100.0 * r.accuracy)),
                Series::new("held out", held_out(|r| 100.0 * r.accuracy)),
            ],
        )
        .svg(),
        lines(
            "Loss",
            "nats",
            vec![
                Series::new("training", of(|r| r.loss)),
                Series::new("of which routers", of(|r| r.auxiliary_loss)),
                Series::new("held out", held_out(|r| r.nll)),
            ],
        )
        .svg(),
        lines(
            "Gradient norm",
            "before clipping",
            vec![Series::new("norm", of(|r| r.gradient_norm))],
        )
        .svg(),
        lines("Learning rate", "", vec![Series::new("rate", of(|r| r.learning_rate))]).svg(),
    ]
}

fn routing(test: &[LayerHealth], train: &[TrainRecord]) -> Vec<String> {
    let mut figures = Vec::new();
    for layer in test {
        let experts = layer.load.len();
        figures.push(
            Bars {
                title: format!("Load of the experts in block {}", layer.block),
                x_label: "expert".to_owned(),
                y_label: "% of assignments".to_owned(),
                labels: (0..experts).map(|expert| expert.to_string()).collect(),
                groups: vec![(
                    "test images".to_owned(),
                    layer.load.iter().map(|load| 100.0 * load).collect(),
                )],
                reference: Some(("balanced".to_owned(), 100.0 / experts.max(1) as f64)),
            }
            .svg(),
        );
    }
    let over_time = |title: &str, y_label: &str, value: fn(&LayerHealth) -> f64| {
        let series = test.iter().enumerate().map(|(place, layer)| {
            let point = |r: &TrainRecord| Some((r.step as f64, value(r.routing.get(place)?)));
            Series::new(format!("block {}", layer.block), train.iter().filter_map(point).collect())
        });
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        let series = series.collect();
        Lines { title, x_label: "step".to_owned(), y_label, series, ..Lines::default() }.svg()
    };
    figures.push(over_time("Busiest expert in training", "× balanced load", |l| l.peak_load));
    figures.push(over_time("Choices without room in training", "%", |l| 100.0 * l.dropped_share));
    figures.push(over_time("Entropy of the gates in training", "nats", |l| l.gate_entropy));
    figures
}

/// A matrix of more classes cannot be read.
const MOST_CLASSES: usize = 50;

/// The confusion matrix; of many classes, those that take part in most mistakes.
fn confusion(test: &Evaluation, classes: &[String]) -> String {
    let mut shown: Vec<usize> = (0..classes.len()).collect();
    let mut title = "Confusion".to_owned();
    if classes.len() > MOST_CLASSES {
        let mut mistakes = vec![0; classes.len()];
        for ((label, predicted), count) in &test.confusion {
            if label != predicted {
                mistakes[*label] += count;
                mistakes[*predicted] += count;
            }
        }
        shown.sort_by_key(|class| std::cmp::Reverse(mistakes[*class]));
        shown.truncate(MOST_CLASSES);
        shown.sort_unstable();
        title = format!("Confusion among the {MOST_CLASSES} classes with most mistakes");
    }
    let count =
        |row: usize, column: usize| *test.confusion.get(&(row, column)).unwrap_or(&0) as f64;
    let names: Vec<String> = shown.iter().map(|class| classes[*class].clone()).collect();
    let row = |row: &usize| shown.iter().map(|column| count(*row, *column)).collect();
    HeatMap {
        title,
        row_label: "it is".to_owned(),
        column_label: "the model says".to_owned(),
        rows: names.clone(),
        columns: names,
        values: shown.iter().map(row).collect(),
    }
    .svg()
}

fn about(recipe: &Recipe, trained: &Trained, result: &TrainingResult) -> Vec<Vec<String>> {
    let environment = Environment::now();
    let millions = |count: f64| format!("{:.2} M", count / 1e6);
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let plan = &trained.plan;
    vec![
        row("data", recipe.data.name.clone()),
        row(
            "images",
            format!(
                "{} to learn from, {} held out, {} for the test",
                plan.train_images, plan.validation_images, plan.test_images
            ),
        ),
        row("parameters", millions(plan.parameters as f64)),
        row("multiply-adds per image", millions(plan.multiply_adds as f64)),
        row("steps", format!("{} of {} images", result.steps, recipe.train.batch)),
        row("seed", recipe.seed.to_string()),
        row(
            "made with",
            format!(
                "omma {}{}, {} threads, {}",
                environment.version,
                environment.commit.map(|commit| format!(" ({commit})")).unwrap_or_default(),
                environment.threads,
                environment.processor.unwrap_or(environment.system),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_confusion_of_many_classes_stays_small() {
        let classes: Vec<String> = (0..21_841).map(|class| format!("class {class}")).collect();
        let mut test = Evaluation::default();
        for class in 0..3_000 {
            test.confusion.insert((class, class), 9);
        }
        test.confusion.insert((20_000, 7), 5);
        let svg = confusion(&test, &classes);
        assert!(svg.len() < 1_000_000 && svg.contains("class 20000") && svg.contains("class 7"));
    }
}
