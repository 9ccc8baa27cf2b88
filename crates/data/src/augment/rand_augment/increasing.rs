//! Operations that are stronger with a larger magnitude, each from nothing at 0 to its most at 10.

use omma_base::Resolution;
use rand::{Rng, RngExt, seq::IndexedRandom};

use crate::augment::{affine::Affine, colour::Recolour, transform::Step};

#[derive(Debug, Clone, Copy)]
enum Operation {
    Identity,
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    Colour,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

const OPERATIONS: [Operation; 15] = [
    Operation::Identity,
    Operation::AutoContrast,
    Operation::Equalize,
    Operation::Invert,
    Operation::Rotate,
    Operation::Posterize,
    Operation::Solarize,
    Operation::Colour,
    Operation::Contrast,
    Operation::Brightness,
    Operation::Sharpness,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
];

/// A random operation of `magnitude` 0 to 10 on an image of this size; none where it is to stay as it is.
pub(super) fn random_step(image: Resolution, magnitude: f64, rng: &mut impl Rng) -> Option<Step> {
    let level = (magnitude / 10.0).clamp(0.0, 1.0) as f32;
    let operation = *OPERATIONS.choose(rng).expect("there are operations");
    let sign = if rng.random_bool(0.5) { 1.0 } else { -1.0 };
    step(image, operation, level, sign)
}

fn step(image: Resolution, operation: Operation, level: f32, sign: f32) -> Option<Step> {
    let signed = level * sign;
    let factor = 1.0 + 0.9 * signed;
    let affine = |numbers| Step::Affine(Affine(numbers));
    Some(match operation {
        Operation::Identity => return None,
        Operation::AutoContrast => Step::Recolour(Recolour::AutoContrast),
        Operation::Equalize => Step::Recolour(Recolour::Equalise),
        Operation::Invert => Step::Recolour(Recolour::Invert),
        Operation::Posterize => {
            Step::Recolour(Recolour::Posterise(2f32.powf((level * 4.0).round())))
        }
        Operation::Solarize => Step::Recolour(Recolour::Solarise(256.0 * (1.0 - level))),
        Operation::Colour => Step::Recolour(Recolour::Saturation(factor)),
        Operation::Contrast => Step::Recolour(Recolour::Contrast(factor)),
        Operation::Brightness => Step::Recolour(Recolour::Brightness(factor)),
        Operation::Sharpness => Step::Recolour(Recolour::Sharpness(factor)),
        Operation::Rotate => Step::Affine(Affine::turn(signed * 30f32.to_radians())),
        Operation::ShearX => affine([1.0, 0.3 * signed, 0.0, 0.0, 1.0, 0.0]),
        Operation::ShearY => affine([1.0, 0.0, 0.0, 0.3 * signed, 1.0, 0.0]),
        Operation::TranslateX => {
            affine([1.0, 0.0, 0.3 * signed * image.width as f32, 0.0, 1.0, 0.0])
        }
        Operation::TranslateY => {
            affine([1.0, 0.0, 0.0, 0.0, 1.0, 0.3 * signed * image.height as f32])
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        dataset::{Dataset, Split},
        picture::Picture,
        world::{Variant, World},
    };

    fn apply(picture: &Picture, operation: Operation, level: f32, sign: f32) -> Picture {
        let step = step(picture.resolution(), operation, level, sign);
        step.map_or(picture.clone(), |step| step.picture(picture.clone()))
    }

    #[test]
    fn every_operation_keeps_the_size_and_changes_more_with_its_level() {
        let resolution = Resolution::new(40, 50);
        let world = World::new(1, resolution, 10, Split::Train, Variant::Usual);
        let picture = world.get(0).unwrap().picture;
        for operation in OPERATIONS {
            let [weak, strong] = [0.2, 0.9].map(|level| apply(&picture, operation, level, 1.0));
            assert_eq!(strong.resolution(), resolution);
            let [weak, strong] = [weak, strong].map(|changed| picture.difference(&changed));
            assert!(strong >= weak, "{operation:?}: {weak} {strong}");
            let idle = matches!(operation, Operation::Identity);
            assert_eq!(strong == 0.0, idle, "{operation:?}");
            let dot = Picture::filled(1, 1, [9, 99, 200]);
            for sign in [-1.0, 1.0] {
                let small = apply(&dot, operation, 0.9, sign);
                assert_eq!((small.width, small.pixels.len()), (1, 3));
            }
        }
    }
}
