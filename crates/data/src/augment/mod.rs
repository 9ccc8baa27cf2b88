//! What training does to an image. Every choice comes from the random numbers that are passed in.

mod crop;
mod erase;
mod mix;
mod rand_augment;

pub use self::{
    crop::{padded_crop, random_resized_crop},
    erase::random_erasing,
    mix::{Mixing, mix},
    rand_augment::rand_augment,
};

use rand::{Rng, RngExt};
use serde::{Deserialize, Serialize};

use crate::picture::Picture;

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
    /// Their magnitude, 0 to 10.
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
            magnitude: 5.0,
            erasing: 0.0,
        }
    }
}

impl Augmentation {
    /// A training image of `size` × `size` pixels.
    pub fn apply(&self, picture: &Picture, size: usize, rng: &mut impl Rng) -> Picture {
        let mut picture = match self.crop {
            Crop::Centre => picture.centre_crop(size, 1.0),
            Crop::RandomResized => random_resized_crop(picture, size, self.smallest_crop, rng),
            Crop::Padded => padded_crop(&picture.centre_crop(size, 1.0), (size / 8).max(1), rng),
        };
        if self.flip && rng.random_bool(0.5) {
            picture = picture.flipped();
        }
        if self.operations > 0 {
            picture = rand_augment(picture, self.operations, self.magnitude, rng);
        }
        if self.erasing > 0.0 && rng.random_bool(self.erasing.min(1.0)) {
            random_erasing(&mut picture, rng);
        }
        picture
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;
    use crate::{
        dataset::{Dataset, Split},
        world::{Variant, World},
    };

    #[test]
    fn all_together_keep_the_size_and_repeat() {
        let picture = World::new(1, 40, 1, Split::Train, Variant::Usual).get(0).unwrap().picture;
        for crop in [Crop::Centre, Crop::RandomResized, Crop::Padded] {
            let all = Augmentation {
                crop,
                flip: true,
                operations: 3,
                magnitude: 9.0,
                erasing: 0.5,
                ..Augmentation::default()
            };
            let run = |seed| all.apply(&picture, 24, &mut Seed::new(seed).rng());
            assert_eq!((run(1).width, run(1).height, run(1).pixels.len()), (24, 24, 24 * 24 * 3));
            assert_eq!(run(1), run(1));
            assert_ne!(run(1), run(2));
        }
        let none = Augmentation::default().apply(&picture, 40, &mut Seed::new(1).rng());
        assert_eq!(none, picture);
    }

    #[test]
    fn about_half_are_mirrored() {
        let picture = Picture { width: 2, height: 2, pixels: (0..12).collect() };
        let flip = Augmentation { flip: true, ..Augmentation::default() };
        let mirrored = (0..200)
            .filter(|seed| flip.apply(&picture, 2, &mut Seed::new(*seed).rng()) != picture)
            .count();
        assert!((70..130).contains(&mirrored), "{mirrored} of 200");
    }
}
