//! Texts, from words to the ids that a model embeds.
//!
//! A [`Tokenizer`] is a `tokenizer.json` as Hugging Face's libraries write it, used as it is
//! ([`read`](Tokenizer::read)), or learned from captions ([`learn`](Tokenizer::learn)). Either way a text becomes exactly as many ids as the
//! model takes: what is longer is cut in front of the tokens that every text ends with, what is shorter is padded
//! with [`PAD`], and both are counted. A text without any words is its ending alone.

mod counts;
mod encode;
mod file;
mod frame;
mod ids;
mod learn;
mod tables;
mod unigram;

pub use self::{counts::TextCounts, encode::Encoded, learn::TokenizerKind};

use tokenizers::Tokenizer as Pipeline;

use self::{frame::Frame, ids::Ids};

/// The id of padding in everything that a model sees, whatever it is in a tokenizer's own file.
pub const PAD: u32 = 0;

/// What texts are longer than is not looked at, in bytes. Captions that are cut at 16 or 77 tokens are far shorter.
const LONGEST: usize = 1 << 14;

/// Turns texts into ids.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    pipeline: Pipeline,
    /// The file as it was read or learned.
    json: String,
    ids: Ids,
    vocabulary: usize,
    /// What stands for symbols that the vocabulary does not have, in the pipeline's own ids.
    unknown: Option<u32>,
    /// Tokens that every text gets beside its own.
    frame: Frame,
}

impl Tokenizer {
    /// The file that this is, which a checkpoint keeps.
    pub fn json(&self) -> String {
        self.json.clone()
    }

    /// Every id is below it; padding is one of them.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The pieces that ids stand for, one each; what stands for nothing is `?`.
    pub fn words(&self, ids: &[u32]) -> Vec<String> {
        let word = |&id: &u32| match self.ids.own(id) {
            None => "<pad>".to_owned(),
            Some(own) => self.pipeline.id_to_token(own).unwrap_or_else(|| "?".to_owned()),
        };
        ids.iter().map(word).collect()
    }
}

/// Calls the library, which stops where a file is not what it expects; what is known of that is refused before.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).ok()
}

/// As much of a text as is looked at, and whether that is all of it.
fn beginning(text: &str) -> (&str, bool) {
    let end = text.floor_char_boundary(LONGEST);
    (&text[..end], end == text.len())
}
