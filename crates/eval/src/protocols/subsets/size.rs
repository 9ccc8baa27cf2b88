//! How many experts serve.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A number of experts, or a share of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubsetSize {
    /// `3`
    Experts(usize),
    /// `1/4`
    Share {
        /// So many
        parts: usize,
        /// of so many.
        of: usize,
    },
}

impl SubsetSize {
    /// The sizes of paper 004's tables: a half, a quarter and an eighth of the experts.
    pub const PAPER: [Self; 3] = [
        Self::Share { parts: 1, of: 2 },
        Self::Share { parts: 1, of: 4 },
        Self::Share { parts: 1, of: 8 },
    ];

    /// The experts that serve of so many; nothing where that is no whole number, none of them, or all.
    pub fn of(self, experts: usize) -> Option<usize> {
        let serving = match self {
            Self::Experts(serving) => serving,
            Self::Share { parts, of } => {
                let all = experts.checked_mul(parts)?;
                all.is_multiple_of(of).then(|| all / of)?
            }
        };
        (1..experts).contains(&serving).then_some(serving)
    }
}

impl fmt::Display for SubsetSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experts(serving) => write!(f, "{serving}"),
            Self::Share { parts, of } => write!(f, "{parts}/{of}"),
        }
    }
}

/// Text that is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "\"{text}\" is no size of a subset: write a number of experts, or a share below 1 such as 1/4"
)]
pub struct SubsetSizeError {
    text: String,
}

impl FromStr for SubsetSize {
    type Err = SubsetSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| digits.trim().parse::<usize>().ok().filter(|n| *n > 0);
        let size = match text.split_once('/') {
            Some((parts, of)) => number(parts).zip(number(of)).filter(|(parts, of)| parts < of),
            None => return number(text).map(Self::Experts).ok_or_else(|| wrong(text)),
        };
        size.map(|(parts, of)| Self::Share { parts, of }).ok_or_else(|| wrong(text))
    }
}

fn wrong(text: &str) -> SubsetSizeError {
    SubsetSizeError { text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_of_experts_or_a_share_of_them() {
        let of = |text: &str, experts| text.parse::<SubsetSize>().unwrap().of(experts);
        assert_eq!(
            (of("3", 8), of("8", 8), of("1/4", 8), of("3/4", 8)),
            (Some(3), None, Some(2), Some(6))
        );
        assert_eq!((of("1/8", 4), of("1/3", 4), of("1/4", 2)), (None, None, None));
        for size in ["5", "1/2", "3/4"] {
            assert_eq!(size.parse::<SubsetSize>().unwrap().to_string(), size);
        }
        for wrong in ["", "0", "1/0", "0/4", "4/4", "5/4", "-1", "half", "1/2/3"] {
            assert!(wrong.parse::<SubsetSize>().is_err(), "{wrong}");
        }
    }
}
