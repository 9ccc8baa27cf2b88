//! Pictures as large as they are, each with its mask, once.

use rayon::prelude::*;

use super::{BAD_SHARE, bad_files::BadFiles};
use crate::{dataset::Shared, error::Result, picture::Picture, targets::checked_mask};

/// A picture with the class of each of its pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedPicture {
    /// Which sample of the data it is.
    pub index: usize,
    /// As large as it was stored.
    pub picture: Picture,
    /// `[H, W]`: the class of every pixel, or [`IGNORED`](crate::IGNORED).
    pub mask: Vec<u8>,
}

/// Samples in their order, a few at a time; a hundredth of them may be unreadable.
pub struct MaskedPictures {
    data: Shared,
    batch: usize,
    bad: BadFiles,
    next: usize,
}

impl MaskedPictures {
    /// - `batch`: samples that are read at a time
    pub fn new(data: Shared, batch: usize) -> Self {
        Self { data, batch: batch.max(1), bad: BadFiles::new(BAD_SHARE), next: 0 }
    }

    fn read(&self, index: usize) -> Result<Option<MaskedPicture>> {
        let Some(mut sample) = self.bad.read(&self.data, index)? else { return Ok(None) };
        let mask = checked_mask(&self.data, index, &mut sample)?.pixels;
        Ok(Some(MaskedPicture { index, picture: sample.picture, mask }))
    }
}

impl Iterator for MaskedPictures {
    type Item = Result<Vec<MaskedPicture>>;

    fn next(&mut self) -> Option<Self::Item> {
        let range = self.next..(self.next + self.batch).min(self.data.len());
        if range.is_empty() {
            return None;
        }
        self.next = range.end;
        let made: Result<Vec<_>> = range.into_par_iter().map(|index| self.read(index)).collect();
        if made.is_err() {
            self.next = self.data.len();
        }
        Some(made.map(|made| made.into_iter().flatten().collect()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omma_base::Resolution;

    use super::*;
    use crate::{
        dataset::Split,
        world::{Variant, World},
    };

    fn world(variant: Variant) -> Shared {
        Arc::new(World::new(1, Resolution::new(16, 20), 5, Split::Test, variant))
    }

    #[test]
    fn every_picture_comes_once_with_its_own_mask() {
        let data = world(Variant::Usual);
        let all: Vec<MaskedPicture> =
            MaskedPictures::new(data.clone(), 2).flat_map(|batch| batch.unwrap()).collect();
        assert_eq!(all.iter().map(|one| one.index).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for MaskedPicture { index, picture, mask } in all {
            let sample = data.get(index).unwrap();
            assert_eq!((picture, Some(mask)), (sample.picture, sample.mask));
        }
    }

    #[test]
    fn a_mask_of_classes_that_there_are_none_of_ends_it() {
        let mut strange = MaskedPictures::new(world(Variant::NearOod), 2);
        assert!(strange.next().unwrap().is_err());
        assert!(strange.next().is_none());
    }
}
