//! Images per second that the input pipeline delivers alone, at 32 × 32 pixels.
//!
//! `cargo bench --bench pipeline` takes batches of 256 from a `TrainLoader` with two workers: scenes of the
//! world as they are drawn, and CIFAR-like images in memory with shifts, flips and RandAugment.

#![expect(clippy::print_stdout, reason = "the table is this program's result")]

use std::{hint::black_box, sync::Arc, time::Instant};

use omma_base::{Resolution, Seed};
use omma_data::{
    Cursor, Dataset, GeneratedDataset, Pixels, Sample, Shared, Split, TargetKind, TrainLoader,
    TrainOptions,
    augment::{Augmentation, Crop, Mixing},
    world::{Variant, World},
};

const BATCH: usize = 256;
/// Batches of a round, and rounds.
const BATCHES: usize = 40;
const ROUNDS: usize = 11;
const SQUARE: Resolution = Resolution::square(32);

fn options(augmentation: Augmentation) -> TrainOptions {
    TrainOptions {
        batch: BATCH,
        pixels: Pixels { resolution: SQUARE, mean: [0.5; 3], deviation: [0.25; 3] },
        augmentation,
        mixing: Mixing::default(),
        targets: TargetKind::default(),
        prefetch: 4,
        workers: 2,
        bad_share: 0.01,
    }
}

fn main() {
    let world = World::new(0, SQUARE, 100_000, Split::Train, Variant::Usual);
    let samples: Vec<Sample> =
        (0..2000).map(|index| world.get(index).expect("scenes can be drawn")).collect();
    let memory = GeneratedDataset::new(world.classes(), samples.len(), move |index| {
        Ok(Sample::new(samples[index].picture.clone(), samples[index].label))
    });
    let cifar = Augmentation {
        crop: Crop::Padded,
        flip: true,
        operations: 2,
        magnitude: 9.0,
        ..Augmentation::default()
    };
    let cases: [(&str, Shared, Augmentation); 2] = [
        ("world", Arc::new(world), Augmentation::default()),
        ("memory, shift, flip, RandAugment", Arc::new(memory), cifar),
    ];
    for (name, data, augmentation) in cases {
        let loader = TrainLoader::new(data, options(augmentation), Seed::new(0), Cursor::default());
        let mut loader = loader.expect("the options are sound");
        let mut speeds: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..BATCHES {
                    black_box(loader.next_batch().expect("images can be read"));
                }
                (BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64()
            })
            .collect();
        speeds.sort_by(f64::total_cmp);
        let [low, median, high] = [0, ROUNDS / 2, ROUNDS - 1].map(|place| speeds[place]);
        println!("{name:<34} {median:>8.0} images/s ({low:.0}–{high:.0} over {ROUNDS} rounds)");
    }
}
