//! The built-in world: scenes of shapes that need no download.
//!
//! A scene has one large object among small ones, clutter, light and noise. Its class is the shape of
//! the large object, whatever its colour, texture, place and turn. Every sample is made from the seed
//! and its index alone, and comes with a mask and a caption.

mod caption;
mod draw;
mod pairs;
mod scene;
mod shape;

use omma_base::{Resolution, Seed};

use self::{scene::Scene, shape::Shape};
use crate::{
    dataset::{Dataset, Sample, Split},
    error::Result,
};

/// What the world shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The shapes that are the classes.
    Usual,
    /// Scenes like these with shapes that are not among the classes.
    NearOod,
    /// Textures without any object.
    FarOod,
    /// The usual scenes, but that some pairs of a colour and a shape never occur, large or small.
    Seen,
    /// Scenes whose large object is one of these pairs; their classes are all pairs.
    Unseen,
}

/// Scenes by their index.
#[derive(Debug, Clone)]
pub struct World {
    seed: u64,
    resolution: Resolution,
    samples: usize,
    variant: Variant,
    split: Split,
    classes: Vec<String>,
    pixel_classes: Vec<String>,
}

impl World {
    /// A world that pretends to have so many samples. Those of its two splits never coincide.
    pub fn new(
        seed: u64,
        resolution: Resolution,
        samples: usize,
        split: Split,
        variant: Variant,
    ) -> Self {
        let classes = match variant {
            Variant::Unseen => pairs::names(),
            _ => Shape::CLASSES.iter().map(|shape| shape.name().to_owned()).collect(),
        };
        let shapes = Shape::CLASSES.iter().map(|shape| shape.name());
        let pixel_classes = ["background"].into_iter().chain(shapes).map(str::to_owned).collect();
        Self { seed, resolution, samples, variant, split, classes, pixel_classes }
    }

    fn scene(&self, index: usize) -> Scene {
        let root = Seed::new(self.seed).named("world").named(self.split.name());
        Scene::new(self.variant, root.numbered(index as u64))
    }

    /// The class of a scene; 0 where it has none.
    fn class(&self, scene: &Scene) -> usize {
        let class = match self.variant {
            Variant::Unseen => scene.main().and_then(|main| pairs::place(main.colour, main.shape)),
            _ => scene.class(),
        };
        class.unwrap_or(0)
    }
}

impl Dataset for World {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.samples
    }

    fn label(&self, index: usize) -> usize {
        self.class(&self.scene(index))
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let scene = self.scene(index);
        let (picture, mask) = scene.draw(self.resolution);
        let label = self.class(&scene);
        Ok(Sample { picture, label, captions: vec![scene.caption()], mask: Some(mask) })
    }

    fn captions(&self, index: usize) -> Result<Vec<String>> {
        Ok(vec![self.scene(index).caption()])
    }

    fn has_captions(&self) -> bool {
        true
    }

    /// The background, and the shapes that are classes; scenes of other shapes have none of these.
    fn pixel_classes(&self) -> Option<&[String]> {
        let usual = !matches!(self.variant, Variant::NearOod | Variant::FarOod);
        usual.then_some(&self.pixel_classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(split: Split, variant: Variant) -> World {
        World::new(3, Resolution::square(32), 100, split, variant)
    }

    #[test]
    fn a_sample_depends_on_seed_split_and_index_alone() {
        let usual = world(Split::Train, Variant::Usual);
        let sample = usual.get(17).unwrap();
        assert_eq!(sample, usual.get(17).unwrap());
        assert_ne!(sample.picture, usual.get(18).unwrap().picture);
        assert_ne!(sample.picture, world(Split::Test, Variant::Usual).get(17).unwrap().picture);
        let other = World::new(4, Resolution::square(32), 100, Split::Train, Variant::Usual);
        assert_ne!(sample.picture, other.get(17).unwrap().picture);
    }

    #[test]
    fn labels_are_even_and_masks_show_the_object() {
        let usual = World::new(1, Resolution::square(48), 2000, Split::Train, Variant::Usual);
        let mut counts = vec![0; usual.classes().len()];
        let mut seen = 0;
        for index in 0..2000 {
            let scene = usual.scene(index);
            counts[scene.class().unwrap()] += 1;
            if index < 50 {
                let sample = usual.get(index).unwrap();
                let mask = sample.mask.unwrap();
                assert_eq!(mask.len(), 48 * 48);
                let main = mask.iter().filter(|value| **value == 1 + sample.label as u8).count();
                seen += usize::from(main > 48 * 48 / 40);
            }
        }
        assert!(counts.iter().all(|count| (130..270).contains(count)), "{counts:?}");
        assert!(seen >= 45, "the main object can be seen in {seen} of 50 scenes");
    }

    #[test]
    fn strange_worlds_have_none_of_the_usual_shapes() {
        for variant in [Variant::NearOod, Variant::FarOod] {
            let strange = world(Split::Test, variant);
            for index in 0..50 {
                let scene = strange.scene(index);
                assert!(scene.class().is_none());
                assert!(scene.objects.iter().all(|object| !Shape::CLASSES.contains(&object.shape)));
                let mask = strange.get(index).unwrap().mask.unwrap();
                assert!(mask.iter().all(|number| *number == 0 || *number > 10));
                assert!(!scene.caption().is_empty());
            }
        }
    }

    #[test]
    fn seen_scenes_are_the_usual_ones_without_the_pairs_that_are_held_out() {
        let mut changed = 0;
        for split in [Split::Train, Split::Test] {
            let of = |variant| World::new(3, Resolution::square(16), 1000, split, variant);
            let (usual, seen) = (of(Variant::Usual), of(Variant::Seen));
            assert_eq!(usual.classes(), seen.classes());
            for index in 0..1000 {
                let (before, after) = (usual.scene(index), seen.scene(index));
                for (before, after) in before.objects.iter().zip(&after.objects) {
                    assert!(!pairs::is_held_out(after.colour, after.shape));
                    let same = scene::Object { colour: before.colour, ..*after };
                    assert_eq!(same, *before);
                    let is_held = pairs::is_held_out(before.colour, before.shape);
                    assert_eq!(before.colour != after.colour, is_held);
                    assert_ne!(after.colour, after.second);
                    changed += usize::from(is_held);
                }
                assert_eq!(usual.label(index), seen.label(index));
                if before == after {
                    assert_eq!(usual.captions(index).unwrap(), seen.captions(index).unwrap());
                }
            }
        }
        assert!(changed > 100, "{changed}");
    }

    #[test]
    fn unseen_scenes_are_about_the_pairs_that_are_held_out() {
        for split in [Split::Train, Split::Test] {
            let unseen = World::new(3, Resolution::square(16), 1000, split, Variant::Unseen);
            let mut counts = std::collections::BTreeMap::new();
            for index in 0..1000 {
                let scene = unseen.scene(index);
                let (main, name) = (scene.main().unwrap(), &unseen.classes()[unseen.label(index)]);
                assert!(pairs::is_held_out(main.colour, main.shape));
                assert_ne!(main.colour, main.second);
                assert!(unseen.captions(index).unwrap()[0].contains(name), "{name}");
                let small = scene.objects.iter().enumerate();
                let mut small = small.filter(|(place, _)| Some(*place) != scene.main);
                assert!(small.all(|(_, object)| !pairs::is_held_out(object.colour, object.shape)));
                *counts.entry(name.clone()).or_insert(0) += 1;
            }
            assert_eq!(counts.len(), 10);
            assert!(counts.values().all(|count| *count > 40), "{counts:?}");
            assert_eq!(unseen.get(5).unwrap().label, unseen.label(5));
        }
    }

    #[test]
    fn any_size_shows_the_same_scene() {
        let of_size = |height, width| {
            World::new(2, Resolution::new(height, width), 10, Split::Train, Variant::Usual)
        };
        let small = of_size(32, 32);
        for (height, width) in [(8, 8), (33, 33), (64, 64), (224, 224), (8, 40), (64, 48), (32, 96)]
        {
            let large = of_size(height, width);
            for index in 0..4 {
                let [a, b] = [&small, &large].map(|world| world.get(index).unwrap());
                assert_eq!(b.picture.resolution(), Resolution::new(height, width));
                assert_eq!(b.picture.pixels.len(), height * width * 3);
                assert_eq!(b.mask.unwrap().len(), height * width);
                assert_eq!((a.label, a.captions), (b.label, b.captions));
                if height == width && height >= 32 {
                    let smaller = b.picture.resized(Resolution::square(32));
                    let difference = a.picture.difference(&smaller);
                    assert!(difference < 20.0, "{height} pixels differ by {difference}");
                }
            }
        }
    }

    #[test]
    fn objects_are_as_large_in_a_wide_image_as_in_a_square_one() {
        let [square, wide] = [64, 128].map(|width| {
            World::new(2, Resolution::new(64, width), 20, Split::Train, Variant::Usual)
        });
        for index in 0..20 {
            let [square, wide] = [&square, &wide].map(|world| {
                let sample = world.get(index).unwrap();
                let own = |class: &&u8| **class == 1 + sample.label as u8;
                sample.mask.unwrap().iter().filter(own).count() as f64
            });
            assert!((0.75..1.35).contains(&(wide / square)), "{square} and {wide} pixels");
        }
    }

    #[test]
    fn the_main_object_stands_out_from_what_is_around_it() {
        let usual = world(Split::Train, Variant::Usual);
        let mut clear = 0;
        for index in 0..100 {
            let sample = usual.get(index).unwrap();
            let (mask, own) = (sample.mask.unwrap(), 1 + sample.label as u8);
            let mean = |inside: bool| -> [f64; 3] {
                let pixels = sample.picture.pixels.chunks_exact(3).zip(&mask);
                let chosen: Vec<_> = pixels.filter(|(_, m)| (**m == own) == inside).collect();
                let sum = |c: usize| chosen.iter().map(|(p, _)| f64::from(p[c])).sum::<f64>();
                std::array::from_fn(|c| sum(c) / chosen.len().max(1) as f64)
            };
            let (inside, outside) = (mean(true), mean(false));
            let contrast: f64 = inside.iter().zip(outside).map(|(a, b)| (a - b).abs()).sum();
            clear += usize::from(contrast > 40.0);
        }
        assert!(clear >= 85, "{clear} of 100");
    }

    #[test]
    fn captions_vary_and_name_the_main_object() {
        let usual = world(Split::Train, Variant::Usual);
        let captions: std::collections::BTreeSet<String> =
            (0..100).map(|index| usual.scene(index).caption()).collect();
        assert!(captions.len() > 90);
        for index in 0..100 {
            let scene = usual.scene(index);
            assert!(scene.caption().contains(scene.main().unwrap().shape.name()));
        }
    }
}
