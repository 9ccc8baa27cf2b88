//! A run as it is seen at the terminal: a bar, or plain lines where there is no terminal.

use std::{io::IsTerminal, time::Instant};

use indicatif::{ProgressBar, ProgressStyle};
use omma_base::text::visible;
use omma_eval::routing::LayerHealth;
use omma_train::{
    Measure, Observer, Outline, TaskScores,
    logs::{EvaluationRecord, StretchRecord, TrainRecord},
    run::Progress,
};

use crate::table::{clock, grouped, note, short};

/// Seconds between two plain lines.
const QUIET: f64 = 10.0;

/// Shows a run on standard error.
pub(crate) struct TrainingProgress {
    bar: Option<ProgressBar>,
    steps: u64,
    measures: &'static [Measure],
    /// Images that evaluations on the way are on.
    held_out: usize,
    /// Step and moment of the last plain line, and of the start.
    started: (u64, Instant),
    last_line: Instant,
    warned: Vec<String>,
}

impl TrainingProgress {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(0));
        let started = (0, now);
        Self {
            bar,
            steps: 0,
            measures: &[],
            held_out: 0,
            started,
            last_line: now,
            warned: Vec::new(),
        }
    }

    /// A line that stays.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(visible(text)),
            None => note(text),
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
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
        self.say(&format!(
            "{} classes; {} images to learn from, {}, {} for the test",
            grouped(outline.classes as u64),
            grouped(outline.train_images as u64),
            match outline.validation_images {
                0 => "none held out".to_owned(),
                held => format!("{} held out to choose the best checkpoint", grouped(held as u64)),
            },
            grouped(outline.test_images as u64),
        ));
        self.say(&format!(
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
        if let Some(bar) = &self.bar {
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}");
            if let Ok(style) = style {
                bar.set_style(style.progress_chars("━╸─"));
            }
            bar.set_length(outline.steps);
            bar.set_position(progress.step);
        }
    }

    fn extended(&mut self, record: &StretchRecord) {
        let before = match record.learning_rate_before {
            Some(rate) => format!(", after {rate:.3e}"),
            None => String::new(),
        };
        self.say(&format!(
            "extended after step {} ({}): the schedule is that of {} steps now, and the learning rate goes on \
             at {:.3e}{before}",
            grouped(record.step),
            record.changes.join(", "),
            grouped(record.steps),
            record.learning_rate
        ));
    }

    fn step(&mut self, step: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        }
    }

    fn logged(&mut self, record: &TrainRecord) {
        let text = format!(
            "loss {:.3}  {}  {:.0} images/s  {} left{}",
            record.loss,
            self.shown(&record.scores),
            record.images_per_second,
            self.remaining(record.step),
            health(&record.routing)
        );
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None if self.last_line.elapsed().as_secs_f64() >= QUIET
                || record.step == self.steps =>
            {
                self.last_line = Instant::now();
                note(format!("step {}/{}  {text}", record.step, self.steps));
            }
            None => {}
        }
        // The first steps of a router say nothing yet.
        if record.step * 10 < self.steps {
            return;
        }
        for warning in record.routing.iter().filter_map(LayerHealth::warning) {
            let about = warning.split(':').next().unwrap_or_default().to_owned();
            if !self.warned.contains(&about) {
                self.say(&format!("warning: {warning}"));
                self.warned.push(about);
            }
        }
    }

    fn evaluated(&mut self, record: &EvaluationRecord) {
        self.say(&format!(
            "step {}: held-out {} on {} images",
            record.step,
            self.shown(&record.scores),
            grouped(self.held_out as u64)
        ));
    }

    fn counting(&mut self, what: &str, done: usize, of: usize) {
        match &self.bar {
            Some(bar) if done < of => {
                bar.set_length(of as u64);
                bar.set_position(done as u64);
                bar.set_message(format!("{what} …"));
            }
            Some(bar) => {
                bar.set_length(self.steps);
                bar.set_position(self.started.0);
                bar.set_message(String::new());
            }
            None if self.last_line.elapsed().as_secs_f64() >= QUIET || done == 0 || done == of => {
                self.last_line = Instant::now();
                note(format!("{what}: {}/{} images", grouped(done as u64), grouped(of as u64)));
            }
            None => {}
        }
        // What comes is judged by its own speed.
        self.started.1 = Instant::now();
    }

    fn note(&mut self, text: &str) {
        self.say(text);
    }

    fn doing(&mut self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{what} …")),
            None => tracing::info!("{what}"),
        }
    }
}
