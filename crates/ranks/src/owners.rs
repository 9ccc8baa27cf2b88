//! Who sums which elements of vectors that all ranks have, and who moves which elements of parameters.

use std::ops::Range;

use crate::world::World;

/// Values that are sent at a time: buffers stay small, and counts fit into MPI's.
pub(crate) const BUCKET: usize = 1 << 22;

/// Which elements of each vector are whose: about as many for every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// For every vector, where the elements of each rank begin; and where those of the last end.
    bounds: Vec<Vec<usize>>,
    /// What is sent at a time.
    pub(crate) buckets: Vec<Vec<Piece>>,
}

/// A vector, or one of the equal parts that every rank's elements of it are sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) vector: usize,
    part: usize,
    parts: usize,
}

impl Owners {
    /// Every vector cut into as many parts as there are ranks.
    pub fn even(sizes: &[usize], ranks: usize) -> Self {
        Self::cut(sizes.iter().map(|size| (*size, Some(1))), ranks)
    }

    /// The same with cuts at multiples of a vector's grain alone. What has not a grain for every rank, or none, is all of
    /// one rank, whichever has the least of such vectors so far.
    pub fn cut(vectors: impl IntoIterator<Item = (usize, Option<usize>)>, ranks: usize) -> Self {
        let mut held = vec![0; ranks];
        let bounds = vectors.into_iter().map(|(size, grain)| {
            let grains = grain.map_or(0, |grain| size / grain.max(1));
            match grain {
                Some(grain) if grains >= ranks => {
                    let cut = |rank: usize| grains * rank / ranks * grain;
                    (0..ranks).map(cut).chain([size]).collect()
                }
                _ => {
                    let least = (0..ranks).min_by_key(|rank| held[*rank]).unwrap_or(0);
                    held[least] += size;
                    (0..=ranks).map(|rank| if rank > least { size } else { 0 }).collect()
                }
            }
        });
        let bounds: Vec<Vec<usize>> = bounds.collect();
        let buckets = buckets(bounds.iter().map(|bounds| bounds[ranks]));
        Self { bounds, buckets }
    }

    /// The same owners of some of the vectors.
    pub fn select(&self, vectors: &[usize]) -> Self {
        let bounds: Vec<Vec<usize>> =
            vectors.iter().map(|vector| self.bounds[*vector].clone()).collect();
        let buckets = buckets(bounds.iter().map(|bounds| bounds[bounds.len() - 1]));
        Self { bounds, buckets }
    }

    /// The elements of a vector that are a rank's.
    pub fn range(&self, vector: usize, rank: usize) -> Range<usize> {
        self.bounds[vector][rank]..self.bounds[vector][rank + 1]
    }

    /// The elements of a piece that are a rank's.
    pub(crate) fn of(&self, piece: &Piece, rank: usize) -> Range<usize> {
        let Range { start, end } = self.range(piece.vector, rank);
        let bound = |part| start + (end - start) * part / piece.parts;
        bound(piece.part)..bound(piece.part + 1)
    }

    /// How many elements of a bucket each rank has.
    pub(crate) fn sizes(&self, bucket: &[Piece]) -> Vec<usize> {
        let ranks = 0..self.bounds[bucket[0].vector].len() - 1;
        let size = |rank| bucket.iter().map(|piece| self.of(piece, rank).len()).sum();
        ranks.map(size).collect()
    }

    /// Puts a rank's elements of a bucket, one after the other, where they belong.
    pub(crate) fn put(&self, bucket: &[Piece], rank: usize, own: &[f32], vectors: &mut [Vec<f32>]) {
        let mut rest = own;
        for piece in bucket {
            let range = self.of(piece, rank);
            let (part, left) = rest.split_at(range.len());
            vectors[piece.vector][range].copy_from_slice(part);
            rest = left;
        }
    }

    /// Gives every rank the elements that are another's.
    ///
    /// - `vectors`: of each, this rank's own elements; after that, all
    pub fn gather(&self, world: &World, vectors: &mut [Vec<f32>]) {
        if world.is_alone() {
            return;
        }
        for bucket in &self.buckets {
            let sizes = self.sizes(bucket);
            let mut own = Vec::with_capacity(sizes[world.rank()]);
            let parts =
                bucket.iter().map(|piece| &vectors[piece.vector][self.of(piece, world.rank())]);
            parts.for_each(|part| own.extend_from_slice(part));
            let all = world.all_gather(own, &sizes);
            let mut rest = all.as_slice();
            for (rank, size) in sizes.into_iter().enumerate() {
                let (of_rank, left) = rest.split_at(size);
                self.put(bucket, rank, of_rank, vectors);
                rest = left;
            }
        }
    }
}

/// Vectors that are sent together, and those parts of a vector that are sent one after the other.
fn buckets(sizes: impl Iterator<Item = usize>) -> Vec<Vec<Piece>> {
    let mut buckets: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for (vector, size) in sizes.enumerate() {
        let parts = size.div_ceil(BUCKET).max(1);
        for part in 0..parts {
            let size = size.div_ceil(parts);
            if buckets.is_empty() || size > room {
                buckets.push(Vec::new());
                room = BUCKET;
            }
            room -= size;
            buckets.last_mut().expect("there is one").push(Piece { vector, part, parts });
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn every_element_is_of_one_rank_and_ranks_have_about_as_many() {
        let vectors =
            [(1000, Some(64)), (100, None), (100, Some(64)), (64, Some(64)), (3, Some(1))];
        let owners = Owners::cut(vectors, 4);
        for (vector, (size, grain)) in vectors.into_iter().enumerate() {
            let ranges = (0..4).map(|rank| owners.range(vector, rank));
            let end = ranges.fold(0, |end, range| {
                assert_eq!(range.start, end);
                assert!(range.start % grain.unwrap_or(size) == 0 || range.start == size);
                range.end
            });
            assert_eq!(end, size);
        }
        let held = |rank| -> usize { (1..5).map(|vector| owners.range(vector, rank).len()).sum() };
        assert_eq!([0, 1, 2, 3].map(held), [100, 100, 64, 3]);
        assert_eq!([0, 1, 2, 3].map(|rank| owners.range(0, rank).len()), [192, 256, 256, 296]);
    }

    #[test]
    fn parts_are_brought_together_in_buckets_and_beyond_them() {
        let sizes = [5, BUCKET - 7, 4, 2 * BUCKET + 3, 0, 1];
        let whole: Vec<Vec<f32>> =
            sizes.iter().map(|size| (0..*size).map(|element| element as f32).collect()).collect();
        let found = threads(2, |world| {
            let owners = Owners::even(&sizes, 2);
            assert_eq!(owners.buckets.len(), 4);
            let mut own: Vec<Vec<f32>> = sizes.iter().map(|size| vec![-1.0; *size]).collect();
            for (vector, own) in own.iter_mut().enumerate() {
                let range = owners.range(vector, world.rank());
                own[range.clone()].copy_from_slice(&whole[vector][range]);
            }
            owners.gather(&world, &mut own);
            own == whole
        });
        assert_eq!(found, [true, true]);
    }
}
