//! Evaluations that are there already.

use std::path::Path;

use omma_eval::{Evaluation, OodPositive, compare::read_evaluation};

/// Whether an evaluation has looked at these out-of-distribution data sets. One that found the other side, as
/// earlier versions did, cannot stand beside new ones.
pub(crate) fn has_looked_at(evaluation: &Path, ood: &[String]) -> bool {
    let has_all = |found: Evaluation| {
        found.ood_positive == OodPositive::default()
            && ood.iter().all(|name| found.ood.contains_key(name))
    };
    ood.is_empty() || read_evaluation(evaluation).is_ok_and(has_all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_done_once_it_has_all_data_and_finds_the_side_that_new_ones_find() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("eval.json");
        let done = |record: &str, ood: &[&str]| {
            std::fs::write(&path, record).unwrap();
            let ood: Vec<String> = ood.iter().map(|name| (*name).to_owned()).collect();
            has_looked_at(&path, &ood)
        };
        let earlier = include_str!("../../../eval/tests/data/eval-1.json");
        let now = earlier
            .replace("\"ood_score\"", "\"ood_positive\": \"in-distribution\", \"ood_score\"");
        assert!(done(&now, &["world-far-ood"]));
        assert!(!done(&now, &["world-far-ood", "kmnist"]));
        assert!(!done(earlier, &["world-far-ood"]));
        assert!(done(earlier, &[]), "no detection is asked for");
    }
}
