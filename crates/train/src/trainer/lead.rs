//! Several ranks that train one model: what they make sure of first, and what rank 0 says to the others.
//!
//! Rank 0 has the [`Trainer`]: it reads and writes the run, evaluates, and hears the wish to stop. The others are
//! [followers](super::Follower), which know no more of a run than its next step.

use std::{collections::BTreeSet, fs::File, io::Read};

use omma_model::{checkpoint::TOKENIZER, parameter_values};
use omma_ranks::World;
use serde::{Deserialize, Serialize};

use super::{
    Average, Trainer, Weights,
    agree::agree,
    experts::{ExpertRanks, Piece, check_device},
    stepper::{At, share},
};
use crate::{
    error::{Result, TrainError},
    recipe::{Recipe, recipe_error},
    resolved::Resolved,
    run::{DataIdentity, Environment, Progress},
};

/// What rank 0 says to the others.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Order {
    /// To get ready for the examples from a step on.
    Feed { step: u64 },
    /// To take a step.
    Step(At),
    /// To help rank 0 judge the model, on the images of the test or on those that were held out.
    Judge { test: bool },
    /// To give rank 0 its part of something that is saved.
    Give(Piece),
    /// To end.
    End,
}

/// What a run is, for those who have not read it.
#[derive(Serialize, Deserialize)]
pub(super) struct Opening {
    /// As TOML.
    pub(super) recipe: String,
    pub(super) data: DataIdentity,
    /// Where it is.
    pub(super) progress: Progress,
    /// Of a model that reads.
    pub(super) tokenizer: Option<String>,
}

/// Makes sure that all ranks are the same program, and that they were asked for the same recipe, which they can share.
///
/// - `asked`: the recipe of a new run; nothing where rank 0 goes on with one
pub fn meet(world: &World, asked: Result<Option<Recipe>>) -> Result<Option<Recipe>> {
    if world.is_alone() {
        return asked;
    }
    let machines = world.shared(world.machine());
    let differs = |rank: usize, what: String| {
        let what = format!("rank {rank} on {} {what}", machines[rank]);
        TrainError::OnRank { what, diverged: false }
    };
    let programs = world.shared(program());
    if let Some(rank) = (1..world.size()).find(|rank| programs[*rank] != programs[0]) {
        let what = format!("is another program ({}) than rank 0 ({})", programs[rank], programs[0]);
        return Err(differs(rank, what));
    }
    let asked = agree(world, asked)?;
    let recipes = world.shared(asked.as_ref().map(Recipe::to_toml));
    if let Some(rank) = (1..world.size()).find(|rank| recipes[*rank] != recipes[0]) {
        return Err(differs(rank, different_recipes(&recipes[rank], &recipes[0])));
    }
    if let Some(recipe) = &asked {
        share(world, recipe.train.shards)?;
    }
    Ok(asked)
}

/// The recipe with everything that it names, where all ranks have found the same images.
pub fn same_data(world: &World, resolved: Result<Resolved>) -> Result<Resolved> {
    let resolved = agree(world, resolved)?;
    let own = DataIdentity::of(&resolved.data);
    let of_leader = world.told(world.leads().then(|| own.clone()));
    agree(world, expect_data(&of_leader, &own))?;
    Ok(resolved)
}

/// Fails where a rank has not the images of rank 0.
pub(super) fn expect_data(of_leader: &DataIdentity, own: &DataIdentity) -> Result<()> {
    match own == of_leader {
        true => Ok(()),
        false => Err(recipe_error(format!("it has {own}; rank 0 has {of_leader}"))),
    }
}

/// Version and checksum of the program that runs.
fn program() -> String {
    let checksum = || -> std::io::Result<u32> {
        let mut file = File::open(std::env::current_exe()?)?;
        let (mut checksum, mut part) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut part)? {
                0 => return Ok(checksum.finalize()),
                count => checksum.update(&part[..count]),
            }
        }
    };
    // A program that was replaced while it runs can still be told by its version.
    let checksum = checksum().map_or("unreadable".to_owned(), |sum| format!("{sum:08x}"));
    format!("omma {}, checksum {checksum}", env!("CARGO_PKG_VERSION"))
}

fn different_recipes(other: &Option<String>, of_leader: &Option<String>) -> String {
    let read = |text: &Option<String>| Recipe::parse_saved(text.as_ref()?, "recipe".as_ref()).ok();
    match (read(other), read(of_leader)) {
        (Some(other), Some(leader)) => {
            let said = |(key, other, leader): (String, String, String)| {
                format!("{key} is {other} there and {leader} on rank 0")
            };
            let differences: Vec<String> =
                other.differences(&leader).into_iter().take(3).map(said).collect();
            format!("was asked for another recipe: {}", differences.join(", "))
        }
        _ => "was asked for something else than rank 0".to_owned(),
    }
}

/// Takes others along: what rank 0 is going to train, or why it is not.
pub fn lead<E: From<TrainError>>(world: World, built: Result<Trainer, E>) -> Result<Trainer, E> {
    if world.is_alone() {
        return built;
    }
    world.told(Some(built.as_ref().ok().map(Trainer::opening)));
    Ok(built?.among(world)?)
}

impl Trainer {
    fn opening(&self) -> Opening {
        let files = self.resolved.task.files();
        let tokenizer = files.into_iter().find(|(name, _)| *name == TOKENIZER);
        Opening {
            recipe: self.recipe().to_toml(),
            data: self.identity.clone(),
            progress: self.progress,
            tokenizer: tokenizer.map(|(_, text)| text),
        }
    }

    /// The same on several ranks, which get the weights and what the optimiser remembers.
    fn among(mut self, world: World) -> Result<Self> {
        let asked = self.recipe().train.expert_parallel;
        // First what each can find out by itself, then what ranks have to say to each other for it.
        agree(&world, share(&world, self.recipe().train.shards).map(|_| ()))?;
        let spread = ExpertRanks::groups(&world, asked).map(|groups| {
            check_device(&self.resolved.device)?;
            let model = self.stepper.model.clone().spread_over(&groups.0)?;
            Ok::<_, TrainError>((ExpertRanks::new(&world, groups, &model), model))
        });
        let spread = agree(&world, spread.transpose())?;
        for value in parameter_values(&self.stepper.model) {
            world.broadcast(value.read());
        }
        for memory in self.stepper.optimiser.memories() {
            memory.vectors.iter().for_each(|vector| _ = world.broadcast(vector.clone()));
        }
        for values in self.average.iter().flat_map(|average| &average.values) {
            world.broadcast(values.clone());
        }
        let on = match &spread {
            Some((experts, _)) => format!(", experts on {} of them", experts.group.size()),
            None => String::new(),
        };
        let experts = spread.map(|(experts, model)| {
            let stepper = &mut self.stepper;
            let before = std::mem::replace(
                &mut stepper.weights,
                Weights::learning(&model, &stepper.freezing),
            );
            stepper.model = model;
            let weights = &stepper.weights;
            stepper.optimiser =
                experts.own_memory(&self.resolved.recipe, weights, &stepper.optimiser);
            if let Some(Average { values, .. }) = &mut self.average {
                for (values, parameter) in values.iter_mut().zip(&before.parameters) {
                    *values = experts.own_part(&parameter.name, values);
                }
            }
            experts
        });
        self.stepper = self.stepper.among(world.clone(), experts, &self.resolved.recipe)?;
        let machines: BTreeSet<String> = world.shared(world.machine()).into_iter().collect();
        let (ranks, machines) = (world.size(), machines.len());
        self.resolved.notes.push(format!(
            "{ranks} ranks on {machines} machine{}{on}, {} of {} shards each; rank 0 has {} thread{}",
            plural(machines),
            self.recipe().train.shards / ranks,
            self.recipe().train.shards,
            rayon::current_num_threads(),
            plural(rayon::current_num_threads())
        ));
        let environment = Environment { ranks, ..Environment::now(self.device.clone()) };
        self.run.write_json("environment.json", &environment)?;
        Ok(self)
    }

    /// Says to all ranks what is done next.
    pub(super) fn order(&self, order: Order) {
        if !self.stepper.world.is_alone() {
            self.stepper.world.told(Some(order));
        }
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use burn::tensor::Device;
    use omma_ranks::threads;
    use safetensors::{SafeTensors, tensor::TensorView};

    use super::*;
    use crate::{
        logs::{Record, read_records},
        run::{Place, RunFolder},
        task::TaskScores,
        trainer::{Ended, Follower, Observer, Stop},
    };

    const MIXTURE: &str = "model.preset = 'vmoe-tiny'\nmodel.moe = { placement = '1', experts = 4, hidden = 16, dropout = 0.1 }\n\
        model.patch = 8\nmixing.mixup = 0.2\ntrain.ema = 0.9";
    const PAIRS: &str = "task = 'contrast'\nmodel.preset = 'limoe-tiny'\nmodel.moe.placement = '1'\nmodel.patch = 4\nmodel.embedding = 8\n\
        model.text = { vocabulary = 200, length = 8 }";
    const SMALL: &str = "model.resolution = 16\nmodel.width = 16\nmodel.depth = 2\nmodel.heads = 2\nmodel.mlp = 32\n\
        data.train_samples = 60\ndata.test_samples = 10\ntrain.steps = 4\ntrain.batch = 16\ntrain.shards = 4\n\
        train.accumulation = 2\ntrain.linear_baseline = false\ntrain.test_share = 0.0";

    /// Tensors by name.
    type State = BTreeMap<String, Vec<u8>>;

    struct Nobody;
    impl Observer for Nobody {}

    fn recipe(text: &str, settings: &[&str]) -> Recipe {
        Recipe::parse(&format!("{text}\n{SMALL}"), "test".as_ref(), settings).unwrap()
    }

    /// The files of a run's last checkpoint, trained on so many ranks; and what rank 0 has logged.
    fn trained(text: &str, ranks: usize, folder: &Path) -> (Vec<u8>, State, Vec<Record>) {
        let run = folder.join(format!("{ranks}"));
        threads(ranks, |world| {
            let device = Device::flex();
            let recipe = meet(&world, Ok(Some(recipe(text, &[])))).unwrap().unwrap();
            let resolved = same_data(&world, Resolved::new(recipe, &device)).unwrap();
            match world.leads() {
                false => Follower::join(world, &device).unwrap().unwrap().run(&Stop::default()),
                true => {
                    let trainer = lead(world, Trainer::start(Place::At(&run), resolved)).unwrap();
                    let ended = trainer.run(&mut Nobody, &Stop::default()).unwrap();
                    assert!(matches!(ended, Ended::Finished(_)));
                }
            }
        });
        let state = fs::read(run.join("checkpoints/step-00000004/state.safetensors")).unwrap();
        let state = SafeTensors::deserialize(&state).unwrap();
        let values = |(name, tensor): (&str, TensorView)| (name.to_owned(), tensor.data().to_vec());
        let state = state.iter().map(values).collect();
        let records = read_records(&RunFolder::open(&run).unwrap().0).unwrap();
        (fs::read(run.join("model.safetensors")).unwrap(), state, records)
    }

    fn losses(records: &[Record]) -> Vec<(f64, TaskScores, Vec<f64>)> {
        let of = |record: &Record| match record {
            Record::Train(record) => {
                let load = record.routing.iter().flat_map(|layer| layer.load.clone()).collect();
                Some((record.loss, record.scores.clone(), load))
            }
            _ => None,
        };
        records.iter().filter_map(of).collect()
    }

    #[test]
    fn any_number_of_ranks_trains_the_same_bits() {
        let half = format!("{MIXTURE}\ntrain.precision = 'f16'");
        for text in [MIXTURE, PAIRS, &half] {
            let folder = tempfile::tempdir().unwrap();
            let (model, state, records) = trained(text, 1, folder.path());
            assert!(!losses(&records).is_empty() && !state.is_empty());
            for ranks in [2, 4] {
                let (other, other_state, other_records) = trained(text, ranks, folder.path());
                assert!(other == model, "{ranks} ranks train another model");
                assert!(other_state == state, "{ranks} ranks remember something else");
                assert_eq!(losses(&other_records), losses(&records));
                let said = |record: &Record| match record {
                    Record::Train(record) => record.communication,
                    _ => None,
                };
                assert_eq!(other_records.iter().find_map(said).unwrap().ranks, ranks);
            }
        }
    }

    /// What each of two ranks says of what they were asked for.
    fn said(of_second: fn(Recipe) -> Result<Recipe>) -> Vec<String> {
        threads(2, |world| {
            let own = recipe(MIXTURE, &[]);
            let asked = if world.leads() { Ok(own) } else { of_second(own) };
            let met = meet(&world, asked.map(Some));
            let resolved = met.and_then(|recipe| {
                let mut recipe = recipe.expect("both have one");
                // As a folder with other files on another machine would be.
                recipe.data.train_samples += world.rank();
                same_data(&world, Resolved::new(recipe, &Device::flex()))
            });
            resolved.err().map_or(String::new(), |error| error.to_string())
        })
    }

    #[test]
    fn other_recipes_and_other_data_are_found_before_anything_is_written() {
        let other = said(|mut recipe| {
            recipe.train.steps = 7;
            Ok(recipe)
        });
        assert!(other[0].contains("rank 1") && other[0] == other[1], "{other:?}");
        assert!(other[0].contains("train.steps is 7 there and 4 on rank 0"), "{other:?}");
        let broken = said(|_| Err(recipe_error("no such thing".to_owned())));
        assert_eq!(broken, ["rank 1 on this machine: no such thing", "no such thing"]);
        let data = said(Ok);
        assert!(data[0].contains("rank 1 on this machine: it has 55 images"), "{data:?}");
        assert!(data[0].contains("rank 0 has 54 images"), "{data:?}");
    }

    #[test]
    fn shards_that_cannot_be_spread_are_refused() {
        let said = threads(3, |world| {
            meet(&world, Ok(Some(recipe(MIXTURE, &[])))).unwrap_err().to_string()
        });
        assert!(said.iter().all(|said| said.contains("set train.shards=6")), "{said:?}");
    }
}
