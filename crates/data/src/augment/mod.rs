//! What training does to an image. Every choice comes from the random numbers that are passed in, and is made
//! before any pixel is touched, so that a picture and its mask share it.

mod affine;
mod colour;
mod crop;
mod erase;
mod mix;
mod rand_augment;
mod transform;
mod truncated;

use omma_base::Resolution;
use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use self::{
    crop::{Shift, random_part},
    erase::Patch,
    transform::Step,
};
pub use self::{mix::Mixing, rand_augment::Policy};
pub(crate) use self::{mix::mix, transform::Transform};

/// How training images are cut out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Crop {
    /// Resized and cut in the middle, as for evaluation.
    #[default]
    Centre,
    /// A random part of a random shape, as for ImageNet.
    RandomResized,
    /// Shifted by a few pixels, as for CIFAR.
    Padded,
}

/// Everything that happens to one training image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augmentation {
    /// How it is cut out.
    pub crop: Crop,
    /// The smallest share of the image that a random crop keeps.
    pub smallest_crop: f64,
    /// Whether half of the images are mirrored.
    pub flip: bool,
    /// Operations of RandAugment; 0 for none.
    pub operations: usize,
    /// Which operations those are, and what their magnitude means.
    pub policy: Policy,
    /// Their magnitude, 0 to [`Policy::largest_magnitude`].
    pub magnitude: f64,
    /// Probability that a rectangle is erased.
    pub erasing: f64,
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            crop: Crop::Centre,
            smallest_crop: 0.3,
            flip: false,
            operations: 0,
            policy: Policy::Increasing,
            magnitude: 5.0,
            erasing: 0.0,
        }
    }
}

impl Augmentation {
    /// Makes all choices for a training image of `resolution` out of an image of size `image`.
    pub(crate) fn draw(
        &self,
        image: Resolution,
        resolution: Resolution,
        rng: &mut impl Rng,
    ) -> Transform {
        let mut transform = match self.crop {
            Crop::Centre => Transform::centre(image, resolution),
            Crop::RandomResized => {
                let part = random_part(image, resolution, self.smallest_crop, rng);
                Transform::crop(part, resolution)
            }
            Crop::Padded => {
                let shift = Shift::random(resolution, rng);
                Transform::centre(image, resolution).then([Step::Shift(shift)])
            }
        };
        if self.flip && rng.random_bool(0.5) {
            transform = transform.then([Step::Flip]);
        }
        for _ in 0..self.operations {
            transform = transform.then(self.policy.random_step(resolution, self.magnitude, rng));
        }
        if self.erasing > 0.0 && rng.random_bool(self.erasing.min(1.0)) {
            transform = transform.then([Step::Erase(Patch::random(resolution, rng))]);
        }
        transform
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;
    use crate::{
        dataset::{Dataset, Split},
        mask::{IGNORED, Mask},
        part::Part,
        picture::Picture,
        world::{Variant, World},
    };

    const CROPS: [Crop; 3] = [Crop::Centre, Crop::RandomResized, Crop::Padded];

    fn scene(resolution: Resolution) -> (Picture, Mask) {
        let world = World::new(1, resolution, 1, Split::Train, Variant::Usual);
        let sample = world.get(0).unwrap();
        (sample.picture, Mask { resolution, pixels: sample.mask.unwrap() })
    }

    #[test]
    fn all_together_give_the_size_asked_for_and_repeat() {
        let (picture, mask) = scene(Resolution::new(40, 56));
        for crop in CROPS {
            let all = Augmentation {
                crop,
                flip: true,
                operations: 3,
                magnitude: 9.0,
                erasing: 0.5,
                ..Augmentation::default()
            };
            for resolution in [Resolution::square(24), Resolution::new(12, 30)] {
                let run = |seed| {
                    let mut rng = Seed::new(seed).rng();
                    let transform = all.draw(picture.resolution(), resolution, &mut rng);
                    (transform.picture(&picture), transform.mask(&mask))
                };
                let (changed, moved) = run(1);
                assert_eq!((changed.resolution(), moved.resolution), (resolution, resolution));
                assert_eq!(changed.pixels.len(), moved.pixels.len() * 3);
                assert_eq!(run(1), run(1));
                assert_ne!(run(1).0, run(2).0);
            }
        }
        let mut rng = Seed::new(1).rng();
        let none = Augmentation::default().draw(picture.resolution(), mask.resolution, &mut rng);
        assert_eq!((none.picture(&picture), none.mask(&mask)), (picture, mask));
    }

    #[test]
    fn about_half_are_mirrored() {
        let picture = Picture { width: 2, height: 2, pixels: (0..12).collect() };
        let image = picture.resolution();
        let flip = Augmentation { flip: true, ..Augmentation::default() };
        let changed = |seed| flip.draw(image, image, &mut Seed::new(seed).rng()).picture(&picture);
        let mirrored = (0..200).filter(|seed| changed(*seed) != picture).count();
        assert!((70..130).contains(&mirrored), "{mirrored} of 200");
    }

    /// A colour for every class; what is ignored is as grey as what a picture has outside.
    fn painted(mask: &Mask) -> Picture {
        let colour = |class: &u8| match *class {
            IGNORED => [128; 3],
            class => [class * 20, 255 - class * 20, class % 2 * 255],
        };
        let Resolution { height, width } = mask.resolution;
        Picture { width, height, pixels: mask.pixels.iter().flat_map(colour).collect() }
    }

    /// Whether a pixel and all around it are of one class, within so many pixels.
    fn is_even(mask: &Mask, x: usize, y: usize, reach: usize) -> bool {
        let Resolution { height, width } = mask.resolution;
        let inside = x >= reach && y >= reach && x + reach < width && y + reach < height;
        let own = mask.at(x, y);
        let even = |row| (x - reach..=x + reach).all(|column| mask.at(column, row) == own);
        inside && (y - reach..=y + reach).all(even)
    }

    #[test]
    fn without_resizing_a_painted_mask_moves_exactly_like_its_picture() {
        for resolution in [Resolution::square(32), Resolution::new(24, 40)] {
            let (_, mask) = scene(resolution);
            let (picture, flip) =
                (painted(&mask), Augmentation { flip: true, ..Default::default() });
            for crop in [Crop::Centre, Crop::Padded] {
                for seed in 0..50 {
                    let mut rng = Seed::new(seed).rng();
                    let settings = Augmentation { crop, ..flip };
                    let transform = settings.draw(resolution, resolution, &mut rng);
                    assert_eq!(painted(&transform.mask(&mask)), transform.picture(&picture));
                }
            }
            for (left, top) in [(0, 0), (3, 5), (8, 2)] {
                let part = Part { left: left.into(), top: top.into(), width: 16.0, height: 12.0 };
                let cut = Transform::crop(part, Resolution::new(12, 16)).then([Step::Flip]);
                assert_eq!(painted(&cut.mask(&mask)), cut.picture(&picture));
            }
        }
    }

    #[test]
    fn away_from_edges_a_painted_mask_moves_like_its_picture() {
        let (_, mask) = scene(Resolution::new(60, 80));
        let picture = painted(&mask);
        let (mut compared, mut ignored) = (0, 0);
        for seed in 0..100 {
            let mut rng = Seed::new(seed).rng();
            let resolution = Resolution::new(48, 72);
            let settings =
                Augmentation { crop: CROPS[seed as usize % 3], flip: true, ..Default::default() };
            let geometric = |step: &Step| matches!(step, Step::Affine(_));
            let step = || Policy::Increasing.random_step(resolution, 6.0, &mut rng);
            let mut steps = std::iter::repeat_with(step).flatten().filter(geometric);
            let steps = [steps.next().unwrap(), steps.next().unwrap()];
            let mut rng = Seed::new(seed).named("crop").rng();
            let transform = settings.draw(mask.resolution, resolution, &mut rng).then(steps);
            let (moved, changed) = (transform.mask(&mask), transform.picture(&picture));
            let expected = painted(&moved);
            for y in 0..resolution.height {
                for x in 0..resolution.width {
                    ignored += usize::from(moved.at(x, y) == IGNORED);
                    if is_even(&moved, x, y, 5) {
                        compared += 1;
                        assert_eq!(expected.at(x, y), changed.at(x, y), "{x} {y} of {seed}");
                    }
                }
            }
        }
        assert!(compared > 50_000 && ignored > 10_000, "{compared} compared, {ignored} ignored");
    }
}
