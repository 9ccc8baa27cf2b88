//! Changes of a file, blind ones and such that know numbers, texts and JSON.

use proptest::{
    prelude::*,
    sample::{Index, select},
};
use serde_json::Value;

/// One change.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// One bit turned over.
    Flip(Index, u8),
    /// Bytes written over what was there.
    Overwrite(Index, Vec<u8>),
    /// Bytes put in.
    Insert(Index, Vec<u8>),
    /// An odd number of so many bytes, with its large end first or last.
    Number(Index, usize, u64, bool),
    /// The end cut off.
    Cut(Index),
    /// A part taken out.
    Remove(Index, usize),
    /// A part written several times.
    Repeat(Index, usize, usize),
    /// A part of another right file.
    Splice(Index, Index, Index, usize),
    /// A word of the text (letters, digits, dots, signs) replaced.
    Word(Index, &'static str),
    /// A value of the JSON replaced.
    Json(Index, Value),
    /// A value of the JSON taken out.
    JsonRemove(Index),
    /// A value of the JSON written over another.
    JsonCopy(Index, Index),
}

/// Numbers at which sums, products and sizes go wrong.
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    256,
    32_767,
    65_535,
    65_536,
    1 << 24,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 40,
    (1 << 53) + 1,
    (1 << 62) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// Words at which readers of settings and numbers go wrong.
const WORDS: &[&str] = &[
    "0",
    "-1",
    "1",
    "2",
    "1e999",
    "-1e999",
    "1e-999",
    "nan",
    "inf",
    "0.1",
    "1.0666666666666667",
    "18446744073709551615",
    "18446744073709551616",
    "9007199254740993",
    "4294967296",
    "1000000000",
    "-9223372036854775808",
    "0x10",
    "1_000",
    "true",
    "null",
    "{}",
    "[]",
    "\"\"",
    "'",
    "\"",
    "\\",
    "../../x",
    "/dev/zero",
    "\u{feff}",
    "\u{0}",
    "\u{1b}[31m",
    "é",
    "\n",
    ",",
    "=",
    "[[",
    "]]",
    "#",
    "last-2",
    "every-0",
    "tail-99999999999",
    "1,2,3",
];

/// Any change.
pub fn any() -> impl Strategy<Value = Mutation> {
    let at = || proptest::arbitrary::any::<Index>();
    let bytes = || proptest::collection::vec(proptest::arbitrary::any::<u8>(), 1..8);
    prop_oneof![
        3 => (at(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        2 => (at(), bytes()).prop_map(|(at, bytes)| Mutation::Overwrite(at, bytes)),
        1 => (at(), bytes()).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        3 => (at(), select(vec![1usize, 2, 4, 8]), select(NUMBERS), proptest::bool::ANY)
            .prop_map(|(at, size, number, big)| Mutation::Number(at, size, number, big)),
        1 => at().prop_map(Mutation::Cut),
        1 => (at(), 1..64usize).prop_map(|(at, length)| Mutation::Remove(at, length)),
        1 => (at(), 1..64usize, 1..9usize)
            .prop_map(|(at, length, times)| Mutation::Repeat(at, length, times)),
        1 => (at(), at(), at(), 1..512usize)
            .prop_map(|(at, other, from, length)| Mutation::Splice(at, other, from, length)),
        4 => (at(), select(WORDS)).prop_map(|(at, word)| Mutation::Word(at, word)),
        4 => (at(), json()).prop_map(|(at, value)| Mutation::Json(at, value)),
        1 => at().prop_map(Mutation::JsonRemove),
        1 => (at(), at()).prop_map(|(to, from)| Mutation::JsonCopy(to, from)),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => select(NUMBERS).prop_map(Value::from),
        2 => select(NUMBERS).prop_map(|number| Value::from(-(number as f64))),
        2 => select(vec![0.5, 1e-300, 1e300, -0.0, 1.066_666_666_666_666_7]).prop_map(Value::from),
        2 => select(WORDS).prop_map(Value::from),
        1 => select(vec![Value::Null, true.into(), false.into()]),
        1 => proptest::collection::vec(select(NUMBERS), 0..5).prop_map(Value::from),
        1 => Just(Value::Object(serde_json::Map::new())),
    ]
}

/// All changes, one after the other.
pub fn all(mutations: &[Mutation], bytes: Vec<u8>, others: &[Vec<u8>]) -> Vec<u8> {
    mutations.iter().fold(bytes, |bytes, mutation| mutation.apply(bytes, others))
}

impl Mutation {
    fn apply(&self, mut bytes: Vec<u8>, others: &[Vec<u8>]) -> Vec<u8> {
        let place = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
        match self {
            Self::Flip(at, bit) => {
                let at = place(at, &bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Overwrite(at, new) => overwrite(&mut bytes, at, new),
            Self::Number(at, size, number, big) => match big {
                true => overwrite(&mut bytes, at, &number.to_be_bytes()[8 - size..]),
                false => overwrite(&mut bytes, at, &number.to_le_bytes()[..*size]),
            },
            Self::Insert(at, new) => {
                let at = place(at, &bytes);
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Cut(at) => bytes.truncate(place(at, &bytes)),
            Self::Remove(at, length) => {
                let at = place(at, &bytes);
                bytes.drain(at..(at + length).min(bytes.len()));
            }
            Self::Repeat(at, length, times) => {
                let at = place(at, &bytes);
                let part = bytes[at..(at + length).min(bytes.len())].repeat(*times);
                bytes.splice(at..at, part);
            }
            Self::Splice(at, other, from, length) => {
                let other = &others[other.index(others.len())];
                let from = place(from, other);
                let part = &other[from..(from + length).min(other.len())];
                let at = place(at, &bytes);
                bytes.splice(at..at, part.iter().copied());
            }
            Self::Word(at, word) => return replace_word(bytes, at, word),
            Self::Json(at, value) => return with_json(bytes, |tree| set(tree, at, value.clone())),
            Self::JsonRemove(at) => return with_json(bytes, |tree| remove(tree, at)),
            Self::JsonCopy(to, from) => {
                return with_json(bytes, |tree| {
                    let value = paths(tree).get(from.index(paths(tree).len().max(1))).cloned();
                    let value = value.and_then(|path| tree.pointer(&path).cloned());
                    set(tree, to, value.unwrap_or_default());
                });
            }
        }
        bytes
    }
}

fn overwrite(bytes: &mut [u8], at: &Index, new: &[u8]) {
    let at = at.index(bytes.len() + 1);
    bytes[at..].iter_mut().zip(new).for_each(|(old, new)| *old = *new);
}

/// Replaces a run of letters, digits, dots, signs and underscores.
fn replace_word(bytes: Vec<u8>, at: &Index, word: &str) -> Vec<u8> {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-".contains(byte);
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|place| inside(&bytes[*place]) && (*place == 0 || !inside(&bytes[place - 1])))
        .collect();
    let Some(start) = starts.get(at.index(starts.len().max(1))) else { return bytes };
    let length = bytes[*start..].iter().take_while(|byte| inside(byte)).count();
    [&bytes[..*start], word.as_bytes(), &bytes[start + length..]].concat()
}

fn with_json(bytes: Vec<u8>, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let Ok(mut tree) = serde_json::from_slice::<Value>(&bytes) else { return bytes };
    change(&mut tree);
    serde_json::to_vec(&tree).unwrap_or(bytes)
}

/// Where every value of a tree is, as JSON pointers.
fn paths(tree: &Value) -> Vec<String> {
    fn walk(tree: &Value, path: &str, all: &mut Vec<String>) {
        all.push(path.to_owned());
        match tree {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    walk(value, &format!("{path}/{key}"), all);
                }
            }
            Value::Array(items) => {
                for (place, value) in items.iter().enumerate() {
                    walk(value, &format!("{path}/{place}"), all);
                }
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(tree, "", &mut all);
    all
}

fn set(tree: &mut Value, at: &Index, value: Value) {
    let paths = paths(tree);
    let path = &paths[at.index(paths.len())];
    if let Some(place) = tree.pointer_mut(path) {
        *place = value;
    }
}

fn remove(tree: &mut Value, at: &Index) {
    let paths = paths(tree);
    let path = &paths[at.index(paths.len())];
    let Some((parent, key)) = path.rsplit_once('/') else { return };
    let key = key.replace("~1", "/").replace("~0", "~");
    match tree.pointer_mut(parent) {
        Some(Value::Object(fields)) => _ = fields.remove(&key),
        Some(Value::Array(items)) => {
            if let Ok(place) = key.parse::<usize>() {
                items.remove(place);
            }
        }
        _ => {}
    }
}
