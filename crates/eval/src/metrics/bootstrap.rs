//! How far a number may be off because the images are only some: the percentile bootstrap (Efron 1979).
//!
//! A resample draws as many images as there are, with replacement, and the number is computed of them as of
//! the images themselves. The interval is between the percentiles of 1,000 resamples. Every resample has a
//! stream of random numbers of its own, so that the interval does not depend on threads.

use omma_base::Seed;
use rand::RngExt;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// What the bootstrap holds for plausible, at 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Interval {
    /// The 2.5th percentile.
    pub low: f64,
    /// The 97.5th.
    pub high: f64,
}

/// Share of the resamples on either side of an interval.
const TAIL: f64 = 0.025;
/// Resamples of most data sets, and of the largest.
const RESAMPLES: (usize, usize) = (1_000, 200);
/// Images that all resamples draw together, if that leaves enough of them.
const DRAWS: usize = 100_000_000;

impl Interval {
    /// Between two percentiles of values, which are taken for points of a line between neighbours.
    ///
    /// - `values`: at least one
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (values.len() - 1) as f64;
            let (below, above) = (place.floor() as usize, place.ceil() as usize);
            values[below] + (values[above] - values[below]) * place.fract()
        };
        Self { low: at(TAIL), high: at(1.0 - TAIL) }
    }

    /// How far it reaches.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }

    /// Whether a value is plausible.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The same in another unit.
    pub fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, high: self.high * factor }
    }
}

/// Resamples for a number of images: fewer where there are very many, whose intervals are narrow.
pub fn resamples(images: usize) -> usize {
    (DRAWS / images.max(1)).clamp(RESAMPLES.1, RESAMPLES.0)
}

/// The places of as many images as there are, drawn with replacement.
pub fn draw(seed: Seed, images: usize) -> impl Iterator<Item = usize> {
    let mut rng = seed.rng();
    (0..images).map(move |_| rng.random_range(0..images))
}

/// Intervals of numbers that are computed together.
///
/// - `of`: the numbers of one resample, which is drawn from the seed
pub fn intervals<const N: usize>(
    resamples: usize,
    of: impl Fn(Seed) -> [f64; N] + Sync,
) -> [Interval; N] {
    let root = Seed::new(0).named("bootstrap");
    let all: Vec<[f64; N]> =
        (0..resamples.max(1)).into_par_iter().map(|n| of(root.numbered(n as u64))).collect();
    std::array::from_fn(|number| Interval::of(all.iter().map(|one| one[number]).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let interval = Interval::of((0..=200).rev().map(f64::from).collect());
        assert_eq!((interval.low, interval.high), (5.0, 195.0));
        assert_eq!(Interval::of(vec![3.0]), Interval { low: 3.0, high: 3.0 });
        let interval = Interval::of(vec![0.0, 10.0]);
        assert!((interval.low - 0.25).abs() < 1e-12 && (interval.high - 9.75).abs() < 1e-12);
    }

    #[test]
    fn threads_change_nothing() {
        let values: Vec<f64> = (0..500).map(|n| f64::from(n * n % 97)).collect();
        let mean = |seed: Seed| {
            [draw(seed, values.len()).map(|place| values[place]).sum::<f64>() / values.len() as f64]
        };
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let many = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
        let one = alone.install(|| intervals(1000, mean));
        assert_eq!(one, many.install(|| intervals(1000, mean)));
        let truth = values.iter().sum::<f64>() / values.len() as f64;
        assert!(one[0].contains(truth) && one[0].width() > 0.0);
    }

    /// Sets of images that are wrong with a known probability: the truth is in 95 of 100 intervals. Of 600
    /// sets that is 570 ± 5; what the bootstrap lacks on 150 images is about one percent.
    #[test]
    fn the_truth_is_in_95_of_100_intervals() {
        let (sets, images, truth) = (600, 150, 0.3);
        let covered = |set: &u64| {
            let mut rng = Seed::new(*set).named("sets").rng();
            let wrong: Vec<f64> =
                (0..images).map(|_| f64::from(u8::from(rng.random_bool(truth)))).collect();
            let [interval] = intervals(400, |seed| {
                [draw(seed, images).map(|place| wrong[place]).sum::<f64>() / images as f64]
            });
            interval.contains(truth)
        };
        let share = (0..sets).filter(covered).count() as f64 / sets as f64;
        assert!((0.915..=0.975).contains(&share), "{share} of the intervals have the truth");
    }

    #[test]
    fn many_images_are_resampled_less_often() {
        assert_eq!([120, 50_000, 200_000, 5_000_000].map(resamples), [1000, 1000, 500, 200]);
    }
}
