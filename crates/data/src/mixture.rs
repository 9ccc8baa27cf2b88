//! Several data sets as one, of which every training batch has its shares.

use crate::{
    dataset::{Dataset, Sample, Share, Shared},
    error::{DataError, Result},
};

/// Larger sums of shares, such as those of 1000001:1, are taken for a slip of the pen.
const LARGEST_SUM: u64 = 10_000;

/// Data sets one behind the other, with shares such as 3:1 (paper 002 App. A.3). A training loader draws from
/// them by their shares, whatever their sizes, and shuffles each by its own epochs; in its batches, as
/// everywhere, an index is a place among all samples.
pub struct Mixture {
    parts: Vec<(Shared, u32)>,
    /// Samples before each part.
    starts: Vec<usize>,
    classes: Vec<String>,
}

impl Mixture {
    /// These data sets with these shares. Where their classes are not the same, the mixture has none.
    pub fn new(parts: Vec<(Shared, u32)>) -> Result<Self> {
        let refuse = |why: String| Err(DataError::Options(why));
        let Some((first, _)) = parts.first() else {
            return refuse("a mixture needs a data set".to_owned());
        };
        for (place, (data, share)) in parts.iter().enumerate() {
            let number = place + 1;
            if *share == 0 {
                return refuse(format!(
                    "data set {number} of a mixture has a share of 0; shares are whole numbers from 1, such as \
                     3:1"
                ));
            }
            if data.is_empty() {
                return refuse(format!("data set {number} of a mixture has no images"));
            }
        }
        let sum: u64 = parts.iter().map(|(_, share)| u64::from(*share)).sum();
        if sum > LARGEST_SUM {
            return refuse(format!("the shares of a mixture add up to {sum}, above {LARGEST_SUM}"));
        }
        let classes = first.classes().to_vec();
        let alike = parts.iter().all(|(data, _)| data.classes() == classes);
        let mut starts = Vec::with_capacity(parts.len());
        let mut before = 0;
        for (data, _) in &parts {
            starts.push(before);
            before += data.len();
        }
        Ok(Self { parts, starts, classes: if alike { classes } else { Vec::new() } })
    }

    /// The data set that a sample is of, and its place there.
    pub fn find(&self, index: usize) -> (&Shared, usize) {
        let part = self.starts.partition_point(|start| *start <= index) - 1;
        (&self.parts[part].0, index - self.starts[part])
    }
}

impl Dataset for Mixture {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.parts.iter().map(|(data, _)| data.len()).sum()
    }

    fn label(&self, index: usize) -> usize {
        let (data, place) = self.find(index);
        if self.classes.is_empty() { 0 } else { data.label(place) }
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (data, place) = self.find(index);
        let sample = data.get(place)?;
        Ok(if self.classes.is_empty() { Sample { label: 0, ..sample } } else { sample })
    }

    fn name(&self, index: usize) -> String {
        let (data, place) = self.find(index);
        let name = data.name(place);
        // All parts count their samples from 0.
        if name.bytes().all(|byte| byte.is_ascii_digit()) { index.to_string() } else { name }
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        let (data, place) = self.find(index);
        data.captions(place)
    }

    fn has_captions(&self) -> bool {
        self.parts.iter().all(|(data, _)| data.has_captions())
    }

    /// Those of the first part, where all parts have the same.
    fn pixel_classes(&self) -> Option<&[String]> {
        let (first, _) = self.parts.first()?;
        let own = first.pixel_classes()?;
        self.parts.iter().all(|(data, _)| data.pixel_classes() == Some(own)).then_some(own)
    }

    fn shares(&self) -> Option<Vec<Share>> {
        let share = |(data, share): &(Shared, u32)| Share { samples: data.len(), share: *share };
        Some(self.parts.iter().map(share).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omma_base::Resolution;

    use super::*;
    use crate::{
        Captioned, HoldingOut, Selection, Split,
        world::{Variant, World},
    };

    fn world(samples: usize, variant: Variant) -> Shared {
        Arc::new(World::new(1, Resolution::square(8), samples, Split::Train, variant))
    }

    #[test]
    fn samples_are_those_of_the_parts_one_behind_the_other() {
        let (pairs, labelled) = (world(7, Variant::Usual), world(5, Variant::Seen));
        let labelled = Captioned::by_classes(labelled, "{}");
        let both = Mixture::new(vec![(pairs.clone(), 3), (labelled.clone(), 1)]).unwrap();
        assert_eq!((both.len(), both.classes(), both.has_captions()), (12, pairs.classes(), true));
        assert_eq!(both.get(6).unwrap(), pairs.get(6).unwrap());
        assert_eq!(both.get(7).unwrap(), labelled.get(0).unwrap());
        assert_eq!(both.captions(11).unwrap(), labelled.captions(4).unwrap());
        assert_eq!((both.name(2), both.name(9), both.find(9).1), ("2".into(), "9".into(), 2));
        // Labels of other classes mean nothing together.
        let other = Mixture::new(vec![(pairs, 1), (world(3, Variant::Unseen), 1)]).unwrap();
        assert!(other.classes().is_empty());
        assert!(
            (0..10).all(|index| other.label(index) == 0 && other.get(index).unwrap().label == 0)
        );
    }

    #[test]
    fn what_is_held_out_of_a_mixture_leaves_its_shares() {
        let parts = vec![(world(200, Variant::Usual), 3), (world(100, Variant::Usual), 2)];
        let both: Shared = Arc::new(Mixture::new(parts).unwrap());
        let shares = |data: &Shared| -> Vec<(usize, u32)> {
            data.shares().unwrap().iter().map(|share| (share.samples, share.share)).collect()
        };
        assert_eq!(shares(&both), [(200, 3), (100, 2)]);
        for way in [HoldingOut::Stratified, HoldingOut::EveryNth] {
            let (most, held) = way.for_validation(&both, 0.1);
            let (most, held) = (shares(&most), shares(&held));
            assert_eq!((most[0].0 + held[0].0, most[1].0 + held[1].0), (200, 100));
            assert_eq!((most[0].1, most[1].1, held[0].1, held[1].1), (3, 2, 3, 2));
        }
        let mixed_up: Shared = Arc::new(Selection::new(both, vec![250, 3, 120]));
        assert!(mixed_up.shares().is_none());
    }

    #[test]
    fn what_cannot_be_mixed_is_refused() {
        let some = world(3, Variant::Usual);
        let none: Shared = Arc::new(Selection::new(some.clone(), Vec::new()));
        for (parts, why) in [
            (Vec::new(), "needs a data set"),
            (
                vec![(some.clone(), 1), (some.clone(), 0)],
                "data set 2 of a mixture has a share of 0",
            ),
            (vec![(none, 1), (some.clone(), 1)], "data set 1 of a mixture has no images"),
            (vec![(some.clone(), u32::MAX), (some, u32::MAX)], "add up to"),
        ] {
            let message = Mixture::new(parts).err().unwrap().to_string();
            assert!(message.contains(why), "{message}");
        }
    }
}
