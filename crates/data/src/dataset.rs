//! What a data set is.

use std::sync::Arc;

use crate::{error::Result, picture::Picture};

/// One image and what is known about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// As large as it was stored.
    pub picture: Picture,
    /// Its place in the names of the classes.
    pub label: usize,
    /// What it shows, in words: as many texts as there are, each of which says it alone.
    pub captions: Vec<String>,
    /// `[H, W]` of the picture: the class of every pixel, a place in [`Dataset::pixel_classes`], or
    /// [`IGNORED`](crate::IGNORED).
    pub mask: Option<Vec<u8>>,
}

impl Sample {
    /// An image of which no more than its class is known.
    pub fn new(picture: Picture, label: usize) -> Self {
        Self { picture, label, captions: Vec::new(), mask: None }
    }
}

/// Images by their index.
pub trait Dataset: Send + Sync {
    /// Names of the classes; a label is a place in it.
    fn classes(&self) -> &[String];

    /// Samples; their indices are below it.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The class of a sample, without its image.
    fn label(&self, index: usize) -> usize;

    /// A sample. An error is about this one alone; others may still be read.
    fn get(&self, index: usize) -> Result<Sample>;

    /// What a sample is called: its path where it has a file of its own, else its index in the data that it
    /// comes from.
    fn name(&self, index: usize) -> String {
        index.to_string()
    }

    /// What a sample shows, in words, without its image where that can be.
    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(self.get(index)?.captions)
    }

    /// Whether there are captions; single samples may lack them all the same.
    fn has_captions(&self) -> bool {
        false
    }

    /// Names of what a pixel may belong to; nothing where images have no masks.
    fn pixel_classes(&self) -> Option<&[String]> {
        None
    }

    /// The parts of a mixture, one behind the other; nothing where all samples are drawn alike.
    fn shares(&self) -> Option<Vec<Share>> {
        None
    }
}

/// A part of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// How many samples it has.
    pub samples: usize,
    /// How many are drawn from it, against those of the other parts.
    pub share: u32,
}

/// A data set as loaders and their threads hold it.
pub type Shared = Arc<dyn Dataset>;

/// What images are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// To learn from.
    Train,
    /// To judge by.
    Test,
}

impl Split {
    /// As it is called in messages; the built-in world's seeds depend on it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "training",
            Self::Test => "test",
        }
    }
}

/// Some of a data set's samples.
pub struct Selection {
    of: Shared,
    indices: Vec<usize>,
}

impl Selection {
    /// These samples, in this order.
    pub fn new(of: Shared, indices: Vec<usize>) -> Self {
        Self { of, indices }
    }

    /// At most so many samples, evenly spread over the data set.
    pub fn spread(of: &Shared, samples: usize) -> Shared {
        let all = of.len();
        if samples >= all {
            return of.clone();
        }
        let indices = (0..samples).map(|place| place * all / samples).collect();
        Arc::new(Self::new(of.clone(), indices))
    }

    /// Two parts of a data set: most of it, and about `share` of it held out, evenly spread, so that a
    /// data set sorted by class loses some of every class.
    pub fn hold_out(of: &Shared, share: f64) -> (Shared, Shared) {
        let every = if share > 0.0 { (1.0 / share).round().max(2.0) as usize } else { usize::MAX };
        // Of a few samples, one is held out all the same.
        let every = if share > 0.0 { every.min(of.len().max(2)) } else { every };
        let part = |held: bool| -> Shared {
            let chosen = |index: &usize| (index % every == every - 1) == held;
            Arc::new(Self::new(of.clone(), (0..of.len()).filter(chosen).collect()))
        };
        (part(false), part(true))
    }
}

impl Dataset for Selection {
    fn classes(&self) -> &[String] {
        self.of.classes()
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn label(&self, index: usize) -> usize {
        self.of.label(self.indices[index])
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.of.get(self.indices[index])
    }

    fn name(&self, index: usize) -> String {
        self.of.name(self.indices[index])
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        self.of.captions(self.indices[index])
    }

    fn has_captions(&self) -> bool {
        self.of.has_captions()
    }

    fn pixel_classes(&self) -> Option<&[String]> {
        self.of.pixel_classes()
    }

    /// Those of the whole, as long as the samples of every part are still together.
    fn shares(&self) -> Option<Vec<Share>> {
        let shares = self.of.shares()?;
        if !self.indices.is_sorted() {
            return None;
        }
        let mut end = 0;
        let before = |end: usize| self.indices.partition_point(|index| *index < end);
        let left = shares.into_iter().map(|Share { samples, share }| {
            let start = end;
            end += samples;
            Share { samples: before(end) - before(start), share }
        });
        Some(left.collect())
    }
}

/// The samples of two data sets of the same classes, one after the other.
pub(crate) struct Joined(pub(crate) Shared, pub(crate) Shared);

impl Joined {
    /// The data set that a sample is of, and its place there.
    fn find(&self, index: usize) -> (&Shared, usize) {
        match index.checked_sub(self.0.len()) {
            None => (&self.0, index),
            Some(index) => (&self.1, index),
        }
    }
}

impl Dataset for Joined {
    fn classes(&self) -> &[String] {
        self.0.classes()
    }

    fn len(&self) -> usize {
        self.0.len() + self.1.len()
    }

    fn label(&self, index: usize) -> usize {
        let (part, index) = self.find(index);
        part.label(index)
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let (part, index) = self.find(index);
        part.get(index)
    }

    fn name(&self, index: usize) -> String {
        let (part, place) = self.find(index);
        let name = part.name(place);
        // Both parts count their samples from 0.
        if name.bytes().all(|byte| byte.is_ascii_digit()) { index.to_string() } else { name }
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        let (part, index) = self.find(index);
        part.captions(index)
    }

    fn has_captions(&self) -> bool {
        self.0.has_captions() && self.1.has_captions()
    }

    fn pixel_classes(&self) -> Option<&[String]> {
        self.0.pixel_classes().filter(|own| self.1.pixel_classes() == Some(*own))
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Resolution;

    use super::*;
    use crate::world::{Variant, World};

    fn parts(samples: usize, share: f64) -> (usize, usize) {
        let world: Shared =
            Arc::new(World::new(1, Resolution::square(8), samples, Split::Train, Variant::Usual));
        let (most, held) = Selection::hold_out(&world, share);
        assert_eq!(most.len() + held.len(), samples);
        (most.len(), held.len())
    }

    #[test]
    fn a_few_samples_are_spread_evenly() {
        let world: Shared =
            Arc::new(World::new(1, Resolution::square(8), 10, Split::Train, Variant::Usual));
        let few = Selection::spread(&world, 4);
        let expected = [0, 2, 5, 7].map(|index| world.get(index).unwrap());
        assert_eq!((0..few.len()).map(|i| few.get(i).unwrap()).collect::<Vec<_>>(), expected);
        assert_eq!(Selection::spread(&world, 99).len(), 10);
    }

    #[test]
    fn samples_are_called_as_in_the_data_that_they_come_from() {
        let world = |samples| -> Shared {
            Arc::new(World::new(1, Resolution::square(8), samples, Split::Train, Variant::Usual))
        };
        let few = Selection::spread(&Selection::spread(&world(40), 20), 5);
        let names: Vec<String> = (0..5).map(|index| few.name(index)).collect();
        assert_eq!(names, ["0", "8", "16", "24", "32"]);
        let both = Joined(world(3), world(2));
        assert_eq!([both.name(1), both.name(4)], ["1", "4"]);
    }

    #[test]
    fn captions_are_those_of_the_samples_that_were_chosen() {
        let world = |samples| -> Shared {
            Arc::new(World::new(1, Resolution::square(8), samples, Split::Train, Variant::Usual))
        };
        let few = Selection::spread(&world(40), 5);
        let both: Shared = Arc::new(Joined(few.clone(), world(3)));
        assert!(few.has_captions() && both.has_captions());
        for (index, of) in [(0, 0), (1, 8), (4, 32), (5, 0), (7, 2)] {
            assert_eq!(both.captions(index).unwrap(), world(40).captions(of).unwrap());
            assert_eq!(both.captions(index).unwrap(), both.get(index).unwrap().captions);
        }
    }

    #[test]
    fn a_share_is_held_out_and_nothing_is_in_both() {
        assert_eq!(parts(100, 0.1), (90, 10));
        assert_eq!(parts(5, 0.1), (4, 1));
        assert_eq!(parts(1, 0.1), (1, 0));
        assert_eq!(parts(0, 0.1), (0, 0));
        assert_eq!(parts(10, 0.0), (10, 0));
        let world: Shared =
            Arc::new(World::new(1, Resolution::square(8), 20, Split::Train, Variant::Usual));
        let (most, held) = Selection::hold_out(&world, 0.2);
        assert_eq!(most.classes(), world.classes());
        let all = |part: &Shared| -> Vec<_> {
            (0..part.len()).map(|index| part.get(index).unwrap().picture).collect()
        };
        assert!(all(&held).iter().all(|picture| !all(&most).contains(picture)));
    }
}
