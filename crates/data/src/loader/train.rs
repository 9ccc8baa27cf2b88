//! Endless, shuffled, augmented batches.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc::Receiver},
};

use omma_base::Seed;

use super::{
    Batch,
    bad_files::BadFiles,
    options::TrainOptions,
    schedule::{Draw, Schedule},
    workers::Workers,
};
use crate::{
    augment::mix,
    dataset::{Sample, Shared},
    error::{DataError, Result},
    targets::Targets,
};

/// Where a run is in its data. All that it draws follows from here and the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    /// Batches that were taken since it began.
    pub batches: u64,
    /// Which of those that follow are taken.
    pub turns: Turns,
}

/// Batches that are taken where several take turns, such as the second and third of every four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// Batches of a turn.
    of: u64,
    /// The first of them that is taken.
    first: u64,
    /// How many are.
    count: u64,
}

impl Default for Turns {
    /// All.
    fn default() -> Self {
        Self { of: 1, first: 0, count: 1 }
    }
}

impl Turns {
    /// Those of every `of` batches whose places are in `own`.
    pub fn new(own: std::ops::Range<usize>, of: usize) -> Self {
        assert!(own.start < own.end && own.end <= of, "{own:?} of {of} batches");
        Self { of: of as u64, first: own.start as u64, count: own.len() as u64 }
    }
}

impl Cursor {
    /// The numbers of the batches that follow.
    pub fn numbers(self) -> impl Iterator<Item = u64> + Send + Sync {
        let Turns { of, first, count } = self.turns;
        (self.batches..).filter(move |number| (first..first + count).contains(&(number % of)))
    }
}

/// Endless training batches: every epoch a new shuffle of all samples, a short last batch left out. Of a
/// [`Mixture`](crate::Mixture), every batch has its shares, and every part has epochs of its own.
pub struct TrainLoader {
    source: Arc<Source>,
    workers: Workers,
    /// Of the batches that are to be started.
    numbers: Box<dyn Iterator<Item = u64> + Send + Sync>,
    running: VecDeque<Receiver<Result<Batch>>>,
    schedule: Schedule,
}

/// What all workers share.
struct Source {
    data: Shared,
    options: TrainOptions,
    seed: Seed,
    bad: BadFiles,
}

impl TrainLoader {
    /// Batches from the cursor on, exactly as an uninterrupted run would get them.
    pub fn new(data: Shared, options: TrainOptions, seed: Seed, cursor: Cursor) -> Result<Self> {
        options.check()?;
        if data.is_empty() {
            return Err(DataError::NotFound("there are no training images".to_owned()));
        }
        let schedule = Schedule::new(&data, options.batch, seed)?;
        let workers = Workers::new(options.workers).map_err(|_| DataError::WorkerLost)?;
        let bad = BadFiles::new(options.bad_share);
        Ok(Self {
            source: Arc::new(Source { data, options, seed, bad }),
            workers,
            numbers: Box::new(cursor.numbers()),
            running: VecDeque::new(),
            schedule,
        })
    }

    /// The next batch; those behind it are being made meanwhile.
    pub fn next_batch(&mut self) -> Result<Batch> {
        let options = &self.source.options;
        let ahead = options.prefetch.max(options.workers).max(1);
        while self.running.len() < ahead {
            self.start();
        }
        let batch = self.running.pop_front().ok_or(DataError::WorkerLost)?;
        // While this one is waited for, the next ones are made.
        self.start();
        batch.recv().map_err(|_| DataError::WorkerLost)?
    }

    fn start(&mut self) {
        let Some(number) = self.numbers.next() else { return };
        let draws = self.schedule.of(number);
        let (source, seed) =
            (self.source.clone(), self.source.seed.named("batch").numbered(number));
        self.running.push_back(self.workers.start(move || source.batch(&draws, seed)));
    }
}

impl Source {
    fn batch(&self, draws: &[Draw], seed: Seed) -> Result<Batch> {
        let options = &self.options;
        let (classes, resolution) = (self.data.classes().len(), options.pixels.resolution);
        let mut pixels = Vec::with_capacity(options.batch * resolution.pixels() * 3);
        let (mut targets, mut indices) = (Vec::new(), Vec::new());
        for (slot, draw) in draws.iter().enumerate() {
            let mut rng = seed.named("image").numbered(slot as u64).rng();
            let (index, mut sample) = self.sample(draw)?;
            let image = sample.picture.resolution();
            let transform = options.augmentation.draw(image, resolution, &mut rng);
            let words = Some(seed.named("caption").numbered(slot as u64));
            targets.push(options.targets.of(
                &self.data,
                (index, &mut sample),
                &transform,
                words,
            )?);
            options.pixels.write(&transform.picture(&sample.picture), &mut pixels);
            indices.push(index);
        }
        let mut targets = options.targets.gather(targets, classes);
        if let Targets::Classes { distribution, .. } = &mut targets {
            let mut rng = seed.named("mixing").rng();
            mix(&options.mixing, &mut pixels, distribution, (resolution, classes), &mut rng);
        }
        Ok(Batch { pixels, targets, indices, resolution })
    }

    /// The sample that was drawn. An unreadable one is replaced by another of its epoch.
    fn sample(&self, draw: &Draw) -> Result<(usize, Sample)> {
        for index in draw.candidates() {
            if let Some(sample) = self.bad.read(&self.data, index)? {
                return Ok((index, sample));
            }
        }
        Err(self.bad.too_many())
    }
}

#[cfg(test)]
mod tests {
    use omma_base::Resolution;

    use super::*;
    use crate::{
        Captioned, GeneratedDataset, HoldingOut, Mixture,
        augment::{Augmentation, Crop, Mixing},
        dataset::{Selection, Split},
        loader::Pixels,
        picture::Picture,
        targets::TargetKind,
        world::{Variant, World},
    };

    const PIXELS: Pixels =
        Pixels { resolution: Resolution::square(16), mean: [0.5; 3], deviation: [0.25; 3] };

    fn options(workers: usize, prefetch: usize) -> TrainOptions {
        TrainOptions {
            batch: 8,
            pixels: PIXELS,
            augmentation: Augmentation {
                crop: Crop::RandomResized,
                flip: true,
                operations: 2,
                erasing: 0.3,
                ..Augmentation::default()
            },
            mixing: Mixing { mixup: 0.8, cutmix: 1.0 },
            targets: TargetKind::Classes { smoothing: 0.1 },
            prefetch,
            workers,
            bad_share: 0.01,
        }
    }

    fn batches(data: &Shared, options: TrainOptions, from: u64, count: usize) -> Vec<Batch> {
        let cursor = Cursor { batches: from, ..Cursor::default() };
        let mut loader = TrainLoader::new(data.clone(), options, Seed::new(4), cursor).unwrap();
        (0..count).map(|_| loader.next_batch().unwrap()).collect()
    }

    fn world(samples: usize) -> Shared {
        Arc::new(World::new(1, Resolution::square(20), samples, Split::Train, Variant::Usual))
    }

    /// Labels are indices; some samples cannot be read.
    fn numbers(count: usize, holes: &[usize]) -> GeneratedDataset {
        let classes: Vec<String> = (0..count).map(|i| i.to_string()).collect();
        let holes = holes.to_vec();
        GeneratedDataset::new(&classes, count, move |index| match holes.contains(&index) {
            true => Err(DataError::NotFound(format!("hole {index}"))),
            false => Ok(Sample::new(Picture::filled(4, 6, [9; 3]), index)),
        })
        .with_labels(|index| index)
    }

    fn shared_numbers(count: usize, holes: &[usize]) -> Shared {
        Arc::new(numbers(count, holes))
    }

    fn plain(batch: usize) -> TrainOptions {
        TrainOptions {
            batch,
            augmentation: Augmentation::default(),
            mixing: Mixing::default(),
            ..options(2, 2)
        }
    }

    #[test]
    fn batches_depend_on_the_seed_and_not_on_the_workers() {
        let data = world(50);
        let expected = batches(&data, options(1, 0), 0, 20);
        assert_eq!(expected, batches(&data, options(4, 3), 0, 20));
        assert_ne!(expected[0], expected[1]);
        let other = TrainLoader::new(data, options(1, 0), Seed::new(5), Cursor::default());
        assert_ne!(expected[0], other.unwrap().next_batch().unwrap());
        for batch in &expected {
            assert_eq!((batch.len(), batch.pixels.len()), (8, 8 * 16 * 16 * 3));
            assert!(batch.pixels.iter().all(|value| (-2.01..=2.01).contains(value)));
            let Targets::Classes { distribution, classes: 10, .. } = &batch.targets else {
                panic!("{:?}", batch.targets);
            };
            for target in distribution.chunks_exact(10) {
                assert!((target.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                assert!(target.iter().all(|share| *share >= 0.0099));
            }
        }
    }

    #[test]
    fn a_run_continues_as_if_never_interrupted() {
        let data = world(50);
        let whole = batches(&data, options(2, 2), 0, 20);
        for from in [1, 6, 13] {
            assert_eq!(
                whole[from as usize..],
                batches(&data, options(3, 1), from, 20 - from as usize)
            );
        }
    }

    #[test]
    fn those_who_take_turns_have_all_batches_between_them() {
        let data = world(50);
        let whole = batches(&data, options(2, 2), 4, 12);
        let of = |own, from| {
            let cursor = Cursor { batches: from, turns: Turns::new(own, 4) };
            let mut loader =
                TrainLoader::new(data.clone(), options(2, 1), Seed::new(4), cursor).unwrap();
            std::array::from_fn::<_, 6, _>(|_| loader.next_batch().unwrap())
        };
        let [halves @ .., late] = [of(0..2, 4), of(2..4, 4), of(1..3, 6)];
        for (number, batch) in whole.iter().enumerate() {
            let (turn, place) = (number / 4, number % 4);
            assert_eq!(*batch, halves[place / 2][2 * turn + place % 2], "batch {number}");
        }
        assert_eq!(late[..3], [whole[2].clone(), whole[5].clone(), whole[6].clone()]);
    }

    #[test]
    fn an_epoch_has_every_sample_once_and_the_next_is_in_another_order() {
        let data = shared_numbers(24, &[]);
        let labels = |from| -> Vec<usize> {
            batches(&data, plain(8), from, 3)
                .iter()
                .flat_map(|batch| batch.labels().to_vec())
                .collect()
        };
        let (first, second) = (labels(0), labels(3));
        assert_ne!(first, second);
        for mut epoch in [first, second] {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..24).collect::<Vec<_>>());
        }
    }

    #[test]
    fn masks_and_captions_belong_to_their_images() {
        let resolution = Resolution::new(12, 20);
        let world = World::new(1, resolution, 30, Split::Train, Variant::Usual);
        let data: Shared = Arc::new(world);
        let pixels = Pixels { resolution, ..PIXELS };
        let load =
            |targets| batches(&data, TrainOptions { targets, pixels, ..plain(8) }, 0, 2).remove(1);
        let batch = load(TargetKind::Masks);
        assert_eq!((batch.resolution, batch.pixels.len()), (resolution, 8 * 12 * 20 * 3));
        let of = |index: &usize| data.get(*index).unwrap();
        let masks = batch.indices.iter().flat_map(|index| of(index).mask.unwrap()).collect();
        assert_eq!(batch.targets, Targets::Masks { pixels: masks });
        let batch = load(TargetKind::Texts);
        let texts = batch.indices.iter().map(|index| of(index).captions.remove(0)).collect();
        assert_eq!(batch.targets, Targets::Texts(texts));
        let bare = shared_numbers(10, &[]);
        let options = TrainOptions { targets: TargetKind::Masks, ..plain(8) };
        let mut loader = TrainLoader::new(bare, options, Seed::new(1), Cursor::default()).unwrap();
        let error = loader.next_batch().unwrap_err();
        assert!(matches!(error, DataError::Missing { what: "mask", .. }), "{error}");
    }

    /// Every image has five captions, which say which they are; the last image has none.
    fn five_captions(images: usize) -> Shared {
        Arc::new(GeneratedDataset::new(&[], images, move |index| {
            let most = if index + 1 < images { 5 } else { 0 };
            let captions = (0..most).map(|n| format!("{index}: {n}")).collect();
            Ok(Sample { captions, ..Sample::new(Picture::filled(4, 6, [9; 3]), 0) })
        }))
    }

    #[test]
    fn another_caption_is_drawn_every_epoch_and_from_the_seed_alone() {
        let named = five_captions(9);
        let data = Selection::spread(&named, 8);
        let with = |workers| TrainOptions { targets: TargetKind::Texts, workers, ..plain(8) };
        let epochs = batches(&data, with(1), 0, 10);
        assert_eq!(epochs, batches(&data, with(3), 0, 10));
        assert_eq!(epochs[6..], batches(&data, with(2), 6, 4));
        let mut of_first = std::collections::BTreeSet::new();
        for batch in &epochs {
            let Targets::Texts(texts) = &batch.targets else { panic!("{:?}", batch.targets) };
            for (text, index) in texts.iter().zip(&batch.indices) {
                assert!(data.captions(*index).unwrap().contains(text));
                of_first.extend((*index == 0).then(|| text.clone()));
            }
        }
        assert!(of_first.len() > 2, "{of_first:?}");
        let mut loader = TrainLoader::new(named, with(1), Seed::new(1), Cursor::default()).unwrap();
        let message = (0..9).find_map(|_| loader.next_batch().err()).unwrap().to_string();
        assert!(message.contains("sample 8 has no caption") && message.contains("give it one"));
    }

    #[test]
    fn a_mixture_comes_in_its_shares_from_any_cursor() {
        let named = Captioned::by_classes(shared_numbers(10, &[3]), "");
        let data: Shared = Arc::new(Mixture::new(vec![(named, 3), (world(50), 1)]).unwrap());
        let (most, _) = HoldingOut::default().for_validation(&data, 0.1);
        let with = |workers| TrainOptions { targets: TargetKind::Texts, workers, ..plain(8) };
        for data in [data, most] {
            let first = data.shares().unwrap()[0].samples;
            let whole = batches(&data, with(1), 0, 12);
            for batch in &whole {
                assert_eq!(batch.indices.iter().filter(|index| **index < first).count(), 6);
                let texts = batch.indices.iter().map(|i| data.captions(*i).unwrap().remove(0));
                assert_eq!(batch.targets, Targets::Texts(texts.collect()));
            }
            assert_eq!(whole[5..], batches(&data, with(3), 5, 7));
        }
    }

    #[test]
    fn few_samples_fill_a_batch() {
        let batch = batches(&shared_numbers(3, &[]), plain(8), 0, 1).remove(0);
        assert_eq!(batch.len(), 8);
        for label in 0..3 {
            assert!(batch.labels().contains(&label));
        }
    }

    #[test]
    fn unreadable_samples_are_replaced_the_same_way_every_time() {
        let data = shared_numbers(40, &[3, 17]);
        let few = batches(&data, plain(8), 0, 15);
        let labels: Vec<usize> = few.iter().flat_map(|batch| batch.labels().to_vec()).collect();
        assert!(!labels.contains(&3) && !labels.contains(&17));
        assert_eq!(few, batches(&data, TrainOptions { workers: 1, ..plain(8) }, 0, 15));
        assert_eq!(few[7..], batches(&data, plain(8), 7, 8));

        let all: Vec<usize> = (0..2).collect();
        for (count, holes) in [(2, all), (40, (0..10).collect())] {
            let data = shared_numbers(count, &holes);
            let mut loader =
                TrainLoader::new(data, plain(8), Seed::new(1), Cursor::default()).unwrap();
            let error = (0..20).find_map(|_| loader.next_batch().err()).unwrap();
            assert!(matches!(error, DataError::TooManyBad { .. }), "{error}");
            assert!(error.to_string().contains("hole"), "{error}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let data = shared_numbers(10, &[]);
        let refused = |options| {
            TrainLoader::new(data.clone(), options, Seed::new(1), Cursor::default()).is_err()
        };
        assert!(!refused(plain(8)));
        assert!(refused(plain(0)));
        let targets = TargetKind::Classes { smoothing: f64::NAN };
        assert!(refused(TrainOptions { targets, ..plain(8) }));
        for targets in [TargetKind::Masks, TargetKind::Texts] {
            assert!(!refused(TrainOptions { targets, ..plain(8) }));
            assert!(refused(TrainOptions { targets, ..options(1, 1) }));
        }
        let pixels = Pixels { resolution: Resolution::new(8, 0), ..PIXELS };
        assert!(refused(TrainOptions { pixels, ..plain(8) }));
        let pixels = Pixels { deviation: [0.0; 3], ..PIXELS };
        assert!(refused(TrainOptions { pixels, ..plain(8) }));
        let none = shared_numbers(0, &[]);
        assert!(TrainLoader::new(none, plain(8), Seed::new(1), Cursor::default()).is_err());
        // The last of ten samples has a label beyond the nine classes.
        let sample = |index| Ok(Sample::new(Picture::filled(4, 6, [9; 3]), index));
        let beyond: Shared = Arc::new(GeneratedDataset::new(&data.classes()[1..], 10, sample));
        let mut loader =
            TrainLoader::new(beyond, plain(10), Seed::new(1), Cursor::default()).unwrap();
        let error = loader.next_batch().unwrap_err();
        assert!(matches!(error, DataError::Label { label: 9, classes: 9, .. }), "{error}");
    }

    #[test]
    fn panicking_dataset_reports_lost_worker() {
        let data: Shared = Arc::new(GeneratedDataset::new(&[], 8, |_| panic!("on purpose")));
        for workers in [1, 2] {
            let options = TrainOptions { workers, ..plain(8) };
            let mut loader =
                TrainLoader::new(data.clone(), options, Seed::new(1), Cursor::default()).unwrap();
            for _ in 0..3 {
                let error = loader.next_batch().unwrap_err();
                assert!(matches!(error, DataError::WorkerLost), "{error}");
            }
        }
    }

    #[test]
    fn mask_of_another_size_is_refused() {
        let sample = |_| {
            let picture = Picture::filled(4, 6, [9; 3]);
            Ok(Sample { mask: Some(vec![0; 23]), ..Sample::new(picture, 0) })
        };
        let data: Shared = Arc::new(GeneratedDataset::new(&[], 1, sample));
        let options = TrainOptions { targets: TargetKind::Masks, ..plain(1) };
        let mut loader = TrainLoader::new(data, options, Seed::new(1), Cursor::default()).unwrap();
        let error = loader.next_batch().unwrap_err();
        let DataError::MaskSize { index: 0, found: 23, resolution } = error else {
            panic!("{error}")
        };
        assert_eq!(resolution, Resolution::new(6, 4));
    }
}
