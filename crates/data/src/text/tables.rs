//! SentencePiece's tables of characters, which T5's files normalise text with.
//!
//! A table is base64 of a length, a trie in a double array (Darts), and the texts that its values point to. The
//! library follows it wherever it leads, and makes room for whatever length it says, so it is followed here first.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

/// Bytes of UTF-8 go up to this one.
const LAST_BYTE: usize = 0xf4;

/// Fails if a normaliser has a table, wherever in it, that leads out of itself.
pub(super) fn check(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Object(fields) => {
            if fields.get("type").is_some_and(|kind| kind == "Precompiled") {
                let table = fields.get("precompiled_charsmap").and_then(Value::as_str);
                table.and_then(decoded).ok_or("its table of characters is damaged")?;
            }
            fields.values().try_for_each(check)
        }
        Value::Array(parts) => parts.iter().try_for_each(check),
        _ => Ok(()),
    }
}

fn decoded(table: &str) -> Option<()> {
    let bytes = BASE64_STANDARD.decode(table).ok()?;
    let (length, rest) = bytes.split_first_chunk()?;
    let (trie, texts) = rest.split_at_checked(u32::from_le_bytes(*length) as usize / 4 * 4)?;
    let units =
        trie.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
    let units: Vec<Unit> = units.map(Unit).collect();
    follow(&units, str::from_utf8(texts).ok()?)
}

/// Looks at every place that some text leads to.
fn follow(units: &[Unit], texts: &str) -> Option<()> {
    let mut seen = vec![false; units.len()];
    let mut bases = vec![units.first()?.offset()];
    while let Some(base) = bases.pop() {
        for byte in 1..=LAST_BYTE {
            let place = base ^ byte;
            let unit = units.get(place)?;
            if unit.label() != byte || std::mem::replace(&mut seen[place], true) {
                continue;
            }
            let next = place ^ unit.offset();
            if unit.has_leaf() && !texts.is_char_boundary(units.get(next)?.value()) {
                return None;
            }
            bases.push(next);
        }
    }
    Some(())
}

/// A cell of a double array.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_leaf(self) -> bool {
        self.0 >> 8 & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & ((1 << 31) - 1)) as usize
    }

    fn label(self) -> usize {
        (self.0 & (1 << 31 | 0xff)) as usize
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) as usize) << ((self.0 & 1 << 9) >> 6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that makes `A` to `a`, in as many cells.
    fn table(cells: usize, label: u32, value: u32, texts: &[u8]) -> Value {
        let mut units = vec![0_u32; cells];
        // The root's cells begin at 256, those of `A` at 512.
        units[0] = 256 << 10;
        if let Some(cell) = units.get_mut(256 ^ 0x41) {
            *cell = ((256 ^ 0x41 ^ 512) << 10) | 1 << 8 | label;
        }
        if let Some(cell) = units.get_mut(512) {
            *cell = value | 1 << 31;
        }
        let trie: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let bytes = [&(trie.len() as u32).to_le_bytes(), &trie[..], texts].concat();
        let table = BASE64_STANDARD.encode(bytes);
        serde_json::json!({"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": table}]})
    }

    #[test]
    fn a_table_is_followed_to_its_end() {
        assert_eq!(check(&table(768, 0x41, 0, b"a\0")), Ok(()));
        assert!(check(&table(768, 0x41, 9, b"a\0")).is_err(), "a text that is not there");
        assert!(check(&table(768, 0x41, 1, "é\0".as_bytes())).is_err(), "half a character");
        assert!(check(&table(768, 0x41, 0, b"\xff\0")).is_err(), "no text");
        assert!(check(&table(600, 0x41, 0, b"a\0")).is_err(), "cells that are not there");
        assert_eq!(check(&table(512, 0x42, 0, b"a\0")), Ok(()), "cells that nothing leads to");
    }

    #[test]
    fn a_length_that_is_not_there_is_refused() {
        for text in ["9007199254740993", "BAAAAAAAAAA=", "BAA=", "", "?"] {
            let normalizer =
                serde_json::json!({"type": "Precompiled", "precompiled_charsmap": text});
            assert!(check(&normalizer).is_err(), "{text}");
        }
        assert!(check(&serde_json::json!({"type": "Precompiled"})).is_err());
        assert_eq!(check(&serde_json::json!({"type": "NFKC"})), Ok(()));
    }

    #[test]
    fn the_library_reads_what_is_let_through() {
        let mut json: Value =
            serde_json::from_str(include_str!("../../tests/data/t5-tokenizer.json")).unwrap();
        json["normalizer"] = table(768, 0x41, 0, b"a\0");
        let tokenizer = crate::text::Tokenizer::parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(tokenizer.encode("A dog", 4).ids, [4, 6, 1, 0]);
    }
}
