//! What happened to texts on their way to ids.

use std::{
    fmt,
    ops::{Add, AddAssign},
};

use super::Encoded;

/// Counts that add up over texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct TextCounts {
    /// Texts that were seen.
    pub texts: u64,
    /// Ids that are not padding.
    pub tokens: u64,
    /// Tokens that stand for symbols which the vocabulary does not have.
    pub unknown: u64,
    /// Texts without any words.
    pub empty: u64,
    /// Texts that were longer than a model takes.
    pub cut: u64,
    /// Tokens that these lost.
    pub lost: u64,
}

impl TextCounts {
    /// Those of one text.
    pub(super) fn of(text: &Encoded) -> Self {
        Self {
            texts: 1,
            tokens: text.used as u64,
            unknown: text.unknown as u64,
            empty: text.empty.into(),
            cut: (text.cut > 0).into(),
            lost: text.cut as u64,
        }
    }
}

impl AddAssign for TextCounts {
    fn add_assign(&mut self, other: Self) {
        self.texts += other.texts;
        self.tokens += other.tokens;
        self.unknown += other.unknown;
        self.empty += other.empty;
        self.cut += other.cut;
        self.lost += other.lost;
    }
}

impl Add for TextCounts {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::iter::Sum for TextCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), Add::add)
    }
}

impl fmt::Display for TextCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { texts, tokens, unknown, empty, cut, lost } = *self;
        let plural = |count: u64, word: &str| match count {
            1 => format!("1 {word}"),
            _ => format!("{count} {word}s"),
        };
        let mean = tokens as f64 / texts.max(1) as f64;
        write!(f, "{} of {mean:.1} tokens", plural(texts, "text"))?;
        if unknown > 0 {
            write!(f, "; {} unknown", plural(unknown, "token"))?;
        }
        if empty > 0 {
            write!(f, "; {empty} empty")?;
        }
        if cut > 0 {
            write!(f, "; {cut} cut, which lost {}", plural(lost, "token"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_and_say_only_what_happened() {
        let usual = TextCounts { texts: 2, tokens: 9, ..TextCounts::default() };
        assert_eq!(usual.to_string(), "2 texts of 4.5 tokens");
        let odd = TextCounts { texts: 3, tokens: 1, unknown: 1, empty: 1, cut: 1, lost: 7 };
        let sum: TextCounts = [usual, odd].into_iter().sum();
        assert_eq!(
            sum.to_string(),
            "5 texts of 2.0 tokens; 1 token unknown; 1 empty; 1 cut, which lost 7 tokens"
        );
        assert_eq!(TextCounts::default().to_string(), "0 texts of 0.0 tokens");
    }
}
