//! The images of a run, and what each part of them is for.

use std::fmt;

use omma_data::{Shared, Split, formats};
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    recipe::{Recipe, recipe_error},
};

/// The parts of a data set that a run uses.
#[derive(Clone)]
pub(crate) struct Splits {
    /// To learn from.
    pub(crate) train: Shared,
    /// Held out of these, to choose the best checkpoint by.
    pub(crate) validation: Shared,
    /// To judge by, once.
    pub(crate) test: Shared,
}

impl Splits {
    /// Opens the data, and gives the model its classes.
    pub(crate) fn open(recipe: &mut Recipe) -> Result<Self> {
        // A run may be resumed from another folder.
        recipe.data.name = formats::whole_name(&recipe.data.name);
        let spec = recipe.data_spec();
        let (all, test) = (formats::open(&spec, Split::Train)?, formats::open(&spec, Split::Test)?);
        if all.classes() != test.classes() {
            return Err(recipe_error(format!(
                "{}: the training images have classes {:?}, the test images {:?}",
                spec.name,
                all.classes(),
                test.classes()
            )));
        }
        recipe.model.classes = all.classes().len();
        let (train, validation) = recipe.data.parts(&all);
        Ok(Self { train, validation, test })
    }

    /// What tells these images from others without reading them: how many there are of each part, the
    /// classes, and some labels.
    pub(crate) fn identity(&self) -> DataIdentity {
        let mut checksum = crc32fast::Hasher::new();
        for data in [&self.train, &self.validation, &self.test] {
            for index in (0..data.len()).step_by(data.len().div_ceil(LABELS).max(1)) {
                checksum.update(&(data.label(index) as u64).to_le_bytes());
            }
        }
        self.train.classes().iter().for_each(|name| checksum.update(name.as_bytes()));
        DataIdentity {
            train: self.train.len(),
            held_out: self.validation.len(),
            test: self.test.len(),
            labels: format!("{:08x}", checksum.finalize()),
        }
    }
}

/// Labels of each part that its checksum takes.
const LABELS: usize = 4_096;

/// What tells the images of a run from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataIdentity {
    train: usize,
    held_out: usize,
    test: usize,
    /// Checksum of class names and some labels.
    labels: String,
}

impl fmt::Display for DataIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { train, held_out, test, labels } = self;
        write!(
            f,
            "{train} images to learn from, {held_out} held out, {test} to test, labels {labels}"
        )
    }
}
