//! Images and texts as vectors that can be compared, and photos found by them.

mod collection;
mod embedder;
mod index;
mod page;

pub(crate) use self::{
    collection::Collection,
    embedder::Embedder,
    index::{Index, Photo, photos_below},
    page::page,
};

/// A photo that was found, and how much it is like what was looked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Hit {
    /// Its place in what was looked through.
    pub(crate) place: usize,
    /// The cosine of its vector and the query's.
    pub(crate) score: f32,
}

/// The rows that are most like a query, the best first; of equal ones, the first.
///
/// - `scores`: `[N]`
pub(crate) fn best(scores: &[f32], most: usize) -> Vec<Hit> {
    let mut hits: Vec<Hit> =
        scores.iter().enumerate().map(|(place, &score)| Hit { place, score }).collect();
    let order = |a: &Hit, b: &Hit| b.score.total_cmp(&a.score).then(a.place.cmp(&b.place));
    if most < hits.len() {
        hits.select_nth_unstable_by(most, order);
        hits.truncate(most);
    }
    hits.sort_by(order);
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equal_ones_in_their_order() {
        let scores = [0.1, 0.9, -0.3, 0.9, 0.5];
        let places = |most| best(&scores, most).iter().map(|hit| hit.place).collect::<Vec<_>>();
        assert_eq!(places(10), [1, 3, 4, 0, 2]);
        assert_eq!(places(3), [1, 3, 4]);
        assert_eq!(places(1), [1]);
        assert_eq!(places(0), [0; 0]);
        assert!(best(&[], 3).is_empty());
    }
}
