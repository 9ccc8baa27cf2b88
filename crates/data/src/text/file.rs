//! A `tokenizer.json` of anyone's.

use std::{fmt, path::Path};

use omma_base::files::read_regular;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use tokenizers::{ModelWrapper, Tokenizer as Pipeline};

use super::{
    Ids, Tokenizer,
    frame::{Frame, Processor},
    guarded, tables,
};
use crate::{DataError, Result};

/// Bytes of a file; those of 256,000 pieces have 33 MB.
const MOST_BYTES: u64 = 64 << 20;
/// Ids of a vocabulary, each of which is a row of a model's embedding.
pub(super) const MOST_IDS: usize = 1 << 22;
/// Bytes of a piece.
const LONGEST_PIECE: usize = 1000;
/// What padding is called where a file does not say which token it is.
const PADDINGS: [&str; 4] = ["<pad>", "[PAD]", "<|pad|>", "<PAD>"];

impl Tokenizer {
    /// Reads a `tokenizer.json`, which is used as it is but for what would make it chance (BPE's dropout),
    /// its own padding and its own length.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_regular(path, MOST_BYTES).map_err(DataError::io(path))?;
        Self::parse(&bytes).map_err(|error| match error {
            DataError::Tokenizer(why) => DataError::Format { path: path.to_owned(), why },
            other => other,
        })
    }

    /// A `tokenizer.json` in memory.
    ///
    /// Padding is the token that the file pads with, or one called `<pad>` or `[PAD]`, unless every text has it
    /// anyway (as where CLIP's end of text is padding too): then, and where there is none, the file has no
    /// padding.
    pub fn parse(json: &[u8]) -> Result<Self> {
        let refused = |why: String| DataError::Tokenizer(why);
        let json = str::from_utf8(json).map_err(|_| refused("it is not text in UTF-8".into()))?;
        let broken = |error: &dyn fmt::Display| {
            refused(format!("it is not a tokenizer that can be read: {error}"))
        };
        let file = File::parse(json).map_err(|error| broken(&error))?;
        let longest = file.model.vocab.0;
        if longest > LONGEST_PIECE {
            let why =
                format!("it has a piece of {longest} bytes, and at most {LONGEST_PIECE} are read");
            return Err(refused(why));
        }
        file.model.check_merges().map_err(refused)?;
        let pipeline =
            guarded(|| file.pipeline()).unwrap_or_else(|| Err("it stops the reader".into()));
        let pipeline = pipeline.map_err(|error| broken(&error))?;
        let own = own_ids(&pipeline);
        if own > MOST_IDS {
            return Err(refused(format!(
                "its ids go up to {}, and at most {MOST_IDS} are read",
                own - 1
            )));
        }
        let unknown = match (&file.model.unk_token, file.model.unk_id) {
            (Some(token), _) => pipeline.token_to_id(token),
            (None, id) => id,
        };
        if unknown.is_some_and(|id| id as usize >= own) {
            return Err(refused("it has no token for what it does not know".into()));
        }
        let frame =
            file.post_processor.as_ref().map_or_else(|| Ok(Frame::default()), Processor::frame);
        let frame = frame.map_err(refused)?;
        if let Some(id) = frame.ids().find(|&id| id as usize >= own) {
            let why = format!("it adds the token {id} to every text, but has ids below {own}");
            return Err(refused(why));
        }
        let named = || PADDINGS.iter().find_map(|name| pipeline.token_to_id(name));
        let padding = file.padding.as_ref().map(|padding| padding.pad_id).or_else(named);
        let padding = padding.filter(|&id| (id as usize) < own && frame.ids().all(|one| one != id));
        let ids = padding.map_or(Ids::Shifted, Ids::Swapped);
        check_use(&pipeline)?;
        let (json, vocabulary) = (json.to_owned(), ids.vocabulary(own));
        Ok(Self { pipeline, json, ids, vocabulary, unknown, frame })
    }
}

/// Tries it on a text with a symbol that no vocabulary has.
fn check_use(pipeline: &Pipeline) -> Result<()> {
    for text in ["", "A red bird.", "\u{10fffd} x"] {
        let encoded = guarded(|| pipeline.encode(text, false).map(drop));
        let encoded = encoded.unwrap_or_else(|| Err("it stops the encoder".into()));
        encoded.map_err(|error| {
            DataError::Tokenizer(format!("it cannot encode every text: {error}"))
        })?;
    }
    Ok(())
}

/// One past the largest id.
fn own_ids(pipeline: &Pipeline) -> usize {
    let largest = pipeline.get_vocab(true).into_values().max();
    let ids = largest.map_or(0, |id| id as usize + 1);
    ids.max(pipeline.get_vocab_size(true))
}

/// The same text gives the same ids.
fn make_certain(pipeline: &mut Pipeline) {
    if let ModelWrapper::BPE(model) = pipeline.get_model()
        && model.dropout.is_some()
    {
        let mut model = model.clone();
        model.dropout = None;
        pipeline.with_model(model);
    }
}

/// A file in its parts. The library gets those that it is used for, without those in which it trusts the file.
struct File<'a> {
    parts: Parts<'a>,
    padding: Option<Padding>,
    post_processor: Option<Processor>,
    model: ModelHead,
}

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow, default)]
    version: Option<&'a RawValue>,
    #[serde(borrow, default)]
    padding: Option<&'a RawValue>,
    #[serde(borrow, default)]
    added_tokens: Option<&'a RawValue>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

impl<'a> File<'a> {
    fn parse(json: &'a str) -> serde_json::Result<Self> {
        let parts: Parts = serde_json::from_str(json)?;
        let padding = parts.padding.map_or(Ok(None), |text| serde_json::from_str(text.get()))?;
        let processor = parts.post_processor;
        let post_processor = processor.map_or(Ok(None), |text| serde_json::from_str(text.get()))?;
        let model = serde_json::from_str(parts.model.get())?;
        Ok(Self { parts, padding, post_processor, model })
    }

    /// From words to pieces, without what comes behind that.
    fn pipeline(&self) -> tokenizers::Result<Pipeline> {
        let Parts { version, added_tokens, normalizer, pre_tokenizer, model, .. } = &self.parts;
        let text = |part: &Option<&'a RawValue>, none| part.map_or(none, RawValue::get);
        if let Some(normalizer) = normalizer {
            tables::check(&serde_json::from_str(normalizer.get())?)?;
        }
        let json = format!(
            r#"{{"version":{},"added_tokens":{},"normalizer":{},"pre_tokenizer":{},"model":{model}}}"#,
            text(version, "\"1.0\""),
            text(added_tokens, "[]"),
            text(normalizer, "null"),
            text(pre_tokenizer, "null"),
        );
        let mut pipeline: Pipeline = json.parse()?;
        pipeline.set_encode_special_tokens(true);
        make_certain(&mut pipeline);
        Ok(pipeline)
    }
}

#[derive(Deserialize)]
struct Padding {
    pad_id: u32,
}

#[derive(Deserialize)]
struct ModelHead {
    #[serde(default)]
    unk_id: Option<u32>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    merges: Vec<Merge>,
    vocab: Longest,
}

/// Two pieces that become one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl ModelHead {
    /// The library puts merged pieces together where there is room for the longest of the vocabulary alone.
    fn check_merges(&self) -> Result<(), String> {
        let prefix = self.continuing_subword_prefix.as_deref().unwrap_or_default();
        let pairs = self.merges.iter().filter_map(|merge| match merge {
            Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
            Merge::Line(line) => line.split_once(' '),
        });
        for (left, right) in pairs {
            let rest = match right.strip_prefix(prefix) {
                Some(rest) => rest,
                None => {
                    return Err(format!("it merges {right}, which does not begin with {prefix}"));
                }
            };
            if left.len() + rest.len() > self.vocab.0 {
                return Err(format!(
                    "it merges {left} and {rest} to a piece that it does not have"
                ));
            }
        }
        Ok(())
    }
}

/// Bytes of the longest text in a list or a table. The library holds pieces in a tree that is as deep as the longest,
/// and takes it down by recursion.
struct Longest(usize);

impl<'de> Deserialize<'de> for Longest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LongestVisitor)
    }
}

struct LongestVisitor;

impl<'de> Visitor<'de> for LongestVisitor {
    type Value = Longest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pieces with their ids or scores")
    }

    fn visit_str<E>(self, text: &str) -> Result<Longest, E> {
        Ok(Longest(text.len()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Longest, E> {
        Ok(Longest(0))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some(Longest(length)) = values.next_element()? {
            longest = longest.max(length);
        }
        Ok(Longest(longest))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Longest, A::Error> {
        let mut longest = 0;
        while let Some((Longest(length), IgnoredAny)) = entries.next_entry()? {
            longest = longest.max(length);
        }
        Ok(Longest(longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: &str = include_str!("../../tests/data/clip-tokenizer.json");
    const T5: &str = include_str!("../../tests/data/t5-tokenizer.json");

    fn changed(json: &str, change: impl FnOnce(&mut serde_json::Value)) -> Result<Tokenizer> {
        let mut value = serde_json::from_str(json).unwrap();
        change(&mut value);
        Tokenizer::parse(value.to_string().as_bytes())
    }

    fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        let encoded = tokenizer.encode(text, 6);
        encoded.ids[..encoded.used].to_vec()
    }

    #[test]
    fn t5s_file_is_used_as_it_is() {
        let tokenizer = Tokenizer::parse(T5.as_bytes()).unwrap();
        assert_eq!(tokenizer.json(), T5);
        assert_eq!(tokenizer.vocabulary(), 12);
        assert_eq!(tokenizer.encode("a red dogs", 6).ids, [4, 5, 6, 7, 1, 0]);
        assert_eq!(tokenizer.words(&[5, 1, 0, 99]), ["▁red", "</s>", "<pad>", "?"]);
    }

    #[test]
    fn a_file_without_padding_is_shifted_by_it() {
        let tokenizer = Tokenizer::parse(CLIP.as_bytes()).unwrap();
        assert_eq!(tokenizer.vocabulary(), 17);
        assert_eq!(tokenizer.encode("A  red dog", 6).ids, [15, 7, 12, 14, 16, 0]);
        assert_eq!(tokenizer.words(&[15, 7, 0]), ["<|startoftext|>", "a</w>", "<pad>"]);
    }

    #[test]
    fn padding_of_its_own_changes_places_with_zero() {
        let padded = |id: u32, token: &str| {
            changed(CLIP, |json| {
                json["padding"] = serde_json::json!({
                    "strategy": {"Fixed": 77}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": id, "pad_type_id": 0, "pad_token": token
                });
            })
            .unwrap()
        };
        let tokenizer = padded(12, "do");
        assert_eq!(tokenizer.vocabulary(), 16);
        assert_eq!(tokenizer.encode("a red dog", 8).ids, [14, 6, 11, 13, 15, 0, 0, 0]);
        assert_eq!(tokenizer.encode("aa", 4).ids, [14, 12, 6, 15]);
        assert_eq!(tokenizer.words(&[0, 12]), ["do", "a"]);

        let ends = padded(15, "<|endoftext|>");
        assert_eq!(ends.vocabulary(), 17, "what ends every text is no padding of its own");
        assert_eq!(ends.encode("a", 4).ids, [15, 7, 16, 0]);

        let named = changed(T5, |json| {
            let vocabulary = json["model"]["vocab"].as_array_mut().unwrap();
            vocabulary.swap(0, 3);
        });
        assert_eq!(ids(&named.unwrap(), "a d"), [4, 3, 8, 1], "<pad> is 3 and ▁ is 0 in the file");
    }

    #[test]
    fn a_file_cannot_make_ids_chance_or_its_own_length() {
        let tokenizer = changed(CLIP, |json| {
            json["model"]["dropout"] = 0.9.into();
            json["truncation"] = serde_json::json!({
                "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0
            });
        })
        .unwrap();
        let first = tokenizer.encode("a red dog", 6);
        assert_eq!(first.ids, [15, 7, 12, 14, 16, 0]);
        assert!((0..50).all(|_| tokenizer.encode("a red dog", 6) == first));
    }

    #[test]
    fn files_that_cannot_be_used_say_why() {
        let why = |tokenizer: Result<Tokenizer>| tokenizer.unwrap_err().to_string();
        assert!(why(Tokenizer::parse(b"\xff")).contains("UTF-8"));
        assert!(why(Tokenizer::parse(b"{}")).contains("model"));
        assert!(why(Tokenizer::parse(&T5.as_bytes()[..900])).contains("can be read"));
        let sort =
            |kind: &str| changed(T5, |json| json["normalizer"] = serde_json::json!({"type": kind}));
        assert!(why(sort("Magic")).contains("can be read"));
        let no_unknown = changed(T5, |json| json["model"]["unk_id"] = serde_json::Value::Null);
        assert!(why(no_unknown).contains("every text"));
        let adds = changed(T5, |json| {
            json["post_processor"]["special_tokens"]["</s>"]["ids"] = serde_json::json!([4000]);
        });
        assert!(why(adds).contains("4000"));
        let far = changed(CLIP, |json| json["model"]["vocab"]["a"] = u32::MAX.into());
        assert!(why(far).contains("4194304"));
        let merged =
            changed(CLIP, |json| json["model"]["merges"][0] = "<|endoftext|> dog</w>".into());
        assert!(why(merged).contains("does not have"));
        let begins = changed(CLIP, |json| {
            json["model"]["continuing_subword_prefix"] = "##".into();
        });
        assert!(why(begins).contains("##"));
        let long = changed(T5, |json| json["model"]["vocab"][4][0] = "x".repeat(100_000).into());
        assert!(why(long).contains("100000 bytes"));
    }

    #[test]
    fn reading_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, "[]").unwrap();
        let message = Tokenizer::read(&path).unwrap_err().to_string();
        assert!(message.contains("tokenizer.json"), "{message}");
        assert!(Tokenizer::read(folder.path()).unwrap_err().to_string().contains("folder"));
        std::fs::File::create(&path).unwrap().set_len(MOST_BYTES + 1).unwrap();
        assert!(Tokenizer::read(&path).unwrap_err().to_string().contains("at most"));
    }
}
