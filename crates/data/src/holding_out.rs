//! Which images of a data set are held out of the others.

use std::{collections::BTreeMap, sync::Arc};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::dataset::{Selection, Shared};

/// The share of a data set without splits that is for testing.
const TEST_SHARE: f64 = 0.1;
/// Fewer held-out images than this choose a checkpoint by luck, so that these are held out of a small data
/// set whatever share was asked for, unless they were more than [`LARGEST_LEAST`] of it.
const LEAST: f64 = 100.0;
const LARGEST_LEAST: f64 = 0.1;

/// How images are held out. Which these are follows from the labels and the order of the images alone, so
/// that every command finds the same ones again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldingOut {
    /// Every n-th image, whatever its class. Runs of earlier versions, whose recipes do not say how, go on
    /// with these.
    EveryNth,
    /// Of every class in proportion to its images, evenly spread over them.
    #[default]
    Stratified,
}

impl HoldingOut {
    /// What a recipe means that was saved before there was a choice.
    pub fn of_before() -> Self {
        Self::EveryNth
    }

    /// A data set without splits of its own: most of it, and the tenth that is for testing.
    pub fn for_testing(self, of: &Shared) -> (Shared, Shared) {
        match self {
            Self::EveryNth => Selection::hold_out(of, TEST_SHARE),
            Self::Stratified => stratified(of, rounded(of.len(), TEST_SHARE)),
        }
    }

    /// Training images: those to learn from, and those held out to choose a checkpoint and a temperature by.
    /// Stratified, these are `share` of all, and at least 100 or a tenth, whichever is fewer. A share of 0
    /// holds nothing out.
    pub fn for_validation(self, of: &Shared, share: f64) -> (Shared, Shared) {
        match self {
            Self::EveryNth => Selection::hold_out(of, share),
            Self::Stratified if share > 0.0 => {
                let least = (LEAST / of.len().max(1) as f64).min(LARGEST_LEAST);
                stratified(of, rounded(of.len(), share.max(least)))
            }
            Self::Stratified => stratified(of, 0),
        }
    }
}

/// A share of so many images: one at least, where another is left.
fn rounded(images: usize, share: f64) -> usize {
    ((images as f64 * share).round() as usize).max(1).min(images.saturating_sub(1))
}

/// All but so many images, and these.
fn stratified(of: &Shared, held: usize) -> (Shared, Shared) {
    let labels: Vec<usize> = (0..of.len()).into_par_iter().map(|index| of.label(index)).collect();
    let mut by_class: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, label) in labels.into_iter().enumerate() {
        by_class.entry(label).or_default().push(index);
    }
    let sizes: Vec<usize> = by_class.values().map(Vec::len).collect();
    let mut is_held = vec![false; of.len()];
    for (indices, quota) in by_class.values().zip(quotas(&sizes, held)) {
        // The middles of `quota` equal stretches.
        (0..quota).for_each(|n| is_held[indices[(2 * n + 1) * indices.len() / (2 * quota)]] = true);
    }
    let part = |held: bool| -> Shared {
        let chosen = (0..of.len()).filter(|index| is_held[*index] == held).collect();
        Arc::new(Selection::new(of.clone(), chosen))
    };
    (part(false), part(true))
}

/// How many images of every class are held out: in proportion to its size by the largest remainders, of equal
/// ones the lowest class first. A class keeps an image to learn from, so that the sum may be less than `held`.
///
/// - `sizes`: `[classes]`
fn quotas(sizes: &[usize], held: usize) -> Vec<usize> {
    let all = sizes.iter().sum::<usize>().max(1) as u128;
    let exact = |size: usize| size as u128 * held as u128;
    let most = |size: usize| size.saturating_sub(1);
    let mut quotas: Vec<usize> =
        sizes.iter().map(|size| ((exact(*size) / all) as usize).min(most(*size))).collect();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|class| std::cmp::Reverse(exact(sizes[*class]) % all));
    let mut missing = held.saturating_sub(quotas.iter().sum());
    // Where small classes can give nothing, the others go round more than once.
    while missing > 0 {
        let before = missing;
        for class in &order {
            if missing > 0 && quotas[*class] < most(sizes[*class]) {
                quotas[*class] += 1;
                missing -= 1;
            }
        }
        if missing == before {
            break;
        }
    }
    // Where every class has a single image, the last one is held out all the same.
    if held > 0 && quotas.iter().all(|quota| *quota == 0) {
        let last = sizes.iter().rposition(|size| *size > 0);
        last.into_iter().for_each(|class| quotas[class] = 1);
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GeneratedDataset, Sample, picture::Picture};

    /// So many images of every class, one class after the other; an image's color is its number.
    fn data(sizes: &[usize]) -> Shared {
        let labels = sizes.iter().enumerate().flat_map(|(class, size)| vec![class; *size]);
        let labels: Vec<usize> = labels.collect();
        let classes: Vec<String> = (0..sizes.len()).map(|class| class.to_string()).collect();
        Arc::new(GeneratedDataset::new(&classes, labels.len(), move |index| {
            let color = [index as u8, (index >> 8) as u8, 0];
            Ok(Sample::new(Picture::filled(1, 1, color), labels[index]))
        }))
    }

    fn numbers(part: &Shared) -> Vec<usize> {
        let number = |index| {
            let pixels = part.get(index).unwrap().picture.pixels;
            usize::from(pixels[0]) + 256 * usize::from(pixels[1])
        };
        (0..part.len()).map(number).collect()
    }

    fn of_class(part: &Shared, class: usize) -> usize {
        (0..part.len()).filter(|index| part.label(*index) == class).count()
    }

    #[test]
    fn every_class_gives_its_share_and_nothing_is_in_both() {
        let data = data(&[600, 300, 90, 10]);
        let (most, tenth) = HoldingOut::Stratified.for_testing(&data);
        assert_eq!([0, 1, 2, 3].map(|class| of_class(&tenth, class)), [60, 30, 9, 1]);
        assert_eq!((most.len(), tenth.len()), (900, 100));
        let mut all = [numbers(&most), numbers(&tenth)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        // Evenly spread over the class: the middle of every ten.
        assert_eq!(numbers(&tenth)[..3], [5, 15, 25]);
        let again = HoldingOut::Stratified.for_testing(&data).1;
        assert_eq!(numbers(&tenth), numbers(&again));
    }

    #[test]
    fn a_small_share_of_a_small_set_is_at_least_a_hundred_or_a_tenth() {
        let held = |images: usize, share: f64| {
            let (most, held) =
                HoldingOut::Stratified.for_validation(&data(&[images / 2, images / 2]), share);
            assert_eq!(most.len() + held.len(), images);
            held.len()
        };
        assert_eq!(held(1080, 0.02), 100, "100 are fewer than a tenth");
        assert_eq!(held(500, 0.02), 50, "a tenth is fewer than 100");
        assert_eq!(held(20_000, 0.02), 400, "the share is more than 100");
        assert_eq!(held(500, 0.2), 100, "the share is more than a tenth");
        assert_eq!((held(500, 0.0), held(4, 0.02), held(2, 0.02)), (0, 1, 1));
        assert_eq!(held(0, 0.02), 0);
    }

    #[test]
    fn a_class_keeps_an_image_and_remainders_decide() {
        assert_eq!(quotas(&[5, 5, 5, 5], 2), [1, 1, 0, 0]);
        assert_eq!(quotas(&[1, 1, 8], 3), [0, 0, 3]);
        assert_eq!(quotas(&[14, 6], 2), [1, 1]);
        assert_eq!(quotas(&[3, 0, 1], 99), [2, 0, 0]);
        assert_eq!(quotas(&[1, 1, 0], 1), [0, 1, 0]);
        assert_eq!(quotas(&[], 3), [0; 0]);
    }

    #[test]
    fn the_earlier_way_takes_every_nth() {
        let data = data(&[15, 5]);
        let (_, tenth) = HoldingOut::EveryNth.for_testing(&data);
        assert_eq!(numbers(&tenth), [9, 19]);
        let (_, held) = HoldingOut::of_before().for_validation(&data, 0.25);
        assert_eq!(numbers(&held), [3, 7, 11, 15, 19]);
    }
}
