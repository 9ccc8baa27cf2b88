//! RandAugment: a few random operations of one magnitude (Cubuk et al. 2020).

mod big_vision;
mod increasing;

use omma_base::Resolution;
use rand::Rng;
use serde::{Deserialize, Serialize};

use super::transform::Step;

/// The operations that are drawn from, and what a magnitude means to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every operation is stronger with a larger magnitude, and moves by shares of the image's sides.
    #[default]
    Increasing,
    /// As in big_vision and vmoe, whose numbers papers give, AugReg's among them (paper 000 App. K): the
    /// level is a tenth of the magnitude and goes on above 1, some operations are weaker with a larger one,
    /// and moves and cutouts are in pixels of an image of about 224.
    BigVision,
}

impl Policy {
    /// As it is written in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::Increasing => "increasing",
            Self::BigVision => "big-vision",
        }
    }

    /// Up to where a magnitude means more than a smaller one, or has been used at all.
    pub fn largest_magnitude(self) -> f64 {
        match self {
            Self::Increasing => 10.0,
            Self::BigVision => 30.0,
        }
    }

    /// A random operation on an image of this size; none where it is to stay as it is.
    pub(super) fn random_step(
        self,
        image: Resolution,
        magnitude: f64,
        rng: &mut impl Rng,
    ) -> Option<Step> {
        match self {
            Self::Increasing => increasing::random_step(image, magnitude, rng),
            Self::BigVision => big_vision::random_step(image, magnitude, rng),
        }
    }
}
