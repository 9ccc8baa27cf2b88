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
    /// None: all tokens beside each other, each with weights of its own (paper 004 E.1). Such a model takes images
    /// of one size.
    Flat,
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

/// How the tokens of a text become its features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextPooling {
    /// The mean of all tokens (paper 002).
    Mean,
    /// The last place, whatever stands there (vmoe's two towers).
    Last,
    /// Attention pooling with a query of its own.
    Map,
}

/// How the learned factor of similarities is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleForm {
    /// As its logarithm, as CLIP, big_vision and vmoe do; it cannot become negative.
    Exponential,
    /// As it is.
    Direct,
}

/// One vector per image and per text, of length 1, in a space that they share (paper 002 §2, App. A).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContrastConfig {
    /// Numbers of a vector.
    pub embedding: usize,
    /// How an image's tokens become its features.
    pub pooling: Pooling,
    /// How a text's tokens become its features.
    pub text_pooling: TextPooling,
    /// Whether the two projections have a bias.
    pub projection_bias: bool,
    /// How the factor of similarities is kept.
    pub scale_form: ScaleForm,
    /// What that factor, the inverse of a temperature, starts at.
    pub scale: f32,
    /// What is added to all similarities at the start, where the loss needs that (SigLIP: −10).
    pub logit_bias: Option<f32>,
    /// Classes whose texts the model keeps, which makes it a zero-shot classifier; 0 for none.
    pub classes: usize,
}

impl Default for ContrastConfig {
    /// Paper 002 App. A: 512 numbers, a learned temperature that starts at 10.
    fn default() -> Self {
        Self {
            embedding: 512,
            pooling: Pooling::Mean,
            text_pooling: TextPooling::Mean,
            projection_bias: false,
            scale_form: ScaleForm::Exponential,
            scale: 10.0,
            logit_bias: None,
            classes: 0,
        }
    }
}

/// One prediction per patch: a linear classifier on the patch tokens, whose logits are interpolated to pixels
/// (paper 003 §5, as DINOv2's linear segmentation).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SegmenterConfig {
    /// Classes of pixels.
    pub classes: usize,
}

impl Default for SegmenterConfig {
    /// Those of ADE20K.
    fn default() -> Self {
        Self { classes: 150 }
    }
}

/// What a model makes of its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HeadConfig {
    /// One prediction per image.
    Classifier(ClassifierConfig),
    /// One prediction per patch.
    Segmenter(SegmenterConfig),
    /// One vector per image and per text.
    Contrast(ContrastConfig),
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
            Self::Segmenter(_) | Self::Contrast(_) => None,
        }
    }

    /// The vectors of images and texts, if these are what it makes.
    pub fn contrast(&self) -> Option<&ContrastConfig> {
        match self {
            Self::Contrast(contrast) => Some(contrast),
            Self::Classifier(_) | Self::Segmenter(_) => None,
        }
    }

    /// The classes of patches, if these are what it tells.
    pub fn segmenter(&self) -> Option<&SegmenterConfig> {
        match self {
            Self::Segmenter(segmenter) => Some(segmenter),
            Self::Classifier(_) | Self::Contrast(_) => None,
        }
    }

    /// How an image's tokens become its features. Those of a segmenter's images, which decide nothing, are the
    /// mean of their patches, normalised before it.
    pub fn pooling(&self) -> Pooling {
        match self {
            Self::Classifier(classifier) => classifier.pooling,
            Self::Segmenter(_) => Pooling::Mean,
            Self::Contrast(contrast) => contrast.pooling,
        }
    }

    /// Classes that are told apart; 0 where none are.
    pub fn classes(&self) -> usize {
        match self {
            Self::Classifier(classifier) => classifier.classes,
            Self::Segmenter(segmenter) => segmenter.classes,
            Self::Contrast(contrast) => contrast.classes,
        }
    }

    /// The same head for so many classes.
    pub fn with_classes(self, classes: usize) -> Self {
        match self {
            Self::Classifier(classifier) => {
                Self::Classifier(ClassifierConfig { classes, ..classifier })
            }
            Self::Segmenter(_) => Self::Segmenter(SegmenterConfig { classes }),
            Self::Contrast(contrast) => Self::Contrast(ContrastConfig { classes, ..contrast }),
        }
    }

    /// Whether the tokens' last normalisation comes behind their pooling, not at the encoder's end.
    pub fn normalises_features(&self) -> bool {
        self.pooling() == Pooling::PatchMean
    }
}
