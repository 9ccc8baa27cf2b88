//! Which blocks of an encoder are not plain.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result};

/// The blocks whose feed-forward network is replaced, counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Placement {
    /// `last-n`: the last `n` of every other block (papers 000 and 001), so of 12 blocks `last-2`
    /// means 9 and 11.
    Last(usize),
    /// `tail-n`: the last `n` blocks in a row (paper 003).
    Tail(usize),
    /// `every-n`: every `n`-th block, beginning with block `n - 1`.
    Every(usize),
    /// `1,3,5`: these.
    Blocks(Vec<usize>),
}

impl Placement {
    /// The blocks of an encoder of `depth` blocks, in increasing order.
    pub fn blocks(&self, depth: usize) -> Result<Vec<usize>> {
        let fault = |why| ModelError::Placement { placement: self.to_string(), depth, why };
        let blocks: Vec<usize> = match self {
            Self::Last(n) if *n > depth.div_ceil(2) => {
                return Err(fault("there are not so many blocks to choose every other one from"));
            }
            Self::Tail(n) if *n > depth => return Err(fault("there are not so many blocks")),
            Self::Every(0) => return Err(fault("every 0th block is none")),
            Self::Last(n) => (0..*n).rev().map(|i| depth - 1 - 2 * i).collect(),
            Self::Tail(n) => (depth - n..depth).collect(),
            Self::Every(n) => (n - 1..depth).step_by(*n).collect(),
            Self::Blocks(blocks) => {
                let mut blocks = blocks.clone();
                blocks.sort_unstable();
                blocks.dedup();
                if blocks.last().is_some_and(|last| *last >= depth) {
                    return Err(fault("blocks are counted from 0"));
                }
                blocks
            }
        };
        match blocks.is_empty() {
            true => Err(fault("it names no block")),
            false => Ok(blocks),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Last(n) => write!(f, "last-{n}"),
            Self::Tail(n) => write!(f, "tail-{n}"),
            Self::Every(n) => write!(f, "every-{n}"),
            Self::Blocks(blocks) => {
                let blocks: Vec<String> = blocks.iter().map(usize::to_string).collect();
                f.write_str(&blocks.join(","))
            }
        }
    }
}

impl FromStr for Placement {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self> {
        let fault = || ModelError::PlacementSyntax { text: text.to_owned() };
        let number = |digits: &str| digits.trim().parse::<usize>().map_err(|_| fault());
        if let Some((kind, n)) = text.split_once('-') {
            let n = number(n)?;
            return match kind.trim() {
                "last" => Ok(Self::Last(n)),
                "tail" => Ok(Self::Tail(n)),
                "every" => Ok(Self::Every(n)),
                _ => Err(fault()),
            };
        }
        let list = text.trim().trim_start_matches('[').trim_end_matches(']');
        Ok(Self::Blocks(list.split(',').map(number).collect::<Result<_>>()?))
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        placement.to_string()
    }
}

impl TryFrom<String> for Placement {
    type Error = ModelError;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str, depth: usize) -> Vec<usize> {
        text.parse::<Placement>().unwrap().blocks(depth).unwrap()
    }

    #[test]
    fn the_papers_words_mean_the_papers_blocks() {
        assert_eq!(blocks("last-2", 12), [9, 11]); // the 10th and the 12th
        assert_eq!(blocks("last-2", 24), [21, 23]); // "layers 22 and 24", paper 000 App. C.3
        assert_eq!(blocks("last-5", 32), [23, 25, 27, 29, 31]);
        assert_eq!(blocks("tail-2", 12), [10, 11]);
        assert_eq!(blocks("every-2", 6), [1, 3, 5]);
        assert_eq!(blocks("3, 1,1", 6), [1, 3]);
        assert_eq!(blocks("[0,5]", 6), [0, 5]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        for text in ["last-4", "tail-7", "every-0", "6", "every-9"] {
            assert!(text.parse::<Placement>().unwrap().blocks(6).is_err(), "{text}");
        }
        for text in ["", "first-2", "last-x", "1,,2", "-1"] {
            assert!(text.parse::<Placement>().is_err(), "{text}");
        }
    }
}
