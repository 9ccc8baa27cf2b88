//! The page at the end of a run: what every task has, around what its task shows.

mod modalities;

use omma_eval::routing::LayerHealth;
use omma_report::{Bars, Figure, Lines, Page, Series};

use crate::{
    error::Result,
    logs::{DeviceRecord, EvaluationRecord, Record, StretchRecord, TrainRecord, read_records},
    recipe::Recipe,
    resolved::Resolved,
    run::{Environment, Origin, RunFolder},
    task::{Measure, Unit},
    trainer::{Outline, TrainingResult},
};

/// Curves, expert load and the task's own sections of a run, as one HTML document.
pub(crate) fn report(
    run: &RunFolder,
    resolved: &Resolved,
    outline: &Outline,
    result: &TrainingResult,
    sections: impl FnOnce(Page) -> Page,
) -> Result<String> {
    let (mut train, mut evaluations, mut stretches) = (Vec::new(), Vec::new(), Vec::new());
    for record in read_records(run)? {
        match record {
            Record::Train(record) => train.push(record),
            Record::Evaluation(record) => evaluations.push(record),
            Record::Stretch(record) => {
                // One that was given up before its first checkpoint did not happen.
                stretches.retain(|earlier: &StretchRecord| earlier.step != record.step);
                stretches.push(record);
            }
            // What is said of these is in the result.
            Record::Device(_) => {}
        }
    }
    let recipe = &resolved.recipe;
    let mut page = Page::new(format!("Ommatidia: {}", recipe.name), recipe.about.clone())
        .facts(facts(result))
        .section("Learning");
    if let Some(text) = resolved.task.about_learning() {
        page = page.text(&text);
    }
    if let Some(Origin { run, step, .. }) = &result.cooldown_of {
        page = page.text(&format!(
            "A cooldown of {}: it began with the weights that this had after step {step}, and with what its \
             optimiser remembered.",
            run.display()
        ));
    }
    for record in &stretches {
        page = page.text(&extended(run, record));
    }
    for DeviceRecord { step, device, before } in &result.device_changes {
        page = page
            .text(&format!("Trained on {before} until step {step}, and on {device} from there."));
    }
    page = page.figures(curves(outline.measures, &train, &evaluations, &stretches));
    if !result.routing.is_empty() {
        page = page
            .section("Experts")
            .text(
                "How the test images' tokens are spread over the experts of each layer, and how that \
                 came to be. A balanced layer has every bar at the dashed line.",
            )
            .figures(routing(&result.routing, &train));
    }
    page = modalities::section(page, recipe, &train);
    let page = sections(page).section("Run").table(&["", ""], &about(recipe, outline, result));
    Ok(page.html())
}

fn facts(result: &TrainingResult) -> Vec<(&'static str, String, String)> {
    let own = result.facts.iter().map(|fact| (fact.name, fact.value.clone(), fact.note.clone()));
    let mut facts: Vec<_> = own.collect();
    let minutes = result.train_seconds / 60.0;
    let speed = format!("{:.0} images/s", result.images_per_second);
    facts.push(("training", format!("{minutes:.1} min"), speed));
    if let Some(bytes) = result.peak_rss_bytes {
        let gigabytes = format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64);
        facts.push(("memory", gigabytes, "at most".to_owned()));
    }
    facts
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Where a run was extended, in words.
fn extended(run: &RunFolder, record: &StretchRecord) -> String {
    let StretchRecord { step, steps, learning_rate, changes, .. } = record;
    let before = record.learning_rate_before;
    let before = before.map_or(String::new(), |rate| format!(", after {rate:.3e}"));
    let page = format!("report-{step}.html");
    let stood = match run.file(&page).exists() {
        true => format!(" {page} shows what it had reached by then."),
        false => String::new(),
    };
    format!(
        "The run was extended after step {step}, to {steps} steps ({}). Its learning rate goes on at \
         {learning_rate:.3e}{before}.{stood}",
        changes.join(", ")
    )
}

/// A dashed line up the height of other series, where a stretch begins.
fn mark(record: &StretchRecord, series: &[Series]) -> Series {
    let heights = series.iter().flat_map(|one| &one.points).map(|(_, y)| *y);
    let heights: Vec<f64> = heights.filter(|y| y.is_finite()).collect();
    let low = heights.iter().copied().fold(f64::INFINITY, f64::min);
    let high = heights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let at = record.step as f64;
    let name = format!("extended after step {}", record.step);
    Series { dashed: true, ..Series::new(name, vec![(at, low), (at, high)]) }
}

/// A figure for every share, one for all losses, and those of the optimiser.
fn curves(
    measures: &[Measure],
    train: &[TrainRecord],
    evaluations: &[EvaluationRecord],
    stretches: &[StretchRecord],
) -> Vec<Figure> {
    let of = |value: fn(&TrainRecord) -> f64| {
        train.iter().map(|r| (r.step as f64, value(r))).collect::<Vec<_>>()
    };
    let held_out = |key: &str, factor: f64| -> Vec<(f64, f64)> {
        let point = |r: &EvaluationRecord| Some((r.step as f64, factor * r.scores.get(key)?));
        evaluations.iter().filter_map(point).collect()
    };
    let lines = |title: &str, y_label: &str, caption: &str, mut series: Vec<Series>| {
        let marks: Vec<Series> = stretches.iter().map(|record| mark(record, &series)).collect();
        series.extend(marks);
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        let lines =
            Lines { title, x_label: "step".to_owned(), y_label, series, ..Lines::default() };
        Figure::from((lines.svg(), caption))
    };
    let mut figures = Vec::new();
    for measure in measures.iter().filter(|measure| measure.unit == Unit::Share) {
        let trained =
            train.iter().filter_map(|r| Some((r.step as f64, 100.0 * r.scores.get(measure.key)?)));
        let series = vec![
            Series::new("training", trained.collect()),
            Series::new("held out", held_out(measure.key, 100.0)),
        ];
        let caption =
            "Images held out from training choose the checkpoint; a gap that grows is overfitting.";
        figures.push(lines(&capitalised(measure.title), "%", caption, series));
    }
    let mut losses = vec![
        Series::new("training", of(|r| r.loss)),
        Series::new("of which routers", of(|r| r.auxiliary_loss)),
    ];
    let in_nats = measures.iter().filter(|measure| measure.unit == Unit::Nats);
    losses.extend(in_nats.map(|measure| Series::new("held out", held_out(measure.key, 1.0))));
    let caption = "What training makes small, the part that the routers pay for balance, and the same on held-out images.";
    figures.push(lines("Loss", "nats", caption, losses));
    let norm = vec![Series::new("norm", of(|r| r.gradient_norm))];
    let caption =
        "How large a step the loss asks for; peaks are batches that the model was surprised by.";
    figures.push(lines("Gradient norm", "before clipping", caption, norm));
    let rate = vec![Series::new("rate", of(|r| r.learning_rate))];
    figures.push(lines(
        "Learning rate",
        "",
        "The schedule: a warm-up, then down to its end.",
        rate,
    ));
    figures
}

fn routing(test: &[LayerHealth], train: &[TrainRecord]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for layer in test {
        let experts = layer.load.len();
        let bars = Bars {
            title: format!("Load of the experts in block {}", layer.block),
            x_label: "expert".to_owned(),
            y_label: "% of assignments".to_owned(),
            labels: (0..experts).map(|expert| expert.to_string()).collect(),
            groups: vec![(
                "test images".to_owned(),
                layer.load.iter().map(|load| 100.0 * load).collect(),
            )],
            reference: Some(("balanced".to_owned(), 100.0 / experts.max(1) as f64)),
            errors: Vec::new(),
        };
        let caption = "The share of the tokens' choices that each expert serves.";
        figures.push(Figure::from((bars.svg(), caption)));
    }
    let over_time = |title: &str, y_label: &str, caption: &str, value: fn(&LayerHealth) -> f64| {
        let series = test.iter().enumerate().map(|(place, layer)| {
            let point = |r: &TrainRecord| Some((r.step as f64, value(r.routing.get(place)?)));
            Series::new(format!("block {}", layer.block), train.iter().filter_map(point).collect())
        });
        let (title, y_label) = (title.to_owned(), y_label.to_owned());
        let series = series.collect();
        let lines =
            Lines { title, x_label: "step".to_owned(), y_label, series, ..Lines::default() };
        Figure::from((lines.svg(), caption))
    };
    let caption = "1 is a balanced layer; as many as there are experts is one that has collapsed.";
    figures.push(over_time("Busiest expert in training", "× balanced load", caption, |l| {
        l.peak_load
    }));
    let caption = "Choices of experts that were full: these tokens pass the layer without them.";
    let dropped = |l: &LayerHealth| 100.0 * l.dropped_share;
    figures.push(over_time("Choices without room in training", "%", caption, dropped));
    let caption = "How undecided the routers are: 0 where one expert has it all.";
    figures
        .push(over_time("Entropy of the gates in training", "nats", caption, |l| l.gate_entropy));
    figures
}

fn about(recipe: &Recipe, outline: &Outline, result: &TrainingResult) -> Vec<Vec<String>> {
    let environment = Environment::now(result.device.clone());
    let millions = |count: f64| format!("{:.2} M", count / 1e6);
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    vec![
        row("data", recipe.data.name.clone()),
        row(
            "images",
            format!(
                "{} to learn from, {} held out, {} for the test",
                outline.train_images, outline.validation_images, outline.test_images
            ),
        ),
        row("parameters", millions(outline.parameters as f64)),
        row("multiply-adds per image", millions(outline.multiply_adds as f64)),
        row("steps", format!("{}, {} images each", result.steps, recipe.train.batch)),
        row("seed", recipe.seed.to_string()),
        row(
            "made with",
            format!(
                "omma {}{}, {}, {} threads, {}",
                environment.version,
                environment.commit.map(|commit| format!(" ({commit})")).unwrap_or_default(),
                environment.device,
                environment.threads,
                environment.processor.unwrap_or(environment.system),
            ),
        ),
    ]
}
