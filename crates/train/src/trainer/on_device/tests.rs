//! Runs on a device beside runs on the host. The device is Flex, which has the operations of any other.

use std::{fs, path::Path};

use burn::tensor::Device;
use safetensors::SafeTensors;

use super::*;
use crate::{
    Recipe,
    error::TrainError,
    logs::{Record, TrainRecord, read_records},
    run::{Place, Progress, RunFolder, State},
    start::Resume,
    trainer::{Ended, LossScale, Observer, Shards, Stop, Trainer},
};

const MIXTURE: &str = "model.preset = 'vmoe-tiny'\nmixing.mixup = 0.2\ntrain.ema = 0.9\ntrain.shards = 2\n\
    model.moe = { placement = '1', experts = 4, hidden = 16, dropout = 0.1 }\n\
    train.accumulation = 2\noptimiser.kind = 'big-vision-adafactor'\noptimiser.factor_from = 8";
const DENSE: &str = "model.preset = 'vit-tiny'\ntrain.freeze = 'embed,0'";
const SOFT: &str = "model.preset = 'softmoe-tiny'\nmodel.moe = { placement = '1', experts = 4, hidden = 16 }\n\
    optimiser.kind = 'lamb'";
const PAIRS: &str = "task = 'contrast'\nmodel.preset = 'limoe-tiny'\nmodel.moe.placement = '1'\n\
    model.embedding = 8\nmodel.text = { vocabulary = 200, length = 8 }\ntrain.accumulation = 2";
const SMALL: &str = "model.resolution = 16\nmodel.width = 16\nmodel.depth = 2\nmodel.heads = 2\nmodel.mlp = 32\n\
    model.patch = 4\ndata.train_samples = 80\ndata.test_samples = 20\ntrain.steps = 8\ntrain.batch = 16\n\
    train.linear_baseline = false\ntrain.test_share = 0.0\ntrain.log_every = 1\ntrain.checkpoint_every = 4\n\
    optimiser.learning_rate = 0.01";

struct Nobody;
impl Observer for Nobody {}

/// Stops a run after a step.
struct Until<'a>(u64, &'a Stop);
impl Observer for Until<'_> {
    fn step(&mut self, step: u64) {
        if step == self.0 {
            self.1.place().store(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

fn start(run: &Path, text: &str, settings: &[&str]) -> Trainer {
    let recipe = Recipe::parse(&format!("{text}\n{SMALL}"), "test".as_ref(), settings).unwrap();
    let resolved = Resolved::new(recipe, &Device::flex()).unwrap();
    Trainer::start(Place::At(run), resolved).unwrap()
}

fn resume(run: &Path) -> Trainer {
    Trainer::resume(run, Resume::default(), &Device::flex()).unwrap()
}

/// A trainer that keeps everything on its device.
fn on_device(mut trainer: Trainer) -> Trainer {
    trainer.stepper.on_device = Some(OnDevice::default());
    trainer.stepper.shards = Shards::on_device();
    trainer
}

/// On the host, and on a device.
const PLACES: [fn(Trainer) -> Trainer; 2] = [|trainer| trainer, on_device];

fn finish(trainer: Trainer) {
    let ended = trainer.run(&mut Nobody, &Stop::default()).unwrap();
    assert!(matches!(ended, Ended::Finished(_)));
}

fn interrupt(trainer: Trainer, after: u64) {
    let stop = Stop::default();
    let ended = trainer.run(&mut Until(after, &stop), &stop).unwrap();
    assert!(matches!(ended, Ended::Interrupted { .. }));
}

/// The weights of a run's end and what is beside them, and what was logged of its steps.
fn left_by(run: &Path) -> (Vec<(String, Vec<f32>)>, Vec<TrainRecord>) {
    left_by_steps(run, 8)
}

fn left_by_steps(run: &Path, steps: u64) -> (Vec<(String, Vec<f32>)>, Vec<TrainRecord>) {
    let state = format!("checkpoints/step-{steps:08}/state.safetensors");
    (values_of(run, &["model.safetensors", &state]), train_records(run))
}

/// The weights of the checkpoint after a step and what is beside them, and what was logged.
fn left_by_checkpoint(run: &Path, step: u64) -> (Vec<(String, Vec<f32>)>, Vec<TrainRecord>) {
    let file = |name: &str| format!("checkpoints/step-{step:08}/{name}.safetensors");
    let [model, state] = ["model", "state"].map(file);
    (values_of(run, &[&model, &state]), train_records(run))
}

fn values_of(run: &Path, files: &[&str]) -> Vec<(String, Vec<f32>)> {
    let mut values = Vec::new();
    for file in files {
        let bytes = fs::read(run.join(file)).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let floats = tensor.data().chunks_exact(4);
            let floats = floats.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            values.push((name.to_owned(), floats.collect()));
        }
    }
    values.sort_by(|(a, _): &(String, Vec<f32>), (b, _)| a.cmp(b));
    values
}

fn train_records(run: &Path) -> Vec<TrainRecord> {
    let of = |record| match record {
        Record::Train(record) => Some(record),
        _ => None,
    };
    let records = read_records(&RunFolder::open(run).unwrap().0).unwrap();
    records.into_iter().filter_map(of).collect()
}

/// Whether two runs have learned the same, within what rounding makes of it.
fn assert_alike(found: &Path, expected: &Path) {
    let (found, found_records) = left_by(found);
    let (expected, records) = left_by(expected);
    assert_eq!(found.len(), expected.len());
    for ((name, found), (other, expected)) in found.iter().zip(&expected) {
        assert_eq!(name, other);
        assert_eq!(found.len(), expected.len(), "{name}");
        // The bias of keys has no gradient but rounding, of which optimisers make steps as long as any.
        if name.contains("qkv_bias") {
            continue;
        }
        let size = expected.iter().fold(1e-3_f32, |size, value| size.max(value.abs()));
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= 2e-3 * size, "{name}: {a} is not {b}");
        }
    }
    assert_eq!(found_records.len(), records.len());
    for (a, b) in found_records.iter().zip(&records) {
        assert!((a.loss - b.loss).abs() < 1e-3, "step {}: {} is not {}", a.step, a.loss, b.loss);
        let (norm, other) = (a.gradient_norm, b.gradient_norm);
        assert!((norm - other).abs() < 1e-2 * other, "step {}: {norm} is not {other}", a.step);
        assert_eq!(a.learning_rate, b.learning_rate);
        assert_eq!(a.routing.len(), b.routing.len());
    }
}

#[test]
fn a_run_on_a_device_learns_what_one_on_the_host_does() {
    for text in [MIXTURE, DENSE, SOFT, PAIRS] {
        let folder = tempfile::tempdir().unwrap();
        let [host, device] = ["host", "device"].map(|name| folder.path().join(name));
        finish(start(&host, text, &[]));
        finish(on_device(start(&device, text, &[])));
        assert_alike(&device, &host);
        let (_, records) = left_by(&host);
        assert!(records.iter().all(|record| record.transfer.is_none()));
        let (_, records) = left_by(&device);
        assert!(records.iter().all(|record| record.transfer.is_some()));
    }
}

/// On the host and on a device. A contrast divides by a temperature, which makes more of rounding.
#[test]
fn a_run_in_half_precision_learns_what_one_in_single_precision_does() {
    for (text, tolerances) in
        [(MIXTURE, [0.004, 0.001]), (SOFT, [0.004, 0.001]), (PAIRS, [0.05, 0.01])]
    {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("f32");
        finish(start(&whole, text, &[]));
        let (weights, records) = left_by(&whole);
        for (precision, tolerance) in ["bf16", "f16"].into_iter().zip(tolerances) {
            let setting = format!("train.precision={precision}");
            for place in PLACES {
                let run = tempfile::tempdir_in(folder.path()).unwrap();
                let mut trainer = place(start(run.path(), text, &[&setting]));
                if let Some(scale) = &mut trainer.stepper.loss_scale {
                    // One that all of them bear from their first step on.
                    scale.scale = 256.0;
                }
                finish(trainer);
                let (own, found) = left_by(run.path());
                assert_ne!(own, weights, "{precision} is not f32");
                assert_eq!(found.len(), records.len());
                for (a, b) in found.iter().zip(&records) {
                    let off = (a.loss - b.loss).abs() / b.loss;
                    assert!(off < tolerance, "{precision}, step {}: off by {off}", a.step);
                    assert_eq!(a.loss_scale.is_some(), precision == "f16");
                }
            }
        }
    }
}

/// A scale that gradients cannot bear at first.
fn too_large(mut trainer: Trainer) -> Trainer {
    trainer.stepper.loss_scale = Some(LossScale { scale: 2.0_f32.powi(30), borne: 7 });
    trainer
}

fn progress(run: &Path, step: u64) -> Progress {
    let folder = run.join(format!("checkpoints/step-{step:08}"));
    let (_, weights) = omma_model::checkpoint::load_identified(&folder, &Device::flex()).unwrap();
    State::load(&folder, step, &weights).unwrap().progress
}

#[test]
fn steps_that_do_not_fit_into_half_precision_are_skipped_and_counted() {
    for place in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let settings = ["train.precision=f16", "train.steps=4"];
        let trainer = place(too_large(start(&run, MIXTURE, &settings)));
        let before = trainer.stepper.host_weights().into_owned().values;
        finish(trainer);
        let (_, records) = left_by_steps(&run, 4);
        let scales = records.iter().map(|record| record.loss_scale.unwrap());
        let scales: Vec<_> = scales.map(|scale| (scale.scale.log2(), scale.skipped)).collect();
        assert_eq!(scales, [(29.0, 1), (28.0, 1), (27.0, 1), (26.0, 1)]);
        let Progress { step, skipped, loss_scale, .. } = progress(&run, 4);
        let scale = LossScale { scale: 2.0_f32.powi(26), borne: 0 };
        assert_eq!((step, skipped, loss_scale), (4, 4, Some(scale)));
        let after = resume(&run).stepper;
        assert_eq!((after.weights.values, after.optimiser.steps()), (before, 0));
    }
}

#[test]
fn the_loss_scale_survives_where_a_run_goes_on() {
    for place in PLACES {
        let folder = tempfile::tempdir().unwrap();
        let [whole, again] = ["whole", "again"].map(|name| folder.path().join(name));
        let settings = ["train.precision=f16", "train.steps=24", "train.checkpoint_every=12"];
        finish(place(too_large(start(&whole, MIXTURE, &settings))));
        interrupt(place(too_large(start(&again, MIXTURE, &settings))), 3);
        assert_eq!(progress(&again, 3).skipped, 3);
        interrupt(place(resume(&again)), 18);
        finish(place(resume(&again)));
        let (expected, found) = (left_by_steps(&whole, 24), left_by_steps(&again, 24));
        assert_eq!(found.0, expected.0);
        let scales = |records: &[TrainRecord]| -> Vec<_> {
            records.iter().map(|record| record.loss_scale).collect()
        };
        assert_eq!(scales(&found.1), scales(&expected.1));
        let Progress { skipped, loss_scale, .. } = progress(&again, 24);
        assert_eq!(
            (skipped, loss_scale),
            (progress(&whole, 24).skipped, progress(&whole, 24).loss_scale)
        );
        assert!((4..20).contains(&skipped), "{skipped}");
        assert_eq!(resume(&again).stepper.optimiser.steps(), 24 - skipped);
    }
}

#[test]
fn a_run_goes_on_in_another_precision() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    interrupt(too_large(start(&run, MIXTURE, &["train.precision=f16"])), 3);
    let setting = ["train.precision=f32".to_owned()];
    let (trainer, _) = Trainer::extend(&run, &setting, Resume::default(), &Device::flex()).unwrap();
    assert!(trainer.stepper.loss_scale.is_none());
    assert_eq!(trainer.stepper.optimiser.steps(), 0);
    finish(trainer);
    assert_eq!(progress(&run, 8).skipped, 3);
}

#[test]
fn a_run_changes_to_a_device_and_back_where_it_goes_on() {
    for text in [MIXTURE, DENSE] {
        let folder = tempfile::tempdir().unwrap();
        let [whole, to, from] = ["whole", "to", "from"].map(|name| folder.path().join(name));
        finish(start(&whole, text, &[]));
        interrupt(start(&to, text, &[]), 3);
        finish(on_device(resume(&to)));
        assert_alike(&to, &whole);
        interrupt(on_device(start(&from, text, &[])), 3);
        finish(resume(&from));
        assert_alike(&from, &whole);
    }
}

#[test]
fn a_run_on_a_device_that_is_killed_and_goes_on_there_ends_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, again] = ["whole", "again"].map(|name| folder.path().join(name));
    finish(on_device(start(&whole, MIXTURE, &[])));
    interrupt(on_device(start(&again, MIXTURE, &[])), 5);
    finish(on_device(resume(&again)));
    assert_eq!(left_by(&again).0, left_by(&whole).0);
}

/// A step of a dense model: pixels and targets in; one row of logits per image, the loss and the norm out.
#[test]
fn a_step_moves_the_batch_in_and_a_few_numbers_out() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = "model.preset = 'vit-tiny'\ntrain.ema = 0.9";
    finish(on_device(start(&run, text, &[])));
    let (_, records) = left_by(&run);
    let classes = 10;
    // The first step moves what the optimiser remembers and the average: once.
    for record in &records[1..] {
        let transfer = record.transfer.unwrap();
        assert_eq!(transfer.to_device, (16 * (16 * 16 * 3 + classes) * 4) as f64);
        assert_eq!(transfer.from_device, ((16 * classes + 2) * 4) as f64);
    }
}

/// With experts, the gates come out once per layer, and the plan goes in.
#[test]
fn experts_move_their_gates_out_and_their_plan_in() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = "model.preset = 'vmoe-tiny'\n\
        model.moe = { placement = '1', experts = 4, hidden = 16, noise = 0.0, k = 1, losses = [] }";
    finish(on_device(start(&run, text, &[])));
    let (_, records) = left_by(&run);
    // A class token beside every image's patches.
    let (tokens, experts, classes) = (16 * (16 + 1), 4, 10);
    for record in &records[1..] {
        let transfer = record.transfer.unwrap();
        assert_eq!(transfer.from_device, ((tokens * experts + 16 * classes + 2) * 4) as f64);
    }
}

#[test]
fn a_run_that_diverges_on_a_device_says_so_before_a_bad_step_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let settings = [
        "optimiser.learning_rate=10",
        "optimiser.kind=sgd",
        "optimiser.clip_norm=0",
        "train.checkpoint_every=1",
        "train.keep=8",
    ];
    let trainer = on_device(start(&run, DENSE, &settings));
    let Err(TrainError::Diverged { why, layers, last_good }) =
        trainer.run(&mut Nobody, &Stop::default())
    else {
        panic!("a learning rate of 10 is too much");
    };
    assert!(why.contains("training has diverged"), "{why}");
    assert!(layers.contains("blocks.1") && layers.lines().count() > 2, "{layers}");
    // Every step before the bad one was logged and saved, with finite values only.
    let folder = RunFolder::open(&run).unwrap().0;
    let saved = folder.checkpoints().steps().unwrap();
    let last = *saved.last().unwrap();
    assert_eq!(saved, (1..=last).collect::<Vec<_>>());
    assert!(why.contains(&format!("step {} ", last + 1)), "{why}");
    assert!(last_good.contains(&format!("(after step {last})")), "{last_good}");
    let (values, records) = left_by_checkpoint(&run, last);
    assert!(values.iter().flat_map(|(_, values)| values).all(|value| value.is_finite()));
    assert_eq!(records.iter().map(|record| record.step).collect::<Vec<_>>(), saved);
    assert!(records.iter().all(|it| it.loss.is_finite() && it.gradient_norm.is_finite()));
}
