//! From a text to ids.

use rayon::prelude::*;
use tokenizers::Encoding;

use super::{PAD, TextCounts, Tokenizer, beginning, guarded};

/// One text as a model takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// As many as were asked for.
    pub ids: Vec<u32>,
    /// How many of them are not padding.
    pub used: usize,
    /// How many of the text's own tokens stand for what the vocabulary does not have.
    pub unknown: usize,
    /// Tokens that did not fit.
    pub cut: usize,
    /// Whether the text has no tokens of its own.
    pub empty: bool,
}

impl Tokenizer {
    /// A text as exactly `length` ids.
    pub fn encode(&self, text: &str, length: usize) -> Encoded {
        let (text, whole) = beginning(text);
        let (own, unknown) = self.own_tokens(text);
        let room = length.saturating_sub(self.frame.len());
        let kept = &own[..own.len().min(room)];
        let mut ids = self.frame.before.clone();
        ids.extend(kept);
        ids.extend(&self.frame.after);
        ids.truncate(length);
        ids.iter_mut().for_each(|id| *id = self.ids.seen(*id));
        let used = ids.len();
        ids.resize(length, PAD);
        let cut = own.len() - kept.len() + usize::from(!whole);
        Encoded { ids, used, unknown, cut, empty: own.is_empty() && unknown == 0 }
    }

    /// The ids of texts, row by row, and what happened to them.
    ///
    /// - returns: `[B, length]`
    pub fn encode_all(&self, texts: &[String], length: usize) -> (Vec<i32>, TextCounts) {
        let encoded: Vec<Encoded> =
            texts.par_iter().map(|text| self.encode(text, length)).collect();
        let counts = encoded.iter().map(TextCounts::of).sum();
        let ids = encoded.iter().flat_map(|text| &text.ids).map(|&id| id as i32).collect();
        (ids, counts)
    }

    /// A text's tokens in the file's ids, without those that every text gets, and how many of them stand for
    /// what the vocabulary does not have.
    ///
    /// A vocabulary without a token for that leaves it out; then it is the characters that no token covers. Text may
    /// also spell padding, whose id means that there is no text: that is unknown too.
    fn own_tokens(&self, text: &str) -> (Vec<u32>, usize) {
        let encoding = guarded(|| match self.unknown {
            Some(_) => self.pipeline.encode_fast(text, false),
            None => self.pipeline.encode(text, false),
        });
        // What works on the texts that parsing tries fails with no other but in a file that is made to.
        let Some(Ok(encoding)) = encoding else { return (Vec::new(), 1) };
        let padding = self.ids.padding();
        let is_padding = |id: &u32| Some(*id) == padding;
        let mut ids = encoding.get_ids().to_vec();
        match self.unknown {
            Some(unknown) => {
                ids.iter_mut().filter(|id| is_padding(id)).for_each(|id| *id = unknown);
                let count = ids.iter().filter(|id| **id == unknown).count();
                (ids, count)
            }
            None => {
                let spelled = ids.iter().filter(|id| is_padding(id)).count();
                ids.retain(|id| !is_padding(id));
                (ids, spelled + uncovered(&encoding, text))
            }
        }
    }
}

fn uncovered(encoding: &Encoding, text: &str) -> usize {
    let mut covered = vec![false; text.len()];
    for &(start, end) in encoding.get_offsets() {
        let range = start.min(text.len())..end.min(text.len());
        if let Some(bytes) = covered.get_mut(range) {
            bytes.fill(true);
        }
    }
    text.char_indices().filter(|&(at, symbol)| !covered[at] && !symbol.is_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t5() -> Tokenizer {
        Tokenizer::parse(include_bytes!("../../tests/data/t5-tokenizer.json")).unwrap()
    }

    fn clip() -> Tokenizer {
        Tokenizer::parse(include_bytes!("../../tests/data/clip-tokenizer.json")).unwrap()
    }

    #[test]
    fn a_long_text_is_cut_in_front_of_its_end() {
        let cut = t5().encode("a red dog a red dog", 4);
        assert_eq!(
            cut,
            Encoded { ids: vec![4, 5, 6, 1], used: 4, unknown: 0, cut: 3, empty: false }
        );
        let fits = t5().encode("a red dog", 4);
        assert_eq!((fits.ids, fits.cut), (vec![4, 5, 6, 1], 0));
        assert_eq!(clip().encode("a red dog", 4).ids, [15, 7, 12, 16]);
        assert_eq!(clip().encode("a red dog", 1).ids, [15]);
        assert_eq!(t5().encode("a", 0).ids, [0; 0]);
    }

    #[test]
    fn a_text_without_words_is_its_end_alone() {
        for text in ["", "   ", "\u{200a}"] {
            let empty = t5().encode(text, 3);
            assert!(empty.used <= 2 && empty.cut == 0 && empty.unknown == 0, "{text:?} {empty:?}");
        }
        let empty = t5().encode("", 3);
        assert_eq!((empty.ids, empty.used, empty.empty), (vec![1, 0, 0], 1, true));
        assert_eq!(clip().encode(" ", 3).ids, [15, 16, 0]);
    }

    #[test]
    fn unknown_symbols_are_one_token_and_counted() {
        let text = t5().encode("a ☃☃ dog", 8);
        assert_eq!((text.ids, text.unknown), (vec![4, 3, 2, 6, 1, 0, 0, 0], 1));
        let bytes = clip().encode("a ☃", 8);
        assert_eq!((bytes.unknown, bytes.empty), (3, false));
    }

    #[test]
    fn symbols_that_a_vocabulary_leaves_out_are_counted_too() {
        let json = include_str!("../../tests/data/clip-tokenizer.json");
        let json = json.replace("\"unk_token\": \"<|endoftext|>\"", "\"unk_token\": null");
        let text = Tokenizer::parse(json.as_bytes()).unwrap().encode("a ☃ ☃ red", 8);
        assert_eq!((&text.ids[..4], text.unknown), (&[15, 7, 12, 16][..], 2));
    }

    #[test]
    fn a_text_cannot_spell_padding() {
        let text = t5().encode("a <pad> dog", 8);
        assert_eq!((text.ids, text.unknown), (vec![4, 3, 2, 6, 1, 0, 0, 0], 1));
    }

    #[test]
    fn texts_of_megabytes_are_not_read_to_their_end() {
        for word in ["☃", "a ", "dog"] {
            let text = t5().encode(&word.repeat(1 << 20), 16);
            assert!(text.cut > 0, "{word}");
        }
    }

    #[test]
    fn many_texts_lie_row_by_row_and_are_counted() {
        let texts = ["a dog", "", "a red dog a", "☃"].map(str::to_owned);
        let (ids, counts) = t5().encode_all(&texts, 4);
        assert_eq!(ids, [4, 6, 1, 0, 1, 0, 0, 0, 4, 5, 6, 1, 3, 2, 1, 0]);
        assert_eq!(
            counts,
            TextCounts { texts: 4, tokens: 11, unknown: 1, empty: 1, cut: 1, lost: 1 }
        );
    }
}
