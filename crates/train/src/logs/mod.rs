//! What a run writes down as it goes: `metrics.jsonl`, `summary.csv`, TensorBoard events.

mod tensorboard;

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
};

use serde::{Deserialize, Serialize};

use self::tensorboard::EventFile;
use crate::{
    error::{Result, TrainError},
    health::LayerHealth,
    run::RunFolder,
};

/// A log interval of training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainRecord {
    /// Steps taken.
    pub step: u64,
    /// Passes over the training images.
    pub epoch: f64,
    /// Mean loss with the routers' own losses.
    pub loss: f64,
    /// The routers' own part of it.
    pub auxiliary_loss: f64,
    /// Share of training images that the model got right before it learned from them.
    pub accuracy: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Norm of the gradient before it was clipped.
    pub gradient_norm: f64,
    /// Images per second in this interval.
    pub images_per_second: f64,
    /// Every layer with experts.
    pub routing: Vec<LayerHealth>,
}

/// An evaluation on held-out images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Steps taken.
    pub step: u64,
    /// Passes over the training images.
    pub epoch: f64,
    /// Seconds of training so far.
    pub seconds: f64,
    /// Share of the images that the model got right.
    pub accuracy: f64,
    /// Mean negative log-likelihood.
    pub nll: f64,
}

/// A line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// A log interval of training.
    Train(TrainRecord),
    /// An evaluation.
    Evaluation(EvaluationRecord),
}

impl Record {
    fn step(&self) -> u64 {
        match self {
            Self::Train(record) => record.step,
            Self::Evaluation(record) => record.step,
        }
    }

    /// Names and values for TensorBoard; at most four series per layer with experts.
    fn scalars(&self) -> Vec<(String, f64)> {
        let own = |name: &str, value: f64| (name.to_owned(), value);
        match self {
            Self::Train(record) => {
                let mut all = vec![
                    own("train/loss", record.loss),
                    own("train/auxiliary_loss", record.auxiliary_loss),
                    own("train/accuracy", record.accuracy),
                    own("train/learning_rate", record.learning_rate),
                    own("train/gradient_norm", record.gradient_norm),
                    own("train/images_per_second", record.images_per_second),
                ];
                for layer in &record.routing {
                    let name = |what: &str| format!("routing/block{}/{what}", layer.block);
                    all.push((name("peak_load"), layer.peak_load));
                    all.push((name("dropped_share"), layer.dropped_share));
                    all.push((name("dead_experts"), layer.dead as f64));
                    all.push((name("gate_entropy"), layer.gate_entropy));
                }
                all
            }
            Self::Evaluation(record) => {
                vec![own("validation/accuracy", record.accuracy), own("validation/nll", record.nll)]
            }
        }
    }
}

const METRICS: &str = "metrics.jsonl";
const SUMMARY: &str = "summary.csv";

/// The logs of a run.
pub struct Logs {
    run: RunFolder,
    lines: File,
    events: EventFile,
    summary: Vec<EvaluationRecord>,
}

impl Logs {
    /// Goes on after `step`: what was logged later is forgotten, because it will happen again.
    pub fn open(run: &RunFolder, step: u64) -> Result<Self> {
        let records = read_records(run);
        let kept: Vec<Record> = records.into_iter().filter(|r| r.step() <= step).collect();
        let text: String = kept.iter().map(line).collect();
        run.write(METRICS, text)?;
        let path = run.file(METRICS);
        let lines = OpenOptions::new().append(true).open(&path).map_err(TrainError::io(&path))?;
        let evaluation = |record| match record {
            Record::Evaluation(record) => Some(record),
            Record::Train(_) => None,
        };
        let summary = kept.into_iter().filter_map(evaluation).collect();
        Ok(Self { run: run.clone(), lines, events: EventFile::create(run.path())?, summary })
    }

    /// Writes a record everywhere it belongs.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        let fault = TrainError::io(self.run.file(METRICS));
        self.lines.write_all(line(record).as_bytes()).map_err(fault)?;
        self.events.add(record.step(), &record.scalars())?;
        if let Record::Evaluation(record) = record {
            self.summary.push(record.clone());
            let mut text = "step,epoch,seconds,validation_accuracy,validation_nll\n".to_owned();
            for EvaluationRecord { step, epoch, seconds, accuracy, nll } in &self.summary {
                text += &format!("{step},{epoch:.4},{seconds:.1},{accuracy:.6},{nll:.6}\n");
            }
            self.run.write(SUMMARY, text)?;
        }
        Ok(())
    }
}

/// All records of a run; a line that was cut off by a kill is left out.
pub fn read_records(run: &RunFolder) -> Vec<Record> {
    let text = fs::read_to_string(run.file(METRICS)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).expect("a record can be written") + "\n"
}
