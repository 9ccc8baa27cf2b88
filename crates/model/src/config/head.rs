//! What becomes of the encoder's tokens.

use serde::{Deserialize, Serialize};

/// How the tokens of an image become its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// The class token.
    Token,
    /// The mean of all tokens.
    Mean,
    /// The mean of the patch tokens, normalised after the mean instead of before (timm's `avg`).
    PatchMean,
    /// The class token beside the mean of the patch tokens, twice as wide (DINOv2's classifiers).
    TokenAndMean,
    /// Attention pooling: a learned query attends to all tokens.
    Map,
}

/// One prediction per image: pooling, perhaps a hidden representation, and a linear classifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierConfig {
    /// How tokens become features.
    pub pooling: Pooling,
    /// Size of a hidden representation with tanh in front of the classifier, if there is one.
    pub representation: Option<usize>,
    /// Classes; 0 leaves the classifier out, and features are what the model gives.
    pub classes: usize,
}

impl Default for ClassifierConfig {
    fn default() -> Self {
        Self { pooling: Pooling::Token, representation: None, classes: 1000 }
    }
}

/// What a model makes of its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HeadConfig {
    /// One prediction per image.
    Classifier(ClassifierConfig),
}

impl Default for HeadConfig {
    fn default() -> Self {
        Self::Classifier(ClassifierConfig::default())
    }
}

impl HeadConfig {
    /// The classifier, if it is one.
    pub fn classifier(&self) -> Option<&ClassifierConfig> {
        match self {
            Self::Classifier(classifier) => Some(classifier),
        }
    }

    /// Classes that are told apart; 0 where none are.
    pub fn classes(&self) -> usize {
        match self {
            Self::Classifier(classifier) => classifier.classes,
        }
    }

    /// The same head for so many classes.
    pub fn with_classes(self, classes: usize) -> Self {
        match self {
            Self::Classifier(classifier) => {
                Self::Classifier(ClassifierConfig { classes, ..classifier })
            }
        }
    }

    /// Whether the tokens' last normalisation comes behind their pooling, not at the encoder's end.
    pub fn normalises_features(&self) -> bool {
        self.classifier().is_some_and(|classifier| classifier.pooling == Pooling::PatchMean)
    }
}
