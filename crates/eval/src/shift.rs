//! The fifteen common corruptions in five severities (paper 000 App. A.6).

use std::{collections::BTreeMap, sync::Arc};

use omma_base::Seed;
use omma_data::{
    Picture, Selection,
    corrupt::{Corruption, SEVERITIES},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    stream::{Images, Watcher},
    system::System,
    tally::{Binning, Summary, Tally},
};

/// What is done to the test images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShiftProtocol {
    /// Test images that are used, evenly spread; all of them if there are not more.
    pub samples: usize,
    /// Where the corruptions' random numbers come from.
    pub seed: u64,
}

/// One corruption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShiftRecord {
    /// The mean over severities.
    #[serde(flatten)]
    pub summary: Summary,
    /// Severity 1 to 5.
    pub severities: Vec<Summary>,
}

impl ShiftRecord {
    fn new(severities: Vec<Summary>) -> Self {
        Self { summary: Summary::mean(&severities), severities }
    }
}

/// All corruptions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shift {
    /// Images of every corruption and severity.
    pub samples: usize,
    /// The mean over corruptions.
    pub mean: ShiftRecord,
    /// Each by its name.
    #[serde(flatten)]
    pub corruptions: BTreeMap<String, ShiftRecord>,
}

/// Scores of a system under every corruption.
pub(crate) fn shift(
    system: &System,
    test: &Images,
    protocol: ShiftProtocol,
    binning: Binning,
    batch: usize,
    watcher: &mut dyn Watcher,
) -> Result<Shift> {
    let data = Selection::spread(&test.data, protocol.samples.max(1));
    let seed = Seed::new(protocol.seed).named("shift");
    let mut corruptions = BTreeMap::new();
    for corruption in Corruption::ALL {
        watcher.begins(&corruption.name().replace('_', " "), data.len() * SEVERITIES);
        let mut severities = Vec::new();
        for severity in 1..=SEVERITIES {
            let change = move |index: usize, picture: Picture| {
                corruption.apply(&picture, severity, seed.numbered(index as u64))
            };
            let images = Images {
                name: format!("{} with {}", test.name, corruption.name()),
                data: data.clone(),
                change: Some(Arc::new(change)),
            };
            let mut tally = Tally::new(binning, system.members(), None);
            images.predictions(system, batch, watcher, |logits, label| tally.add(logits, label))?;
            severities.push(tally.average());
        }
        corruptions.insert(corruption.name().to_owned(), ShiftRecord::new(severities));
    }
    let at = |severity: usize| {
        Summary::mean(corruptions.values().map(|record: &ShiftRecord| &record.severities[severity]))
    };
    let mean = ShiftRecord::new((0..SEVERITIES).map(at).collect());
    Ok(Shift { samples: data.len(), mean, corruptions })
}
