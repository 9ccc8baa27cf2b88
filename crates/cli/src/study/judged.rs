//! Evaluations that are there already.

use std::path::Path;

use omma_eval::{Evaluation, OodPositive, compare::read_evaluation};

/// Data sets that an evaluation has to have looked at, by their names.
pub(crate) struct Asked {
    pub(crate) ood: Vec<String>,
    pub(crate) few_shot: Vec<String>,
    /// Images per class of these.
    pub(crate) shots: Vec<usize>,
}

impl Asked {
    /// Whether an evaluation has looked at all of them. One that found the other side of out-of-distribution images,
    /// as earlier versions did, cannot stand beside new ones.
    pub(crate) fn is_in(&self, evaluation: &Path) -> bool {
        let Self { ood, few_shot, shots } = self;
        let has_all = |found: Evaluation| {
            let has_shots = |name: &String| {
                let of = found.few_shot.get(name);
                let has = |shots: &usize| of.is_some_and(|of| of.accuracy(*shots).is_some());
                shots.iter().all(has)
            };
            let told = ood.is_empty() || found.ood_positive == OodPositive::default();
            told && ood.iter().all(|name| found.ood.contains_key(name))
                && few_shot.iter().all(has_shots)
        };
        let nothing = ood.is_empty() && few_shot.is_empty();
        nothing || read_evaluation(evaluation).is_ok_and(has_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_done_once_it_has_all_data_and_finds_the_side_that_new_ones_find() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("eval.json");
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let done = |record: &str, ood: &[&str], few_shot: &[&str]| {
            std::fs::write(&path, record).unwrap();
            Asked { ood: own(ood), few_shot: own(few_shot), shots: vec![10] }.is_in(&path)
        };
        let earlier = include_str!("../../../eval/tests/data/eval-1.json");
        let now = earlier
            .replace("\"ood_score\"", "\"ood_positive\": \"in-distribution\", \"ood_score\"");
        assert!(done(&now, &["world-far-ood"], &[]));
        assert!(!done(&now, &["world-far-ood", "kmnist"], &[]));
        assert!(!done(earlier, &["world-far-ood"], &[]));
        assert!(done(earlier, &[], &[]), "no detection is asked for");
        assert!(!done(earlier, &[], &["textures"]));
        let scores = "{\"mean\": 0.5, \"standard_error\": null, \"count\": 1}";
        let shots = |shots: usize| {
            let record = format!(
                "\"few_shot\": {{\"textures\": {{\"samples\": 9, \"draws\": 3, \"results\": [{{\"shots\": {shots}, \"joint\": {scores}, \"disjoint\": \
                 {scores}, \"joint_best_l2\": {scores}}}]}}}}, \"ood_score\""
            );
            earlier.replace("\"ood_score\"", &record)
        };
        assert!(done(&shots(10), &[], &["textures"]));
        assert!(!done(&shots(5), &[], &["textures"]), "from as many images");
    }
}
