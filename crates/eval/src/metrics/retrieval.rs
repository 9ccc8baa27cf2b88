//! Finding images by texts and texts by images.
//!
//! A query ranks all candidates by their product with it; of equal products the candidate of the lowest index
//! comes first. It has found what it looks for at `k` where any of its positives is among the first `k`.

use burn::tensor::Device;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{
    bootstrap::{Interval, draw, intervals, resamples},
    embeddings::{Embeddings, dot},
};
use crate::{
    error::{EvalError, Result},
    stream::Watcher,
};

/// Something for each of the depths that recall is asked at.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct AtDepths<T> {
    /// Among the first.
    pub at_1: T,
    /// Among the first five.
    pub at_5: T,
    /// Among the first ten.
    pub at_10: T,
}

/// The depths.
const DEPTHS: [usize; 3] = [1, 5, 10];

impl<T> AtDepths<T> {
    fn new([at_1, at_5, at_10]: [T; 3]) -> Self {
        Self { at_1, at_5, at_10 }
    }

    /// With the depths, `(k, …)`.
    pub fn each(&self) -> [(usize, &T); 3] {
        [(DEPTHS[0], &self.at_1), (DEPTHS[1], &self.at_5), (DEPTHS[2], &self.at_10)]
    }
}

/// Share of the queries that find any of their positives among the first few candidates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    /// Queries that have something to find; others are not counted.
    pub queries: usize,
    /// What they find it among.
    pub candidates: usize,
    /// The shares.
    pub recall: AtDepths<f64>,
    /// How far these may be off, images drawn with all their texts; the candidates stay.
    pub intervals: AtDepths<Interval>,
    /// The shares of an order that knows nothing.
    pub chance: AtDepths<f64>,
    /// Half of the queries have their first positive at this place or before it, counted from 1.
    pub median_rank: f64,
}

/// Recall both ways.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Retrieval {
    /// Texts look for their image.
    pub text_to_image: Recall,
    /// Images look for any of their texts.
    pub image_to_text: Recall,
}

impl Retrieval {
    /// Of images with any number of texts each; nothing where there is no text.
    ///
    /// - `images`: `[I, E]`, `texts`: `[T, E]`
    /// - `owners`: `[T]`, the image of every text
    pub fn of(
        images: &Embeddings,
        texts: &Embeddings,
        owners: &[usize],
        device: &Device,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<Self>> {
        let found = Self::with_ranks(images, texts, owners, device, watcher)?;
        Ok(found.map(|(found, _)| found))
    }

    /// The same, and how many images come before the own one of every text.
    pub fn with_ranks(
        images: &Embeddings,
        texts: &Embeddings,
        owners: &[usize],
        device: &Device,
        watcher: &mut dyn Watcher,
    ) -> Result<Option<(Self, Vec<u32>)>> {
        assert_eq!(texts.len(), owners.len(), "every text has an image");
        if owners.is_empty() {
            return Ok(None);
        }
        let mut own = vec![Vec::new(); images.len()];
        owners.iter().enumerate().for_each(|(text, image)| own[*image].push(text as u32));
        let of_texts: Vec<Vec<u32>> = owners.iter().map(|image| vec![*image as u32]).collect();
        watcher.begins("texts, to find their images", texts.len());
        let by_text = ranks(texts, images, &of_texts, device, watcher)?;
        watcher.begins("images, to find their texts", images.len());
        let by_image = ranks(images, texts, &own, device, watcher)?;
        let together = |own: &Vec<u32>| own.iter().map(|text| by_text[*text as usize]).collect();
        let text_to_image: Vec<Vec<Option<u32>>> = own.iter().map(together).collect();
        let image_to_text: Vec<Vec<Option<u32>>> =
            by_image.into_iter().map(|rank| vec![rank]).collect();
        let found = Self {
            text_to_image: Recall::of(&text_to_image, &of_texts, images.len()),
            image_to_text: Recall::of(&image_to_text, &own, texts.len()),
        };
        Ok(Some((found, by_text.into_iter().flatten().collect())))
    }
}

impl Recall {
    /// - `clusters`: ranks of queries that are drawn together, of at least one query that has positives
    /// - `positives`: of every query
    fn of(clusters: &[Vec<Option<u32>>], positives: &[Vec<u32>], candidates: usize) -> Self {
        let clusters: Vec<Vec<u32>> =
            clusters.iter().map(|ranks| ranks.iter().flatten().copied().collect()).collect();
        let clusters: Vec<Vec<u32>> =
            clusters.into_iter().filter(|ranks| !ranks.is_empty()).collect();
        let shares = |drawn: &mut dyn Iterator<Item = usize>| {
            let (mut found, mut queries) = ([0_usize; 3], 0);
            for rank in drawn.flat_map(|cluster| &clusters[cluster]) {
                queries += 1;
                let deep = found.iter_mut().zip(DEPTHS).filter(|(_, k)| (*rank as usize) < *k);
                deep.for_each(|(found, _)| *found += 1);
            }
            found.map(|found| found as f64 / queries.max(1) as f64)
        };
        let mut all: Vec<u32> = clusters.iter().flatten().copied().collect();
        all.sort_unstable();
        let chance = DEPTHS.map(|k| {
            let of_queries = positives.iter().filter(|own| !own.is_empty());
            of_queries.map(|own| chance(own.len(), candidates, k)).sum::<f64>() / all.len() as f64
        });
        Self {
            queries: all.len(),
            candidates,
            recall: AtDepths::new(shares(&mut (0..clusters.len()))),
            intervals: AtDepths::new(intervals(resamples(all.len()), |seed| {
                shares(&mut draw(seed, clusters.len()))
            })),
            chance: AtDepths::new(chance),
            median_rank: (f64::from(all[(all.len() - 1) / 2]) + f64::from(all[all.len() / 2]))
                / 2.0
                + 1.0,
        }
    }
}

/// That one of `positives` is among the first `k` of `candidates` in any order.
fn chance(positives: usize, candidates: usize, k: usize) -> f64 {
    let others = (candidates - positives) as f64;
    let missed = (0..k).map(|place| match place < candidates {
        true => ((others - place as f64) / (candidates - place) as f64).max(0.0),
        false => 1.0,
    });
    1.0 - missed.product::<f64>()
}

/// Queries and candidates whose products are computed at a time: 16 MB of them, whatever there is in all.
const BLOCK: (usize, usize) = (1024, 4096);
/// Products of vectors of length 1 that are closer than this are computed again in double precision: a device may
/// round equal ones differently.
const MARGIN: f64 = 1e-5;

/// Candidates that come before the first positive of every query; nothing for a query without positives.
///
/// - `queries`: `[Q, E]`, `candidates`: `[N, E]`
/// - `positives`: `[Q]`, the candidates that each query looks for
/// - `watcher`: hears of all queries in the end
pub fn ranks(
    queries: &Embeddings,
    candidates: &Embeddings,
    positives: &[Vec<u32>],
    device: &Device,
    watcher: &mut dyn Watcher,
) -> Result<Vec<Option<u32>>> {
    assert_eq!(queries.len(), positives.len(), "every query has its positives");
    let first: Vec<Option<(f64, usize)>> = positives
        .par_iter()
        .enumerate()
        .map(|(query, own)| first_of(queries.row(query), candidates, own))
        .collect();
    let margin = MARGIN * queries.longest() * candidates.longest();
    let mut ranks = vec![0_u32; queries.len()];
    let (places, others): (Vec<usize>, Vec<usize>) =
        ((0..queries.len()).collect(), (0..candidates.len()).collect());
    for (number, block) in others.chunks(BLOCK.1).enumerate() {
        let turned = candidates.select(block).tensor(device).transpose();
        let rows = places.chunks(BLOCK.0).zip(ranks.chunks_mut(BLOCK.0));
        for (rows, ranks) in rows {
            if watcher.stopped() {
                return Err(EvalError::Interrupted);
            }
            let products =
                Embeddings::of(queries.select(rows).tensor(device).matmul(turned.clone()));
            let lines =
                ranks.par_iter_mut().zip(rows).zip(products.values().par_chunks(block.len()));
            lines.for_each(|((rank, query), products)| {
                let Some((best, place)) = first[*query] else { return };
                let before = |(product, other): &(&f32, &usize)| {
                    let mut product = f64::from(**product);
                    if (product - best).abs() <= margin {
                        product = dot(queries.row(*query), candidates.row(**other));
                    }
                    product > best || (product == best && **other < place)
                };
                *rank += products.iter().zip(block).filter(before).count() as u32;
            });
            if (number + 1) * BLOCK.1 >= candidates.len() {
                watcher.done(rows.len());
            }
        }
    }
    Ok(first.iter().zip(ranks).map(|(first, rank)| first.map(|_| rank)).collect())
}

/// The product and the place of the positive that comes first.
fn first_of(query: &[f32], candidates: &Embeddings, positives: &[u32]) -> Option<(f64, usize)> {
    let all = positives.iter().map(|place| *place as usize);
    let all = all.map(|place| (dot(query, candidates.row(place)), place));
    all.min_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)))
}

/// The best candidates of one query with their products, the best first; of equal ones the lowest index first.
pub fn best(query: &[f32], candidates: &Embeddings, most: usize) -> Vec<(usize, f64)> {
    let products = candidates.rows().map(|row| dot(query, row));
    let mut all: Vec<(usize, f64)> = products.enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: all candidates in order, and the place of the first positive among them.
    fn definition(
        queries: &Embeddings,
        candidates: &Embeddings,
        own: &[Vec<u32>],
    ) -> Vec<Option<u32>> {
        let place = |(query, own): (&[f32], &Vec<u32>)| {
            let order = best(query, candidates, usize::MAX);
            order.iter().position(|(other, _)| own.contains(&(*other as u32))).map(|p| p as u32)
        };
        queries.rows().zip(own).map(place).collect()
    }

    fn embeddings(rows: usize, width: usize) -> impl Strategy<Value = Embeddings> {
        // Few values, so that products are often equal.
        prop::collection::vec(-1_i8..=1, rows * width).prop_map(move |v| {
            Embeddings::new(v.into_iter().map(|v| f32::from(v) / 3.0).collect(), width)
        })
    }

    proptest! {
        #[test]
        fn recall_is_what_its_definition_says(
            (images, texts, owners) in (1..9_usize, 1..25_usize).prop_flat_map(|(images, texts)| (
                embeddings(images, 3),
                embeddings(texts, 3),
                prop::collection::vec(0..images, texts),
            )),
        ) {
            let device = Device::flex();
            let found = Retrieval::of(&images, &texts, &owners, &device, &mut ()).unwrap().unwrap();
            let own = |image: usize| -> Vec<u32> {
                (0..texts.len()).filter(|text| owners[*text] == image).map(|text| text as u32).collect()
            };
            let of_images: Vec<Vec<u32>> = (0..images.len()).map(own).collect();
            let of_texts: Vec<Vec<u32>> = owners.iter().map(|owner| vec![*owner as u32]).collect();
            for (recall, queries, candidates, own) in [
                (found.text_to_image, &texts, &images, &of_texts),
                (found.image_to_text, &images, &texts, &of_images),
            ] {
                let ranks: Vec<u32> = definition(queries, candidates, own).into_iter().flatten().collect();
                prop_assert_eq!((recall.queries, recall.candidates), (ranks.len(), candidates.len()));
                for (k, share) in recall.recall.each() {
                    let hits = ranks.iter().filter(|rank| (**rank as usize) < k).count();
                    prop_assert_eq!(*share, hits as f64 / ranks.len() as f64);
                }
                for ((_, interval), (_, share)) in recall.intervals.each().into_iter().zip(recall.recall.each()) {
                    prop_assert!(interval.low <= *share + 1e-12 && *share <= interval.high + 1e-12);
                }
            }
        }
    }

    #[test]
    fn of_equal_candidates_the_lowest_comes_first() {
        let query = Embeddings::new(vec![1.0, 0.0], 2);
        let candidates = Embeddings::new([0.6, 0.8].repeat(4), 2);
        let rank = |own: Vec<u32>| {
            ranks(&query, &candidates, &[own], &Device::flex(), &mut ()).unwrap()[0]
        };
        assert_eq!([0, 1, 2, 3].map(|own| rank(vec![own])), [0, 1, 2, 3].map(Some));
        assert_eq!((rank(vec![3, 1]), rank(vec![])), (Some(1), None));
        let order: Vec<usize> =
            best(query.row(0), &candidates, 3).iter().map(|one| one.0).collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[test]
    fn blocks_are_one_ranking() {
        // Equal candidates in every block, wherever they lie in it, and two that differ in their last bit.
        let (queries, count) = (BLOCK.0 + 3, 2 * BLOCK.1 + 5);
        let row = |place: usize| [0.3, 0.1 + 0.05 * (place % 2) as f32, 0.7, 0.2, 0.01];
        let mut values: Vec<f32> = (0..count).flat_map(row).collect();
        let last = values.len() - 5;
        values[last + 2] = 0.7_f32.next_up();
        let candidates = Embeddings::new(values, 5);
        let all = Embeddings::new([0.5, 0.9, 0.4, 0.3, 0.2].repeat(queries), 5);
        let own: Vec<Vec<u32>> = (0..queries).map(|query| vec![(query % count) as u32]).collect();
        let found = ranks(&all, &candidates, &own, &Device::flex(), &mut ()).unwrap();
        let odd = count / 2;
        for (query, rank) in found.iter().enumerate().take(50) {
            // Odd places are ahead of even ones; the last place is even and a little ahead of the others.
            let expected = if query % 2 == 1 { query / 2 } else { odd + 1 + query / 2 };
            assert_eq!(*rank, Some(expected as u32), "query {query}");
        }
        assert_eq!(found[queries - 1].unwrap() as usize, odd + 1 + (queries - 1) / 2);
    }

    #[test]
    fn chance_counts_draws_without_replacement() {
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(chance(1, 100, 5), 0.05) && close(chance(5, 5, 1), 1.0));
        // Of 5 candidates 2 are positives: 3/5 · 2/4 of the pairs have none.
        assert!(close(chance(2, 5, 2), 0.7) && close(chance(2, 5, 10), 1.0));
    }

    #[test]
    fn texts_of_one_image_are_drawn_together() {
        // One image's ten texts are all found and the other's are not: a resample has all, half or none.
        let images = Embeddings::new(vec![1.0, 0.0, 0.0, 1.0], 2);
        let texts = Embeddings::new([1.0, 0.5].repeat(20), 2);
        let owners: Vec<usize> = (0..20).map(|text| text / 10).collect();
        let found = Retrieval::of(&images, &texts, &owners, &Device::flex(), &mut ());
        let recall = found.unwrap().unwrap().text_to_image;
        assert_eq!((recall.recall.at_1, recall.recall.at_5, recall.median_rank), (0.5, 1.0, 1.5));
        assert_eq!((recall.intervals.at_1.low, recall.intervals.at_1.high), (0.0, 1.0));
    }

    #[test]
    fn images_without_texts_are_found_among_but_do_not_look() {
        let images = Embeddings::new(vec![1.0, 0.0, 0.0, 1.0, 1.1, 0.1], 2);
        let texts = Embeddings::new(vec![1.0, 0.0], 2);
        let found =
            Retrieval::of(&images, &texts, &[2], &Device::flex(), &mut ()).unwrap().unwrap();
        assert_eq!((found.image_to_text.queries, found.text_to_image.candidates), (1, 3));
        assert_eq!((found.image_to_text.recall.at_1, found.text_to_image.recall.at_1), (1.0, 1.0));
        let none = Retrieval::of(&images, &Embeddings::default(), &[], &Device::flex(), &mut ());
        assert_eq!(none.unwrap(), None);
    }
}
