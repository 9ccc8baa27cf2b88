//! What a forward pass is for.

use omma_base::Seed;

/// What a forward pass is for. Everything random in it comes from the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A training step: router noise, the training capacity, dropout.
    Training(Seed),
    /// A prediction: no noise, the inference capacity, no dropout.
    Inference,
    /// A prediction that is drawn: with the routers' noise at inference (paper 000 §4.2.2), where they
    /// have one.
    Sampling {
        /// Where noise and dropout come from.
        seed: Seed,
        /// Whether values are dropped too (MC Dropout, App. G.2).
        dropout: bool,
    },
}

impl Mode {
    /// Whether values are dropped.
    pub fn drops(&self) -> bool {
        match self {
            Self::Training(_) => true,
            Self::Inference => false,
            Self::Sampling { dropout, .. } => *dropout,
        }
    }

    pub(crate) fn seed(&self) -> Seed {
        match self {
            Self::Training(seed) | Self::Sampling { seed, .. } => *seed,
            Self::Inference => Seed::new(0),
        }
    }
}
