//! Texts as a model takes them.

use serde::{Deserialize, Serialize};

use super::EncoderConfig;

/// What becomes of the places behind a text that is shorter than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Padding {
    /// Padding is embedded, attended to and routed like any token (paper 002 App. G.1).
    #[default]
    Routed,
    /// Nobody attends to it, no expert sees it, and it does not count in a mean.
    Masked,
}

/// How a text becomes tokens: a vector per token of its vocabulary and one per place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// Tokens that there are, padding among them.
    pub vocabulary: usize,
    /// Tokens of every text; longer ones are cut, shorter ones padded.
    pub length: usize,
    /// What becomes of padding.
    pub padding: Padding,
    /// An encoder of its own for texts (two towers); without it, texts pass the encoder of the images.
    pub tower: Option<EncoderConfig>,
}

impl TextConfig {
    /// The token that stands where a text has ended.
    pub const PAD: i32 = 0;
}

impl Default for TextConfig {
    /// T5's vocabulary and 16 tokens (paper 002 App. A).
    fn default() -> Self {
        Self { vocabulary: 32_000, length: 16, padding: Padding::default(), tower: None }
    }
}
