//! Images per second that the input pipeline delivers alone, at 32 × 32 pixels.
//!
//! `cargo bench --bench pipeline` takes batches of 256 from a `TrainLoader` with two workers: scenes of the
//! world as they are drawn, and CIFAR-like images in memory with shifts, flips and RandAugment.

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use omma_base::{Resolution, Seed};
use omma_data::{
    Cursor, Dataset, Pixels, Result, Sample, Shared, Split, TargetKind, TrainLoader, TrainOptions,
    augment::{Augmentation, Crop, Mixing},
    world::{Variant, World},
};

const BATCH: usize = 256;
const SQUARE: Resolution = Resolution::square(32);

/// Samples that are already in memory.
struct Memory {
    classes: Vec<String>,
    samples: Vec<Sample>,
}

impl Dataset for Memory {
    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn label(&self, index: usize) -> usize {
        self.samples[index].label
    }

    fn get(&self, index: usize) -> Result<Sample> {
        Ok(Sample::new(self.samples[index].picture.clone(), self.samples[index].label))
    }
}

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

fn pipeline(criterion: &mut Criterion) {
    let world = World::new(0, SQUARE, 100_000, Split::Train, Variant::Usual);
    let samples = (0..2000).map(|index| world.get(index).expect("scenes can be drawn")).collect();
    let memory = Memory { classes: world.classes().to_vec(), samples };
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
    let mut group = criterion.benchmark_group("pipeline");
    group.throughput(Throughput::Elements(BATCH as u64)).sample_size(10);
    group.measurement_time(Duration::from_secs(5));
    for (name, data, augmentation) in cases {
        let loader = TrainLoader::new(data, options(augmentation), Seed::new(0), Cursor::default());
        let mut loader = loader.expect("the options are sound");
        group.bench_function(name, |bencher| {
            bencher.iter(|| black_box(loader.next_batch().expect("images can be read")));
        });
    }
    group.finish();
}

criterion_group!(benches, pipeline);
criterion_main!(benches);
