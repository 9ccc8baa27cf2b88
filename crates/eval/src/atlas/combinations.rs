//! How many combinations of experts there are, and how many are really used (paper 003 §4.2).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Combinations that are told apart; of more, those that come later are counted together.
pub(super) const MOST: usize = 100_000;

/// The routing degree: combinations of experts that tokens can pass on their way through all layers, and those that
/// they do pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Degree {
    /// Whose tokens: `images` or `texts`.
    pub modality: String,
    /// `(C(N, k))^L`, as paper 003 prints it; nothing where tokens do not choose.
    pub possible: Option<f64>,
    /// What is in the formula: `C(8, 1)^2`.
    pub formula: Option<String>,
    /// Different combinations that tokens went through; at least so many if some were `left_out`.
    pub used: usize,
    /// `e^H` of their shares: as many that are used alike would be as varied.
    pub effective: f64,
    /// Tokens whose combinations came after too many others to be told apart.
    pub left_out: u64,
}

/// `C(n, k)`.
pub(super) fn choose(n: usize, k: usize) -> f64 {
    if k > n {
        return 0.0;
    }
    let k = k.min(n - k);
    (0..k).fold(1.0, |product, i| (product * (n - i) as f64 / (i + 1) as f64).round())
}

/// `Π_l C(N_l, k_l)`, and how it is written; layers that are alike are one power.
///
/// - `layers`: experts to choose from and choices, of every choice that a token makes
pub(super) fn possible(layers: &[(usize, usize)]) -> (f64, String) {
    let mut powers: Vec<((usize, usize), usize)> = Vec::new();
    for layer in layers {
        match powers.iter_mut().find(|(kind, _)| kind == layer) {
            Some((_, power)) => *power += 1,
            None => powers.push((*layer, 1)),
        }
    }
    let factor = |((n, k), power): &((usize, usize), usize)| format!("C({n}, {k})^{power}");
    let product = layers.iter().map(|(n, k)| choose(*n, *k)).product();
    (product, powers.iter().map(factor).collect::<Vec<String>>().join(" · "))
}

/// What stands for an expert of a layer in the sum that stands for a combination. Sums of these do not depend on the
/// order in which experts come.
pub(super) fn part(layer: usize, expert: usize) -> u64 {
    let mut x = ((layer as u64) << 32 | expert as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Combinations as they come.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Combinations {
    counts: HashMap<u64, u64>,
    left_out: u64,
}

impl Combinations {
    /// - `combination`: the sum of its [`part`]s
    pub(super) fn add(&mut self, combination: u64) {
        if let Some(count) = self.counts.get_mut(&combination) {
            *count += 1;
        } else if self.counts.len() < MOST {
            self.counts.insert(combination, 1);
        } else {
            self.left_out += 1;
        }
    }

    pub(super) fn degree(&self, modality: String, possible: Option<(f64, String)>) -> Degree {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        // The order of a map is another one every time, and sums of floats would be, too.
        counts.sort_unstable();
        let counts: Vec<f64> = counts.into_iter().map(|count| count as f64).collect();
        let (possible, formula) = possible.unzip();
        Degree {
            modality,
            possible,
            formula,
            used: counts.len(),
            effective: super::information::entropy(&counts).exp(),
            left_out: self.left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paper 003 §4.2: 32 for N = 2 and L = 5, 64 for N = 4 and L = 3, 64 for N = 8 and L = 2.
    #[test]
    fn the_papers_degrees_are_those_of_the_formula() {
        for (n, l, degree) in [(2, 5, 32.0), (4, 3, 64.0), (8, 2, 64.0)] {
            assert_eq!(possible(&vec![(n, 1); l]), (degree, format!("C({n}, 1)^{l}")));
        }
        assert_eq!([choose(8, 2), choose(32, 16), choose(3, 4)], [28.0, 601_080_390.0, 0.0]);
        assert_eq!(
            possible(&[(4, 1), (8, 2), (4, 1)]),
            (448.0, "C(4, 1)^2 · C(8, 2)^1".to_owned())
        );
        assert_eq!(possible(&[]).0, 1.0);
    }

    #[test]
    fn choosing_is_counted_out_for_small_numbers() {
        for n in 0..12_usize {
            for k in 0..=n {
                let count = (0_u32..1 << n).filter(|set| set.count_ones() as usize == k).count();
                assert_eq!(choose(n, k), count as f64, "{n} {k}");
            }
        }
    }

    #[test]
    fn combinations_are_told_apart_whatever_their_order() {
        let mut seen = Combinations::default();
        // Two layers: {0, 1} then {2}, in both orders; {0} then {2}; {2} then {0}.
        for experts in [vec![(0, 0), (0, 1), (1, 2)], vec![(1, 2), (0, 1), (0, 0)]] {
            seen.add(experts.iter().map(|(l, e)| part(*l, *e)).fold(0, u64::wrapping_add));
        }
        let once = seen.degree("images".to_owned(), None);
        assert_eq!((once.used, once.effective), (1, 1.0));
        seen.add(part(0, 0).wrapping_add(part(1, 2)));
        seen.add(part(0, 2).wrapping_add(part(1, 0)));
        let all = seen.degree("images".to_owned(), Some((9.0, "C(3, 1)^2".to_owned())));
        assert_eq!((all.used, all.possible), (3, Some(9.0)));
        // Shares 1/2, 1/4, 1/4 have the entropy 1.5 ln 2.
        assert!((all.effective - 2.0_f64.powf(1.5)).abs() < 1e-12);
    }
}
