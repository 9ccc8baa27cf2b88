//! Few shots of several data sets: what features that have learned one task know of others (paper 000 App. A.5).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fewshot::{FewShotProtocol, FewShotSet, Shots, few_shot};
use crate::{
    error::Result,
    report::{Draft, Fact},
    stream::Watcher,
    system::System,
};

/// What is asked.
#[derive(Clone, Default)]
pub struct TransferProtocol {
    /// Data sets, each with a name of its own.
    pub sets: Vec<FewShotSet>,
    /// Images per class.
    pub shots: Vec<usize>,
    /// How many times these are drawn.
    pub draws: usize,
    /// Where the draws come from.
    pub seed: u64,
}

/// What was found on one data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FewShotRecord {
    /// Test images.
    pub samples: usize,
    /// How many times shots were drawn.
    pub draws: usize,
    /// One for every number of shots.
    pub results: Vec<Shots>,
}

impl FewShotRecord {
    /// The accuracy from so many images of every class, on the features of all members together.
    pub fn accuracy(&self, shots: usize) -> Option<f64> {
        let found = self.results.iter().find(|result| result.shots == shots)?;
        Some(found.joint.mean)
    }
}

/// Judges a system's features by every data set.
pub(super) fn transfer(
    system: &System,
    protocol: &TransferProtocol,
    batch: usize,
    watcher: &mut dyn Watcher,
) -> Result<BTreeMap<String, FewShotRecord>> {
    let TransferProtocol { sets, shots, draws, seed } = protocol;
    let mut records = BTreeMap::new();
    for set in sets {
        let asked = FewShotProtocol {
            set: set.clone(),
            shots: shots.clone(),
            seeds: *draws,
            seed: *seed,
            l2: FewShotProtocol::reference_l2(),
            batch,
        };
        let found = few_shot(system, &asked, watcher)?;
        let (samples, draws) = (found.samples, found.seeds);
        let record = FewShotRecord { samples, draws, results: found.results };
        records.insert(set.test.name.clone(), record);
    }
    Ok(records)
}

/// Numbers of shots that any data set was judged by, rising.
pub(crate) fn shots_of<'a>(records: impl IntoIterator<Item = &'a FewShotRecord>) -> Vec<usize> {
    let results = records.into_iter().flat_map(|record| &record.results);
    let mut shots: Vec<usize> = results.map(|result| result.shots).collect();
    shots.sort_unstable();
    shots.dedup();
    shots
}

/// The mean accuracy over all data sets; nothing where one of them, or all, are missing.
pub fn mean_accuracy(records: &BTreeMap<String, FewShotRecord>, shots: usize) -> Option<f64> {
    weighted_accuracy(records, shots, |_| Some(1.0))
}

/// The same with every accuracy divided by that of a reference, so that easy and hard data sets count alike
/// (App. A.5 takes ViT-B/32): 1 is as good as the reference.
pub fn weighted_accuracy(
    records: &BTreeMap<String, FewShotRecord>,
    shots: usize,
    reference: impl Fn(&str) -> Option<f64>,
) -> Option<f64> {
    let share = |(name, record): (&String, &FewShotRecord)| {
        Some(record.accuracy(shots)? / reference(name).filter(|reference| *reference > 0.0)?)
    };
    let shares: Option<Vec<f64>> = records.iter().map(share).collect();
    let shares = shares.filter(|shares| !shares.is_empty())?;
    Some(shares.iter().sum::<f64>() / shares.len() as f64)
}

/// The mean from most images.
pub(crate) fn fact(records: &BTreeMap<String, FewShotRecord>) -> Option<Fact> {
    let shots = shots_of(records.values()).pop()?;
    let value = format!("{:.1} %", 100.0 * mean_accuracy(records, shots)?);
    let sets = match records.len() {
        1 => "another data set".to_owned(),
        sets => format!("{sets} data sets"),
    };
    Some(("Few-shot accuracy", value, format!("{shots} images per class of {sets}")))
}

/// Rows of a table: a data set each, and their mean below; with the columns' names.
pub fn table(records: &BTreeMap<String, FewShotRecord>) -> (Vec<String>, Vec<Vec<String>>) {
    let shots = shots_of(records.values());
    let columns = shots.iter().map(|shots| format!("{shots} shots %"));
    let header = ["data", "images"].map(str::to_owned).into_iter().chain(columns).collect();
    let share = |value: Option<f64>| {
        value.map_or("—".to_owned(), |value| format!("{:.2}", 100.0 * value))
    };
    let row = |(name, record): (&String, &FewShotRecord)| {
        let cells = shots.iter().map(|shots| share(record.accuracy(*shots)));
        [name.clone(), record.samples.to_string()].into_iter().chain(cells).collect()
    };
    let mut rows: Vec<Vec<String>> = records.iter().map(row).collect();
    if records.len() > 1 {
        let means = shots.iter().map(|shots| share(mean_accuracy(records, *shots)));
        rows.push(["mean".to_owned(), String::new()].into_iter().chain(means).collect());
    }
    (header, rows)
}

/// Nothing without records.
pub(crate) fn section(draft: Draft, records: &BTreeMap<String, FewShotRecord>) -> Draft {
    if records.is_empty() {
        return draft;
    }
    let text = "The accuracy of a linear classifier on frozen features, from a few images of every class of other \
                data. Of an ensemble, the features of all members side by side.";
    let (header, rows) = table(records);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    draft.add(|page| page.section("Few shots").text(text).table(&header, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Estimate;

    fn records(accuracies: &[(&str, f64)]) -> BTreeMap<String, FewShotRecord> {
        let record = |accuracy: f64| {
            let one = Estimate::of(&[accuracy]);
            let results = vec![Shots { shots: 10, joint: one, disjoint: one, joint_best_l2: one }];
            FewShotRecord { samples: 100, draws: 1, results }
        };
        accuracies.iter().map(|(name, accuracy)| ((*name).to_owned(), record(*accuracy))).collect()
    }

    #[test]
    fn the_weighted_mean_counts_hard_and_easy_data_alike() {
        let reference = records(&[("easy", 0.8), ("hard", 0.1)]);
        let found = records(&[("easy", 0.8), ("hard", 0.2)]);
        assert!((mean_accuracy(&found, 10).unwrap() - 0.5).abs() < 1e-12);
        let weighted = |of: &BTreeMap<String, FewShotRecord>| {
            weighted_accuracy(of, 10, |name| reference.get(name)?.accuracy(10))
        };
        assert_eq!(weighted(&reference), Some(1.0));
        assert!((weighted(&found).unwrap() - 1.5).abs() < 1e-12, "a half more on average");
        assert_eq!(mean_accuracy(&found, 5), None);
        assert_eq!(mean_accuracy(&BTreeMap::new(), 10), None);
        assert_eq!(weighted(&records(&[("other", 0.5)])), None, "there is no reference for it");
    }

    #[test]
    fn a_table_has_a_row_for_every_data_set_and_their_mean() {
        let (header, rows) = table(&records(&[("a", 0.25), ("b", 0.75)]));
        assert_eq!(header, ["data", "images", "10 shots %"]);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[2], ["mean", "", "50.00"]);
        assert_eq!(table(&records(&[("a", 0.25)])).1.len(), 1);
    }
}
