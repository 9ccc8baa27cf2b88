//! What tells the images of a run from others.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::resolved::Splits;

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

impl DataIdentity {
    /// Without reading any image: how many there are of each part, the classes, and some labels.
    pub(crate) fn of(data: &Splits) -> Self {
        let mut checksum = crc32fast::Hasher::new();
        for part in [&data.train, &data.validation, &data.test] {
            for index in (0..part.len()).step_by(part.len().div_ceil(LABELS).max(1)) {
                checksum.update(&(part.label(index) as u64).to_le_bytes());
            }
        }
        data.train.classes().iter().for_each(|name| checksum.update(name.as_bytes()));
        Self {
            train: data.train.len(),
            held_out: data.validation.len(),
            test: data.test.len(),
            labels: format!("{:08x}", checksum.finalize()),
        }
    }
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
