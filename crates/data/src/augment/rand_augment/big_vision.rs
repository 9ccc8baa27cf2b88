//! RandAugment as big_vision has it (`pp/autoaugment.py`), and vmoe by way of the same origin in TensorFlow's
//! models for TPUs. `randaug(2, 15)` there is two operations of magnitude 15 here.
//!
//! Reproduced are its sixteen operations and what a level means to each; that pixels are moved as they are,
//! never mixed, and shears start from the upper left corner; that colours are cut off to bytes, not rounded;
//! that numbers beyond a byte wrap: solarising from 384 is from 128, at a magnitude of 10 everything is
//! inverted ([big_vision's issue 110](https://github.com/google-research/big_vision/issues/110)), and a shift
//! of more than 7 bits is one of 7.
//!
//! Not reproduced are its random numbers, and the order in which TensorFlow adds the nine pixels of a
//! smoothed one, which can move a whole number by one level.

use omma_base::Resolution;
use rand::{Rng, RngExt, seq::IndexedRandom};

use crate::augment::{
    affine::Affine, colour::Recolour, erase::Patch, transform::Step, truncated::Truncated,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operation {
    AutoContrast,
    Equalise,
    Invert,
    Rotate,
    Posterise,
    Solarise,
    Colour,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Cutout,
    SolariseAdd,
}

const OPERATIONS: [Operation; 16] = [
    Operation::AutoContrast,
    Operation::Equalise,
    Operation::Invert,
    Operation::Rotate,
    Operation::Posterise,
    Operation::Solarise,
    Operation::Colour,
    Operation::Contrast,
    Operation::Brightness,
    Operation::Sharpness,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
    Operation::Cutout,
    Operation::SolariseAdd,
];

/// A random operation on an image of this size; none for a cutout of nothing.
pub(super) fn random_step(image: Resolution, magnitude: f64, rng: &mut impl Rng) -> Option<Step> {
    let operation = *OPERATIONS.choose(rng).expect("there are operations");
    step(image, operation, magnitude / 10.0, rng)
}

fn step(image: Resolution, operation: Operation, level: f64, rng: &mut impl Rng) -> Option<Step> {
    let factor = (1.8 * level + 0.1) as f32;
    let mut signed = |most: f64| {
        let sign = if rng.random_bool(0.5) { 1.0 } else { -1.0 };
        (sign * most * level) as f32
    };
    let affine = |numbers| Step::NearestAffine(Affine(numbers));
    // A transform is around the middle, from which the first row and column are so far away.
    let [above, before] = [image.height, image.width].map(|side| (side as f32 - 1.0) / 2.0);
    Some(match operation {
        Operation::AutoContrast => Step::Truncated(Truncated::AutoContrast),
        Operation::Equalise => Step::Recolour(Recolour::Equalise),
        Operation::Invert => Step::Recolour(Recolour::Invert),
        Operation::Rotate => Step::NearestAffine(Affine::turn(signed(30.0).to_radians())),
        Operation::Posterise => {
            let lost = ((8 - (4.0 * level) as i32) as u8).min(7);
            Step::Recolour(Recolour::Posterise(f32::from(1u8 << lost)))
        }
        Operation::Solarise => {
            let threshold = (256.0 * level) as i32 as u8;
            Step::Recolour(Recolour::Solarise(threshold.into()))
        }
        Operation::SolariseAdd => {
            Step::Recolour(Recolour::SolariseAdd((110.0 * level).trunc() as f32))
        }
        Operation::Colour => Step::Truncated(Truncated::Colour(factor)),
        Operation::Contrast => Step::Truncated(Truncated::Contrast(factor)),
        Operation::Brightness => Step::Truncated(Truncated::Brightness(factor)),
        Operation::Sharpness => Step::Truncated(Truncated::Sharpness(factor)),
        Operation::ShearX => {
            let shear = signed(0.3);
            affine([1.0, shear, shear * above, 0.0, 1.0, 0.0])
        }
        Operation::ShearY => {
            let shear = signed(0.3);
            affine([1.0, 0.0, 0.0, shear, 1.0, shear * before])
        }
        Operation::TranslateX => affine([1.0, 0.0, signed(100.0), 0.0, 1.0, 0.0]),
        Operation::TranslateY => affine([1.0, 0.0, 0.0, 0.0, 1.0, signed(100.0)]),
        Operation::Cutout => Step::Erase(Patch::cutout(image, (40.0 * level) as usize, rng)?),
    })
}

#[cfg(test)]
mod tests {
    use omma_base::Seed;

    use super::*;
    use crate::{
        augment::transform::Transform,
        dataset::{Dataset, Split},
        mask::{IGNORED, Mask},
        picture::Picture,
        world::{Variant, World},
    };

    const IMAGE: Resolution = Resolution { height: 3, width: 5 };

    /// All steps that an operation of a magnitude becomes by chance.
    fn steps(operation: Operation, magnitude: f64) -> Vec<Step> {
        let mut steps = Vec::new();
        for seed in 0..40 {
            let step = step(IMAGE, operation, magnitude / 10.0, &mut Seed::new(seed).rng());
            let step = step.unwrap();
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
        steps
    }

    /// The one step of an operation without a sign.
    fn only(operation: Operation, magnitude: f64) -> Step {
        let steps = steps(operation, magnitude);
        assert_eq!(steps.len(), 1, "{operation:?}: {steps:?}");
        steps[0].clone()
    }

    /// The numbers of both signs.
    fn both(operation: Operation, magnitude: f64) -> [[f32; 6]; 2] {
        let numbers = |step: &Step| match step {
            Step::NearestAffine(affine) => affine.0,
            step => panic!("{operation:?} is {step:?}"),
        };
        let mut both: Vec<[f32; 6]> = steps(operation, magnitude).iter().map(numbers).collect();
        both.sort_by(|a, b| b.partial_cmp(a).unwrap());
        both.try_into().unwrap_or_else(|both| panic!("{operation:?} has two signs: {both:?}"))
    }

    fn grey(values: &[u8]) -> Picture {
        Picture::from_grey(values.len(), 1, values)
    }

    fn recoloured(operation: Operation, magnitude: f64, values: &[u8]) -> Picture {
        only(operation, magnitude).picture(grey(values))
    }

    /// Paper 000 App. K: "RandAugment (Cubuk et al., 2020) parameters 2 and 15".
    #[test]
    fn a_magnitude_of_15_is_a_level_of_one_and_a_half() {
        use Operation::*;
        let (sin, cos) = 45f32.to_radians().sin_cos();
        let mut turns = [[cos, -sin, 0.0, sin, cos, 0.0], [cos, sin, 0.0, -sin, cos, 0.0]];
        turns.sort_by(|a, b| b.partial_cmp(a).unwrap());
        assert_eq!(both(Rotate, 15.0), turns);
        assert_eq!(only(Colour, 15.0), Step::Truncated(Truncated::Colour(2.8)));
        assert_eq!(only(Contrast, 15.0), Step::Truncated(Truncated::Contrast(2.8)));
        assert_eq!(only(Brightness, 15.0), Step::Truncated(Truncated::Brightness(2.8)));
        assert_eq!(only(Sharpness, 15.0), Step::Truncated(Truncated::Sharpness(2.8)));
        // Six bits are steps of 4.
        assert_eq!(only(Posterise, 15.0), Step::Recolour(Recolour::Posterise(4.0)));
        // 384 is 128 for a byte.
        assert_eq!(only(Solarise, 15.0), Step::Recolour(Recolour::Solarise(128.0)));
        assert_eq!(only(SolariseAdd, 15.0), Step::Recolour(Recolour::SolariseAdd(165.0)));
        // From the first row, which is one above the middle of three.
        let shears = [0.45, -0.45].map(|shear| [1.0, shear, shear, 0.0, 1.0, 0.0]);
        assert_eq!(both(ShearX, 15.0), shears);
        // And from the first column, two before the middle of five.
        let shears = [0.45, -0.45].map(|shear| [1.0, 0.0, 0.0, shear, 1.0, 2.0 * shear]);
        assert_eq!(both(ShearY, 15.0), shears);
        let moves = [150.0, -150.0].map(|pixels| [1.0, 0.0, pixels, 0.0, 1.0, 0.0]);
        assert_eq!(both(TranslateX, 15.0), moves);
        let moves = [150.0, -150.0].map(|pixels| [1.0, 0.0, 0.0, 0.0, 1.0, pixels]);
        assert_eq!(both(TranslateY, 15.0), moves);
        let image = Resolution::square(224);
        for seed in 0..20 {
            let rng = || Seed::new(seed).rng();
            let expected = Patch::cutout(image, 60, &mut rng()).unwrap();
            assert_eq!(step(image, Cutout, 1.5, &mut rng()), Some(Step::Erase(expected)));
        }
    }

    #[test]
    fn stretching_equalising_and_inverting_have_no_level() {
        use Operation::*;
        for magnitude in [0.0, 30.0] {
            assert_eq!(recoloured(AutoContrast, magnitude, &[10, 11, 160]), grey(&[0, 1, 255]));
            assert_eq!(recoloured(Invert, magnitude, &[0, 100, 255]), grey(&[255, 155, 0]));
            // 300 of each of four levels: a step of 900 / 255 = 3, half of it 1; before the second level are
            // (300 + 1) / 3 = 100, before the third 200, and 300 is cut off at 255.
            let levels: Vec<u8> = (0..1200).map(|i| [3, 50, 51, 90][i / 300]).collect();
            let equal: Vec<u8> = (0..1200).map(|i| [0, 100, 200, 255][i / 300]).collect();
            assert_eq!(recoloured(Equalise, magnitude, &levels), grey(&equal));
        }
    }

    #[test]
    fn more_bits_are_kept_for_larger_magnitudes_up_to_all() {
        let kept = |magnitude| recoloured(Operation::Posterise, magnitude, &[1, 127, 255]);
        assert_eq!(kept(5.0), grey(&[0, 64, 192]));
        assert_eq!(kept(10.0), grey(&[0, 112, 240]));
        assert_eq!(kept(15.0), grey(&[0, 124, 252]));
        assert_eq!(kept(20.0), grey(&[1, 127, 255]));
        // No bits, and nine: shifts of 8 and of -1, which is 255, are of 7.
        assert_eq!(kept(2.0), grey(&[0, 0, 128]));
        assert_eq!(kept(22.5), grey(&[0, 0, 128]));
    }

    #[test]
    fn solarising_inverts_from_a_threshold_that_wraps() {
        let inverted = |magnitude| recoloured(Operation::Solarise, magnitude, &[0, 127, 128, 255]);
        assert_eq!(inverted(5.0), grey(&[0, 127, 127, 0]));
        assert_eq!(inverted(9.99), grey(&[0, 127, 128, 0]));
        assert_eq!(inverted(10.0), grey(&[255, 128, 127, 0]));
        assert_eq!(inverted(15.0), inverted(5.0));
    }

    #[test]
    fn solarising_adds_to_what_is_dark() {
        let added = |magnitude| recoloured(Operation::SolariseAdd, magnitude, &[0, 90, 127, 128]);
        // int(110 · 0.15) = 16
        assert_eq!(added(1.5), grey(&[16, 106, 143, 128]));
        assert_eq!(added(15.0), grey(&[165, 255, 255, 128]));
    }

    /// A picture of 5 × 3 pixels, each its own number, as an operation leaves it by either sign.
    fn moved(operation: Operation, magnitude: f64) -> [Vec<u8>; 2] {
        let numbered = Picture::from_grey(5, 3, &(0..15).collect::<Vec<u8>>());
        both(operation, magnitude).map(|numbers| {
            let moved = Step::NearestAffine(Affine(numbers)).picture(numbered.clone());
            moved.pixels.into_iter().step_by(3).collect()
        })
    }

    #[test]
    fn pixels_are_moved_whole_with_grey_outside() {
        use Operation::*;
        const G: u8 = 128;
        // Rows 0, 1, 2 from 0, 0.45 and 0.9 further right, or left: rounded 0, 0 and 1.
        assert_eq!(
            moved(ShearX, 15.0),
            [
                [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, G],
                [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, G, 10, 11, 12, 13],
            ]
        );
        // Columns 0 to 4 from 0, 0.45, 0.9, 1.35 and 1.8 further down, or up.
        assert_eq!(
            moved(ShearY, 15.0),
            [
                [0, 1, 7, 8, 14, 5, 6, 12, 13, G, 10, 11, G, G, G],
                [0, 1, G, G, G, 5, 6, 2, 3, G, 10, 11, 7, 8, 4],
            ]
        );
        // 100 · 0.02 = 2 pixels
        assert_eq!(
            moved(TranslateX, 0.2),
            [
                [2, 3, 4, G, G, 7, 8, 9, G, G, 12, 13, 14, G, G],
                [G, G, 0, 1, 2, G, G, 5, 6, 7, G, G, 10, 11, 12],
            ]
        );
        assert_eq!(
            moved(TranslateY, 0.1),
            [
                [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, G, G, G, G, G],
                [G, G, G, G, G, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            ]
        );
        // 30° · 3: a quarter of a turn around the middle, 7.
        let quarter = [G, 11, 6, 1, G, G, 12, 7, 2, G, G, 13, 8, 3, G];
        let back: Vec<u8> = quarter.iter().rev().copied().collect();
        let turned = moved(Rotate, 30.0);
        assert!(turned == [quarter.to_vec(), back.clone()] || turned == [back, quarter.to_vec()]);
    }

    #[test]
    fn a_mask_is_moved_exactly_like_its_picture_and_a_cutout_leaves_it() {
        let resolution = Resolution::new(30, 44);
        let world = World::new(1, resolution, 1, Split::Train, Variant::Usual);
        let mask = Mask { resolution, pixels: world.get(0).unwrap().mask.unwrap() };
        let painted = |mask: &Mask| {
            let shade = |class: &u8| if *class == IGNORED { 128 } else { *class };
            Picture::from_grey(44, 30, &mask.pixels.iter().map(shade).collect::<Vec<u8>>())
        };
        let mut geometric = 0;
        for seed in 0..300 {
            let Some(step) = random_step(resolution, 1.5, &mut Seed::new(seed).rng()) else {
                continue;
            };
            let (moves, covers) =
                (matches!(step, Step::NearestAffine(_)), matches!(step, Step::Erase(_)));
            let transform = Transform::centre(resolution, resolution).then([step]);
            let moved = transform.mask(&mask);
            if moves {
                geometric += 1;
                assert_eq!(painted(&moved), transform.picture(&painted(&mask)));
            } else {
                assert_eq!(moved, mask);
            }
            assert!(!covers || transform.picture(&painted(&mask)) != painted(&mask));
        }
        assert!((60..130).contains(&geometric), "{geometric} of 300, five of sixteen");
    }

    #[test]
    fn every_operation_is_drawn_about_as_often_and_fits_any_size() {
        let mut drawn = vec![0; OPERATIONS.len()];
        let mut rng = Seed::new(3).rng();
        for _ in 0..3200 {
            let operation = *OPERATIONS.choose(&mut rng).unwrap();
            drawn[operation as usize] += 1;
        }
        assert!(drawn.iter().all(|count| (140..260).contains(count)), "{drawn:?}");
        for (width, height) in [(1, 1), (1, 7), (50, 20)] {
            let picture = Picture::filled(width, height, [9, 99, 200]);
            for operation in OPERATIONS {
                for magnitude in [0.0, 15.0, 30.0] {
                    let step = step(picture.resolution(), operation, magnitude / 10.0, &mut rng);
                    let none = operation == Operation::Cutout && magnitude == 0.0;
                    assert_eq!(step.is_none(), none, "{operation:?}");
                    let changed =
                        step.map_or(picture.clone(), |step| step.picture(picture.clone()));
                    assert_eq!(changed.pixels.len(), picture.pixels.len());
                }
            }
        }
    }
}
