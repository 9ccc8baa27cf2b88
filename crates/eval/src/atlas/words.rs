//! What experts read: the words that they are surest of, and of which kind words are (paper 002 Figs. 24, 40).

use std::collections::HashMap;

use omma_data::text::{PAD, Tokenizer};
use serde::{Deserialize, Serialize};

/// Kinds of words. Without a tagger, a word is a function word if it is one of a short list of English ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WordKind {
    /// Articles, prepositions, pronouns, auxiliaries and the like.
    Function,
    /// Any other word or number.
    Content,
    /// Places behind the end of a text.
    Padding,
    /// Tokens that a text begins or ends with, unknown ones, punctuation.
    Other,
}

impl WordKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Function, Self::Content, Self::Padding, Self::Other];

    /// As a page calls them.
    pub fn name(self) -> &'static str {
        match self {
            Self::Function => "function words",
            Self::Content => "content words",
            Self::Padding => "padding",
            Self::Other => "other",
        }
    }
}

/// Of a word in small letters.
const FUNCTION_WORDS: &[&str] = &[
    "a", "about", "above", "across", "after", "against", "all", "along", "also", "am", "among",
    "an", "and", "another", "any", "are", "around", "as", "at", "be", "because", "been", "before",
    "behind", "being", "below", "beneath", "beside", "between", "both", "but", "by", "can",
    "could", "did", "do", "does", "doing", "down", "during", "each", "either", "every", "few",
    "for", "from", "had", "has", "have", "having", "he", "her", "here", "hers", "him", "his",
    "how", "i", "if", "in", "inside", "into", "is", "it", "its", "itself", "just", "like", "many",
    "may", "me", "might", "mine", "more", "most", "much", "must", "my", "near", "neither", "next",
    "no", "nor", "not", "of", "off", "on", "onto", "or", "other", "our", "ours", "out", "outside",
    "over", "own", "shall", "she", "should", "so", "some", "such", "than", "that", "the", "their",
    "theirs", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too",
    "toward", "towards", "under", "until", "up", "upon", "us", "very", "was", "we", "were", "what",
    "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "within",
    "without", "would", "you", "your", "yours",
];

/// How a vocabulary says where words begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joints {
    /// A piece that begins a word has this in front (`▁dog`, `Ġdog`).
    Begins(char),
    /// A piece that ends one has `</w>` behind it.
    Ends,
    /// A piece that goes on with one has `##` in front.
    GoesOn,
    /// Every piece is a word.
    None,
}

const END: &str = "</w>";
const ON: &str = "##";

/// The pieces that a tokenizer's ids stand for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pieces {
    pieces: Vec<String>,
    joints: Joints,
}

impl Pieces {
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let ids: Vec<u32> = (0..tokenizer.vocabulary() as u32).collect();
        Self::new(tokenizer.words(&ids))
    }

    fn new(pieces: Vec<String>) -> Self {
        let any = |has: &dyn Fn(&str) -> bool| pieces.iter().any(|piece| has(piece));
        let joints = match () {
            () if any(&|piece| piece.starts_with('▁')) => Joints::Begins('▁'),
            () if any(&|piece| piece.starts_with('Ġ')) => Joints::Begins('Ġ'),
            () if any(&|piece| piece.ends_with(END)) => Joints::Ends,
            () if any(&|piece| piece.starts_with(ON)) => Joints::GoesOn,
            () => Joints::None,
        };
        Self { pieces, joints }
    }

    fn piece(&self, id: u32) -> &str {
        self.pieces.get(id as usize).map_or("?", String::as_str)
    }

    /// A piece as people read it.
    pub(crate) fn shown(&self, id: u32) -> &str {
        let piece = self.piece(id);
        match self.joints {
            Joints::Begins(mark) => piece.trim_start_matches(mark),
            Joints::Ends => piece.strip_suffix(END).unwrap_or(piece),
            Joints::GoesOn => piece.strip_prefix(ON).unwrap_or(piece),
            Joints::None => piece,
        }
    }

    fn begins(&self, id: u32, before: Option<u32>) -> bool {
        let Some(before) = before else { return true };
        if is_special(self.piece(id)) || is_special(self.piece(before)) {
            return true;
        }
        match self.joints {
            Joints::Begins(mark) => self.piece(id).starts_with(mark),
            Joints::Ends => self.piece(before).ends_with(END),
            Joints::GoesOn => !self.piece(id).starts_with(ON),
            Joints::None => true,
        }
    }

    /// The kind of every token of a text: pieces have that of the word that they are of.
    pub(crate) fn kinds(&self, ids: &[u32], kinds: &mut Vec<WordKind>) {
        kinds.clear();
        let mut start = 0;
        for end in 1..=ids.len() {
            let goes_on = ids.get(end).is_some_and(|id| {
                *id != PAD && ids[end - 1] != PAD && !self.begins(*id, Some(ids[end - 1]))
            });
            if goes_on {
                continue;
            }
            let kind = self.kind(&ids[start..end]);
            kinds.extend(std::iter::repeat_n(kind, end - start));
            start = end;
        }
    }

    fn kind(&self, word: &[u32]) -> WordKind {
        if word.first() == Some(&PAD) {
            return WordKind::Padding;
        }
        if word.iter().all(|id| is_special(self.piece(*id))) {
            return WordKind::Other;
        }
        let text: String = word.iter().map(|id| self.shown(*id)).collect();
        let text = text.trim().to_lowercase();
        let bare = text.trim_matches(|symbol: char| !symbol.is_alphanumeric());
        match bare {
            "" => WordKind::Other,
            bare if FUNCTION_WORDS.binary_search(&bare).is_ok() => WordKind::Function,
            _ => WordKind::Content,
        }
    }
}

/// Tokens that no text spells: `<unk>`, `<|endoftext|>`, `[SEP]`.
fn is_special(piece: &str) -> bool {
    let within = |open: char, close: char| {
        piece.len() > 2 && piece.starts_with(open) && piece.ends_with(close)
    };
    piece != END && (within('<', '>') || within('[', ']')) && !piece.ends_with(END)
}

/// Pairs of an expert and a word that are told apart in a layer; later ones are left out.
const MOST_PAIRS: usize = 200_000;
/// Words of every expert.
const SHOWN: usize = 12;
/// A word is looked at if it came so often.
const OFTEN: u32 = 3;

/// A word at an expert.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SureWord {
    /// The word, or the piece of one.
    pub word: String,
    /// How often the expert took it.
    pub count: u64,
    /// Mean of the gates.
    pub gate: f64,
}

/// What one expert of a layer reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExpertWords {
    /// Which.
    pub expert: usize,
    /// Tokens of each kind that it took.
    pub kinds: Vec<(WordKind, f64)>,
    /// The words that it takes with the largest gates, of those that came at least three times.
    pub surest: Vec<SureWord>,
}

/// What the experts of a layer read, as it comes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Words {
    /// By expert and id.
    taken: HashMap<(u16, u32), (u32, f32)>,
    /// `[E, kinds]`
    kinds: Vec<f64>,
    /// Tokens whose pair came too late to be told apart.
    pub(super) left_out: u64,
}

impl Words {
    pub(super) fn new(experts: usize) -> Self {
        let kinds = vec![0.0; experts * WordKind::ALL.len()];
        Self { taken: HashMap::new(), kinds, left_out: 0 }
    }

    pub(super) fn add(&mut self, expert: usize, id: u32, kind: WordKind, gate: f32, count: f32) {
        self.kinds[expert * WordKind::ALL.len() + kind as usize] += f64::from(count);
        if kind == WordKind::Padding {
            return;
        }
        let key = (expert as u16, id);
        if let Some((count, sum)) = self.taken.get_mut(&key) {
            *count += 1;
            *sum += gate;
        } else if self.taken.len() < MOST_PAIRS {
            self.taken.insert(key, (1, gate));
        } else {
            self.left_out += 1;
        }
    }

    pub(super) fn record(&self, pieces: &Pieces) -> Vec<ExpertWords> {
        let width = WordKind::ALL.len();
        let mut found: Vec<Vec<(u32, u32, f64)>> = vec![Vec::new(); self.kinds.len() / width];
        for ((expert, id), (count, sum)) in &self.taken {
            let mean = f64::from(*sum) / f64::from(*count);
            found[usize::from(*expert)].push((*id, *count, mean));
        }
        let of_expert = |(expert, mut own): (usize, Vec<(u32, u32, f64)>)| {
            if own.iter().any(|(_, count, _)| *count >= OFTEN) {
                own.retain(|(_, count, _)| *count >= OFTEN);
            }
            own.sort_by(|a, b| b.2.total_cmp(&a.2).then(b.1.cmp(&a.1)).then(a.0.cmp(&b.0)));
            let word = |&(id, count, gate): &(u32, u32, f64)| SureWord {
                word: pieces.shown(id).to_owned(),
                count: count.into(),
                gate,
            };
            let kinds =
                WordKind::ALL.map(|kind| (kind, self.kinds[expert * width + kind as usize]));
            ExpertWords {
                expert,
                kinds: kinds.to_vec(),
                surest: own.iter().take(SHOWN).map(word).collect(),
            }
        };
        found.into_iter().enumerate().map(of_expert).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(words: &[&str]) -> Pieces {
        Pieces::new(words.iter().map(|word| (*word).to_owned()).collect())
    }

    fn kinds(pieces: &Pieces, ids: &[u32]) -> Vec<WordKind> {
        let mut kinds = Vec::new();
        pieces.kinds(ids, &mut kinds);
        kinds
    }

    use WordKind::{Content, Function, Other, Padding};

    #[test]
    fn the_list_can_be_searched() {
        assert!(FUNCTION_WORDS.is_sorted());
    }

    #[test]
    fn a_piece_has_the_kind_of_its_word() {
        // "the in·side dog." with an end, then padding.
        let sentence = pieces(&["<pad>", "▁the", "▁in", "door", "▁dog", ".", "</s>", "▁In", "▁7"]);
        assert_eq!(
            kinds(&sentence, &[1, 2, 3, 4, 5, 6, 0, 0]),
            [Function, Content, Content, Content, Content, Other, Padding, Padding]
        );
        assert_eq!(kinds(&sentence, &[7, 8, 6]), [Function, Content, Other], "capitals, numbers");
        let clip = pieces(&["<pad>", "the</w>", "in", "door</w>", "in</w>", ".</w>", "<|end|>"]);
        assert_eq!(
            kinds(&clip, &[1, 2, 3, 4, 5, 6, 0]),
            [Function, Content, Content, Function, Other, Other, Padding]
        );
        let bert = pieces(&["[PAD]", "of", "##ten", "of", "[SEP]"]);
        assert_eq!(kinds(&bert, &[1, 2, 3, 4]), [Content, Content, Function, Other]);
    }

    #[test]
    fn surest_words_come_first_and_rare_ones_are_left_out() {
        let words = pieces(&["<pad>", "▁dog", "▁the", "▁cat", "▁rare"]);
        let mut seen = Words::new(2);
        for (id, gate, times) in [(1, 0.9, 4), (2, 0.5, 9), (3, 0.95, 3), (4, 1.0, 1)] {
            (0..times).for_each(|_| seen.add(1, id, Content, gate, 1.0));
        }
        seen.add(1, 0, Padding, 1.0, 1.0);
        seen.add(0, 4, Content, 0.25, 1.0);
        let [idle, busy] = <[ExpertWords; 2]>::try_from(seen.record(&words)).unwrap();
        let shown: Vec<&str> = busy.surest.iter().map(|word| word.word.as_str()).collect();
        assert_eq!(shown, ["cat", "dog", "the"]);
        assert_eq!(busy.kinds, [(Function, 0.0), (Content, 17.0), (Padding, 1.0), (Other, 0.0)]);
        assert_eq!(idle.surest[0].word, "rare", "where all are rare, they are shown");
    }
}
