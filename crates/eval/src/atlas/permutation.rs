//! Whether classes and experts know more of each other than chance would have it.

use omma_base::Seed;
use rand::seq::SliceRandom;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::information::{Information, Sums};

/// What a permutation test found: labels are permuted among images, so that the tokens of an image stay together,
/// as they do in the data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PermutationTest {
    /// Permutations that were drawn.
    pub permutations: usize,
    /// Images that were permuted; a random sample where there are more.
    pub images: usize,
    /// The mutual information of these images, in nats.
    pub nats: f64,
    /// Its mean where labels are permuted.
    pub chance: f64,
    /// Share of the permutations with at least as much, the one that was found among them.
    pub p_value: f64,
    /// `(I − chance) / (H(E) − chance)`: the share of the choice of expert that the class settles beyond chance.
    pub effect: f64,
}

/// Where the tokens of some images went, with what these images or tokens show. Its size is bounded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Sample {
    /// Images with one class each.
    Images {
        /// `[N, columns]`: tokens of every image by expert; labels are below the number of classes.
        experts: Vec<f32>,
        /// `[N]`
        labels: Vec<u32>,
    },
    /// Images whose tokens have classes of their own.
    Tokens {
        /// `[N, T]`: the column of every token's expert, or [`NOWHERE`].
        experts: Vec<u16>,
        /// `[N, T]`: its class, or [`UNLABELLED`](super::labels::UNLABELLED).
        labels: Vec<u32>,
        /// Tokens of an image, `T`.
        tokens: usize,
    },
}

/// A token that no expert took.
pub(super) const NOWHERE: u16 = u16::MAX;

impl Sample {
    fn images(&self) -> usize {
        match self {
            Self::Images { labels, .. } => labels.len(),
            Self::Tokens { labels, tokens, .. } => labels.len() / (*tokens).max(1),
        }
    }

    /// - `columns`: experts that there are
    pub(crate) fn test(
        &self,
        columns: usize,
        classes: usize,
        permutations: usize,
        seed: Seed,
    ) -> Option<PermutationTest> {
        let images = self.images();
        if images < 2 || classes < 2 || columns < 2 {
            return None;
        }
        let table = |order: &[u32], table: &mut Vec<f64>| {
            table.clear();
            table.resize(classes * columns, 0.0);
            self.count(order, columns, table);
        };
        let order: Vec<u32> = (0..images as u32).collect();
        let mut counts = Vec::new();
        table(&order, &mut counts);
        let found = Information::of(&counts, columns);
        let drawn: Vec<f64> = (0..permutations as u64)
            .into_par_iter()
            .map_init(
                || (order.clone(), Vec::new(), Sums::new(columns)),
                |(order, counts, sums), number| {
                    order.iter_mut().zip(0..).for_each(|(place, own)| *place = own);
                    order.shuffle(&mut seed.numbered(number).rng());
                    table(order, counts);
                    sums.information(counts)
                },
            )
            .collect();
        let chance = drawn.iter().sum::<f64>() / permutations.max(1) as f64;
        // Sums in another order may differ in their last bits.
        let reached = drawn.iter().filter(|nats| **nats >= found.nats - 1e-12).count();
        let room = found.expert_entropy - chance;
        Some(PermutationTest {
            permutations,
            images,
            nats: found.nats,
            chance,
            p_value: (1 + reached) as f64 / (1 + permutations) as f64,
            effect: if room > 1e-9 { ((found.nats - chance) / room).clamp(-1.0, 1.0) } else { 0.0 },
        })
    }

    /// Adds image `i`'s tokens with the labels of image `order[i]` to a table `[classes, columns]`.
    fn count(&self, order: &[u32], columns: usize, table: &mut [f64]) {
        match self {
            Self::Images { experts, labels } => {
                for (own, other) in experts.chunks_exact(columns).zip(order) {
                    let class = labels[*other as usize] as usize;
                    let row = table[class * columns..].iter_mut();
                    row.zip(own).for_each(|(sum, count)| *sum += f64::from(*count));
                }
            }
            Self::Tokens { experts, labels, tokens } => {
                for (own, other) in experts.chunks_exact(*tokens).zip(order) {
                    let labels = &labels[*other as usize * tokens..][..*tokens];
                    for (expert, label) in own.iter().zip(labels) {
                        let (expert, label) = (usize::from(*expert), *label as usize);
                        let row = table.chunks_exact_mut(columns).nth(label);
                        if let Some(count) = row.and_then(|row| row.get_mut(expert)) {
                            *count += 1.0;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    const EXPERTS: usize = 4;
    const CLASSES: usize = 5;

    /// Sixty images of eight tokens; a share of them goes to the expert of its class, the rest anywhere.
    fn images(own: f64, seed: u64) -> Sample {
        let mut rng = Seed::new(seed).rng();
        let labels: Vec<u32> = (0..60).map(|_| rng.random_range(0..CLASSES as u32)).collect();
        let mut experts = vec![0.0; 60 * EXPERTS];
        for (image, label) in labels.iter().enumerate() {
            // Images differ, whatever they show.
            let liked = rng.random_range(0..EXPERTS);
            for _ in 0..8 {
                let expert = match rng.random::<f64>() {
                    draw if draw < own => *label as usize % EXPERTS,
                    draw if draw < own + 0.3 => liked,
                    _ => rng.random_range(0..EXPERTS),
                };
                experts[image * EXPERTS + expert] += 1.0;
            }
        }
        Sample::Images { experts, labels }
    }

    fn tested(sample: &Sample) -> PermutationTest {
        sample.test(EXPERTS, CLASSES, 99, Seed::new(3)).unwrap()
    }

    #[test]
    fn labels_that_mean_nothing_have_any_p_value() {
        let p_values: Vec<f64> = (0..120).map(|seed| tested(&images(0.0, seed)).p_value).collect();
        let mean = p_values.iter().sum::<f64>() / 120.0;
        assert!((mean - 0.5).abs() < 0.1, "{mean}");
        for level in [0.1, 0.25, 0.5, 0.75] {
            let below = p_values.iter().filter(|p| **p <= level).count() as f64 / 120.0;
            assert!((below - level).abs() < 0.14, "{below} of the tests are below {level}");
        }
    }

    #[test]
    fn planted_specialisation_is_found_and_grows_with_what_is_planted() {
        let [little, much] = [0.25, 0.8].map(|own| tested(&images(own, 1)));
        assert_eq!((little.p_value, much.p_value), (0.01, 0.01), "the least of 99 permutations");
        assert!(0.02 < little.effect && little.effect < 0.2, "{little:?}");
        assert!(much.effect > 0.4, "{much:?}");
        assert!(much.chance < much.nats / 4.0, "{much:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_test() {
        assert_eq!(tested(&images(0.1, 5)), tested(&images(0.1, 5)));
    }

    #[test]
    fn what_follows_from_the_place_alone_is_chance_for_tokens_with_labels() {
        // Tokens on the left go to expert 0 and show class 0 in every image: no image knows more of its own labels.
        let tokens = 6;
        let sides: Vec<u16> = (0..tokens).map(|token| u16::from(token >= 3)).collect();
        let experts: Vec<u16> = (0..40).flat_map(|_| sides.clone()).collect();
        let labels: Vec<u32> = experts.iter().map(|side| u32::from(*side)).collect();
        let everywhere = Sample::Tokens { experts: experts.clone(), labels, tokens };
        let test = everywhere.test(2, 2, 99, Seed::new(1)).unwrap();
        assert_eq!((test.p_value, test.effect), (1.0, 0.0), "{test:?}");
        // The same with a side of its own for every image.
        let mut rng = Seed::new(4).rng();
        let flips: Vec<bool> = (0..40).map(|_| rng.random()).collect();
        let experts: Vec<u16> = flips
            .iter()
            .flat_map(|flip| sides.iter().map(move |side| if *flip { 1 - side } else { *side }))
            .collect();
        let labels = experts.iter().map(|side| u32::from(*side)).collect();
        let test = Sample::Tokens { experts, labels, tokens }.test(2, 2, 99, Seed::new(1));
        assert!(test.unwrap().p_value == 0.01 && test.unwrap().effect > 0.8, "{test:?}");
    }

    #[test]
    fn one_image_one_class_or_one_expert_cannot_be_tested() {
        let one = Sample::Images { experts: vec![1.0; EXPERTS], labels: vec![0] };
        assert_eq!(one.test(EXPERTS, CLASSES, 99, Seed::new(0)), None);
        assert_eq!(images(0.5, 1).test(EXPERTS, 1, 99, Seed::new(0)), None);
        let alone = Sample::Images { experts: vec![8.0; 60], labels: vec![0; 60] };
        assert_eq!(alone.test(1, CLASSES, 99, Seed::new(0)), None);
    }
}
