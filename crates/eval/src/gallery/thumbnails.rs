//! Pictures of a data set, small enough for a page.

use omma_base::Resolution;
use omma_data::Picture;
use omma_report::Thumbnail;

/// Longest sides, the first of which is taken unless that is too much to hold.
const SIDES: [usize; 3] = [96, 64, 48];
/// What a picture may take. A page has at most some 170 of them, so that it stays below 1.5 MB.
const MOST_BYTES: usize = 4096;

/// What a model sees of a picture, at most 96 pixels a side: the middle of it, with the aspect of `shape`.
pub(super) fn thumbnail(picture: &Picture, shape: Resolution) -> Thumbnail {
    let mut made = of_side(picture, shape, SIDES[0]);
    for side in &SIDES[1..] {
        if made.encoded().len() <= MOST_BYTES {
            break;
        }
        made = of_side(picture, shape, *side);
    }
    made
}

fn of_side(picture: &Picture, shape: Resolution, side: usize) -> Thumbnail {
    let aspect = shape.width.max(1) as f64 / shape.height.max(1) as f64;
    let (width, height) = (picture.width as f64, picture.height as f64);
    let (width, height) = (width.min(height * aspect), height.min(width / aspect));
    let scale = (side as f64 / width.max(height)).min(1.0);
    let pixels = |length: f64| ((length * scale).round() as usize).max(1);
    encoded(&picture.centre_crop(Resolution::new(pixels(height), pixels(width)), 1.0))
}

pub(super) fn encoded(picture: &Picture) -> Thumbnail {
    Thumbnail::new(&picture.pixels, picture.width as u32, picture.height as u32)
}

#[cfg(test)]
mod tests {
    use omma_data::{
        Dataset, Split,
        world::{Variant, World},
    };
    use rand::RngExt;

    use super::*;

    #[test]
    fn small_pictures_keep_their_size_and_large_ones_become_small() {
        let square = Resolution::square(28);
        let size = |width, height, shape| {
            thumbnail(&Picture::filled(width, height, [9, 80, 200]), shape).size()
        };
        assert_eq!(size(28, 28, square), (28, 28));
        assert_eq!(size(64, 40, square), (40, 40), "the middle, which is what the model sees");
        assert_eq!(size(640, 400, square), (96, 96));
        assert_eq!(size(640, 400, Resolution::new(32, 64)), (96, 48));
        assert_eq!(size(1, 300, square), (1, 1));
        let world = World::new(1, square, 1, Split::Test, Variant::Usual);
        let picture = world.get(0).unwrap().picture;
        assert_eq!(thumbnail(&picture, square), encoded(&picture), "nothing is lost");
    }

    #[test]
    fn noise_is_made_smaller_until_it_is_little_to_hold() {
        let mut noise = Picture::filled(300, 300, [0; 3]);
        let mut rng = omma_base::Seed::new(1).rng();
        noise.pixels.iter_mut().for_each(|value| *value = rng.random());
        let made = thumbnail(&noise, Resolution::square(224));
        assert!(made.encoded().len() <= MOST_BYTES, "{}", made.encoded().len());
    }
}
