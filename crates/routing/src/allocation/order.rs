//! Who is served first when experts have a capacity.

use std::{fmt, str::FromStr};

use omma_base::Seed;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Result, RoutingError},
    layout::Groups,
};

/// The order in which tokens claim slots. Whatever the order, all first choices go before all
/// second choices, and tokens that tie keep their order of arrival. In files: `arrival`, `max-gate`,
/// `sum-of-gates`, `shuffled`, `modality-first-0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Order {
    /// As they stand in the group ("vanilla").
    #[default]
    Arrival,
    /// Batch priority: the largest affinity first (V-MoE).
    MaxGate,
    /// Batch priority: the largest sum of the chosen affinities first (paper 002 App. E.1).
    SumOfGates,
    /// In an order drawn from the seed.
    Shuffled,
    /// The tokens of one modality first, then the others, each as they stand.
    ModalityFirst(usize),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrival => f.write_str("arrival"),
            Self::MaxGate => f.write_str("max-gate"),
            Self::SumOfGates => f.write_str("sum-of-gates"),
            Self::Shuffled => f.write_str("shuffled"),
            Self::ModalityFirst(modality) => write!(f, "modality-first-{modality}"),
        }
    }
}

impl FromStr for Order {
    type Err = RoutingError;

    fn from_str(text: &str) -> Result<Self> {
        let first = text.strip_prefix("modality-first-").map(str::parse::<u8>);
        match (text, first) {
            ("arrival", _) => Ok(Self::Arrival),
            ("max-gate", _) => Ok(Self::MaxGate),
            ("sum-of-gates", _) => Ok(Self::SumOfGates),
            ("shuffled", _) => Ok(Self::Shuffled),
            (_, Some(Ok(modality))) => Ok(Self::ModalityFirst(modality.into())),
            _ => Err(RoutingError::Unreadable {
                what: "an order",
                text: text.to_owned(),
                forms: "arrival, max-gate, sum-of-gates, shuffled or modality-first-0",
            }),
        }
    }
}

impl From<Order> for String {
    fn from(order: Order) -> Self {
        order.to_string()
    }
}

impl TryFrom<String> for Order {
    type Error = RoutingError;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

/// What an order may depend on.
pub(crate) struct Arrivals<'a> {
    pub(crate) groups: &'a Groups,
    /// The modality of every token.
    pub(crate) modality: Option<&'a [usize]>,
    pub(crate) seed: Seed,
}

impl Order {
    /// The tokens of `group` in the order in which they are served.
    ///
    /// - `max`, `sum`: the largest and the summed affinity of every token's choices
    pub(crate) fn serve(
        &self,
        arrivals: &Arrivals,
        group: usize,
        max: &[f32],
        sum: &[f32],
    ) -> Vec<u32> {
        let mut tokens = arrivals.groups.tokens(group).to_vec();
        match self {
            Self::Arrival => {}
            Self::MaxGate => tokens = by_priority(tokens, max),
            Self::SumOfGates => tokens = by_priority(tokens, sum),
            Self::Shuffled => {
                let seed = arrivals.seed.named("order").numbered(group as u64);
                tokens.shuffle(&mut seed.rng());
            }
            Self::ModalityFirst(first) => {
                let modality = arrivals.modality.expect("the router has checked for modalities");
                let (mut favoured, others): (Vec<u32>, Vec<u32>) =
                    tokens.iter().partition(|token| modality[**token as usize] == *first);
                favoured.extend(others);
                tokens = favoured;
            }
        }
        tokens
    }
}

/// Sorts by decreasing priority, stably, in linear time: a radix sort on the bits of the floats.
fn by_priority(mut tokens: Vec<u32>, priority: &[f32]) -> Vec<u32> {
    const BITS: u32 = 11;
    let key = |token: u32| descending_bits(priority[token as usize]);
    let mut sorted = vec![0; tokens.len()];
    for shift in [0, BITS, 2 * BITS] {
        let digit = |token: u32| (key(token) >> shift) as usize & ((1 << BITS) - 1);
        let mut starts = [0_usize; 1 << BITS];
        tokens.iter().for_each(|token| starts[digit(*token)] += 1);
        let mut next = 0;
        for start in &mut starts {
            next += std::mem::replace(start, next);
        }
        for &token in &tokens {
            let start = &mut starts[digit(token)];
            sorted[*start] = token;
            *start += 1;
        }
        std::mem::swap(&mut tokens, &mut sorted);
    }
    tokens
}

/// Bits that, read as an integer, order floats from the largest to the smallest; both zeros tie.
pub(crate) fn descending_bits(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn priority_is_a_stable_sort(priority in prop::collection::vec(-2.0..2.0_f32, 0..300)) {
            // Coarse values, so that there are many ties.
            let priority: Vec<f32> = priority.iter().map(|p| (p * 8.0).round() / 8.0).collect();
            let mut expected: Vec<u32> = (0..priority.len() as u32).collect();
            expected.sort_by(|a, b| priority[*b as usize].partial_cmp(&priority[*a as usize]).unwrap());
            prop_assert_eq!(by_priority((0..priority.len() as u32).collect(), &priority), expected);
        }
    }

    #[test]
    fn an_order_is_written_as_it_is_read() {
        use Order::*;
        for order in [Arrival, MaxGate, SumOfGates, Shuffled, ModalityFirst(2)] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        for text in ["", "max", "modality-first-", "modality-first-999"] {
            assert!(text.parse::<Order>().is_err(), "{text}");
        }
    }

    #[test]
    fn both_zeros_are_the_same_priority() {
        assert_eq!(by_priority(vec![0, 1, 2], &[-0.0, 0.0, 1.0]), [2, 0, 1]);
    }
}
