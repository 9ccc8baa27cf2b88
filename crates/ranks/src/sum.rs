//! Sums over the shards of a batch, in one order.
//!
//! Numbers of a computer are not associative, so the order is part of the result: a binary tree over all shards,
//! whoever has which of them. A rank sums the largest subtrees that it has all shards of. What is left of the tree
//! is summed by elements: each rank gets some elements of all subtrees, sums them, and gives them to all. Where
//! every rank has one subtree, as with one shard or two or four on each, a rank sends `2 (R - 1) / R` times what it
//! sums, the least that a sum over `R` ranks takes.

use std::{iter::Peekable, ops::Range, vec};

use rayon::prelude::*;

use crate::{owners::Owners, world::World};

/// Values that a thread adds at a time.
const PART: usize = 1 << 14;

/// Which of all shards a rank has: as many as any other, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Shards of a batch.
    pub shards: usize,
    /// Those of this rank.
    pub own: Range<usize>,
}

impl Share {
    /// That of this rank; nothing where ranks would have different numbers of shards.
    pub fn new(world: &World, shards: usize) -> Option<Self> {
        let each = shards / world.size();
        let own = world.rank() * each..(world.rank() + 1) * each;
        (each > 0 && shards.is_multiple_of(world.size())).then_some(Self { shards, own })
    }

    /// The largest subtrees that a rank has all shards of.
    fn subtrees(&self, rank: usize) -> Vec<Range<usize>> {
        let each = self.own.len();
        let mut found = Vec::new();
        subtrees(0..self.shards, &(rank * each..(rank + 1) * each), &mut found);
        found
    }

    /// Bytes that each rank sends for a sum of so many values.
    pub fn bytes_to_send(&self, values: u64) -> u64 {
        let ranks = (self.shards / self.own.len()) as u64;
        let subtrees = self.subtrees(self.own.start / self.own.len()).len() as u64;
        4 * (subtrees + 1) * (values - values / ranks)
    }
}

/// The left half has as many leaves as the largest power of two that leaves some for the right one.
fn halves(tree: &Range<usize>) -> [Range<usize>; 2] {
    let middle = tree.start + tree.len().next_power_of_two() / 2;
    [tree.start..middle, middle..tree.end]
}

fn subtrees(tree: Range<usize>, own: &Range<usize>, found: &mut Vec<Range<usize>>) {
    if own.start <= tree.start && tree.end <= own.end {
        found.push(tree);
    } else if tree.start < own.end && own.start < tree.end {
        halves(&tree).into_iter().for_each(|half| subtrees(half, own, found));
    }
}

/// Subtrees whose sums are known, from left to right.
type Known<T> = Peekable<vec::IntoIter<(Range<usize>, T)>>;

fn sum_tree<T>(tree: Range<usize>, known: &mut Known<T>, add: &impl Fn(&mut T, T)) -> T {
    if let Some((_, sum)) = known.next_if(|(subtree, _)| *subtree == tree) {
        return sum;
    }
    assert!(tree.len() > 1, "every shard is summed");
    let [left, right] = halves(&tree);
    let mut sum = sum_tree(left, known, add);
    add(&mut sum, sum_tree(right, known, add));
    sum
}

/// - `here`: whether by this thread alone, because others have something else to do
fn add(sum: &mut [f32], other: &[f32], here: bool) {
    let add = |(sum, other): (&mut [f32], &[f32])| {
        sum.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    };
    match here {
        true => add((sum, other)),
        false => sum.par_chunks_mut(PART).zip(other.par_chunks(PART)).for_each(add),
    }
}

/// The sums of the subtrees that a rank has all shards of, from left to right.
///
/// - `shards`: those of this rank, each a list of vectors
fn sum_subtrees(world: &World, share: &Share, shards: Vec<Vec<Vec<f32>>>) -> Vec<Vec<Vec<f32>>> {
    let leaves = share.own.clone().map(|shard| shard..shard + 1).zip(shards);
    let mut leaves = leaves.collect::<Vec<_>>().into_iter().peekable();
    let add_all = |sum: &mut Vec<Vec<f32>>, other: Vec<Vec<f32>>| {
        let pairs = sum.iter_mut().zip(other);
        pairs.for_each(|(sum, other)| add(sum, &other, world.is_patient()));
    };
    let own = share.subtrees(world.rank()).into_iter();
    own.map(|tree| sum_tree(tree, &mut leaves, &add_all)).collect()
}

/// The sum over all shards of all ranks, on every rank; the same to the bit however they are spread.
///
/// - `shards`: those of this rank, each a list of vectors
pub fn sum_over_shards(world: &World, share: &Share, shards: Vec<Vec<Vec<f32>>>) -> Vec<Vec<f32>> {
    let sizes: Vec<usize> = shards[0].iter().map(Vec::len).collect();
    let owners = Owners::even(&sizes, world.size());
    let mut sum = sum_own_parts(world, share, &owners, shards);
    owners.gather(world, &mut sum);
    sum
}

/// The same sum of this rank's part of every vector alone; the rest of the vectors is of no use.
///
/// - `shards`: those of this rank, each a list of vectors
pub fn sum_own_parts(
    world: &World,
    share: &Share,
    owners: &Owners,
    shards: Vec<Vec<Vec<f32>>>,
) -> Vec<Vec<f32>> {
    let own = sum_subtrees(world, share, shards);
    if world.is_alone() {
        return own.into_iter().next().expect("one tree has all shards");
    }
    let (me, ranks) = (world.rank(), world.size());
    let trees: Vec<Vec<Range<usize>>> = (0..ranks).map(|rank| share.subtrees(rank)).collect();
    let mut sums = vec![Vec::new(); owners.buckets.len()];
    for (bucket, sum) in owners.buckets.iter().zip(&mut sums) {
        let sizes = owners.sizes(bucket);
        let mut send = Vec::with_capacity(sizes.iter().sum::<usize>() * own.len());
        for rank in 0..ranks {
            for subtree in &own {
                let parts =
                    bucket.iter().map(|piece| &subtree[piece.vector][owners.of(piece, rank)]);
                parts.for_each(|part| send.extend_from_slice(part));
            }
        }
        let sent: Vec<usize> = sizes.iter().map(|size| size * own.len()).collect();
        let received: Vec<usize> = trees.iter().map(|trees| trees.len() * sizes[me]).collect();
        let mut parts = world.all_to_all(send, &sent, &received);
        if sizes[me] > 0 {
            let subtrees = trees.iter().flatten().cloned().zip(parts.chunks_exact_mut(sizes[me]));
            let mut known = subtrees.collect::<Vec<_>>().into_iter().peekable();
            let add = |sum: &mut &mut [f32], other: &mut [f32]| add(sum, other, world.is_patient());
            *sum = sum_tree(0..share.shards, &mut known, &add).to_vec();
        }
    }
    let mut vectors = own.into_iter().next().expect("every rank has a shard");
    for (bucket, sum) in owners.buckets.iter().zip(&sums) {
        owners.put(bucket, me, sum, &mut vectors);
    }
    vectors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{owners::BUCKET, threads};

    /// Values of very different sizes, whose sum depends on its order.
    fn shard(number: usize, sizes: &[usize]) -> Vec<Vec<f32>> {
        let mut state = number as u32 + 1;
        let mut value = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state as f32 / 1e9 - 2.0) * 10_f32.powi((state >> 5) as i32 % 7)
        };
        sizes.iter().map(|size| (0..*size).map(|_| value()).collect()).collect()
    }

    fn sums(ranks: usize, shards: usize, sizes: &[usize]) -> Vec<(Vec<Vec<f32>>, u64, u64)> {
        threads(ranks, |world| {
            let share = Share::new(&world, shards).unwrap();
            let own = share.own.clone().map(|number| shard(number, sizes)).collect();
            let sum = sum_over_shards(&world, &share, own);
            let values: usize = sizes.iter().sum();
            (sum, world.take_traffic().bytes, share.bytes_to_send(values as u64))
        })
    }

    #[test]
    fn a_sum_has_the_same_bits_however_shards_are_spread() {
        let sizes = [5, 0, 40_001, 12];
        for (shards, spreads) in
            [(4, &[2, 4][..]), (6, &[2, 3, 6]), (12, &[2, 3, 4, 6, 12]), (1, &[]), (7, &[7])]
        {
            let (alone, bytes, _) = sums(1, shards, &sizes).remove(0);
            assert_eq!(bytes, 0);
            let in_turn = (1..shards).fold(shard(0, &sizes), |mut sum, next| {
                let pairs = sum.iter_mut().flatten().zip(shard(next, &sizes).into_iter().flatten());
                pairs.for_each(|(a, b)| *a += b);
                sum
            });
            assert!(shards < 4 || alone != in_turn, "the order does not matter here");
            for ranks in spreads {
                for (sum, ..) in sums(*ranks, shards, &sizes) {
                    assert!(sum == alone, "{shards} shards on {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn bytes_are_as_computed() {
        for (ranks, shards) in [(2, 2), (4, 4), (2, 8), (2, 6)] {
            for (_, sent, computed) in sums(ranks, shards, &[1200, 36]) {
                assert_eq!(sent, computed, "{ranks} ranks, {shards} shards");
            }
        }
        // One subtree per rank: 2 (R - 1) / R of four bytes each.
        assert_eq!(sums(4, 4, &[1000])[1].1, 2 * 3 * 1000);
    }

    #[test]
    fn more_than_a_bucket_and_less_than_a_value_per_rank_are_summed_too() {
        for size in [BUCKET + 3, 2, 0] {
            let alone = sums(1, 3, &[size]).remove(0).0;
            sums(3, 3, &[size]).into_iter().for_each(|(sum, ..)| assert!(sum == alone));
        }
    }

    #[test]
    fn shards_are_spread_evenly_or_not_at_all() {
        let share = |ranks, shards| threads(ranks, |world| Share::new(&world, shards));
        assert_eq!(share(2, 6)[1], Some(Share { shards: 6, own: 3..6 }));
        assert_eq!(share(2, 3), [None, None]);
        assert_eq!(share(2, 1), [None, None]);
    }
}
