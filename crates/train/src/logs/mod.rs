//! What a run writes down as it goes: `metrics.jsonl`, `summary.csv`, TensorBoard events.

mod tensorboard;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use omma_base::{fault, files::write_atomically};
use omma_eval::routing::LayerHealth;
use serde::{Deserialize, Serialize};

use self::tensorboard::EventFile;
use crate::{
    error::{Result, TrainError},
    run::RunFolder,
    task::TaskScores,
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
    /// The task's scores of the training images, before the model learned from them.
    #[serde(flatten)]
    pub scores: TaskScores,
    /// The learning rate.
    pub learning_rate: f64,
    /// Norm of the gradient before it was clipped, of steps that were taken.
    pub gradient_norm: f64,
    /// Where gradients travel in `f16`: what losses are multiplied by for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScaleRecord>,
    /// Images per second in this interval.
    pub images_per_second: f64,
    /// What several ranks had to say to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub communication: Option<CommunicationRecord>,
    /// What crossed between memory and a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<TransferRecord>,
    /// Every layer with experts.
    pub routing: Vec<LayerHealth>,
}

/// What losses are multiplied by before they run backwards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScaleRecord {
    /// At the end of the interval.
    pub scale: f32,
    /// Steps of the interval that were not taken, because a gradient did not fit into half precision.
    pub skipped: u64,
}

/// What a step of several ranks sends, as rank 0 saw it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CommunicationRecord {
    /// How many ranks there were.
    pub ranks: usize,
    /// Bytes that a rank sent to others per step.
    pub bytes: f64,
    /// Seconds per step until everything was there, waiting for slower ranks included.
    pub seconds: f64,
    /// Seconds per step that sums of gradients were waited for when everything was computed; runs of earlier versions
    /// do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited: Option<f64>,
    /// What of that is about experts on several ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertTrafficRecord>,
}

/// Rows that go to experts on other ranks, and back, forwards and backwards; the rest of a step's bytes are sums.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExpertTrafficRecord {
    /// Ranks that have all experts between them.
    pub ranks: usize,
    /// Bytes that a rank sent to others per step.
    pub bytes: f64,
    /// Seconds per step until everything was there.
    pub seconds: f64,
    /// The busiest rank's rows relative to the mean of all, in the layer where that is most.
    pub peak_load: f64,
}

/// What a step moves between memory and the device that it computes on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TransferRecord {
    /// Bytes per step to the device.
    pub to_device: f64,
    /// Bytes per step from it.
    pub from_device: f64,
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
    /// The task's scores.
    #[serde(flatten)]
    pub scores: TaskScores,
}

/// Where a run that was extended begins its new stretch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StretchRecord {
    /// Steps taken before it.
    pub step: u64,
    /// Steps of the run, at its end.
    pub steps: u64,
    /// The learning rate of the last step before it; nothing where there was none.
    pub learning_rate_before: Option<f64>,
    /// That of its first step.
    pub learning_rate: f64,
    /// What is new in the recipe, a setting each.
    pub changes: Vec<String>,
}

/// Where a run goes on on another device than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Steps taken before it.
    pub step: u64,
    /// Where it goes on.
    pub device: String,
    /// Where it was trained before.
    pub before: String,
}

/// A line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    /// A log interval of training.
    Train(TrainRecord),
    /// An evaluation.
    Evaluation(EvaluationRecord),
    /// The beginning of a new stretch.
    Stretch(StretchRecord),
    /// Another device.
    Device(DeviceRecord),
}

impl Record {
    fn step(&self) -> u64 {
        match self {
            Self::Train(record) => record.step,
            Self::Evaluation(record) => record.step,
            Self::Stretch(record) => record.step,
            Self::Device(record) => record.step,
        }
    }

    /// Names and values for TensorBoard; at most four series per layer with experts, and five per modality of it.
    fn scalars(&self) -> Vec<(String, f64)> {
        let own = |name: &str, value: f64| (name.to_owned(), value);
        match self {
            Self::Train(record) => {
                let mut all = vec![
                    own("train/loss", record.loss),
                    own("train/auxiliary_loss", record.auxiliary_loss),
                    own("train/learning_rate", record.learning_rate),
                    own("train/gradient_norm", record.gradient_norm),
                    own("train/images_per_second", record.images_per_second),
                ];
                if let Some(scale) = &record.loss_scale {
                    all.push(own("train/loss_scale", f64::from(scale.scale)));
                    all.push(own("train/skipped_steps", scale.skipped as f64));
                }
                if let Some(communication) = &record.communication {
                    all.push(own("train/communication_seconds", communication.seconds));
                    if let Some(experts) = &communication.experts {
                        all.push(own("train/expert_rank_peak_load", experts.peak_load));
                    }
                }
                if let Some(transfer) = &record.transfer {
                    all.push(own("train/bytes_to_device", transfer.to_device));
                    all.push(own("train/bytes_from_device", transfer.from_device));
                }
                let score = |(key, value)| (format!("train/{key}"), value);
                all.extend(record.scores.iter().map(score));
                for layer in &record.routing {
                    let name = |what: &str| format!("routing/block{}/{what}", layer.block);
                    all.push((name("peak_load"), layer.peak_load));
                    all.push((name("dropped_share"), layer.dropped_share));
                    all.push((name("dead_experts"), layer.dead as f64));
                    all.push((name("gate_entropy"), layer.gate_entropy));
                    for one in &layer.modalities {
                        let name = |what: &str| name(&format!("{}/{what}", one.name()));
                        all.push((name("success_rate"), one.success_rate()));
                        all.push((name("local_entropy"), one.local_entropy));
                        all.push((name("global_entropy"), one.global_entropy));
                        all.push((name("experts"), one.experts));
                        all.push((name("largest_gate"), one.largest_gate));
                    }
                }
                all
            }
            Self::Evaluation(record) => {
                let score = |(key, value)| (format!("validation/{key}"), value);
                record.scores.iter().map(score).collect()
            }
            Self::Stretch(_) | Self::Device(_) => Vec::new(),
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
    /// The last line that begins a stretch.
    stretch: Vec<u8>,
}

impl Logs {
    /// Goes on after `step`: what was logged later is forgotten, because it will happen again. Lines that
    /// stay keep their bytes.
    pub fn open(run: &RunFolder, step: u64) -> Result<Self> {
        let path = run.file(METRICS);
        let text = read(&path)?;
        let mut kept = Vec::new();
        let mut summary = Vec::new();
        let mut stretch = Vec::new();
        let mut unreadable = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                // Cut off by a kill.
                _ if !line.ends_with(b"\n") => continue,
                Ok(record) if Record::step(&record) > step => continue,
                Ok(Record::Evaluation(record)) => summary.push(record),
                Ok(Record::Stretch(_)) => stretch = line.to_vec(),
                Ok(Record::Train(_) | Record::Device(_)) => {}
                Err(_) => unreadable += 1,
            }
            kept.extend_from_slice(line);
        }
        if unreadable > 0 {
            tracing::warn!(
                "{}: {unreadable} lines are damaged; they stay as they are",
                path.display()
            );
        }
        let fault = || TrainError::io(&path);
        // Shortening a file needs no room on the disk.
        if text.starts_with(&kept) {
            let file = OpenOptions::new().create(true).append(true).open(&path).map_err(fault())?;
            file.set_len(kept.len() as u64).map_err(fault())?;
        } else {
            write_atomically(&path, |temporary| fs::write(temporary, &kept)).map_err(fault())?;
        }
        let lines = OpenOptions::new().append(true).open(&path).map_err(fault())?;
        let events = EventFile::create(run.path())?;
        Ok(Self { run: run.clone(), lines, events, summary, stretch })
    }

    /// Writes that a stretch begins, unless that is written already: a run may be killed and go on here any
    /// number of times.
    pub fn begin_stretch(&mut self, record: &StretchRecord) -> Result<()> {
        let record = Record::Stretch(record.clone());
        if self.stretch != line(&record).as_bytes() {
            self.add(&record)?;
            self.stretch = line(&record).into_bytes();
        }
        Ok(())
    }

    /// Writes a record everywhere it belongs.
    pub fn add(&mut self, record: &Record) -> Result<()> {
        let failed = || TrainError::io(self.run.file(METRICS));
        fault::point("metrics.jsonl:append").map_err(failed())?;
        self.lines.write_all(line(record).as_bytes()).map_err(failed())?;
        self.events.add(record.step(), &record.scalars())?;
        if let Record::Evaluation(record) = record {
            self.summary.push(record.clone());
            self.run.write(SUMMARY, table(&self.summary))?;
        }
        Ok(())
    }
}

/// `summary.csv`: a column for every score.
fn table(records: &[EvaluationRecord]) -> String {
    let keys: BTreeSet<&str> =
        records.iter().flat_map(|record| record.scores.iter().map(|(key, _)| key)).collect();
    let mut text = "step,epoch,seconds".to_owned();
    keys.iter().for_each(|key| text += &format!(",validation_{key}"));
    for EvaluationRecord { step, epoch, seconds, scores } in records {
        text += &format!("\n{step},{epoch:.4},{seconds:.1}");
        let value =
            |key: &&str| scores.get(key).map_or(String::new(), |value| format!("{value:.6}"));
        keys.iter().for_each(|key| text += &format!(",{}", value(key)));
    }
    text + "\n"
}

/// All records of a run; a line that was cut off by a kill, or is damaged, is left out.
pub fn read_records(run: &RunFolder) -> Result<Vec<Record>> {
    let text = read(&run.file(METRICS))?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The bytes of a log, which may not have been begun.
fn read(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        text => text.map_err(TrainError::io(path)),
    }
}

fn line(record: &Record) -> String {
    serde_json::to_string(record).expect("a record can be written") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        recipe::{Recipe, Request},
        run::Place,
    };

    fn evaluation(step: u64) -> Record {
        // A mean of three hundredths has 17 digits.
        let scores = TaskScores::from_iter([("accuracy", 0.1 + 0.2 * step as f64), ("nll", 1e-7)]);
        Record::Evaluation(EvaluationRecord { step, epoch: 0.1, seconds: 1.0, scores })
    }

    #[test]
    fn lines_of_earlier_versions_are_read() {
        let line = r#"{"kind":"evaluation","step":20,"epoch":1.0,"seconds":0.2,"accuracy":0.15,"nll":2.3}"#;
        let Ok(Record::Evaluation(record)) = serde_json::from_str(line) else { panic!("{line}") };
        assert_eq!((record.step, record.scores.get("accuracy")), (20, Some(0.15)));
        assert_eq!(
            table(&[record]),
            "step,epoch,seconds,validation_accuracy,validation_nll\n20,1.0000,0.2,0.150000,2.300000\n"
        );
    }

    #[test]
    fn lines_keep_their_bytes_and_are_cut_at_the_last_whole_one() {
        let folder = tempfile::tempdir().unwrap();
        let recipe = Recipe::find("default", &Request::default()).unwrap();
        let run = RunFolder::create(Place::At(folder.path()), &recipe).unwrap();
        let mut logs = Logs::open(&run, 0).unwrap();
        (1..=4).for_each(|step| logs.add(&evaluation(step)).unwrap());
        drop(logs);
        let path = run.file(METRICS);
        let whole = fs::read(&path).unwrap();
        for _ in 0..3 {
            drop(Logs::open(&run, 4).unwrap());
            assert_eq!(fs::read(&path).unwrap(), whole, "a resume changes nothing");
        }
        assert_eq!(read_records(&run).unwrap(), (1..=4).map(evaluation).collect::<Vec<_>>());
        // A byte that is no text in line 2, and half a line at the end.
        let mut damaged = [&whole[..], b"{\"kind\":\"evalu"].concat();
        let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 5;
        damaged[second] = 0xff;
        fs::write(&path, &damaged).unwrap();
        let logs = Logs::open(&run, 4).unwrap();
        assert_eq!(fs::read(&path).unwrap(), damaged[..whole.len()]);
        assert_eq!(logs.summary.len(), 3);
        drop(logs);
        drop(Logs::open(&run, 3).unwrap());
        assert_eq!(read_records(&run).unwrap(), [evaluation(1), evaluation(3)]);
    }
}
