//! A vocabulary from captions.
//!
//! Both kinds read text as SentencePiece does for T5 (paper 002 App. A): NFKC and lower case, runs of white
//! space are one space, a space is part of the word behind it (`▁bird`). The first ids are T5's: `<pad>` 0,
//! `</s>` 1, which ends every text, `<unk>` 2.
//!
//! The same captions make the same file.

use std::{collections::BTreeMap, str::FromStr};

use tokenizers::{
    AddedToken, NormalizedString, Normalizer, OffsetReferential, OffsetType, PostProcessorWrapper,
    PreTokenizedString, PreTokenizer, Tokenizer as Pipeline,
    models::{
        bpe::{BPE, BpeTrainer},
        unigram::Unigram,
    },
    normalizers::{Lowercase, NFKC, Replace, Sequence, Strip, replace::ReplacePattern},
    pre_tokenizers::metaspace::Metaspace,
    processors::template::TemplateProcessing,
};

use super::{Tokenizer, beginning, unigram};
use crate::{DataError, Result};

const PAD: &str = "<pad>";
const END: &str = "</s>";
const UNKNOWN: &str = "<unk>";
const SPECIALS: [&str; 3] = [PAD, END, UNKNOWN];

/// What spaces are in pieces.
const SPACE: char = '▁';
/// The smallest vocabulary that holds anything.
const SMALLEST: usize = SPECIALS.len() + 2;
/// Characters of a word that pieces are learned from.
const LONGEST_WORD: usize = 64;

/// How a vocabulary is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// The pieces that make the captions most likely, as in T5's SentencePiece.
    #[default]
    Unigram,
    /// Pairs of pieces joined, the most frequent first, as in CLIP's.
    Bpe,
}

impl FromStr for TokenizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unigram" => Ok(Self::Unigram),
            "bpe" => Ok(Self::Bpe),
            _ => Err(format!("{text} is not a kind of tokenizer; there are unigram and bpe")),
        }
    }
}

impl std::fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unigram => "unigram",
            Self::Bpe => "bpe",
        })
    }
}

impl Tokenizer {
    /// Learns at most `vocabulary` pieces from captions; fewer where these have no more, as
    /// [`vocabulary`](Self::vocabulary) then tells. Characters are at most half of them, the frequent ones.
    pub fn learn(
        captions: impl Iterator<Item = String>,
        kind: TokenizerKind,
        vocabulary: usize,
    ) -> Result<Self> {
        if vocabulary < SMALLEST {
            let why = format!("a vocabulary has at least {SMALLEST} tokens, not {vocabulary}");
            return Err(DataError::Options(why));
        }
        let vocabulary = vocabulary.min(super::file::MOST_IDS);
        let failed = |error: tokenizers::Error| {
            DataError::Tokenizer(format!("none can be learned: {error}"))
        };
        let reader = Reader::new().map_err(failed)?;
        let mut words = BTreeMap::new();
        for caption in captions {
            for word in reader.words(beginning(&caption).0).map_err(failed)? {
                *words.entry(word).or_default() += 1;
            }
        }
        let words = within_alphabet(words, (vocabulary - SPECIALS.len()) / 2);
        if words.is_empty() {
            return Err(DataError::Options(
                "a vocabulary cannot be learned: no caption has a word".into(),
            ));
        }
        let pipeline = match kind {
            TokenizerKind::Unigram => reader.pipeline(unigram(&words, vocabulary).map_err(failed)?),
            TokenizerKind::Bpe => reader.pipeline(bpe(&words, vocabulary).map_err(failed)?),
        };
        let json = pipeline.and_then(|pipeline| pipeline.to_string(false)).map_err(failed)?;
        let tokenizer = Self::parse(json.as_bytes())?;
        let found = tokenizer.vocabulary();
        if found < vocabulary {
            tracing::info!("the captions give {found} of the {vocabulary} tokens asked for");
        }
        Ok(tokenizer)
    }
}

/// How text is read before it is cut into pieces.
struct Reader {
    normalizer: Sequence,
    spaces: Metaspace,
}

impl Reader {
    fn new() -> tokenizers::Result<Self> {
        let spaces = Replace::new(ReplacePattern::Regex(r"\s+".into()), " ")?;
        let steps =
            vec![NFKC.into(), Lowercase.into(), spaces.into(), Strip::new(true, true).into()];
        Ok(Self { normalizer: Sequence::new(steps), spaces: Metaspace::default() })
    }

    fn words(&self, text: &str) -> tokenizers::Result<Vec<String>> {
        let mut text = NormalizedString::from(text);
        self.normalizer.normalize(&mut text)?;
        let mut words = PreTokenizedString::from(text);
        self.spaces.pre_tokenize(&mut words)?;
        let splits = words.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        Ok(splits.into_iter().map(|(word, ..)| word.to_owned()).collect())
    }

    fn pipeline(self, model: impl Into<tokenizers::ModelWrapper>) -> tokenizers::Result<Pipeline> {
        let mut pipeline = Pipeline::new(model);
        pipeline.with_normalizer(Some(self.normalizer))?;
        pipeline.with_pre_tokenizer(Some(self.spaces.clone()));
        pipeline.with_decoder(Some(self.spaces));
        pipeline.add_special_tokens(specials())?;
        let end = pipeline.token_to_id(END).unwrap_or_default();
        let ending = TemplateProcessing::builder()
            .try_single(format!("$A {END}"))?
            .special_tokens(vec![(END, end)])
            .build()?;
        pipeline.with_post_processor(Some(PostProcessorWrapper::from(ending)));
        Ok(pipeline)
    }
}

fn specials() -> Vec<AddedToken> {
    SPECIALS.iter().map(|token| AddedToken::from(*token, true)).collect()
}

/// Words without characters that are too rare to be in the vocabulary, which end a word, and without words that
/// are no words.
fn within_alphabet(words: BTreeMap<String, u64>, most: usize) -> BTreeMap<String, u64> {
    let mut characters: BTreeMap<char, u64> = BTreeMap::new();
    for (word, count) in &words {
        for character in word.chars() {
            *characters.entry(character).or_default() += count;
        }
    }
    let mut characters: Vec<(char, u64)> = characters.into_iter().collect();
    characters.sort_by_key(|&(character, count)| (std::cmp::Reverse(count), character));
    characters.truncate(most);
    let mut alphabet: Vec<char> = characters.into_iter().map(|(character, _)| character).collect();
    alphabet.sort_unstable();

    let mut kept = BTreeMap::new();
    for (word, count) in words {
        for part in word.split(|character| alphabet.binary_search(&character).is_err()) {
            let says_something = part.chars().any(|character| character != SPACE);
            if says_something && part.chars().count() <= LONGEST_WORD {
                *kept.entry(part.to_owned()).or_default() += count;
            }
        }
    }
    kept
}

fn unigram(words: &BTreeMap<String, u64>, vocabulary: usize) -> tokenizers::Result<Unigram> {
    let mut pieces = unigram::pieces(words, vocabulary - SPECIALS.len());
    pieces.retain(|(piece, _)| !SPECIALS.contains(&piece.as_str()));
    let specials = SPECIALS.iter().map(|token| ((*token).to_owned(), 0.0));
    let unknown = SPECIALS.iter().position(|token| *token == UNKNOWN);
    Unigram::from(specials.chain(pieces).collect(), unknown, false)
}

fn bpe(words: &BTreeMap<String, u64>, vocabulary: usize) -> tokenizers::Result<BPE> {
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocabulary)
        .special_tokens(specials())
        .build();
    let mut model = BPE::builder().unk_token(UNKNOWN.into()).fuse_unk(true).build()?;
    let words = words.iter().map(|(word, &count)| (word.as_str().into(), count)).collect();
    trainer.do_train(&words, &mut model)?;
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::PAD as PADDING;

    const KINDS: [TokenizerKind; 2] = [TokenizerKind::Unigram, TokenizerKind::Bpe];

    fn captions() -> Vec<String> {
        let colours = ["red", "green", "blue", "yellow", "violet"];
        let shapes = ["circle", "square", "star", "triangle", "ring", "crescent"];
        let mut captions = Vec::new();
        for (i, colour) in colours.iter().enumerate() {
            for (j, shape) in shapes.iter().enumerate() {
                captions.push(format!("A {colour}  {shape} beside {} small things", i * j));
                captions.push(format!("the {shape}\nis {colour}, isn't it?"));
            }
        }
        captions
    }

    fn learned(kind: TokenizerKind, vocabulary: usize) -> Tokenizer {
        Tokenizer::learn(captions().into_iter(), kind, vocabulary).unwrap()
    }

    #[test]
    fn the_same_captions_make_the_same_file_whatever_threads_there_are() {
        for kind in KINDS {
            for vocabulary in [60, 100, 10_000] {
                let first = learned(kind, vocabulary).json();
                for threads in [1, 2, 5] {
                    let pool =
                        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let again = pool.install(|| learned(kind, vocabulary).json());
                    assert!(again == first, "{kind} {vocabulary} {threads}");
                }
            }
        }
    }

    #[test]
    fn a_vocabulary_has_the_asked_size_or_what_there_is() {
        for kind in KINDS {
            let few = learned(kind, 80).vocabulary();
            assert!((60..=80).contains(&few), "{kind}: {few}");
            let all = learned(kind, 1_000_000).vocabulary();
            assert!((60..1000).contains(&all), "{kind}: {all}");
        }
    }

    #[test]
    fn learned_words_are_few_tokens_and_end_as_t5s_do() {
        for kind in KINDS {
            let tokenizer = learned(kind, 200);
            assert_eq!(tokenizer.words(&[0, 1, 2]), SPECIALS);
            let text = tokenizer.encode("A  GREEN\ttriangle ", 8);
            assert_eq!((text.unknown, text.cut), (0, 0));
            let words = tokenizer.words(&text.ids[..text.used]);
            assert_eq!(words.concat(), "▁a▁green▁triangle</s>", "{kind}");
            assert!(text.used <= 5, "{kind}: {words:?}");
            assert!(text.ids[text.used..].iter().all(|&id| id == PADDING));
            assert_eq!(tokenizer.encode("ｒｅｄ", 8), tokenizer.encode("red", 8), "NFKC");
        }
    }

    #[test]
    fn characters_are_at_most_half_and_rare_ones_unknown() {
        let letters: String = ('a'..='z').collect();
        let captions = [letters, "aaa bbb aaa bbb".into(), "aaa bbb".into()];
        for kind in KINDS {
            let tokenizer = Tokenizer::learn(captions.clone().into_iter(), kind, 11).unwrap();
            assert!(tokenizer.vocabulary() <= 11, "{kind}");
            assert_eq!(tokenizer.encode("aaa bbb", 16).unknown, 0, "{kind}");
            assert!(tokenizer.encode("aaa z", 16).unknown > 0, "{kind}");
        }
    }

    #[test]
    fn captions_that_spell_special_tokens_do_not_make_them() {
        let captions = || (0..50).map(|_| "a <pad> </s> <unk> <UNK> bird".to_owned());
        for kind in KINDS {
            let tokenizer = Tokenizer::learn(captions(), kind, 100).unwrap();
            assert_eq!(tokenizer.words(&[0, 1, 2]), SPECIALS, "{kind}");
            let text = tokenizer.encode("a <pad> bird", 16);
            assert!(text.ids[..text.used].iter().all(|&id| id != PADDING), "{kind}");
        }
    }

    #[test]
    fn odd_captions_do_not_stop_it() {
        let long = "xyzzy".repeat(10_000);
        let odd = ["", " ", "\0\0", "a\0b", "👩‍👩‍👧 ﷺ", "\u{202e}abc", &long, "normal words"];
        for kind in KINDS {
            let captions = odd.iter().map(|text| (*text).to_owned());
            let tokenizer = Tokenizer::learn(captions, kind, 100).unwrap();
            assert_eq!(tokenizer.encode("normal words", 30).unknown, 0);
            for nothing in [&odd[..0], &odd[..1], &odd[..2]] {
                let captions = nothing.iter().map(|text| (*text).to_owned());
                let message = Tokenizer::learn(captions, kind, 100).unwrap_err().to_string();
                assert!(message.contains("no caption has a word"), "{message}");
            }
            assert!(Tokenizer::learn(["a".to_owned()].into_iter(), kind, 4).is_err());
            assert!(Tokenizer::learn(["a".to_owned()].into_iter(), kind, SMALLEST).is_ok());
        }
    }

    #[test]
    fn kinds_are_read_as_they_are_written() {
        for kind in KINDS {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("wordpiece".parse::<TokenizerKind>().is_err());
    }
}
