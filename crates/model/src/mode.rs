//! What a forward pass is for.

use omma_base::Seed;

/// What a forward pass is for. Everything random in it comes from the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A training step: router noise, the training capacity, dropout.
    Training(Seed),
    /// A prediction: no noise, the inference capacity, no dropout.
    Inference,
    /// A prediction with dropout (MC Dropout, paper 000 App. G.2).
    Sampling(Seed),
}

impl Mode {
    /// Whether routers have noise and the training capacity.
    pub fn trains(&self) -> bool {
        matches!(self, Self::Training(_))
    }

    /// Whether values are dropped.
    pub fn drops(&self) -> bool {
        !matches!(self, Self::Inference)
    }

    pub(crate) fn seed(&self) -> Seed {
        match self {
            Self::Training(seed) | Self::Sampling(seed) => *seed,
            Self::Inference => Seed::new(0),
        }
    }
}
