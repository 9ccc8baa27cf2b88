//! How many experts are needed (paper 002 App. E.4, Fig. 13).

use serde::{Deserialize, Serialize};

/// An expert in the order in which experts are kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoverageStep {
    /// Which.
    pub expert: usize,
    /// Share of the tokens that it serves.
    pub share: f64,
    /// Share of the tokens whose best expert is it or one before it.
    pub coverage: f64,
}

/// Experts from the one that serves most to the one that serves least; of equals the lower one first.
///
/// - `load`: `[E]`: tokens that each serves
/// - `best`: `[E]`: tokens that each is the best expert of
pub(super) fn coverage(load: &[f64], best: &[f64]) -> Vec<CoverageStep> {
    let (served, all): (f64, f64) = (load.iter().sum(), best.iter().sum());
    let share = |count: f64, total: f64| if total > 0.0 { count / total } else { 0.0 };
    let mut experts: Vec<usize> = (0..load.len()).collect();
    experts.sort_by(|a, b| load[*b].total_cmp(&load[*a]));
    let mut covered = 0.0;
    let step = |expert: usize| {
        covered += best[expert];
        let (share, coverage) = (share(load[expert], served), share(covered, all));
        CoverageStep { expert, share, coverage: coverage.min(1.0) }
    };
    experts.into_iter().map(step).collect()
}

/// Experts that must be kept for so much coverage.
pub(super) fn needed(steps: &[CoverageStep], wanted: f64) -> usize {
    let enough = |step: &CoverageStep| step.coverage >= wanted - 1e-9;
    steps.iter().position(enough).map_or(steps.len(), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_kept_by_load_and_cover_what_would_choose_them_first() {
        let steps = coverage(&[1.0, 6.0, 3.0, 0.0], &[2.0, 4.0, 4.0, 0.0]);
        let found: Vec<(usize, f64)> =
            steps.iter().map(|step| (step.expert, step.coverage)).collect();
        assert_eq!(found, [(1, 0.4), (2, 0.8), (0, 1.0), (3, 1.0)]);
        assert_eq!(steps[0].share, 0.6);
        assert_eq!([needed(&steps, 0.4), needed(&steps, 0.5), needed(&steps, 0.99)], [1, 2, 3]);
    }

    #[test]
    fn it_is_what_is_left_when_the_others_are_removed_one_by_one() {
        // Literally: tokens with a best expert each, and experts that are taken away from the least used on.
        let best_of = [0, 2, 2, 1, 2, 0, 3, 2, 1, 0];
        let mut load = [0.0; 4];
        best_of.iter().for_each(|expert: &usize| load[*expert] += 1.0);
        let steps = coverage(&load, &load);
        for kept in 1..=4 {
            let left: Vec<usize> = steps[..kept].iter().map(|step| step.expert).collect();
            let served = best_of.iter().filter(|expert| left.contains(expert)).count();
            assert!((steps[kept - 1].coverage - served as f64 / 10.0).abs() < 1e-12);
        }
    }

    #[test]
    fn without_tokens_nothing_is_covered() {
        let steps = coverage(&[0.0; 3], &[0.0; 3]);
        assert!(steps.iter().all(|step| step.coverage == 0.0));
        assert_eq!(needed(&steps, 0.99), 3);
    }
}
