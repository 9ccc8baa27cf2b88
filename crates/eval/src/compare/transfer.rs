//! Few shots of several data sets, system by system (paper 000 App. A.5).

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    metrics::Estimate,
    protocols::{
        Evaluation,
        transfer::{FewShotRecord, mean_accuracy, shots_of, weighted_accuracy},
    },
};

/// Accuracies from a number of shots, over seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transfer {
    /// Images per class.
    pub shots: usize,
    /// By data set.
    pub accuracy: BTreeMap<String, Estimate>,
    /// Their mean; nothing where the evaluations have different data sets.
    pub mean: Option<Estimate>,
    /// The mean of the accuracies in units of the baseline's.
    pub weighted: Option<Estimate>,
}

impl Transfer {
    /// Of the evaluations of one system, one for every number of shots.
    ///
    /// - `baseline`: the evaluations that are the reference
    pub(super) fn of(group: &[&Evaluation], baseline: &[&Evaluation]) -> Vec<Self> {
        let records = group.iter().flat_map(|one| one.few_shot.values());
        let transfer = |shots: usize| {
            let over = |value: &dyn Fn(&BTreeMap<String, FewShotRecord>) -> Option<f64>| {
                let values: Option<Vec<f64>> =
                    group.iter().map(|one| value(&one.few_shot)).collect();
                values.map(|values| Estimate::of(&values))
            };
            let names = group.iter().flat_map(|one| one.few_shot.keys());
            let accuracy =
                names.filter_map(|name| Some((name.clone(), accuracy_of(group, name, shots)?)));
            let reference = |name: &str| Some(accuracy_of(baseline, name, shots)?.mean);
            Self {
                shots,
                accuracy: accuracy.collect(),
                mean: over(&|records| mean_accuracy(records, shots)),
                weighted: over(&|records| weighted_accuracy(records, shots, reference)),
            }
        };
        shots_of(records).into_iter().map(transfer).collect()
    }
}

/// The accuracy on one data set, over the evaluations that have it.
fn accuracy_of(group: &[&Evaluation], name: &str, shots: usize) -> Option<Estimate> {
    let of = |one: &&Evaluation| one.few_shot.get(name)?.accuracy(shots);
    let values: Vec<f64> = group.iter().filter_map(of).collect();
    (!values.is_empty()).then(|| Estimate::of(&values))
}
