//! What a model is to predict of images.

use omma_base::Seed;
use rand::seq::IndexedRandom;

use crate::{
    augment::Transform,
    dataset::{Sample, Shared},
    error::{DataError, Result},
    mask::{IGNORED, Mask},
};

/// What a model is to predict of the images of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// What each image shows.
    Classes {
        /// `[B]`: the class of every image; of a mixed one, that of its own part.
        labels: Vec<usize>,
        /// `[B, classes]`: rows add up to 1.
        distribution: Vec<f32>,
        /// How many classes there are.
        classes: usize,
    },
    /// What each pixel belongs to.
    Masks {
        /// `[B, H, W]`: the class of every pixel, or [`IGNORED`](crate::IGNORED).
        pixels: Vec<u8>,
    },
    /// `[B]`: what each image shows, in words.
    Texts(Vec<String>),
}

/// What is made of what is known about an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TargetKind {
    /// Its class.
    Classes {
        /// How much of every target is spread over all classes.
        smoothing: f64,
    },
    /// The class of each of its pixels; they are moved as the image is.
    Masks,
    /// One of its captions, as it is: in training another one every time, drawn from the batch's seed; else
    /// the first. What it says of left and right is wrong in an image that was mirrored.
    Texts,
}

impl Default for TargetKind {
    fn default() -> Self {
        Self::Classes { smoothing: 0.0 }
    }
}

/// The target of one image.
#[derive(Debug)]
pub(crate) enum Target {
    Class(usize),
    Mask(Mask),
    Text(String),
}

impl TargetKind {
    /// The target of a sample whose picture is transformed like this.
    ///
    /// - `seed`: what one of several captions is drawn from; without, the first is taken
    pub(crate) fn of(
        self,
        data: &Shared,
        (index, sample): (usize, &mut Sample),
        transform: &Transform,
        seed: Option<Seed>,
    ) -> Result<Target> {
        let classes = data.classes().len();
        match self {
            // Where there are only captions or masks, there is no class to be wrong about.
            Self::Classes { .. }
                if classes == 0 && (data.has_captions() || data.pixel_classes().is_some()) =>
            {
                Ok(Target::Class(0))
            }
            Self::Classes { .. } if sample.label >= classes => {
                Err(DataError::Label { index, label: sample.label, classes })
            }
            Self::Classes { .. } => Ok(Target::Class(sample.label)),
            Self::Masks => Ok(Target::Mask(transform.mask(&checked_mask(data, index, sample)?))),
            Self::Texts => {
                let captions = &sample.captions;
                let caption = match seed {
                    Some(seed) => captions.choose(&mut seed.rng()),
                    None => captions.first(),
                };
                let name = || DataError::NoCaption { name: data.name(index) };
                caption.cloned().map(Target::Text).ok_or_else(name)
            }
        }
    }

    /// The targets of a batch; they are all of this kind.
    pub(crate) fn gather(self, found: Vec<Target>, classes: usize) -> Targets {
        let (mut labels, mut masks, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for target in found {
            match target {
                Target::Class(label) => labels.push(label),
                Target::Mask(mask) => masks.extend(mask.pixels),
                Target::Text(text) => texts.push(text),
            }
        }
        match self {
            Self::Classes { smoothing } => Targets::of_classes(labels, classes, smoothing),
            Self::Masks => Targets::Masks { pixels: masks },
            Self::Texts => Targets::Texts(texts),
        }
    }
}

/// The mask of a sample, which it gives away: one of the picture's size, with classes that there are.
pub(crate) fn checked_mask(data: &Shared, index: usize, sample: &mut Sample) -> Result<Mask> {
    let pixels = sample.mask.take().ok_or(DataError::Missing { index, what: "mask" })?;
    let resolution = sample.picture.resolution();
    if pixels.len() != resolution.pixels() {
        let found = pixels.len();
        return Err(DataError::MaskSize { index, found, resolution });
    }
    let classes = data.pixel_classes().map_or(0, <[String]>::len);
    let beyond = |class: &&u8| **class != IGNORED && usize::from(**class) >= classes;
    match pixels.iter().find(beyond) {
        Some(label) => Err(DataError::Label { index, label: usize::from(*label), classes }),
        None => Ok(Mask { resolution, pixels }),
    }
}

/// `[B, classes]`
fn distribution(labels: &[usize], classes: usize, smoothing: f32) -> Vec<f32> {
    let mut rows = vec![smoothing / classes as f32; labels.len() * classes];
    for (row, label) in rows.chunks_exact_mut(classes.max(1)).zip(labels) {
        row[*label] += 1.0 - smoothing;
    }
    rows
}

impl Targets {
    /// Classes of images, with `smoothing` of every target spread over all classes.
    pub fn of_classes(labels: Vec<usize>, classes: usize, smoothing: f64) -> Self {
        let distribution = distribution(&labels, classes, smoothing as f32);
        Self::Classes { labels, distribution, classes }
    }

    /// Of images of which nothing is known.
    pub(crate) fn unknown() -> Self {
        TargetKind::default().gather(Vec::new(), 0)
    }
}
