//! Which samples a batch has: those of one order, or shares of several.

use std::sync::Arc;

use omma_base::Seed;

use super::order::Order;
use crate::{
    dataset::{Share, Shared},
    error::Result,
};

/// The samples of every batch, which follow from its number and the seed.
pub(super) enum Schedule {
    /// All samples alike.
    One(Order, usize),
    /// Parts by their shares.
    Mixed(Mixed),
}

/// A place in the shuffled samples of an epoch.
pub(super) struct Draw {
    order: Arc<Vec<u32>>,
    place: usize,
    /// Samples of the data set before those that are shuffled here.
    start: usize,
}

impl Draw {
    /// The sample's index, and after it those that may replace it: from the epoch's other half, so that a
    /// replacement is seldom in the same batch.
    pub(super) fn candidates(&self) -> impl Iterator<Item = usize> {
        let length = self.order.len();
        let others = (0..length).map(move |shift| self.place + length / 2 + shift);
        std::iter::once(self.place)
            .chain(others)
            .map(move |place| self.start + self.order[place % length] as usize)
    }
}

impl Schedule {
    pub(super) fn new(data: &Shared, batch: usize, seed: Seed) -> Result<Self> {
        match data.shares() {
            None => Ok(Self::One(Order::new(data.len(), batch, seed)?, batch)),
            Some(shares) => Ok(Self::Mixed(Mixed::new(&shares, batch, seed)?)),
        }
    }

    /// The samples of a batch.
    pub(super) fn of(&mut self, number: u64) -> Vec<Draw> {
        match self {
            Self::One(order, batch) => {
                let (order, first) = order.of(number);
                let draw = |slot| Draw { order: order.clone(), place: first + slot, start: 0 };
                (0..*batch).map(draw).collect()
            }
            Self::Mixed(mixed) => mixed.of(number),
        }
    }
}

/// Parts by their shares. The slots of all batches, counted through, repeat a pattern that has every part as
/// often as its share, evenly spread. So a batch that the sum of the shares divides has them exactly, and any
/// other batches have them after as many as that sum at most.
pub(super) struct Mixed {
    parts: Vec<PartOfMixture>,
    /// For every slot of the pattern its part, and how often this had a slot before.
    pattern: Vec<(usize, u64)>,
    batch: usize,
}

struct PartOfMixture {
    /// Its slots in the pattern.
    share: u64,
    start: usize,
    /// One sample at a time, so that an epoch has all of them.
    order: Order,
}

impl Mixed {
    fn new(shares: &[Share], batch: usize, seed: Seed) -> Result<Self> {
        let (mut parts, mut start) = (Vec::new(), 0);
        for (number, Share { samples, share }) in shares.iter().enumerate() {
            // Of a part that was held out as a whole, nothing is drawn.
            if *samples > 0 && *share > 0 {
                let seed = seed.named("part").numbered(number as u64);
                let order = Order::new(*samples, 1, seed)?;
                parts.push(PartOfMixture { share: u64::from(*share), start, order });
            }
            start += samples;
        }
        let divisor = parts.iter().map(|part| part.share).fold(0, gcd).max(1);
        parts.iter_mut().for_each(|part| part.share /= divisor);
        let shares: Vec<u64> = parts.iter().map(|part| part.share).collect();
        Ok(Self { parts, pattern: pattern(&shares), batch })
    }

    fn of(&mut self, number: u64) -> Vec<Draw> {
        let (length, batch) = (self.pattern.len() as u64, self.batch as u64);
        let draw = |slot: u64| {
            let slot = number * batch + slot;
            let (part, before) = self.pattern[(slot % length) as usize];
            let PartOfMixture { share, start, order } = &mut self.parts[part];
            let (order, place) = order.of(slot / length * *share + before);
            Draw { order, place, start: *start }
        };
        (0..batch).map(draw).collect()
    }
}

/// Every part as often as its share, evenly spread: at every slot, the part that is owed most.
fn pattern(shares: &[u64]) -> Vec<(usize, u64)> {
    let shares: Vec<i64> = shares.iter().map(|share| *share as i64).collect();
    let sum: i64 = shares.iter().sum();
    let (mut owed, mut had) = (vec![0i64; shares.len()], vec![0u64; shares.len()]);
    let mut pattern = Vec::new();
    for _ in 0..sum {
        owed.iter_mut().zip(&shares).for_each(|(owed, share)| *owed += share);
        // Of equals the first.
        let most = owed.iter().enumerate().max_by_key(|(part, owed)| (**owed, -(*part as i64)));
        let Some(part) = most.map(|(part, _)| part) else { break };
        pattern.push((part, had[part]));
        had[part] += 1;
        owed[part] -= sum;
    }
    pattern
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// The indices of some batches.
    fn batches(
        shares: &[(usize, u32)],
        batch: usize,
        numbers: std::ops::Range<u64>,
    ) -> Vec<Vec<usize>> {
        let shares: Vec<Share> = shares
            .iter()
            .map(|(samples, share)| Share { samples: *samples, share: *share })
            .collect();
        let mut mixed = Mixed::new(&shares, batch, Seed::new(5)).unwrap();
        let first = |draw: &Draw| draw.candidates().next().unwrap();
        numbers.map(|number| mixed.of(number).iter().map(first).collect()).collect()
    }

    /// The part that an index is of.
    fn part(shares: &[(usize, u32)], index: usize) -> usize {
        let mut end = 0;
        let ends = shares.iter().map(|(samples, _)| {
            end += samples;
            end
        });
        ends.take_while(|end| *end <= index).count()
    }

    #[test]
    fn three_to_one_is_evenly_spread() {
        let parts: Vec<usize> = pattern(&[3, 1]).iter().map(|(part, _)| *part).collect();
        assert_eq!(parts, [0, 0, 1, 0]);
        let tens = [(5, 30), (5, 10)].map(|(samples, share)| Share { samples, share });
        assert_eq!(Mixed::new(&tens, 8, Seed::new(1)).unwrap().pattern, pattern(&[3, 1]));
    }

    #[test]
    fn a_part_without_samples_is_passed_over() {
        let found = batches(&[(0, 5), (4, 1), (0, 1), (3, 1)], 4, 0..3);
        for batch in found {
            assert_eq!(batch.iter().filter(|index| **index < 4).count(), 2);
            assert!(batch.iter().all(|index| *index < 7));
        }
    }

    fn mixtures() -> impl Strategy<Value = (Vec<(usize, u32)>, usize)> {
        (prop::collection::vec((1usize..40, 1u32..9), 1..5), 1usize..33)
    }

    proptest! {
        #[test]
        fn shares_hold_in_a_batch_that_they_divide_and_over_few_others(
            (shares, batch) in mixtures(),
        ) {
            let divisor = shares.iter().map(|(_, share)| u64::from(*share)).fold(0, gcd);
            let sum = shares.iter().map(|(_, share)| u64::from(*share)).sum::<u64>() / divisor;
            let few = sum / gcd(sum, batch as u64);
            for batches in batches(&shares, batch, 0..3 * few).chunks(few as usize) {
                let mut counts = vec![0u64; shares.len()];
                batches.iter().flatten().for_each(|index| counts[part(&shares, *index)] += 1);
                let slots = few * batch as u64;
                for (count, (_, share)) in counts.iter().zip(&shares) {
                    prop_assert_eq!(*count, slots / sum * (u64::from(*share) / divisor));
                }
            }
        }

        #[test]
        fn every_sample_of_a_part_comes_once_in_an_epoch_of_its_own(
            (shares, batch) in mixtures(),
        ) {
            let drawn = batches(&shares, batch, 0..60).concat();
            for (number, (samples, _)) in shares.iter().enumerate() {
                let own: Vec<usize> =
                    drawn.iter().copied().filter(|index| part(&shares, *index) == number).collect();
                let mut orders = BTreeMap::new();
                for epoch in own.chunks_exact(*samples) {
                    let mut sorted = epoch.to_vec();
                    sorted.sort_unstable();
                    prop_assert!(sorted.windows(2).all(|two| two[1] == two[0] + 1));
                    *orders.entry(epoch.to_vec()).or_insert(0) += 1;
                }
                // So many samples are hardly ever in the same order twice.
                prop_assert!(*samples < 12 || orders.values().all(|times| *times == 1));
            }
        }

        #[test]
        fn a_batch_follows_from_its_number_alone(
            (shares, batch) in mixtures(), from in 0u64..100,
        ) {
            let whole = batches(&shares, batch, 0..from + 5);
            prop_assert_eq!(&whole[from as usize..], &batches(&shares, batch, from..from + 5)[..]);
        }
    }
}
