//! The same seed gives the same images, whatever version made them: a run that was begun by an older one
//! goes on as if nothing had happened. The sums are those of Linux on x86-64; elsewhere a sine may differ
//! in its last bit.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;

use omma_base::{Resolution, Seed, checksum};
use omma_data::{
    Batch, Cursor, Dataset, EvalLoader, HoldingOut, Pixels, Result, Sample, Shared, Split,
    TargetKind, Targets, TrainLoader, TrainOptions,
    augment::{Augmentation, Crop, Mixing},
    world::{Variant, World},
};

const SIDE: usize = 24;

fn world(side: usize) -> World {
    World::new(7, Resolution::square(side), 30, Split::Train, Variant::Usual)
}

/// Scenes of many shapes, one of them so narrow that no random part of it has a usual aspect.
struct Shapes {
    world: World,
    sides: [(usize, usize); 6],
}

impl Dataset for Shapes {
    fn classes(&self) -> &[String] {
        self.world.classes()
    }

    fn len(&self) -> usize {
        self.world.len()
    }

    fn label(&self, index: usize) -> usize {
        self.world.label(index)
    }

    fn get(&self, index: usize) -> Result<Sample> {
        let sample = self.world.get(index)?;
        let (width, height) = self.sides[index % self.sides.len()];
        Ok(Sample::new(sample.picture.resized(Resolution::new(height, width)), sample.label))
    }
}

fn shapes() -> Shared {
    let sides = [(SIDE, SIDE), (20, 20), (40, 30), (30, 41), (90, 7), (64, 64)];
    Arc::new(Shapes { world: world(SIDE), sides })
}

fn pixels() -> Pixels {
    Pixels {
        resolution: Resolution::square(SIDE),
        mean: [0.5, 0.4, 0.3],
        deviation: [0.25, 0.5, 1.0],
    }
}

fn distribution(batch: &Batch) -> &[f32] {
    match &batch.targets {
        Targets::Classes { distribution, .. } => distribution,
        other => panic!("these are no classes: {other:?}"),
    }
}

/// Sums of the pixels, of the targets, and of which images they are.
fn sums(batches: &[Batch]) -> [String; 3] {
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let pixels: Vec<u8> = batches.iter().flat_map(|batch| floats(&batch.pixels)).collect();
    let targets: Vec<u8> = batches.iter().flat_map(|batch| floats(distribution(batch))).collect();
    let numbers = batches.iter().flat_map(|batch| batch.labels().iter().chain(&batch.indices));
    let numbers: Vec<u8> = numbers.map(|number| *number as u8).collect();
    [checksum(pixels), checksum(targets), checksum(numbers)]
}

fn train(augmentation: Augmentation, mixing: Mixing, smoothing: f64) -> [String; 3] {
    let options = TrainOptions {
        batch: 7,
        pixels: pixels(),
        augmentation,
        mixing,
        targets: TargetKind::Classes { smoothing },
        prefetch: 1,
        workers: 1,
        bad_share: 0.0,
    };
    let mut loader = TrainLoader::new(shapes(), options, Seed::new(11), Cursor::default()).unwrap();
    let batches: Vec<Batch> = (0..8).map(|_| loader.next_batch().unwrap()).collect();
    sums(&batches)
}

fn augmentations() -> Vec<Augmentation> {
    let plain = Augmentation::default();
    let flip = Augmentation { flip: true, ..plain };
    let all = Augmentation { operations: 3, magnitude: 5.0, erasing: 0.5, ..flip };
    vec![
        plain,
        Augmentation { crop: Crop::RandomResized, ..flip },
        Augmentation { crop: Crop::RandomResized, smallest_crop: 1.0, ..plain },
        Augmentation { crop: Crop::Padded, ..flip },
        Augmentation { crop: Crop::Padded, operations: 2, magnitude: 9.0, ..flip },
        Augmentation { erasing: 1.0, ..plain },
        Augmentation { crop: Crop::Centre, ..all },
        Augmentation { crop: Crop::RandomResized, ..all },
        Augmentation { crop: Crop::Padded, operations: 15, ..all },
    ]
}

#[test]
fn scenes_are_what_they_were() {
    let mut found = Vec::new();
    for (side, variant) in
        [(8, Variant::Usual), (33, Variant::Usual), (32, Variant::NearOod), (64, Variant::FarOod)]
    {
        let world = World::new(7, Resolution::square(side), 30, Split::Train, variant);
        let samples: Vec<Sample> = (0..10).map(|index| world.get(index).unwrap()).collect();
        let pixels: Vec<u8> = samples.iter().flat_map(|s| s.picture.pixels.clone()).collect();
        let masks: Vec<u8> = samples.iter().flat_map(|s| s.mask.clone().unwrap()).collect();
        let words: Vec<u8> =
            samples.iter().flat_map(|s| s.captions.concat().into_bytes()).collect();
        found.push([checksum(pixels), checksum(masks), checksum(words)]);
    }
    assert_eq!(
        found,
        [
            ["47148fab", "b5221848", "02965f8c"],
            ["756c0f68", "5aa36a8c", "02965f8c"],
            ["1cd6038d", "ac6f7875", "27425444"],
            ["1ead6498", "2c2bb90a", "6ddddf80"]
        ]
    );
}

#[test]
fn training_images_are_what_they_were() {
    let sums = |augmentation| train(augmentation, Mixing::default(), 0.0);
    let found: Vec<[String; 3]> = augmentations().into_iter().map(sums).collect();
    assert_eq!(
        found,
        [
            ["50fcca2c", "77475a96", "d8102af5"],
            ["7962620f", "77475a96", "d8102af5"],
            ["50fcca2c", "77475a96", "d8102af5"],
            ["ee608857", "77475a96", "d8102af5"],
            ["5a8a885e", "77475a96", "d8102af5"],
            ["f4626e8d", "77475a96", "d8102af5"],
            ["f21e723c", "77475a96", "d8102af5"],
            ["9a44ed04", "77475a96", "d8102af5"],
            ["51bf8ef6", "77475a96", "d8102af5"]
        ]
    );
}

#[test]
fn mixed_batches_are_what_they_were() {
    let sums = |(mixup, cutmix)| train(augmentations()[7], Mixing { mixup, cutmix }, 0.1);
    let found: Vec<[String; 3]> = [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)].map(sums).into();
    assert_eq!(
        found,
        [
            ["a5ba12ee", "476272a1", "d8102af5"],
            ["57dae23b", "55690962", "d8102af5"],
            ["23a3f518", "42c4415a", "d8102af5"]
        ]
    );
}

#[test]
fn test_images_are_what_they_were() {
    let batches: Vec<Batch> =
        EvalLoader::new(shapes(), pixels(), 7).collect::<Result<_>>().unwrap();
    assert_eq!(sums(&batches), ["0180b638", "c0570e72", "24f13a98"]);
}

#[test]
fn held_out_images_are_what_they_were() {
    let world: Shared =
        Arc::new(World::new(7, Resolution::square(8), 300, Split::Train, Variant::Usual));
    let sum = |part: &Shared| {
        let pixels = (0..part.len()).flat_map(|index| part.get(index).unwrap().picture.pixels);
        checksum(pixels.collect::<Vec<u8>>())
    };
    let found: Vec<[String; 2]> = [HoldingOut::EveryNth, HoldingOut::Stratified]
        .iter()
        .map(|way| [sum(&way.for_testing(&world).1), sum(&way.for_validation(&world, 0.02).1)])
        .collect();
    assert_eq!(found, [["b5ccc790", "0f074474"], ["f830d858", "f830d858"]]);
}
