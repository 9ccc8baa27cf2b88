//! The same seed gives the same images, whatever version made them: a run that was begun by an older one
//! goes on as if nothing had happened. The sums are those of Linux on x86-64; elsewhere a sine may differ
//! in its last bit.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::sync::Arc;

use omma_base::{Resolution, Seed, checksum};
use omma_data::{
    Batch, Cursor, Dataset, EvalLoader, GeneratedDataset, HoldingOut, Pixels, Result, Sample,
    Shared, Split, TargetKind, Targets, TrainLoader, TrainOptions,
    augment::{Augmentation, Crop, Mixing},
    corrupt::{Corruption, SEVERITIES},
    world::{Variant, World},
};

const SIDE: usize = 24;

fn world(side: usize) -> World {
    World::new(7, Resolution::square(side), 30, Split::Train, Variant::Usual)
}

/// Scenes of many shapes, one of them so narrow that no random part of it has a usual aspect.
fn shapes() -> Shared {
    let sides = [(SIDE, SIDE), (20, 20), (40, 30), (30, 41), (90, 7), (64, 64)];
    let world = world(SIDE);
    let (classes, len) = (world.classes().to_vec(), world.len());
    Arc::new(GeneratedDataset::new(&classes, len, move |index| {
        let sample = world.get(index)?;
        let (width, height) = sides[index % sides.len()];
        Ok(Sample::new(sample.picture.resized(Resolution::new(height, width)), sample.label))
    }))
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

/// Every row: the corruption, severities 1 to 5 at 32 px, and severity 5 at 96 px.
#[test]
fn corruptions_match_pinned_checksums() {
    let [small, large] = [32, 96].map(|side| world(side).get(3).unwrap().picture);
    let sum = |corruption: Corruption, picture, severity| {
        checksum(corruption.apply(picture, severity, Seed::new(11)).pixels)
    };
    let row = |corruption: Corruption| {
        let mut sums: Vec<String> =
            (1..=SEVERITIES).map(|severity| sum(corruption, &small, severity)).collect();
        sums.push(sum(corruption, &large, SEVERITIES));
        format!("{} {}", corruption.name(), sums.join(" "))
    };
    let found: Vec<String> = Corruption::ALL.into_iter().map(row).collect();
    assert_eq!(
        found,
        [
            "gaussian_noise 16d68f64 142f1fac 98d13d3f 24d32941 bd44065f 76156dc5",
            "shot_noise de5b4f80 43865914 48e2fc92 adda1808 2b338777 731d0ac9",
            "impulse_noise 34a5befa d9d5cf33 0b9c53da 0854ebf8 59ab7ef6 895ac05f",
            "defocus_blur 37066e6c 9a630b62 6982aed4 aeb78a5e a998cc2c a0092b68",
            "glass_blur 50f18d95 79ff09d6 185ebea5 10a4e545 4a2b9fb5 9ebc0220",
            "motion_blur 9577cc96 43ee5da1 1afc7534 15ca6fb9 234d6142 70268b45",
            "zoom_blur 231412df 59be6da9 36ac5b42 18866e60 646c9526 0fb25e46",
            "snow b60ae744 ef0f3ee7 d9d7c5b6 2688337f 63fd8375 9d680091",
            "frost 04d02eda b8b32811 58aaf101 ea2602d0 56836074 c8ed9d66",
            "fog aef87adf eb5c0bfc 5f7d5146 0a4413c9 5666b638 d5dacdf7",
            "brightness cf24c313 f6136715 a4fa6e33 17c55cca 0da1b7d1 51a320c7",
            "contrast 81bb8420 6deb40d5 a9983ab6 7336567a de75fce1 682a8c7a",
            "elastic_transform b65ce052 8548df92 0a609813 d1c09d40 dc23f470 01513bbd",
            "pixelate c3d24e01 b308877b 3b2b0002 ec0b7b48 b98437b9 2b65ac5d",
            "jpeg_compression 30cb7d4e 2e40a604 dce9d34b 4bcd9c45 42f2efed f692d6f2"
        ]
    );
}
