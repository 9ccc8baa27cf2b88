//! The state of a training beside its model: what the optimiser remembers and where the run is.
//!
//! Random streams and the position in the data need no room: both follow from the seed and the step.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use omma_model::checkpoint::write_atomically;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Result, TrainError},
    optimiser::Optimiser,
    weights::Weights,
};

const FILE: &str = "state.safetensors";
const NOTE: &str = "omma-training";
const FORMAT: u32 = 1;

/// The checkpoint that did best on held-out images.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// After which step.
    pub step: u64,
    /// Accuracy on held-out images.
    pub accuracy: f64,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Steps taken.
    pub step: u64,
    /// Seconds spent in them.
    pub seconds: f64,
    /// The best evaluation so far.
    pub best: Option<Best>,
}

#[derive(Serialize, Deserialize)]
struct Note {
    format: u32,
    progress: Progress,
    checksums: BTreeMap<String, u32>,
}

/// The state as it is read from a checkpoint.
pub struct State {
    /// Where the run is.
    pub progress: Progress,
    /// The weights that are trained, where the model's are their average.
    pub raw: Option<Vec<Vec<f32>>>,
}

fn memory_name(parameter: &str, number: usize) -> String {
    format!("memory.{number}.{parameter}")
}

fn raw_name(parameter: &str) -> String {
    format!("raw.{parameter}")
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl State {
    /// Writes the state into a checkpoint's folder. `raw` are the weights that are trained, if the
    /// model's are an average.
    pub fn save(
        folder: &Path,
        progress: Progress,
        optimiser: &Optimiser,
        raw: Option<&Weights>,
    ) -> Result<()> {
        let mut tensors: Vec<(String, Vec<u8>)> = Vec::new();
        for memory in optimiser.memories() {
            for (number, vector) in memory.vectors.iter().enumerate() {
                tensors.push((memory_name(&memory.name, number), bytes_of(vector)));
            }
        }
        for (parameter, values) in raw.iter().flat_map(|raw| raw.parameters.iter().zip(&raw.values))
        {
            tensors.push((raw_name(&parameter.name), bytes_of(values)));
        }
        let checksums =
            tensors.iter().map(|(name, bytes)| (name.clone(), crc32fast::hash(bytes))).collect();
        let note = Note { format: FORMAT, progress, checksums };
        let note = serde_json::to_string(&note).expect("a note can be written");
        let path = folder.join(FILE);
        let damaged = |error: safetensors::SafeTensorError| TrainError::Damaged {
            path: path.clone(),
            why: error.to_string(),
        };
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, bytes)| {
                Ok((name.as_str(), TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes)?))
            })
            .collect::<Result<_, _>>()
            .map_err(damaged)?;
        write_atomically(&path, |temporary| {
            let notes = HashMap::from([(NOTE.to_owned(), note)]);
            safetensors::serialize_to_file(views, Some(notes), temporary)
                .map_err(std::io::Error::other)
        })?;
        Ok(())
    }

    /// Reads the state of a checkpoint, and restores the optimiser from it. Every tensor is checked.
    pub fn load(folder: &Path, optimiser: &mut Optimiser, averaged: bool) -> Result<Self> {
        let path = folder.join(FILE);
        let bytes = fs::read(&path).map_err(TrainError::io(&path))?;
        let damaged = |why: String| TrainError::Damaged { path: path.clone(), why };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let note = header.metadata().as_ref().and_then(|notes| notes.get(NOTE));
        let note: Note = note
            .and_then(|note| serde_json::from_str(note).ok())
            .ok_or_else(|| damaged("it does not say that it is the state of a training".into()))?;
        if note.format != FORMAT {
            return Err(damaged(format!("its format {} is not known here", note.format)));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        let read = |name: &str| -> Result<Vec<f32>> {
            let tensor = file.tensor(name).map_err(|e| damaged(e.to_string()))?;
            if note.checksums.get(name) != Some(&crc32fast::hash(tensor.data())) {
                return Err(damaged(format!("tensor \"{name}\" does not have its checksum")));
            }
            let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            Ok(tensor.data().chunks_exact(4).map(value).collect())
        };
        optimiser.restore(note.progress.step, |parameter, number, vector| {
            let found = read(&memory_name(parameter, number))?;
            if found.len() != vector.len() {
                return Err(damaged(format!("the memory of \"{parameter}\" has another size")));
            }
            *vector = found;
            Ok(())
        })?;
        let names = optimiser.memories().iter().map(|memory| raw_name(&memory.name));
        let raw = averaged.then(|| names.map(|name| read(&name)).collect()).transpose()?;
        Ok(Self { progress: note.progress, raw })
    }
}
