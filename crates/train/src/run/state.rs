//! The state of a training beside its model: what the optimiser remembers and where the run is.
//!
//! Random streams and the position in the data need no room: both follow from the seed and the step.
//!
//! The file says which weights and which recipe it belongs to, and everything it says has a checksum. So a
//! state is the one of its model and of its step, or it is an error.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

use omma_base::files::{
    open_regular,
    tensors::{Floats, bytes_of, floats_of, is_sealed, sealed, write_tensors},
};
use omma_model::checkpoint::Identity;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    error::{Result, TrainError},
    optimiser::Optimiser,
    run::DataIdentity,
    trainer::{Interval, LossScale, Weights},
};

const FILE: &str = "state.safetensors";
const NOTE: &str = "omma-training";
/// 1 had neither an identity nor a checksum of what it says of itself.
const FORMAT: u32 = 2;

/// The checkpoint that did best on held-out images.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// After which step.
    pub step: u64,
    /// The score on held-out images that the task decides by.
    #[serde(alias = "accuracy")]
    pub score: f64,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps taken.
    pub step: u64,
    /// Seconds spent in them.
    pub seconds: f64,
    /// Seconds that cores have worked in them, all of them together; nothing where the system does not say it, or an
    /// earlier version has taken some of the steps.
    #[serde(default)]
    pub cpu_seconds: Option<f64>,
    /// Those of the steps that moved nothing, because a gradient did not fit into half precision.
    #[serde(default)]
    pub skipped: u64,
    /// What losses are multiplied by, where gradients travel in `f16`.
    #[serde(default)]
    pub loss_scale: Option<LossScale>,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// The step after which held-out images were looked at last, where that is known. A run that was
    /// interrupted while it looked does so again.
    #[serde(default)]
    pub evaluated: Option<u64>,
}

impl Progress {
    /// Before the first step.
    pub(crate) fn begin() -> Self {
        Self { cpu_seconds: Some(0.0), ..Self::default() }
    }

    /// Steps that the optimiser has taken.
    pub(crate) fn moved(&self) -> u64 {
        self.step.saturating_sub(self.skipped)
    }

    /// Adds what a step has taken.
    pub(crate) fn spend(&mut self, seconds: f64, cpu_seconds: Option<f64>) {
        self.seconds += seconds;
        self.cpu_seconds = self.cpu_seconds.zip(cpu_seconds).map(|(before, step)| before + step);
    }
}

/// The first format: all in one.
#[derive(Deserialize)]
struct OldNote {
    progress: Progress,
    checksums: BTreeMap<String, u32>,
}

#[derive(Serialize, Deserialize)]
struct Note {
    format: u32,
    /// [`Content`], as it was written.
    content: Box<RawValue>,
    content_checksum: String,
}

#[derive(Serialize, Deserialize)]
struct Content {
    progress: Progress,
    /// Empty if a sum was not finite.
    #[serde(default)]
    interval: Interval,
    /// The weights that were saved with it.
    model: Option<Identity>,
    /// The recipe that they were trained by.
    recipe: Option<String>,
    /// The images that they were trained on.
    #[serde(default)]
    data: Option<DataIdentity>,
    checksums: BTreeMap<String, u32>,
}

/// What a state is saved with.
pub struct Saved<'a> {
    /// Where the run is.
    pub progress: Progress,
    /// The weights beside it.
    pub model: Identity,
    /// The recipe, as TOML.
    pub recipe: String,
    /// The images.
    pub data: DataIdentity,
    /// What the optimiser remembers.
    pub optimiser: &'a Optimiser,
    /// The weights that are trained, if the model's are an average.
    pub raw: Option<&'a Weights>,
    /// Who has the rest of what is here in part.
    pub whole: &'a dyn Whole,
}

/// The state of a checkpoint: read, and found to be what it says it is.
pub struct State {
    /// Where the run is.
    pub progress: Progress,
    /// Sums of the steps since the last line of the log.
    pub(crate) interval: Interval,
    /// The recipe that led to it, as TOML, where the file says it.
    pub recipe: Option<String>,
    /// The images that it was trained on, where the file says it.
    pub data: Option<DataIdentity>,
    path: PathBuf,
    bytes: Vec<u8>,
    checksums: BTreeMap<String, u32>,
}

fn memory_name(parameter: &str, number: usize) -> String {
    format!("memory.{number}.{parameter}")
}

fn raw_name(parameter: &str) -> String {
    format!("raw.{parameter}")
}

/// What a state has of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The values that are trained, where the model's are an average.
    Trained,
    /// A vector that the optimiser remembers.
    Memory(usize),
}

/// Knows the whole of what the process that saves may have a part of.
pub trait Whole {
    /// How long the whole is.
    fn size(&self, parameter: &str, held: Held, own: usize) -> usize;

    /// The whole of what this process has.
    fn values<'a>(&self, parameter: &str, held: Held, own: &'a [f32]) -> Cow<'a, [f32]>;
}

/// This process has everything.
impl Whole for () {
    fn size(&self, _: &str, _: Held, own: usize) -> usize {
        own
    }

    fn values<'a>(&self, _: &str, _: Held, own: &'a [f32]) -> Cow<'a, [f32]> {
        Cow::Borrowed(own)
    }
}

/// A vector and its name in the file.
struct Vector<'a> {
    name: String,
    parameter: &'a str,
    held: Held,
    own: &'a [f32],
    whole: &'a dyn Whole,
}

impl Floats for Vector<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn shape(&self) -> Cow<'_, [usize]> {
        Cow::Owned(vec![self.whole.size(self.parameter, self.held, self.own.len())])
    }

    fn values(&self) -> Cow<'_, [f32]> {
        self.whole.values(self.parameter, self.held, self.own)
    }
}

impl State {
    /// Writes a state into a checkpoint's folder. Every vector is read twice.
    pub fn save(folder: &Path, saved: Saved) -> Result<()> {
        Self::save_within(&Interval::default(), folder, saved)
    }

    /// Writes the state of a run between two lines of its log.
    pub(crate) fn save_within(interval: &Interval, folder: &Path, saved: Saved) -> Result<()> {
        let Saved { optimiser, raw, whole, .. } = saved;
        let mut tensors: Vec<Vector> = Vec::new();
        for memory in optimiser.memories() {
            for (number, own) in memory.vectors.iter().enumerate() {
                let (parameter, held) = (memory.name.as_str(), Held::Memory(number));
                let name = memory_name(parameter, number);
                tensors.push(Vector { name, parameter, held, own, whole });
            }
        }
        if let Some(raw) = raw {
            for (parameter, own) in raw.parameters.iter().zip(&raw.values) {
                let (parameter, held) = (parameter.name.as_str(), Held::Trained);
                tensors.push(Vector { name: raw_name(parameter), parameter, held, own, whole });
            }
        }
        let checksum =
            |vector: &Vector| (vector.name.clone(), crc32fast::hash(&bytes_of(&vector.values())));
        let checksums = tensors.iter().map(checksum).collect();
        let Saved { progress, model, recipe, data, .. } = saved;
        let interval = if interval.is_finite() { interval.clone() } else { Interval::default() };
        let (model, recipe, data) = (Some(model), Some(recipe), Some(data));
        let content = Content { progress, interval, model, recipe, data, checksums };
        let (content, content_checksum) = sealed(&content);
        let note = Note { format: FORMAT, content, content_checksum };
        let note = serde_json::to_string(&note).expect("a note can be written");
        let path = folder.join(FILE);
        write_tensors(&path, (NOTE, note), &tensors).map_err(TrainError::io(&path))
    }

    /// Reads the state of the checkpoint after a step, whose weights are `model`.
    pub fn load(folder: &Path, step: u64, model: &Identity) -> Result<Self> {
        let path = folder.join(FILE);
        let mut bytes = Vec::new();
        open_regular(&path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map_err(TrainError::io(&path))?;
        let damaged = |why: String| TrainError::Damaged { path: path.clone(), why };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let note = header.metadata().as_ref().and_then(|notes| notes.get(NOTE));
        let note = note.ok_or_else(|| damaged("it is not the state of a training".into()))?;
        let Content { progress, interval, model: of, recipe, data, checksums } =
            content(note).map_err(damaged)?;
        if progress.step != step {
            let why = format!("it is of step {} and lies in the folder of {step}", progress.step);
            return Err(damaged(why));
        }
        if of.is_some_and(|of| of != *model) {
            return Err(damaged("it belongs to other weights than those beside it".to_owned()));
        }
        Ok(Self { progress, interval, recipe, data, path, bytes, checksums })
    }

    /// Gives the optimiser what it remembered, and returns the weights that are trained, where the model's
    /// are their average. Every tensor is checked.
    pub fn restore(
        &self,
        optimiser: &mut Optimiser,
        averaged: bool,
    ) -> Result<Option<Vec<Vec<f32>>>> {
        let damaged = |why: String| TrainError::Damaged { path: self.path.clone(), why };
        let file = SafeTensors::deserialize(&self.bytes).map_err(|e| damaged(e.to_string()))?;
        let read = |name: &str, size: usize| -> Result<Vec<f32>> {
            let tensor = file.tensor(name).map_err(|e| damaged(e.to_string()))?;
            if self.checksums.get(name) != Some(&crc32fast::hash(tensor.data())) {
                return Err(damaged(format!("tensor \"{name}\" does not have its checksum")));
            }
            if tensor.data().len() != 4 * size {
                return Err(damaged(format!("tensor \"{name}\" has another size")));
            }
            Ok(floats_of(tensor.data()))
        };
        optimiser.restore(self.progress.moved(), |parameter, number, length| {
            read(&memory_name(parameter, number), length)
        })?;
        let parameters = optimiser.memories().iter();
        let raw = parameters.map(|memory| read(&raw_name(&memory.name), memory.size()));
        averaged.then(|| raw.collect()).transpose()
    }
}

/// What a note says, if it is as it was written.
fn content(note: &str) -> Result<Content, String> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let unreadable =
        |error: serde_json::Error| format!("what it says of itself is unreadable ({error})");
    let Format { format } = serde_json::from_str(note).map_err(unreadable)?;
    match format {
        1 => {
            let OldNote { progress, checksums } = serde_json::from_str(note).map_err(unreadable)?;
            let interval = Interval::default();
            Ok(Content { progress, interval, model: None, recipe: None, data: None, checksums })
        }
        FORMAT => {
            let Note { content, content_checksum, .. } =
                serde_json::from_str(note).map_err(unreadable)?;
            match is_sealed(&content, &content_checksum) {
                true => serde_json::from_str(content.get()).map_err(unreadable),
                false => Err("what it says of itself does not have its checksum".to_owned()),
            }
        }
        other => Err(format!("its format {other} is not known here")),
    }
}
