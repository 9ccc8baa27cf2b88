//! What a model is. Every preset, every system of the papers and every imported checkpoint is one
//! value of [`ModelConfig`], nothing more.

mod earlier;
mod encoder;
mod head;
mod image;
mod moe;
mod names;
mod placement;
mod presets;
mod ranges;
mod sentence;
mod settings;
mod shorthand;
mod text;
mod work;

pub use encoder::{BatchEnsembleConfig, EncoderConfig, FastWeights, FeedForwardKind, Tiling};
pub use head::{
    ClassifierConfig, ContrastConfig, HeadConfig, Pooling, ScaleForm, SegmenterConfig, TextPooling,
};
pub use image::{ImageConfig, Margin, Normalisation, Position};
pub use moe::{BlockPruning, ExpertStart, MoeConfig};
pub use names::{full_name, short_name};
use omma_base::Seed;
use omma_routing::{Allocation, Grouping, Scope, SubsetChoice};
pub use placement::Placement;
pub use presets::{PRESETS, preset};
use serde::{Deserialize, Serialize};
pub(crate) use settings::parse as parse_setting;
pub use settings::{apply_settings, apply_value, precedence};
pub use text::{Padding, TextConfig};

use crate::{
    error::{ModelError, Result},
    mode::Mode,
};

/// MIMO (paper 000 App. B.3, G.3): several images in, beside each other on the channel axis, and as
/// many predictions out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MimoConfig {
    /// Images per forward pass, `M`.
    pub members: usize,
    /// Probability that all inputs of a training example are the same image.
    pub input_replication: f64,
    /// How many times a training batch is repeated before its images are paired.
    pub batch_repetition: usize,
}

impl Default for MimoConfig {
    fn default() -> Self {
        Self { members: 2, input_replication: 0.5, batch_repetition: 1 }
    }
}

/// A vision transformer of any kind: what goes in, what it passes, what comes out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(from = "earlier::AnyModelConfig")]
pub struct ModelConfig {
    /// How images become tokens.
    pub image: ImageConfig,
    /// What tokens pass.
    pub encoder: EncoderConfig,
    /// What becomes of them.
    pub head: HeadConfig,
    /// Several images in, and as many predictions out.
    pub mimo: Option<MimoConfig>,
    /// How texts become tokens, for a model that reads.
    pub text: Option<TextConfig>,
}

impl ModelConfig {
    /// The experts, if there are any.
    pub fn moe(&self) -> Option<&MoeConfig> {
        self.encoder.moe.as_ref()
    }

    /// Classes that are told apart; 0 for a model without a classifier.
    pub fn classes(&self) -> usize {
        self.head.classes()
    }

    /// The same model for so many classes.
    pub fn with_classes(self, classes: usize) -> Self {
        Self { head: self.head.with_classes(classes), ..self }
    }

    /// The same without texts: of a model that compares images with them, what images pass, and a classifier on
    /// their pooled features.
    pub fn image_tower(&self) -> Self {
        let Some(contrast) = self.head.contrast() else { return self.clone() };
        let ContrastConfig { pooling, classes, .. } = *contrast;
        let head = ClassifierConfig { pooling, classes, ..ClassifierConfig::default() };
        Self { head: HeadConfig::Classifier(head), text: None, ..self.clone() }
    }

    /// The same without texts and with a class for every patch instead of what its head gives.
    pub fn into_segmenter(self, classes: usize) -> Self {
        Self { head: HeadConfig::Segmenter(SegmenterConfig { classes }), text: None, ..self }
    }

    /// Features of an image.
    pub fn feature_width(&self) -> usize {
        match self.head.pooling() {
            Pooling::TokenAndMean => 2 * self.encoder.width,
            Pooling::Flat => self.image.tokens(self.image.resolution) * self.encoder.width,
            _ => self.encoder.width,
        }
    }

    /// The encoder that texts pass, of a model that reads.
    pub fn text_encoder(&self) -> Option<&EncoderConfig> {
        self.text.as_ref().map(|text| text.tower.as_ref().unwrap_or(&self.encoder))
    }

    /// The encoder of texts alone, of a model with two towers.
    pub fn text_tower(&self) -> Option<&EncoderConfig> {
        self.text.as_ref().and_then(|text| text.tower.as_ref())
    }

    /// Images that a forward pass takes beside each other.
    pub fn images_per_input(&self) -> usize {
        self.mimo.as_ref().map_or(1, |mimo| mimo.members)
    }

    /// Predictions per image.
    pub fn members(&self) -> usize {
        self.encoder.members() * self.images_per_input()
    }

    /// How predictions are made: drawn from `seed` where MC samples, routers with noise or random experts
    /// are wanted, and else by the image alone.
    pub fn prediction_mode(&self, seed: Seed) -> Mode {
        let dropout = self.encoder.mc_samples > 1;
        let drawn = self.moe().is_some_and(|moe| match moe.router.allocation {
            Allocation::Soft(soft) => {
                soft.subset.is_some() && soft.subset_choice == SubsetChoice::Random
            }
            _ => moe.router.inference_noise > 0.0,
        });
        match dropout || drawn {
            true => Mode::Sampling { seed, dropout },
            false => Mode::Inference,
        }
    }

    /// Why what it makes of an image may depend on the images that share its batch; nothing where it does not.
    pub fn depends_on_batch(&self) -> Option<&'static str> {
        match self.prediction_mode(Seed::new(0)) {
            Mode::Inference => self.moe().and_then(|moe| moe.router.depends_on_batch()),
            _ => Some("predictions are drawn, for one image after the other"),
        }
    }

    /// Fails on a configuration that cannot be built, with both sides of a contradiction.
    pub fn check(&self) -> Result<()> {
        let tree = serde_json::to_value(self).expect("a configuration can be written");
        ranges::check(tree)?;
        // As JSON, an infinite number is no number at all, which this one may be.
        if let Some(scale) = self.encoder.layer_scale.filter(|scale| !scale.is_finite()) {
            let (key, value) = ("layer_scale".to_owned(), scale.to_string());
            return Err(ModelError::BadSetting { key, value, why: "it is not finite".to_owned() });
        }
        for tower in [Some(&self.encoder), self.text_tower()].into_iter().flatten() {
            let EncoderConfig { width, heads, .. } = *tower;
            if !width.is_multiple_of(heads) {
                return Err(ModelError::Heads { width, heads });
            }
        }
        let ImageConfig { resolution, position_resolution, patch, .. } = self.image;
        let resolutions = [Some(resolution), position_resolution];
        let small = resolutions.into_iter().flatten().find(|sides| sides.shortest() < patch);
        if let Some(resolution) = small {
            return Err(ModelError::Resolution { resolution, patch });
        }
        let values = self.image.patch_values() * self.images_per_input();
        if !self.image.projection && values != self.encoder.width {
            return Err(ModelError::PatchWidth { patch, values, width: self.encoder.width });
        }
        self.check_combinations()?;
        self.check_work()?;
        for tower in [Some(&self.encoder), self.text_tower()].into_iter().flatten() {
            tower.feed_forwards()?;
            tower.moe.as_ref().map_or(Ok(()), |moe| moe.check(tower.depth))?;
        }
        Ok(())
    }

    fn check_combinations(&self) -> Result<()> {
        let by_token = matches!(self.head.pooling(), Pooling::Token | Pooling::TokenAndMean);
        let contrast = self.head.contrast().is_some();
        let texts = self.text_encoder().and_then(|encoder| encoder.moe.as_ref());
        let several = |encoder: &EncoderConfig| encoder.members() > 1;
        let ImageConfig { class_token, position, .. } = self.image;
        let router = self.moe().map(|moe| &moe.router);
        let mut clashes = vec![
            (by_token && !class_token, "pooling by the class token", "no class token"),
            (
                position == Position::Sincos2d && !self.encoder.width.is_multiple_of(4),
                "sin-cos positions",
                "a width that is not a multiple of 4",
            ),
            (
                router.is_some_and(|router| router.scope != Scope::Token) && !class_token,
                "one decision per image",
                "no class token to decide",
            ),
            (
                self.text_tower().is_none() && texts.is_some_and(|moe| moe.slots().is_some()),
                "soft routing",
                "images and texts in one tower (set text.tower for two)",
            ),
            (
                self.text.as_ref().is_some_and(|text| text.padding == Padding::Masked)
                    && texts.is_some_and(|moe| moe.router.grouping != Grouping::Batch),
                "masked padding",
                "tokens that are routed in groups",
            ),
            (
                self.head.segmenter().is_some() && self.mimo.is_some(),
                "a segmenter",
                "several images beside each other (mimo)",
            ),
            (contrast && self.text.is_none(), "a contrastive head", "no text"),
            (!contrast && self.text.is_some(), "text", "a head that does not compare"),
            (
                contrast && (self.members() > 1 || self.text_tower().is_some_and(several)),
                "a contrastive head",
                "several members",
            ),
            (
                texts.is_some_and(|moe| moe.router.scope != Scope::Token),
                "text",
                "one decision per image",
            ),
            (
                contrast && self.head.pooling() == Pooling::TokenAndMean,
                "a contrastive head",
                "pooling of the class token beside the mean",
            ),
            (
                contrast && self.head.pooling() == Pooling::Flat,
                "a contrastive head",
                "tokens that are not pooled",
            ),
        ];
        clashes.extend(self.encoder.clashes()?);
        if let Some(tower) = self.text_tower() {
            clashes.extend(tower.clashes()?);
        }
        match clashes.into_iter().find(|(clash, ..)| *clash) {
            Some((_, left, right)) => Err(ModelError::Incompatible { left, right }),
            None => Ok(()),
        }
    }
}
