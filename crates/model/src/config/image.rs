//! Images as a model takes them.

use std::fmt;

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
    /// As they are.
    pub const NONE: Self = Self { mean: [0.0; 3], deviation: [1.0; 3] };
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
    /// Channels of an image; a model of one sees the mean of the three that pictures have.
    pub channels: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Whether patches are projected to the width of a token; else a token is the pixels of its patch (paper 004
    /// E.1).
    pub projection: bool,
    /// Whether there is a class token.
    pub class_token: bool,
    /// Register tokens.
    pub registers: usize,
    /// How patches know where they are.
    pub position: Position,
    /// What the model expects of pixels.
    pub normalisation: Normalisation,
}

/// Pixels that no patch covers, which a model does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Margin {
    /// Side of a patch.
    pub patch: usize,
    /// Of the image.
    pub resolution: Resolution,
    /// Rows that are cut off.
    pub bottom: usize,
    /// Columns that are cut off.
    pub right: usize,
}

/// `a patch of 14 leaves 6 of 384 pixels unseen at the right and bottom; 378 or 392 would lose nothing`
impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { patch, resolution, bottom, right } = *self;
        let Resolution { height, width } = resolution;
        let (below, above) =
            (|side: usize| side - side % patch, |side: usize| side.next_multiple_of(patch));
        write!(f, "a patch of {patch} leaves ")?;
        match (bottom, right) {
            _ if height == width => {
                let (less, more) = (below(height), above(height));
                write!(
                    f,
                    "{right} of {width} pixels unseen at the right and bottom; {less} or {more}"
                )?;
            }
            (0, _) => {
                let (less, more) = (below(width), above(width));
                write!(
                    f,
                    "{right} of {width} pixels unseen at the right; a width of {less} or {more}"
                )?;
            }
            (_, 0) => {
                let (less, more) = (below(height), above(height));
                write!(
                    f,
                    "{bottom} of {height} pixels unseen at the bottom; a height of {less} or {more}"
                )?;
            }
            _ => {
                let less = Resolution::new(below(height), below(width));
                let more = Resolution::new(above(height), above(width));
                write!(
                    f,
                    "{bottom} of {height} pixels unseen at the bottom and {right} of {width} at the right; \
                     {less} or {more}"
                )?;
            }
        }
        f.write_str(" would lose nothing")
    }
}

impl Default for ImageConfig {
    /// ViT/16 as in JAX, at 224 pixels.
    fn default() -> Self {
        Self {
            resolution: Resolution::square(224),
            position_resolution: None,
            channels: 3,
            patch: 16,
            projection: true,
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

    /// Numbers of a patch.
    pub(crate) fn patch_values(&self) -> usize {
        self.patch * self.patch * self.channels
    }

    /// Tokens of an image.
    pub fn tokens(&self, resolution: Resolution) -> usize {
        let (rows, columns) = self.grid(resolution);
        rows * columns + self.prefix_tokens()
    }

    /// What is cut off an image because no whole patch fits there; nothing where patches cover it.
    pub fn margin(&self, resolution: Resolution) -> Option<Margin> {
        let patch = self.patch;
        let Resolution { height, width } = resolution;
        let margin = Margin { patch, resolution, bottom: height % patch, right: width % patch };
        (margin.bottom + margin.right > 0).then_some(margin)
    }

    /// Whether positions are parameters.
    pub fn learns_positions(&self) -> bool {
        matches!(self.position, Position::Learned | Position::LearnedPatches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The papers' H/14 at 384 pixels is such a case.
    #[test]
    fn what_no_patch_covers_is_said_with_the_sizes_that_lose_nothing() {
        let image = ImageConfig { patch: 14, ..ImageConfig::default() };
        let said = |height, width| {
            image.margin(Resolution::new(height, width)).map(|margin| margin.to_string())
        };
        assert_eq!(said(224, 224), None);
        assert_eq!(said(392, 378), None);
        assert_eq!(
            said(384, 384).unwrap(),
            "a patch of 14 leaves 6 of 384 pixels unseen at the right and bottom; 378 or 392 would lose \
             nothing"
        );
        assert_eq!(
            said(28, 31).unwrap(),
            "a patch of 14 leaves 3 of 31 pixels unseen at the right; a width of 28 or 42 would lose nothing"
        );
        assert_eq!(
            said(31, 28).unwrap(),
            "a patch of 14 leaves 3 of 31 pixels unseen at the bottom; a height of 28 or 42 would lose \
             nothing"
        );
        assert_eq!(
            said(384, 200).unwrap(),
            "a patch of 14 leaves 6 of 384 pixels unseen at the bottom and 4 of 200 at the right; \
             378 × 196 or 392 × 210 would lose nothing"
        );
    }
}
