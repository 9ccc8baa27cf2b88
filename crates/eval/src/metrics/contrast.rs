//! Telling pairs of images and texts apart within a batch.

use burn::tensor::Device;
use omma_base::Seed;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use super::{
    bootstrap::{Interval, draw, intervals, resamples},
    embeddings::Embeddings,
    retrieval::ranks,
};
use crate::{error::Result, stream::Watcher};

/// How often the other half of a pair is the best of its batch ("val acc" of paper 002 Table 5, whose batches have
/// 1,024 pairs). Of equally good ones the first of the batch counts as the best.
///
/// Pairs are put into batches in an order that is drawn from a fixed seed, so that data that are sorted by class
/// are no harder than others. What is left after the last full batch is left out, since few pairs are easier to
/// tell apart than many; where there is no full batch, all pairs are one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ContrastiveAccuracy {
    /// Pairs in a batch.
    pub batch: usize,
    /// Batches.
    pub batches: usize,
    /// Pairs that are in no batch.
    pub left_out: usize,
    /// Share of the images whose own text is the best.
    pub images: f64,
    /// Share of the texts whose own image is the best.
    pub texts: f64,
    /// How far the share of images may be off, pairs drawn and batches as they are.
    pub images_interval: Interval,
    /// How far that of texts may be off.
    pub texts_interval: Interval,
}

impl ContrastiveAccuracy {
    /// Batches of paper 002.
    pub const BATCH: usize = 1024;

    /// Of pairs; nothing where there is none.
    ///
    /// - `images`, `texts`: `[N, E]`, the pair's halves at the same places
    pub fn of(
        images: &Embeddings,
        texts: &Embeddings,
        batch: usize,
        device: &Device,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<Self>> {
        assert_eq!(images.len(), texts.len(), "every image has a text");
        let pairs = images.len();
        if pairs == 0 {
            return Ok(None);
        }
        let batch = batch.clamp(1, pairs);
        let mut order: Vec<usize> = (0..pairs).collect();
        order.shuffle(&mut Seed::new(0).named("contrastive accuracy").rng());
        let own: Vec<Vec<u32>> = (0..batch as u32).map(|place| vec![place]).collect();
        let mut right: Vec<[bool; 2]> = Vec::with_capacity(pairs);
        watcher.begins("pairs, batch by batch", pairs / batch * batch);
        for places in order.chunks_exact(batch) {
            let (images, texts) = (images.select(places), texts.select(places));
            let by_image = ranks(&images, &texts, &own, device, watcher)?;
            let by_text = ranks(&texts, &images, &own, device, &mut Silent(watcher))?;
            let both = by_image.iter().zip(&by_text);
            right.extend(both.map(|(image, text)| [*image == Some(0), *text == Some(0)]));
        }
        let shares = |drawn: &mut dyn Iterator<Item = usize>| {
            let mut sums = [0_usize; 2];
            for place in drawn {
                sums.iter_mut().zip(right[place]).for_each(|(sum, one)| *sum += usize::from(one));
            }
            sums.map(|sum| sum as f64 / right.len() as f64)
        };
        let [of_images, of_texts] = shares(&mut (0..right.len()));
        let [images_interval, texts_interval] =
            intervals(resamples(right.len()), |seed| shares(&mut draw(seed, right.len())));
        Ok(Some(Self {
            batch,
            batches: right.len() / batch,
            left_out: pairs - right.len(),
            images: of_images,
            texts: of_texts,
            images_interval,
            texts_interval,
        }))
    }

    /// The mean of both shares.
    pub fn mean(&self) -> f64 {
        (self.images + self.texts) / 2.0
    }

    /// The share that knowing nothing gives.
    pub fn chance(&self) -> f64 {
        1.0 / self.batch as f64
    }
}

/// Passes on that it is to stop, and nothing of what is done.
struct Silent<'a>(&'a dyn Watcher);

impl Watcher for Silent<'_> {
    fn begins(&mut self, _: &str, _: usize) {}
    fn done(&mut self, _: usize) {}
    fn stopped(&self) -> bool {
        self.0.stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accuracy(images: &Embeddings, texts: &Embeddings, batch: usize) -> ContrastiveAccuracy {
        ContrastiveAccuracy::of(images, texts, batch, &Device::flex(), &mut ()).unwrap().unwrap()
    }

    /// Points on a circle, each far from the others.
    fn circle(points: usize, turned: f32) -> Embeddings {
        let angle = |n: usize| (n as f32 + turned) / points as f32 * std::f32::consts::TAU;
        let point = |n: usize| [angle(n).cos(), angle(n).sin()];
        Embeddings::new((0..points).flat_map(point).collect(), 2)
    }

    #[test]
    fn pairs_are_told_apart_both_ways() {
        let images = circle(8, 0.0);
        let found = accuracy(&images, &circle(8, 0.2), 1024);
        assert_eq!((found.images, found.texts, found.mean()), (1.0, 1.0, 1.0));
        assert_eq!((found.batch, found.batches, found.left_out), (8, 1, 0));
        assert_eq!((found.images_interval.low, found.chance()), (1.0, 0.125));
        assert_eq!(accuracy(&images, &circle(8, 0.8), 1024).mean(), 0.0);
        // One long text is the best of every image, and of itself alone.
        let mut values = images.values().to_vec();
        values[..2].copy_from_slice(&[9.0, 0.0]);
        let mut queries = images.values().to_vec();
        queries.iter_mut().step_by(2).for_each(|x| *x += 2.0);
        let (queries, texts) = (Embeddings::new(queries, 2), Embeddings::new(values, 2));
        assert_eq!(accuracy(&queries, &texts, 8).images, 0.125);
    }

    #[test]
    fn what_does_not_fill_a_batch_is_left_out() {
        let (images, texts) = (circle(11, 0.0), circle(11, 0.1));
        let found = accuracy(&images, &texts, 4);
        assert_eq!((found.batch, found.batches, found.left_out), (4, 2, 3));
        // Told apart from three others, a pair is right that is wrong among all.
        let shifted = circle(11, 0.7);
        let (few, all) = (accuracy(&images, &shifted, 2), accuracy(&images, &shifted, 11));
        assert!(few.mean() > 0.5 && all.mean() == 0.0, "{few:?}");
        let none = Embeddings::default();
        let found = ContrastiveAccuracy::of(&none, &none, 4, &Device::flex(), &mut ());
        assert_eq!(found.unwrap(), None);
    }

    #[test]
    fn of_equal_texts_one_is_the_best() {
        let images = Embeddings::new([1.0, 0.0].repeat(5), 2);
        let found = accuracy(&images, &images, 5);
        assert_eq!((found.images, found.texts), (0.2, 0.2));
    }
}
