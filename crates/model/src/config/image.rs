//! Images as a model takes them.

use omma_base::Resolution;
use serde::{Deserialize, Serialize};

/// How patches know where they are.
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

/// How an image becomes tokens: class token, registers, patches row by row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageConfig {
    /// Height and width of the images that the model takes unless told otherwise.
    pub resolution: Resolution,
    /// Those of the images that the grid of learned positions is made for, if they are others; it is
    /// interpolated to the images that come.
    pub position_resolution: Option<Resolution>,
    /// Channels of an image.
    pub channels: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Whether there is a class token.
    pub class_token: bool,
    /// Register tokens.
    pub registers: usize,
    /// How patches know where they are.
    pub position: Position,
    /// What the model expects of pixels.
    pub normalisation: Normalisation,
}

impl Default for ImageConfig {
    /// ViT/16 as in JAX, at 224 pixels.
    fn default() -> Self {
        Self {
            resolution: Resolution::square(224),
            position_resolution: None,
            channels: 3,
            patch: 16,
            class_token: true,
            registers: 0,
            position: Position::Learned,
            normalisation: Normalisation::SYMMETRIC,
        }
    }
}

impl ImageConfig {
    /// Rows and columns of patches of an image.
    pub fn grid(&self, resolution: Resolution) -> (usize, usize) {
        resolution.patches(self.patch)
    }

    /// Rows and columns of the grid of positions.
    pub fn position_grid(&self) -> (usize, usize) {
        self.grid(self.position_resolution.unwrap_or(self.resolution))
    }

    /// Tokens that are not patches.
    pub fn prefix_tokens(&self) -> usize {
        usize::from(self.class_token) + self.registers
    }

    /// Tokens of an image.
    pub fn tokens(&self, resolution: Resolution) -> usize {
        let (rows, columns) = self.grid(resolution);
        rows * columns + self.prefix_tokens()
    }

    /// Whether positions are parameters.
    pub fn learns_positions(&self) -> bool {
        matches!(self.position, Position::Learned | Position::LearnedPatches)
    }
}
