//! Trainings on several ranks beside one process.

mod experts;
mod optimiser;
mod overlap;

use std::{collections::BTreeMap, fs, path::Path, sync::atomic::Ordering};

use burn::tensor::Device;
use omma_ranks::threads;
use omma_train::{
    Ended, Follower, Observer, Recipe, Resolved, Resume, Stop, Trainer, lead,
    logs::{Record, read_records},
    meet,
    run::{Place, RunFolder},
    same_data,
};
use safetensors::{SafeTensors, tensor::TensorView};

/// A small mixture with everything that has a state.
const SMALL: &str = "model.preset = 'vmoe-tiny'\nmodel.resolution = 16\nmodel.patch = 4\nmodel.width = 16\nmodel.depth = 2\nmodel.heads = 2\n\
    model.mlp = 32\nmodel.moe = { placement = '1', experts = 4, hidden = 24, dropout = 0.1 }\n\
    data.train_samples = 120\ndata.test_samples = 30\ndata.validation = 0.2\ntrain.batch = 16\ntrain.shards = 4\ntrain.log_every = 5\n\
    train.evaluate_every = 10\ntrain.linear_baseline = false\ntrain.ema = 0.9";
const STEPS: &str = "train.steps=20";

/// Tensors by name.
type Tensors = BTreeMap<String, Vec<f32>>;

/// Stops a run after a step.
struct After(u64, Stop);

impl Observer for After {
    fn step(&mut self, step: u64) {
        if step == self.0 {
            self.1.place().store(1, Ordering::Relaxed);
        }
    }
}

fn recipe(settings: &[&str]) -> Recipe {
    Recipe::parse(SMALL, "test".as_ref(), settings).unwrap()
}

/// Trains on so many ranks until a step, from the start or from where the run is.
fn train(ranks: usize, settings: &[&str], run: &Path, until: u64) {
    threads(ranks, |world| {
        let device = Device::flex();
        let stop = Stop::default();
        let goes_on = run.exists();
        // Nobody looks before all have.
        world.shared(());
        let asked = match goes_on {
            true => None,
            false => Some(recipe(&[&[STEPS], settings].concat())),
        };
        let met = meet(&world, Ok(asked)).unwrap();
        let resolved = met.map(|recipe| same_data(&world, Resolved::new(recipe, &device)).unwrap());
        if !world.leads() {
            return Follower::join(world, &device).unwrap().unwrap().run(&stop);
        }
        let trainer = match resolved {
            Some(resolved) => Trainer::start(Place::At(run), resolved),
            None => Trainer::resume(run, Resume::default(), &device),
        };
        let trainer = lead(world, trainer).unwrap();
        let ended = trainer.run(&mut After(until, stop.clone()), &stop).unwrap();
        assert_eq!(matches!(ended, Ended::Finished(_)), until > 20);
    });
}

/// Two ranks whose run diverges both come to an end, and rank 0 says why.
fn assert_divergence_ends_all_ranks(setting: &str) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let said = threads(2, |world| {
        let device = Device::flex();
        let settings = [STEPS, setting, "optimiser.learning_rate=1e6", "optimiser.clip_norm=0"];
        let recipe = meet(&world, Ok(Some(recipe(&settings)))).unwrap().unwrap();
        let resolved = same_data(&world, Resolved::new(recipe, &device)).unwrap();
        let stop = Stop::default();
        if !world.leads() {
            Follower::join(world, &device).unwrap().unwrap().run(&stop);
            return String::new();
        }
        let trainer = lead(world, Trainer::start(Place::At(&run), resolved)).unwrap();
        let Err(error) = trainer.run(&mut After(99, stop.clone()), &stop) else {
            panic!("it does not diverge")
        };
        error.to_string()
    });
    assert!(said[0].contains("training has diverged"), "{}", said[0]);
}

/// Tensors of a file, and what shape each has.
fn tensors(path: &Path) -> (Tensors, BTreeMap<String, Vec<usize>>) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |tensor: &TensorView| {
        let bytes = tensor.data().chunks_exact(4);
        bytes.map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let values = file.iter().map(|(name, tensor)| (name.to_owned(), floats(&tensor)));
    let shapes = file.iter().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec()));
    (values.collect(), shapes.collect())
}

fn records(run: &Path) -> Vec<Record> {
    read_records(&RunFolder::open(run).unwrap().0).unwrap()
}

/// Losses, and scores on held-out images.
fn scores(run: &Path) -> Vec<f64> {
    let of = |record: Record| match record {
        Record::Train(record) => vec![record.loss, record.gradient_norm],
        Record::Evaluation(record) => record.scores.iter().map(|(_, value)| value).collect(),
        Record::Stretch(_) | Record::Device(_) => Vec::new(),
    };
    records(run).into_iter().flat_map(of).collect()
}

/// All that the last checkpoint of a run has.
fn last(run: &Path) -> [Tensors; 2] {
    let step = fs::read_dir(run.join("checkpoints")).unwrap();
    let step = step.map(|entry| entry.unwrap().path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
    });
    let step = step.max().unwrap();
    ["model.safetensors", "state.safetensors"].map(|file| tensors(&step.join(file)).0)
}

fn assert_same_bits(one: &Path, other: &Path, what: &str) {
    for (own, others) in last(one).into_iter().zip(last(other)) {
        assert!(!own.is_empty() && own.keys().eq(others.keys()), "{what}");
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let same = |(name, values): (&String, &Vec<f32>)| bits(values) == bits(&others[name]);
        assert!(own.iter().all(same), "{what}");
    }
}
