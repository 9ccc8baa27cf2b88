//! Where a cooldown began: a checkpoint of another run.

use std::{fs, io, path::PathBuf};

use omma_model::checkpoint::Identity;
use serde::{Deserialize, Serialize};

use super::{Place, RunFolder, Stretch};
use crate::{
    error::{Result, TrainError},
    recipe::Recipe,
};

pub(super) const ORIGIN: &str = "origin.json";
/// What its model reads texts by, which is not learned from other images.
const TOKENIZER: &str = "tokenizer.json";

/// The checkpoint that a cooldown went on from; `origin.json`. Until the cooldown has a checkpoint of its own, it
/// begins there again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The folder of the run, which is only read.
    pub run: PathBuf,
    /// Steps that it had taken.
    pub step: u64,
    /// What tells its weights from others.
    pub weights: Identity,
}

impl RunFolder {
    /// The folder of a cooldown: a run whose stretches until its origin were those of another. It is a run once
    /// its recipe is there, and everything else is by then.
    pub(crate) fn create_cooldown(
        place: Place,
        recipe: &Recipe,
        origin: &Origin,
        earlier: &[Stretch],
    ) -> Result<Self> {
        let trunk = Self { path: origin.run.clone(), owned: None };
        let tokenizer =
            trunk.file(TOKENIZER).is_file().then(|| trunk.text(TOKENIZER)).transpose()?;
        Self::create_with(place, recipe, |run| {
            run.write_earlier(earlier)?;
            tokenizer.map_or(Ok(()), |text| run.write(TOKENIZER, text))?;
            run.write_json(ORIGIN, origin)
        })
    }

    /// Where it began, if it is a cooldown of another run.
    pub fn origin(&self) -> Result<Option<Origin>> {
        let path = self.file(ORIGIN);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TrainError::io(&path)(error)),
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| TrainError::Damaged { path, why: error.to_string() }),
        }
    }
}
