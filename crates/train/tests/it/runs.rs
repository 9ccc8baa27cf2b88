//! Runs of one process: checkpoints, the best of them, and logs.

use std::{collections::BTreeSet, fs, path::Path, sync::atomic::Ordering};

use burn::tensor::Device;
use omma_train::{
    Ended, Observer, Outline, Recipe, Resolved, Resume, Stop, Trainer,
    logs::{EvaluationRecord, Record, TrainRecord, read_records},
    run::{Best, Place, Progress, RunFolder},
};

/// A small mixture with dropout, whose settings are completed by each test.
const SMALL: &str = "model.preset = 'vmoe-tiny'\nmodel.resolution = 16\nmodel.patch = 8\n\
    model.width = 16\nmodel.depth = 2\nmodel.heads = 2\nmodel.mlp = 32\n\
    model.moe = { placement = '1', experts = 4, hidden = 16, dropout = 0.1 }\n\
    data.train_samples = 80\ndata.test_samples = 10\ntrain.batch = 8\ntrain.test_share = 0.0\n\
    train.linear_baseline = false\ntrain.checkpoint_minutes = 0";

/// Events of a run, which it stops after a step.
#[derive(Default)]
struct Events {
    stop: Stop,
    stop_after: Option<u64>,
    train_images: usize,
    saved: Vec<u64>,
    evaluated: Vec<u64>,
}

impl Observer for Events {
    fn started(&mut self, outline: &Outline, _: &Progress) {
        self.train_images = outline.train_images;
    }

    fn step(&mut self, step: u64) {
        if self.stop_after == Some(step) {
            self.stop.place().store(1, Ordering::Relaxed);
        }
    }

    fn evaluated(&mut self, record: &EvaluationRecord) {
        self.evaluated.push(record.step);
    }

    fn saved(&mut self, step: u64) {
        self.saved.push(step);
    }
}

fn start(run: &Path, settings: &[&str]) -> Trainer {
    let recipe = Recipe::parse(SMALL, "test".as_ref(), settings).unwrap();
    let resolved = Resolved::new(recipe, &Device::flex()).unwrap();
    Trainer::start(Place::At(run), resolved).unwrap()
}

fn finish(trainer: Trainer) -> Events {
    let mut events = Events::default();
    let ended = trainer.run(&mut events, &Stop::default()).unwrap();
    assert!(matches!(ended, Ended::Finished(_)));
    events
}

fn interrupt(trainer: Trainer, after: u64) {
    let mut events = Events { stop_after: Some(after), ..Events::default() };
    let stop = events.stop.clone();
    let ended = trainer.run(&mut events, &stop).unwrap();
    assert!(matches!(ended, Ended::Interrupted { step, .. } if step == after));
}

fn resume(run: &Path) -> Trainer {
    Trainer::resume(run, Resume::default(), &Device::flex()).unwrap()
}

fn records(run: &Path) -> Vec<Record> {
    read_records(&RunFolder::open(run).unwrap().0).unwrap()
}

fn train_records(run: &Path) -> Vec<TrainRecord> {
    let train = |record| match record {
        Record::Train(record) => Some(record),
        _ => None,
    };
    records(run).into_iter().filter_map(train).collect()
}

#[test]
fn best_checkpoint_is_the_first_with_the_highest_score_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let settings = [
        "train.steps=10",
        "train.evaluate_every=1",
        "train.checkpoint_every=1",
        "train.keep=1",
        "data.validation=0.4",
        "optimiser.learning_rate=0.03",
        "schedule.warmup=0",
    ];
    let events = finish(start(&run, &settings));
    assert_eq!(events.saved, (1..=10).collect::<Vec<_>>());
    let score = |record| match record {
        Record::Evaluation(record) => {
            Some(Best { step: record.step, score: record.scores.get("accuracy").unwrap() })
        }
        _ => None,
    };
    let scores: Vec<Best> = records(&run).into_iter().filter_map(score).collect();
    assert_eq!(scores.iter().map(|it| it.step).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    let highest = scores.iter().map(|it| it.score).fold(f64::MIN, f64::max);
    let best = *scores.iter().find(|it| it.score == highest).unwrap();
    assert!(scores[0].score < highest && scores[9].score < highest, "{scores:?}");
    let checkpoints = RunFolder::open(&run).unwrap().0.checkpoints();
    assert_eq!(checkpoints.best().unwrap(), Some(best));
    assert_eq!(checkpoints.steps().unwrap(), [best.step, 10]);
    let result = fs::read(run.join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    let expected = serde_json::json!({ "step": best.step, "score": best.score });
    assert_eq!(result["best_validation"], expected);
    assert!(checkpoints.at(best.step).join("state.safetensors").is_file());
}

#[test]
fn checkpoint_minutes_save_between_evaluations_once_they_have_passed() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, settings: &[&str]| {
        let common = ["train.steps=5", "train.checkpoint_every=0", "train.evaluate_every=3"];
        finish(start(&folder.path().join(name), &[&common[..], settings].concat()))
    };
    let often = run("often", &["train.checkpoint_minutes=1e-6", "data.validation=0.1"]);
    assert_eq!((often.saved, often.evaluated), (vec![1, 2, 3, 4, 5], vec![3, 5]));
    let rarely = run("rarely", &["train.checkpoint_minutes=1000", "data.validation=0"]);
    assert_eq!((rarely.saved, rarely.evaluated), (vec![5], vec![]));
    let never = run("never", &["train.checkpoint_minutes=0", "data.validation=0"]);
    assert_eq!(never.saved, [5]);
}

const LOGGED: [&str; 3] = ["train.steps=10", "data.validation=0", "mixing.mixup=0.2"];

#[test]
fn log_line_of_an_interval_has_the_means_of_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let run = |log_every: &str| {
        let path = folder.path().join(log_every);
        let events = finish(start(&path, &[&LOGGED[..], &[log_every]].concat()));
        (train_records(&path), events.train_images)
    };
    let (steps, images) = run("train.log_every=1");
    let (intervals, _) = run("train.log_every=4");
    assert_eq!(steps.len(), 10);
    assert_eq!(intervals.iter().map(|it| it.step).collect::<Vec<_>>(), [4, 8, 10]);
    let rates: BTreeSet<u64> = steps.iter().map(|it| it.learning_rate.to_bits()).collect();
    assert!(rates.len() > 5, "the rate changes within an interval");
    for (record, steps) in intervals.iter().zip(steps.chunks(4)) {
        let mean = |value: fn(&TrainRecord) -> f64| {
            steps.iter().map(value).sum::<f64>() / steps.len() as f64
        };
        let accuracy: fn(&TrainRecord) -> f64 = |it| it.scores.get("accuracy").unwrap();
        let entropy: fn(&TrainRecord) -> f64 = |it| it.routing[0].gate_entropy;
        let pairs = [
            ("loss", record.loss, mean(|it| it.loss)),
            ("auxiliary_loss", record.auxiliary_loss, mean(|it| it.auxiliary_loss)),
            ("gradient_norm", record.gradient_norm, mean(|it| it.gradient_norm)),
            ("accuracy", accuracy(record), mean(accuracy)),
            ("gate_entropy", entropy(record), mean(entropy)),
            ("learning_rate", record.learning_rate, steps.last().unwrap().learning_rate),
            ("epoch", record.epoch, record.step as f64 * 8.0 / images as f64),
        ];
        for (name, found, expected) in pairs {
            assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{name} at {record:?}");
        }
        assert!(record.images_per_second > 0.0);
    }
}

/// Train records without their times.
fn timeless(run: &Path) -> Vec<TrainRecord> {
    let timeless = |record| TrainRecord { images_per_second: 0.0, ..record };
    train_records(run).into_iter().map(timeless).collect()
}

#[test]
fn resumed_run_logs_the_values_of_an_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [&LOGGED[..], &["train.log_every=4", "train.ema=0.9"]].concat();
    let whole = folder.path().join("whole");
    finish(start(&whole, &settings));
    let expected = timeless(&whole);
    assert_eq!(expected.len(), 3);
    // At the end of an interval, in the middle of one, and twice in another.
    for steps in [&[4][..], &[6], &[1, 3], &[9]] {
        let run = folder.path().join(format!("{steps:?}"));
        interrupt(start(&run, &settings), steps[0]);
        steps[1..].iter().for_each(|step| interrupt(resume(&run), *step));
        finish(resume(&run));
        assert_eq!(timeless(&run), expected, "interrupted after {steps:?}");
    }
}
