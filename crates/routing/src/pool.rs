//! Which experts a token may choose from.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Result, RoutingError};

/// How the experts are shared out between gates. A *gate* is one routing function: its own columns
/// of the router's weight, and a softmax over its own experts only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pool {
    /// One gate over all experts.
    #[default]
    All,
    /// One gate per ensemble member (E³, paper 000 eq. 2). Without overlap the `M` subsets are
    /// disjoint; with an overlap of `O` every member has `(E - O)/M` experts of its own and the last
    /// `O` experts belong to all (§4.2.3). At `O = E` nothing is left to tell members apart by, and one
    /// gate serves all of them: that is tiling alone (Table 3, last row).
    Members {
        /// Ensemble size, `M`.
        members: usize,
        /// Experts that belong to every member.
        #[serde(default)]
        overlap: usize,
    },
    /// Disjoint subsets, and every token chooses `K` experts in each of them (partitioning without
    /// tiling, paper 000 §4.2.1).
    Partition {
        /// How many subsets.
        subsets: usize,
    },
    /// One gate per modality, all over the same experts (paper 002 App. E.3).
    GatePerModality {
        /// How many modalities.
        modalities: usize,
    },
    /// One gate per modality over experts of its own (paper 002 App. E.3).
    ExpertsPerModality {
        /// How many experts each modality has.
        experts: Vec<usize>,
    },
}

/// The tokens that call a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// All tokens.
    Everyone,
    /// The copies of one ensemble member.
    Member(usize),
    /// The tokens of one modality.
    Modality(usize),
}

/// One routing function of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// Whose tokens call it.
    pub callers: Callers,
    /// The expert behind each of the gate's columns, in increasing order.
    pub experts: Vec<usize>,
    /// The gate's columns of the router's weight.
    pub columns: Range<usize>,
    /// Experts that it was made for: more than it has columns where some are gone.
    pub size: usize,
}

/// Gates beside each other, each with the columns that follow those of the last one.
fn beside_each_other(gates: impl Iterator<Item = (Callers, Vec<usize>, usize)>) -> Vec<Gate> {
    let mut next = 0;
    gates
        .map(|(callers, experts, size)| {
            let columns = next..next + experts.len();
            next = columns.end;
            Gate { callers, experts, columns, size }
        })
        .collect()
}

impl Pool {
    /// The gates of this pool over `experts` experts.
    pub fn gates(&self, experts: usize) -> Result<Vec<Gate>> {
        if experts == 0 {
            return Err(RoutingError::NoExperts);
        }
        let all = || (0..experts).collect::<Vec<_>>();
        let subsets: Vec<(Callers, Vec<usize>)> = match self {
            Self::All => vec![(Callers::Everyone, all())],
            Self::Members { members, overlap } if *members > 0 && *overlap == experts => {
                vec![(Callers::Everyone, all())]
            }
            Self::Members { members, overlap } => {
                let own = own_experts(experts, *members, *overlap)?;
                let shared = members * own..experts;
                (0..*members)
                    .map(|m| {
                        let experts = (m * own..(m + 1) * own).chain(shared.clone()).collect();
                        (Callers::Member(m), experts)
                    })
                    .collect()
            }
            Self::Partition { subsets } => {
                let own = own_experts(experts, *subsets, 0)?;
                (0..*subsets)
                    .map(|m| (Callers::Everyone, (m * own..(m + 1) * own).collect()))
                    .collect()
            }
            Self::GatePerModality { modalities } => {
                if *modalities == 0 {
                    return Err(RoutingError::UnevenSubsets { experts, subsets: 0 });
                }
                (0..*modalities).map(|m| (Callers::Modality(m), all())).collect()
            }
            Self::ExpertsPerModality { experts: sizes } => {
                if sizes.contains(&0) || sizes.iter().sum::<usize>() != experts {
                    return Err(RoutingError::ModalityExperts { sizes: sizes.clone(), experts });
                }
                let mut next = 0;
                sizes
                    .iter()
                    .enumerate()
                    .map(|(m, size)| {
                        next += size;
                        (Callers::Modality(m), (next - size..next).collect())
                    })
                    .collect()
            }
        };
        let subsets = subsets.into_iter();
        Ok(beside_each_other(subsets.map(|(callers, experts)| {
            let size = experts.len();
            (callers, experts, size)
        })))
    }

    /// How many gates one token calls.
    pub fn gates_per_token(&self) -> usize {
        match self {
            Self::Partition { subsets } => *subsets,
            _ => 1,
        }
    }

    /// Ensemble members that the pool tells apart, if it does.
    pub fn members(&self) -> Option<usize> {
        match self {
            Self::Members { members, .. } => Some(*members),
            _ => None,
        }
    }

    /// Modalities that the pool tells apart, if it does.
    pub fn modalities(&self) -> Option<usize> {
        match self {
            Self::GatePerModality { modalities } => Some(*modalities),
            Self::ExpertsPerModality { experts } => Some(experts.len()),
            _ => None,
        }
    }
}

/// Experts that belong to one of `subsets` subsets alone.
fn own_experts(experts: usize, subsets: usize, overlap: usize) -> Result<usize> {
    if overlap > experts {
        return Err(RoutingError::OverlapTooLarge { experts, overlap });
    }
    let own = experts - overlap;
    match (subsets > 0 && own.is_multiple_of(subsets), overlap) {
        (true, _) => Ok(own / subsets),
        (false, 0) => Err(RoutingError::UnevenSubsets { experts, subsets }),
        (false, _) => Err(RoutingError::UnevenOverlap { experts, members: subsets, overlap }),
    }
}

/// How a router behaves towards experts that are no longer there (paper 002 App. E.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PruneMode {
    /// *router-pred*: gates are predicted for all experts, the pruned ones are masked after the
    /// softmax, and the others keep the scale they were trained with.
    #[default]
    Predict,
    /// *router-drop*: pruned experts are removed before the softmax, which renormalises the rest.
    Drop,
}

/// Experts that receive nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pruning {
    /// The pruned experts, in any order.
    #[serde(default)]
    pub experts: Vec<usize>,
    /// What becomes of their share of the softmax.
    #[serde(default)]
    pub mode: PruneMode,
    /// Experts that are pruned as well and have no parameters any more, in any order. Under router-pred
    /// the router has kept their columns; under router-drop it has not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<usize>,
}

impl Pruning {
    /// Whether each expert can still be chosen; fails on an expert that never was.
    pub fn alive(&self, experts: usize) -> Result<Vec<bool>> {
        without(self.experts.iter().chain(&self.removed), experts)
    }

    /// The experts that have parameters, in increasing order.
    pub fn present(&self, experts: usize) -> Result<Vec<usize>> {
        let present = without(&self.removed, experts)?;
        Ok((0..experts).filter(|expert| present[*expert]).collect())
    }

    /// Whether the router has lost columns.
    pub(crate) fn cuts_columns(&self) -> bool {
        self.mode == PruneMode::Drop && !self.removed.is_empty()
    }

    /// The gates that are left of `gates` where columns are gone.
    pub(crate) fn cut(&self, gates: Vec<Gate>) -> Vec<Gate> {
        if !self.cuts_columns() {
            return gates;
        }
        beside_each_other(gates.into_iter().map(|gate| {
            let Gate { callers, mut experts, size, .. } = gate;
            experts.retain(|expert| !self.removed.contains(expert));
            (callers, experts, size)
        }))
    }
}

/// `[E]`: false for some of them.
fn without<'a>(some: impl IntoIterator<Item = &'a usize>, experts: usize) -> Result<Vec<bool>> {
    let mut there = vec![true; experts];
    for &expert in some {
        *there.get_mut(expert).ok_or(RoutingError::PrunedOutOfRange { expert, experts })? = false;
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(pool: &Pool, experts: usize) -> Vec<Vec<usize>> {
        pool.gates(experts).unwrap().into_iter().map(|gate| gate.experts).collect()
    }

    #[test]
    fn members_have_disjoint_subsets_or_share_the_last_experts() {
        let pool = Pool::Members { members: 2, overlap: 0 };
        assert_eq!(experts(&pool, 6), [vec![0, 1, 2], vec![3, 4, 5]]);
        let pool = Pool::Members { members: 2, overlap: 2 };
        assert_eq!(experts(&pool, 6), [vec![0, 1, 4, 5], vec![2, 3, 4, 5]]);
        // The paper's example: E = 32, M = 2, an overlap of 8 gives 12 + 8 each.
        let gates = Pool::Members { members: 2, overlap: 8 }.gates(32).unwrap();
        assert!(gates.iter().all(|gate| gate.experts.len() == 20));
        assert_eq!(gates[1].columns, 20..40);
    }

    /// Paper 000 Table 3: "32 (= Tiling)".
    #[test]
    fn members_that_share_all_experts_share_their_gate() {
        let tiling = Pool::Members { members: 2, overlap: 32 }.gates(32).unwrap();
        assert_eq!(tiling, Pool::All.gates(32).unwrap());
    }

    #[test]
    fn subsets_that_do_not_divide_are_errors_with_both_sides() {
        let uneven = Pool::Members { members: 4, overlap: 0 }.gates(6).unwrap_err();
        assert_eq!(uneven.to_string(), "6 experts cannot be cut into 4 equal subsets");
        assert!(Pool::Members { members: 0, overlap: 0 }.gates(6).is_err());
        assert!(Pool::Members { members: 2, overlap: 7 }.gates(6).is_err());
        assert!(Pool::Members { members: 2, overlap: 1 }.gates(6).is_err());
        assert!(Pool::ExpertsPerModality { experts: vec![5, 2] }.gates(6).is_err());
        assert!(Pool::All.gates(0).is_err());
    }

    #[test]
    fn an_expert_that_never_was_cannot_be_pruned() {
        let pruning = Pruning { experts: vec![1, 9], mode: PruneMode::Drop, ..Pruning::default() };
        assert!(pruning.alive(8).is_err());
        assert_eq!(pruning.alive(10).unwrap().iter().filter(|alive| **alive).count(), 8);
        let removed = Pruning { removed: vec![1, 9], ..Pruning::default() };
        assert!(removed.alive(8).is_err() && removed.present(8).is_err());
        assert_eq!(removed.alive(10).unwrap(), pruning.alive(10).unwrap());
        assert_eq!(removed.present(10).unwrap(), [0, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(pruning.present(10).unwrap().len(), 10, "what is masked has its parameters");
    }

    #[test]
    fn gates_lose_the_columns_of_experts_that_were_dropped_for_good() {
        let whole = Pool::Members { members: 2, overlap: 2 }.gates(6).unwrap();
        let removed = |mode| Pruning { removed: vec![4, 0], mode, ..Pruning::default() };
        assert_eq!(removed(PruneMode::Predict).cut(whole.clone()), whole);
        let cut = removed(PruneMode::Drop).cut(whole.clone());
        let found: Vec<_> =
            cut.iter().map(|gate| (gate.experts.clone(), gate.columns.clone())).collect();
        assert_eq!(found, [(vec![1, 5], 0..2), (vec![2, 3, 5], 2..5)]);
        assert!(cut.iter().all(|gate| gate.size == 4), "noise is in units of what was trained");
        let masked = Pruning { experts: vec![4, 0], mode: PruneMode::Drop, removed: Vec::new() };
        assert_eq!(masked.cut(whole.clone()), whole);
    }
}
