//! Detection against its definition by brute force, on random and on heavily tied scores.

use omma_eval::metrics::Detection;
use proptest::prelude::*;

/// Every threshold in turn, counted anew.
fn definition(positives: &[f64], negatives: &[f64]) -> Detection {
    let (p, n) = (positives.len() as f64, negatives.len() as f64);
    let mut auroc = 0.0;
    for a in positives {
        for b in negatives {
            auroc += if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            };
        }
    }
    let mut cuts: Vec<f64> = positives.iter().chain(negatives).copied().collect();
    cuts.sort_by(|a, b| b.total_cmp(a));
    cuts.dedup();
    let count = |scores: &[f64], cut: f64| scores.iter().filter(|s| **s >= cut).count() as f64;
    let (mut aupr, mut recall, mut fpr95) = (0.0, 0.0, 1.0_f64);
    for cut in cuts {
        let (tp, fp) = (count(positives, cut), count(negatives, cut));
        aupr += (tp / p - recall) * tp / (tp + fp);
        recall = tp / p;
        if tp * 20.0 >= p * 19.0 {
            fpr95 = fpr95.min(fp / n);
        }
    }
    Detection { auroc: auroc / (p * n), aupr, fpr95 }
}

proptest! {
    #[test]
    fn areas_are_their_definitions(
        positives in prop::collection::vec(0_u8..8, 1..60),
        negatives in prop::collection::vec(0_u8..8, 1..60),
        spread in prop::bool::ANY,
    ) {
        // Few different scores, or hardly a tie.
        let score = |(place, value): (usize, &u8)| {
            f64::from(*value) + if spread { (place as f64 * 0.618).fract() } else { 0.0 }
        };
        let positives: Vec<f64> = positives.iter().enumerate().map(score).collect();
        let negatives: Vec<f64> = negatives.iter().enumerate().map(score).collect();
        let (found, expected) =
            (Detection::of(&positives, &negatives).unwrap(), definition(&positives, &negatives));
        prop_assert!((found.auroc - expected.auroc).abs() < 1e-12);
        prop_assert!((found.aupr - expected.aupr).abs() < 1e-12);
        prop_assert!((found.fpr95 - expected.fpr95).abs() < 1e-12);
    }
}

#[test]
fn empty_sets_and_scores_that_are_no_numbers_have_no_detection() {
    assert_eq!(Detection::of(&[], &[1.0]), None);
    assert_eq!(Detection::of(&[1.0], &[]), None);
    assert_eq!(Detection::of(&[f64::NAN], &[1.0]), None);
}
