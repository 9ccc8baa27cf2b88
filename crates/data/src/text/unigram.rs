//! The pieces that make words most likely, as SentencePiece finds them (Kudo 2018).
//!
//! Every piece has a probability of its own, and a word that of all the ways to put it together. It begins with
//! every part of a word that occurs twice; expectation–maximisation gives the pieces their probabilities, and
//! those that words would miss least are left out, a quarter at a time.
//!
//! The library's trainer begins with what two different words share, so that a word which has no relatives is
//! never a piece; captions of a small world are made of such words. Nothing here depends on threads or chance.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use rayon::prelude::*;

/// Characters of a piece.
const LONGEST: usize = 16;
/// Pieces to begin with, for each that is wanted, and at least.
const SEEDS: (usize, usize) = (20, 20_000);
/// Steps of expectation–maximisation between two rounds of leaving out.
const STEPS: usize = 2;
/// What is kept of the pieces in a round.
const KEPT: f64 = 0.75;
/// Pieces that are expected less often are left out.
const RARE: f64 = 0.5;
/// Words are counted in so many parts, whatever threads there are.
const PARTS: usize = 32;

/// Finds at most `most` pieces, which have every character of the words, with the logarithms of their probabilities,
/// the likeliest first.
pub(super) fn pieces(words: &BTreeMap<String, u64>, most: usize) -> Vec<(String, f64)> {
    let words: Vec<Word> = words.iter().map(|(text, &count)| Word::new(text, count)).collect();
    let mut pieces = Pieces::seeds(&words, most);
    loop {
        for _ in 0..STEPS {
            let expected = pieces.expected(&words);
            pieces = pieces.reweighted(&expected);
        }
        if pieces.scores.len() <= most {
            break;
        }
        let least = most.max((pieces.scores.len() as f64 * KEPT) as usize);
        pieces = pieces.without_least(&words, least);
    }
    let mut found: Vec<(String, f64)> =
        pieces.texts.into_iter().map(str::to_owned).zip(pieces.scores).collect();
    found.sort_by(|(text, score), (other, its)| its.total_cmp(score).then(text.cmp(other)));
    found
}

struct Word<'a> {
    text: &'a str,
    /// Where its characters begin, and its end.
    bounds: Vec<usize>,
    count: u64,
}

impl<'a> Word<'a> {
    fn new(text: &'a str, count: u64) -> Self {
        let bounds = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        Self { text, bounds, count }
    }

    fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Every part that may be a piece: its first character, the one behind it, itself.
    fn parts(&self) -> impl Iterator<Item = (usize, usize, &'a str)> {
        (0..self.len()).flat_map(move |start| {
            (start + 1..=self.len().min(start + LONGEST))
                .map(move |end| (start, end, &self.text[self.bounds[start]..self.bounds[end]]))
        })
    }
}

struct Pieces<'a> {
    texts: Vec<&'a str>,
    scores: Vec<f64>,
    /// Only looked up, never gone through: its order is chance.
    places: HashMap<&'a str, usize>,
}

impl<'a> Pieces<'a> {
    fn new(pieces: Vec<(&'a str, f64)>) -> Self {
        let places = pieces.iter().enumerate().map(|(place, (text, _))| (*text, place)).collect();
        let (texts, scores) = pieces.into_iter().unzip();
        Self { texts, scores, places }
    }

    fn seeds(words: &[Word<'a>], most: usize) -> Self {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for word in words {
            for (.., part) in word.parts() {
                *counts.entry(part).or_default() += word.count;
            }
        }
        let weight = |text: &str, count: u64| count as f64 * text.chars().count() as f64;
        let mut pieces: Vec<(&str, f64)> = counts
            .into_iter()
            .filter(|&(text, count)| count > 1 || single(text))
            .map(|(text, count)| (text, weight(text, count)))
            .collect();
        pieces.sort_by(|(text, weight), (other, its)| {
            (Reverse(single(text)), its, text)
                .partial_cmp(&(Reverse(single(other)), weight, other))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        pieces.truncate(most.saturating_mul(SEEDS.0).max(SEEDS.1));
        let sum: f64 = pieces.iter().map(|(_, weight)| weight).sum();
        Self::new(pieces.into_iter().map(|(text, weight)| (text, (weight / sum).ln())).collect())
    }

    /// How often each piece occurs when every way to put a word together counts as much as it is likely.
    fn expected(&self, words: &[Word]) -> Vec<f64> {
        self.summed(words, |word, sums| {
            let edges: Vec<(usize, usize, usize)> = self.edges(word).collect();
            let mut forward = vec![f64::NEG_INFINITY; word.len() + 1];
            forward[0] = 0.0;
            for &(start, end, piece) in &edges {
                forward[end] = log_add(forward[end], forward[start] + self.scores[piece]);
            }
            let mut backward = vec![f64::NEG_INFINITY; word.len() + 1];
            backward[word.len()] = 0.0;
            for &(start, end, piece) in edges.iter().rev() {
                backward[start] = log_add(backward[start], backward[end] + self.scores[piece]);
            }
            let all = forward[word.len()];
            for (start, end, piece) in edges {
                let likely = (forward[start] + self.scores[piece] + backward[end] - all).exp();
                sums[piece] += word.count as f64 * likely;
            }
        })
    }

    /// Probabilities by how often pieces are expected, of which rare ones lose most (a sparse prior, as
    /// SentencePiece has it).
    fn reweighted(self, expected: &[f64]) -> Self {
        let kept: Vec<(&str, f64)> = self
            .texts
            .into_iter()
            .zip(expected)
            .filter(|&(text, &count)| count >= RARE || single(text))
            .map(|(text, &count)| (text, count.max(RARE)))
            .collect();
        let all = digamma(kept.iter().map(|(_, count)| count).sum());
        Self::new(kept.into_iter().map(|(text, count)| (text, digamma(count) - all)).collect())
    }

    /// Keeps those that the words would miss most, and every character.
    fn without_least(self, words: &[Word], most: usize) -> Self {
        let used = self.summed(words, |word, sums| {
            for piece in self.best(word, None) {
                sums[piece] += word.count as f64;
            }
        });
        let all: f64 = used.iter().sum();
        let mut losses: Vec<(usize, f64)> = (0..self.texts.len())
            .into_par_iter()
            .filter(|&piece| !single(self.texts[piece]))
            .map(|piece| (piece, self.loss(piece, &used, all)))
            .collect();
        let singles = self.texts.len() - losses.len();
        losses.sort_by(|(piece, loss), (other, its)| {
            its.total_cmp(loss).then(self.texts[*piece].cmp(self.texts[*other]))
        });
        losses.truncate(most.saturating_sub(singles));
        let mut kept: Vec<bool> = self.texts.iter().map(|text| single(text)).collect();
        losses.into_iter().for_each(|(piece, _)| kept[piece] = true);
        let pieces = self.texts.into_iter().zip(self.scores).zip(kept);
        Self::new(pieces.filter(|(_, kept)| *kept).map(|(piece, _)| piece).collect())
    }

    /// How much less likely the words are without a piece, each of whose uses becomes the best of the rest.
    fn loss(&self, piece: usize, used: &[f64], all: f64) -> f64 {
        let own = used[piece];
        if own == 0.0 {
            return 0.0;
        }
        let rest = self.best(&Word::new(self.texts[piece], 1), Some(piece));
        let all_then = (all + own * (rest.len() as f64 - 1.0)).ln();
        let then: f64 = rest.iter().map(|&other| (used[other] + own).ln() - all_then).sum();
        own * (own.ln() - all.ln() - then)
    }

    /// The likeliest way to put a word together.
    fn best(&self, word: &Word, without: Option<usize>) -> Vec<usize> {
        let mut best = vec![(f64::NEG_INFINITY, 0, 0); word.len() + 1];
        best[0].0 = 0.0;
        for (start, end, piece) in self.edges(word).filter(|edge| Some(edge.2) != without) {
            let score = best[start].0 + self.scores[piece];
            if score > best[end].0 {
                best[end] = (score, start, piece);
            }
        }
        let mut pieces = Vec::new();
        let mut end = word.len();
        while end > 0 {
            let (_, start, piece) = best[end];
            pieces.push(piece);
            end = start;
        }
        pieces
    }

    /// The pieces that a word has: where they begin and end, and which they are.
    fn edges(&self, word: &Word) -> impl Iterator<Item = (usize, usize, usize)> {
        word.parts().filter_map(|(start, end, part)| {
            self.places.get(part).map(|&piece| (start, end, piece))
        })
    }

    /// One sum per piece, added up in the same order by any number of threads.
    fn summed(&self, words: &[Word], add: impl Fn(&Word, &mut [f64]) + Sync) -> Vec<f64> {
        let parts: Vec<Vec<f64>> = words
            .par_chunks(words.len().div_ceil(PARTS).max(1))
            .map(|words| {
                let mut sums = vec![0.0; self.texts.len()];
                words.iter().for_each(|word| add(word, &mut sums));
                sums
            })
            .collect();
        let mut sums = vec![0.0; self.texts.len()];
        for part in parts {
            sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        }
        sums
    }
}

fn single(text: &str) -> bool {
    text.chars().nth(1).is_none()
}

/// `ln(eᵃ + eᵇ)`.
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    match low == f64::NEG_INFINITY {
        true => high,
        false => high + (low - high).exp().ln_1p(),
    }
}

/// The derivative of `ln Γ`, for positive numbers: its recurrence up to 7, then its asymptotic series.
fn digamma(mut x: f64) -> f64 {
    let mut below = 0.0;
    while x < 7.0 {
        below += 1.0 / x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square / 252.0));
    x.ln() - 0.5 / x - series - below
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[(&str, u64)], most: usize) -> Vec<(String, f64)> {
        pieces(&words.iter().map(|&(word, count)| (word.to_owned(), count)).collect(), most)
    }

    fn texts(pieces: &[(String, f64)]) -> Vec<&str> {
        pieces.iter().map(|(text, _)| text.as_str()).collect()
    }

    #[test]
    fn frequent_words_without_relatives_are_pieces() {
        let found = found(&[("▁triangle", 90), ("▁blue", 60), ("▁ox", 1)], 40);
        assert_eq!(texts(&found)[..2], ["▁triangle", "▁blue"]);
        let probability: f64 = found[..2].iter().map(|(_, score)| score.exp()).sum();
        assert!((0.9..1.0).contains(&probability), "{probability}");
    }

    #[test]
    fn what_rare_words_share_is_a_piece() {
        let words = ["unseen", "unmade", "undone", "unable", "unread", "untidy", "unfair"];
        let found = found(&words.map(|word| (word, 1)), 100);
        let shared: Vec<&str> = texts(&found).into_iter().filter(|text| !single(text)).collect();
        assert!(shared.contains(&"un"), "{shared:?}");
        assert!(!shared.iter().any(|text| words.contains(text)), "{shared:?}");
    }

    #[test]
    fn every_character_stays() {
        let found = found(&[("aaaa", 1000), ("b", 1), ("ac", 1)], 3);
        let mut texts = texts(&found);
        texts.sort_unstable();
        assert_eq!(texts, ["a", "b", "c"]);
        assert!(found.iter().all(|(_, score)| score.is_finite()));
    }

    #[test]
    fn digamma_is_what_tables_say() {
        for (x, value) in
            [(1.0, -0.577_215_664_901), (0.5, -1.963_510_026_021), (10.0, 2.251_752_589_066)]
        {
            assert!((digamma(x) - value).abs() < 1e-9, "{x}: {}", digamma(x));
        }
    }

    #[test]
    fn logarithms_add() {
        assert!((log_add(2.0_f64.ln(), 3.0_f64.ln()) - 5.0_f64.ln()).abs() < 1e-12);
        assert_eq!(log_add(f64::NEG_INFINITY, 1.0), 1.0);
        assert_eq!(log_add(f64::NEG_INFINITY, f64::NEG_INFINITY), f64::NEG_INFINITY);
    }
}
