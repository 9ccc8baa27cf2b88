//! Soft routing: every slot takes a mixture of all tokens (paper 001 §2.6, paper 004 §2.1).

use burn::tensor::{Tensor, activation::softmax};
use omma_base::Seed;
use rand::seq::index;
use serde::{Deserialize, Serialize};

use crate::{
    capacity::{Capacity, Rounding},
    error::{Result, RoutingError},
};

/// Settings of soft routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Soft {
    /// Slots per expert, `P`.
    pub slots: usize,
    /// Whether tokens and slots are scaled to unit length and their product by a learned number, as
    /// Soft MoE is trained at scale (arXiv:2308.00951 §2.3), or left as they are (papers 001, 004).
    #[serde(default)]
    pub normalised: bool,
    /// Experts that serve a group at inference, `k`; all without it. The others' slots are neither mixed
    /// nor computed, and the weights of those that serve stay as they are.
    #[serde(default)]
    pub subset: Option<usize>,
    /// Which experts these are.
    #[serde(default)]
    pub subset_choice: SubsetChoice,
}

/// Which experts serve a group where only some do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubsetChoice {
    /// Those with the largest combine weights, summed over the group's tokens (paper 004 Algorithm 1).
    #[default]
    Best,
    /// Those with the smallest.
    Least,
    /// Any, drawn for every group.
    Random,
}

impl Soft {
    /// All experts serve.
    pub fn new(slots: usize, normalised: bool) -> Self {
        Self { slots, normalised, subset: None, subset_choice: SubsetChoice::default() }
    }

    /// The slots that cost as much as `factor` experts per token: `round(factor · T / E)`.
    pub fn slots_for(tokens: usize, experts: usize, factor: f64) -> Result<usize> {
        Capacity { rounding: Rounding::Round, ..Capacity::factor(factor) }.slots(tokens, experts)
    }

    pub(super) fn check(&self, experts: usize) -> Result<()> {
        match self.subset {
            _ if self.slots == 0 => Err(RoutingError::NoSlots),
            Some(subset) if subset == 0 || subset > experts => {
                Err(RoutingError::BadSubset { subset, experts })
            }
            _ => Ok(()),
        }
    }

    /// The columns of the experts that serve every group, in increasing order; nothing if all do (paper
    /// 004 Algorithm 1 for one group, Algorithm 2 for several).
    ///
    /// - `combine`: `[G, S, L · P]`, row by row, for `L` experts
    /// - `seed`: where a random choice comes from
    pub fn subsets(
        &self,
        combine: &[f32],
        groups: usize,
        experts: usize,
        seed: Seed,
    ) -> Option<Vec<Vec<usize>>> {
        let chosen = self.subset.filter(|chosen| *chosen < experts)?;
        let size = combine.len() / groups.max(1);
        let of_group = |group: usize| {
            let mut columns: Vec<usize> = match self.subset_choice {
                SubsetChoice::Random => {
                    let mut rng = seed.named("subset").numbered(group as u64).rng();
                    index::sample(&mut rng, experts, chosen).into_vec()
                }
                choice => {
                    let sums = self.sums(&combine[group * size..][..size], experts);
                    let mut ranked: Vec<usize> = (0..experts).collect();
                    // Of equals, the first.
                    ranked.sort_by(|a, b| match choice {
                        SubsetChoice::Least => sums[*a].total_cmp(&sums[*b]),
                        _ => sums[*b].total_cmp(&sums[*a]),
                    });
                    ranked.truncate(chosen);
                    ranked
                }
            };
            columns.sort_unstable();
            columns
        };
        Some((0..groups).map(of_group).collect())
    }

    /// `C_sum`: the combine weights of every expert's slots over all tokens of a group.
    fn sums(&self, combine: &[f32], experts: usize) -> Vec<f64> {
        let mut sums = vec![0.0; experts];
        for row in combine.chunks_exact(experts * self.slots) {
            for (sum, weights) in sums.iter_mut().zip(row.chunks_exact(self.slots)) {
                *sum += weights.iter().map(|weight| f64::from(*weight)).sum::<f64>();
            }
        }
        sums
    }

    /// Affinities of tokens and slots (eq. 10).
    ///
    /// - `tokens`: `X [T, D]`; `slots`: `Φ [D, E · P]`; `scale`: `[1]`, used by the normalised form
    /// - returns: `Z [T, E · P]`
    pub fn logits(
        &self,
        tokens: Tensor<2>,
        slots: Tensor<2>,
        scale: Option<Tensor<1>>,
    ) -> Tensor<2> {
        match scale {
            None => tokens.matmul(slots),
            // Products of unit vectors, with the tokens' lengths divided out where it is cheapest.
            Some(scale) => {
                let directions = slots.clone() / length(slots, 0) * scale.unsqueeze();
                tokens.clone().matmul(directions) / length(tokens, 1)
            }
        }
    }

    /// Dispatch and combine weights (eq. 11): a softmax over the tokens of a group for every slot,
    /// and a softmax over all slots for every token.
    ///
    /// - `logits`: `Z [G, S, E · P]`
    /// - returns: dispatch and combine, both `[G, S, E · P]`
    pub fn weights(&self, logits: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        (softmax(logits.clone(), 1), softmax(logits, 2))
    }
}

/// `√(Σx² + 1e-6)` along `dim`.
fn length(x: Tensor<2>, dim: usize) -> Tensor<2> {
    (x.square().sum_dim(dim) + 1e-6).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soft(subset: usize, subset_choice: SubsetChoice) -> Soft {
        Soft { slots: 2, normalised: false, subset: Some(subset), subset_choice }
    }

    #[test]
    fn experts_are_chosen_by_what_they_give_to_all_tokens() {
        // Two groups of two tokens, three experts of two slots each.
        let combine = [
            0.1, 0.1, 0.3, 0.3, 0.1, 0.1, 0.2, 0.2, 0.1, 0.3, 0.1, 0.1, // 0.6, 1.0, 0.4
            0.4, 0.2, 0.1, 0.1, 0.1, 0.1, 0.3, 0.1, 0.0, 0.2, 0.2, 0.2, // 1.0, 0.4, 0.6
        ];
        let seed = Seed::new(1);
        let chosen = |subset, choice| soft(subset, choice).subsets(&combine, 2, 3, seed);
        assert_eq!(chosen(1, SubsetChoice::Best), Some(vec![vec![1], vec![0]]));
        assert_eq!(chosen(2, SubsetChoice::Best), Some(vec![vec![0, 1], vec![0, 2]]));
        assert_eq!(chosen(1, SubsetChoice::Least), Some(vec![vec![2], vec![1]]));
        assert_eq!(chosen(3, SubsetChoice::Best), None, "all of them");
        let random = chosen(2, SubsetChoice::Random).unwrap();
        assert!(random.iter().all(|group| group.len() == 2 && group[0] < group[1] && group[1] < 3));
        assert_eq!(chosen(2, SubsetChoice::Random), Some(random), "by the seed");
    }

    #[test]
    fn a_subset_has_at_least_one_expert_and_not_more_than_there_are() {
        for (subset, fits) in [(0, false), (1, true), (4, true), (5, false)] {
            assert_eq!(soft(subset, SubsetChoice::Best).check(4).is_ok(), fits, "{subset}");
        }
    }
}
