//! What a model is. Every preset, every system of the papers and every imported checkpoint is one
//! value of [`ModelConfig`], nothing more.

mod moe;
mod placement;
mod presets;
mod ranges;
mod settings;

pub use moe::{MoeConfig, MoeScope, RouterKind};
use omma_base::{Seed, range::check_all};
use omma_kernels::Activation;
use omma_routing::Order;
pub use placement::Placement;
pub use presets::{PRESETS, preset};
use serde::{Deserialize, Serialize};
pub use settings::{apply_settings, apply_value};

use crate::{
    error::{ModelError, Result},
    mode::Mode,
};

/// How tokens know where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Position {
    /// A learned vector per patch, and one for the class token.
    Learned,
    /// A learned vector per patch; class and register tokens have none.
    LearnedPatches,
    /// Sines and cosines of the patch's column and row, for patches only.
    Sincos2d,
    /// They do not.
    None,
}

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
    /// Attention pooling: a learned query asks all tokens.
    Map,
}

/// How BatchEnsemble's fast weights start (paper 000 App. G.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FastWeights {
    /// −1 or 1.
    RandomSign,
    /// Normal around 1 with standard deviation 0.5.
    Gaussian,
}

/// BatchEnsemble (paper 000 App. B.2): members share a matrix and differ by a rank-one factor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BatchEnsembleConfig {
    /// Which blocks' feed-forward networks have fast weights.
    pub placement: Placement,
    /// Ensemble members, `M`.
    pub members: usize,
    /// How the fast weights start.
    pub fast_weights: FastWeights,
}

impl Default for BatchEnsembleConfig {
    fn default() -> Self {
        let fast_weights = FastWeights::RandomSign;
        Self { placement: Placement::Last(2), members: 2, fast_weights }
    }
}

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

/// What pixels in `[0, 1]` become before the model sees them: `(x - mean) / deviation`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// Per channel.
    pub mean: [f32; 3],
    /// Per channel.
    pub deviation: [f32; 3],
}

impl Normalisation {
    /// To `[-1, 1]`, as vmoe, big_vision and most of timm's ViTs do.
    pub const SYMMETRIC: Self = Self { mean: [0.5; 3], deviation: [0.5; 3] };
    /// By ImageNet's statistics, as DINOv2 does.
    pub const IMAGENET: Self =
        Self { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };
}

/// A vision transformer of any kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Side of the square images that it takes unless told otherwise.
    pub resolution: usize,
    /// Side of the images that the grid of learned positions is made for, if it is another; it is
    /// interpolated to the images that come.
    pub position_resolution: Option<usize>,
    /// Channels of an image.
    pub channels: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Features of a token, `D`.
    pub width: usize,
    /// Blocks, `L`.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden features of a feed-forward network, `H`.
    pub mlp: usize,
    /// The nonlinearity between a feed-forward network's products.
    pub activation: Activation,
    /// Dropout of hidden values in dense feed-forward networks.
    pub dropout: f32,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Where LayerScale starts, if blocks have it.
    pub layer_scale: Option<f32>,
    /// Whether there is a class token.
    pub class_token: bool,
    /// Register tokens.
    pub registers: usize,
    /// How tokens know where they are.
    pub position: Position,
    /// How tokens become features.
    pub pooling: Pooling,
    /// Size of a hidden representation with tanh in front of the classifier, if there is one.
    pub representation: Option<usize>,
    /// Classes; 0 leaves the classifier out.
    pub classes: usize,
    /// Mixtures of experts.
    pub moe: Option<MoeConfig>,
    /// BatchEnsemble.
    pub batch_ensemble: Option<BatchEnsembleConfig>,
    /// MIMO.
    pub mimo: Option<MimoConfig>,
    /// Predictions drawn with dropout at inference (MC Dropout); 1 for none.
    pub mc_samples: usize,
    /// What the model expects of pixels.
    pub normalisation: Normalisation,
}

impl Default for ModelConfig {
    /// ViT-B/16 as in JAX, at 224 pixels.
    fn default() -> Self {
        Self {
            resolution: 224,
            position_resolution: None,
            channels: 3,
            patch: 16,
            width: 768,
            depth: 12,
            heads: 12,
            mlp: 3072,
            activation: Activation::GeluTanh,
            dropout: 0.0,
            qk_norm: false,
            layer_scale: None,
            class_token: true,
            registers: 0,
            position: Position::Learned,
            pooling: Pooling::Token,
            representation: None,
            classes: 1000,
            moe: None,
            batch_ensemble: None,
            mimo: None,
            mc_samples: 1,
            normalisation: Normalisation::SYMMETRIC,
        }
    }
}

/// A block's feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardKind {
    /// One for all tokens.
    Dense,
    /// Experts.
    Moe,
    /// One for all tokens, with every member's fast weights.
    BatchEnsemble,
}

/// Where in the encoder the members' copies are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// The block.
    pub block: usize,
    /// In front of its attention, or only of its feed-forward network.
    pub before_attention: bool,
    /// How many copies.
    pub members: usize,
}

impl ModelConfig {
    /// Patches along one side of an image of `resolution` pixels; a margin narrower than a patch is
    /// cut off, as a convolution without padding does.
    pub fn grid(&self, resolution: usize) -> usize {
        resolution / self.patch
    }

    /// Patches along one side of the grid of learned positions.
    pub fn position_grid(&self) -> usize {
        self.grid(self.position_resolution.unwrap_or(self.resolution))
    }

    /// Tokens that are not patches.
    pub fn prefix_tokens(&self) -> usize {
        usize::from(self.class_token) + self.registers
    }

    /// Tokens of an image of `resolution` pixels.
    pub fn tokens(&self, resolution: usize) -> usize {
        self.grid(resolution).pow(2) + self.prefix_tokens()
    }

    /// Features of an image.
    pub fn feature_width(&self) -> usize {
        match self.pooling {
            Pooling::TokenAndMean => 2 * self.width,
            _ => self.width,
        }
    }

    /// Predictions per image.
    pub fn members(&self) -> usize {
        let tiled = self.tiling().ok().flatten().map_or(1, |tiling| tiling.members);
        let mimo = self.mimo.as_ref().map_or(1, |mimo| mimo.members);
        let multi_pred =
            self.moe.as_ref().filter(|moe| moe.multi_pred).map_or(1, MoeConfig::experts_per_token);
        tiled * mimo * multi_pred
    }

    /// How predictions are made: with dropout where MC samples are asked for.
    pub fn prediction_mode(&self) -> Mode {
        match self.mc_samples > 1 {
            true => Mode::Sampling(Seed::new(0)),
            false => Mode::Inference,
        }
    }

    /// The feed-forward network of every block.
    pub fn feed_forwards(&self) -> Result<Vec<FeedForwardKind>> {
        let mut kinds = vec![FeedForwardKind::Dense; self.depth];
        if let Some(moe) = &self.moe {
            for block in moe.placement.blocks(self.depth)? {
                kinds[block] = FeedForwardKind::Moe;
            }
        }
        if let Some(ensemble) = &self.batch_ensemble {
            for block in ensemble.placement.blocks(self.depth)? {
                if kinds[block] == FeedForwardKind::Moe {
                    return Err(ModelError::Incompatible {
                        left: "experts",
                        right: "BatchEnsemble's fast weights in the same block",
                    });
                }
                kinds[block] = FeedForwardKind::BatchEnsemble;
            }
        }
        Ok(kinds)
    }

    /// Where tokens are tiled: in front of the first block whose members differ (paper 000 §4.1),
    /// for MC samples in front of the first network with dropout.
    pub fn tiling(&self) -> Result<Option<Tiling>> {
        let kinds = self.feed_forwards()?;
        let first = |wanted| kinds.iter().position(|kind| *kind == wanted);
        if let Some(moe) = self.moe.as_ref().filter(|moe| moe.members > 1) {
            let block = first(FeedForwardKind::Moe);
            return Ok(block.map(|block| Tiling {
                block,
                before_attention: true,
                members: moe.members,
            }));
        }
        if let Some(ensemble) = &self.batch_ensemble {
            let block = first(FeedForwardKind::BatchEnsemble);
            let members = ensemble.members;
            return Ok(block.map(|block| Tiling { block, before_attention: true, members }));
        }
        if self.mc_samples > 1 {
            let in_experts = self.moe.as_ref().is_some_and(|moe| moe.dropout > 0.0);
            let drops = |kind: &FeedForwardKind| match kind {
                FeedForwardKind::Moe => in_experts,
                _ => self.dropout > 0.0,
            };
            let block = kinds.iter().position(drops);
            let members = self.mc_samples;
            return Ok(block.map(|block| Tiling { block, before_attention: false, members }));
        }
        Ok(None)
    }

    /// Fails on a configuration that cannot be built, with both sides of a contradiction.
    pub fn check(&self) -> Result<()> {
        let tree = serde_json::to_value(self).expect("a configuration can be written");
        check_all(ranges::RANGES, &tree)?;
        // As JSON, an infinite number is no number at all, which this one may be.
        if let Some(scale) = self.layer_scale.filter(|scale| !scale.is_finite()) {
            let (key, value) = ("layer_scale".to_owned(), scale.to_string());
            return Err(ModelError::BadSetting { key, value, why: "it is not finite".to_owned() });
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(ModelError::Heads { width: self.width, heads: self.heads });
        }
        let resolutions = [Some(self.resolution), self.position_resolution];
        if let Some(resolution) = resolutions.into_iter().flatten().find(|r| *r < self.patch) {
            return Err(ModelError::Resolution { resolution, patch: self.patch });
        }
        self.check_combinations()?;
        self.feed_forwards()?;
        self.check_work()?;
        match &self.moe {
            Some(moe) => Ok(moe.router_config().check()?),
            None => Ok(()),
        }
    }

    /// Fails where operations, parameters or the values of a layer could not be counted in 64 bits. Each
    /// number alone is within its range; together they may mean a model that no machine could hold.
    fn check_work(&self) -> Result<()> {
        let moe = self.moe.as_ref();
        let of_moe = |size: fn(&MoeConfig) -> usize| moe.map_or(1.0, |moe| size(moe) as f64);
        let mimo = self.mimo.as_ref().map_or(1.0, |mimo| mimo.members as f64);
        let ensemble = self.batch_ensemble.as_ref().map_or(1.0, |one| one.members as f64);
        let members = of_moe(|moe| moe.members)
            * of_moe(|moe| if moe.multi_pred { moe.experts_per_token() } else { 1 })
            * mimo
            * ensemble
            * self.mc_samples as f64;
        let grid = self.grid(self.resolution.max(self.position_resolution.unwrap_or(0))) as f64;
        let tokens = grid * grid + self.prefix_tokens() as f64;
        let width = self.feature_width() as f64;
        let hidden = self.mlp.max(moe.and_then(|moe| moe.hidden).unwrap_or(0)) as f64;
        // Rows that go through experts, with every place of every capacity taken, and columns of gates.
        let (experts, ratio) =
            (of_moe(|moe| moe.experts), moe.map_or(1.0, MoeConfig::largest_capacity));
        let slots = match moe.is_some_and(|moe| moe.router == RouterKind::Soft) {
            true => of_moe(|moe| moe.slots) * experts,
            false => experts,
        };
        let rows = tokens * (1.0 + of_moe(|moe| moe.experts_per_token()) * ratio)
            + slots * of_moe(|moe| moe.capacity_multiple);
        let block = tokens * width * (2.0 * tokens + 4.0 * width + 4.0 * slots)
            + 2.0 * rows * width * hidden;
        let patches = (self.patch * self.patch) as f64 * self.channels as f64 * mimo;
        let outputs = self.classes.max(self.representation.unwrap_or(0)) as f64 * mimo;
        let work = members
            * (self.depth as f64 * block + tokens * width * patches + width * (outputs + width));
        let parameters = self.depth as f64 * experts * width * (hidden + width + slots)
            + width * (tokens + patches + outputs);
        // Training takes some 200 operations per value.
        const MOST: f64 = (u64::MAX / 512) as f64;
        let too_large = |what: &str, count: f64| ModelError::TooLarge {
            what: format!("about {count:.0e} {what}"),
        };
        match () {
            _ if parameters > MOST => Err(too_large("parameters", parameters)),
            _ if work > MOST => Err(too_large("operations per image", work)),
            _ => Ok(()),
        }
    }

    fn check_combinations(&self) -> Result<()> {
        let token = matches!(self.pooling, Pooling::Token | Pooling::TokenAndMean);
        let moe = self.moe.as_ref();
        let members = moe.map_or(1, |moe| moe.members);
        let chooses = |moe: &&MoeConfig| {
            matches!(moe.router, RouterKind::SoftmaxTokenChoice | RouterKind::SinkhornTokenChoice)
        };
        let clashes = [
            (token && !self.class_token, "pooling by the class token", "no class token"),
            (
                self.position == Position::Sincos2d && !self.width.is_multiple_of(4),
                "sin-cos positions",
                "a width that is not a multiple of 4",
            ),
            (
                moe.is_some_and(|moe| moe.scope == MoeScope::Image) && !self.class_token,
                "one decision per image",
                "no class token to decide",
            ),
            (
                moe.is_some_and(|moe| moe.multi_pred && !chooses(&moe)),
                "multi-pred",
                "experts that choose",
            ),
            (
                moe.is_some_and(|moe| moe.partition > 1 && moe.members > 1 && moe.own_experts),
                "partitioning",
                "members with experts of their own",
            ),
            (
                moe.is_some_and(|moe| matches!(moe.order, Order::ModalityFirst(_))),
                "serving a modality first",
                "a model of images alone",
            ),
            (
                members > 1 && (self.batch_ensemble.is_some() || self.mc_samples > 1),
                "members with experts",
                "members of another kind",
            ),
            (self.batch_ensemble.is_some() && self.mc_samples > 1, "BatchEnsemble", "MC Dropout"),
            (
                self.mc_samples > 1 && self.tiling()?.is_none(),
                "MC Dropout",
                "no dropout anywhere (set moe.dropout or dropout)",
            ),
        ];
        match clashes.into_iter().find(|(clash, ..)| *clash) {
            Some((_, left, right)) => Err(ModelError::Incompatible { left, right }),
            None => Ok(()),
        }
    }
}
