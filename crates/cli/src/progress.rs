//! A run as it is seen at the terminal.

use std::time::Instant;

use omma_eval::routing::{CollapseWatch, LayerHealth};
use omma_train::{
    Measure, Observer, Outline, TaskScores,
    logs::{EvaluationRecord, StretchRecord, TrainRecord},
    run::Progress,
};

use crate::{
    screen::Activity,
    table::{clock, grouped, note, rate, short},
};

/// Shows a run on standard error.
pub(crate) struct TrainingProgress {
    /// The steps, or what comes before them.
    activity: Activity,
    /// What takes time between steps.
    aside: Option<Activity>,
    steps: u64,
    measures: &'static [Measure],
    /// Images that evaluations on the way are on.
    held_out: usize,
    /// Step and moment of the start.
    started: (u64, Instant),
    warned: Vec<String>,
    collapses: CollapseWatch,
}

impl TrainingProgress {
    pub(crate) fn new() -> Self {
        let activity = Activity::new("opening the data and the model");
        let started = (0, Instant::now());
        let (aside, warned, collapses) = (None, Vec::new(), CollapseWatch::default());
        Self { activity, aside, steps: 0, measures: &[], held_out: 0, started, warned, collapses }
    }

    /// TaskScores in words.
    fn shown(&self, scores: &TaskScores) -> String {
        let shown = self.measures.iter().filter_map(|measure| {
            Some(format!("{} {}", measure.title, measure.show(scores.get(measure.key)?)))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    fn remaining(&self, step: u64) -> String {
        let (from, since) = self.started;
        let done = step.saturating_sub(from).max(1);
        clock(since.elapsed().as_secs_f64() / done as f64 * (self.steps - step) as f64)
    }
}

/// Load, dropped share and dead experts, the worst of all layers.
fn health(layers: &[LayerHealth]) -> String {
    if layers.is_empty() {
        return String::new();
    }
    let worst = |of: fn(&LayerHealth) -> f64| layers.iter().map(of).fold(0.0, f64::max);
    let dead: usize = layers.iter().map(|layer| layer.dead).sum();
    format!(
        "  load {:.1}×  dropped {:.1} %  dead {dead}",
        worst(|layer| layer.peak_load),
        100.0 * worst(|layer| layer.dropped_share)
    )
}

impl Observer for TrainingProgress {
    fn started(&mut self, outline: &Outline, progress: &Progress) {
        self.steps = outline.steps;
        self.measures = outline.measures;
        self.held_out = outline.validation_images;
        self.started = (progress.step, Instant::now());
        let classes = match outline.classes {
            0 => String::new(),
            classes => format!("{} classes; ", grouped(classes as u64)),
        };
        note(format!(
            "{classes}{} images to learn from, {}, {} for the test",
            grouped(outline.train_images as u64),
            match outline.validation_images {
                0 => "none held out".to_owned(),
                held => format!("{} held out to choose the best checkpoint", grouped(held as u64)),
            },
            grouped(outline.test_images as u64),
        ));
        note(format!(
            "{} parameters{}, {} multiply-adds per image; {} steps{}; about {}",
            short(outline.parameters as u64),
            match outline.learning == outline.parameters {
                true => String::new(),
                false => format!(", of which {} learn", short(outline.learning as u64)),
            },
            short(outline.multiply_adds),
            grouped(outline.steps),
            match progress.step {
                0 => String::new(),
                step => format!(", going on after step {}", grouped(step)),
            },
            outline.memory.in_words()
        ));
        self.activity = Activity::counted("step", "step", progress.step, outline.steps);
    }

    fn extended(&mut self, record: &StretchRecord) {
        let before = match record.learning_rate_before {
            Some(rate) => format!(", after {rate:.3e}"),
            None => String::new(),
        };
        note(format!(
            "extended after step {} ({}): the schedule is that of {} steps now, and the learning rate goes on \
             at {:.3e}{before}",
            grouped(record.step),
            record.changes.join(", "),
            grouped(record.steps),
            record.learning_rate
        ));
    }

    fn step(&mut self, step: u64) {
        self.aside = None;
        self.activity.reach(step, None);
    }

    fn logged(&mut self, record: &TrainRecord) {
        let text = format!(
            "loss {:.3}  {}  {}  {} left{}",
            record.loss,
            self.shown(&record.scores),
            rate(record.images_per_second, "image"),
            self.remaining(record.step),
            health(&record.routing)
        );
        // The end stays.
        if record.step == self.steps {
            note(format!("step {0}/{0}  {text}", record.step));
        }
        self.activity.reach(record.step, Some(text));
        // The first steps of a router say nothing yet.
        if record.step * 10 < self.steps {
            return;
        }
        for warning in self.collapses.seen(&record.routing) {
            note(format!("warning: {warning}"));
        }
        for warning in record.routing.iter().filter_map(LayerHealth::warning) {
            let about = warning.split(':').next().unwrap_or_default().to_owned();
            if !self.warned.contains(&about) {
                note(format!("warning: {warning}"));
                self.warned.push(about);
            }
        }
    }

    fn evaluated(&mut self, record: &EvaluationRecord) {
        self.aside = None;
        note(format!(
            "step {}: held-out {} on {} images",
            record.step,
            self.shown(&record.scores),
            grouped(self.held_out as u64)
        ));
    }

    fn counting(&mut self, what: &str, done: usize, of: usize) {
        if done == 0 {
            self.aside = Some(Activity::counted(what, "image", 0, of as u64));
        }
        if let Some(aside) = &self.aside {
            aside.reach(done as u64, None);
        }
        if done >= of {
            self.aside = None;
        }
        // What comes is judged by its own speed.
        self.started.1 = Instant::now();
    }

    fn note(&mut self, text: &str) {
        note(text);
    }

    fn doing(&mut self, what: &str) {
        self.aside = Some(Activity::new(what));
    }
}
