//! What a router must know of a batch besides the tokens themselves.

use burn::tensor::Tensor;
use omma_base::Seed;

use crate::{
    allocation::{Allocation, Order},
    config::RouterConfig,
    error::{Result, RoutingError},
    layout::{Layout, Scope},
};

/// How the tokens of one call lie in their matrix, what they are, and whether this is training.
#[derive(Debug, Clone)]
pub struct Context {
    /// How the rows are arranged.
    pub layout: Layout,
    /// Whether noise is added and the training capacity holds.
    pub training: bool,
    /// Whether the noise of inference is added, where this is no training.
    pub sampling: bool,
    /// Where noise and shuffled orders come from.
    pub seed: Seed,
    /// `[N]`: the modality of every row, where it is not that of the layout's sequences.
    pub modality: Option<Vec<usize>>,
    /// Noise to add instead of drawing it, `[routed rows, columns]`, already scaled.
    pub noise: Option<Tensor<2>>,
}

impl Context {
    /// Inference: no noise, and the inference capacity.
    pub fn inference(layout: Layout) -> Self {
        let (training, sampling, seed) = (false, false, Seed::new(0));
        Self { layout, training, sampling, seed, modality: None, noise: None }
    }

    /// Inference with the router's [`inference_noise`](RouterConfig::inference_noise), drawn from `seed`.
    pub fn sampling(layout: Layout, seed: Seed) -> Self {
        Self { sampling: true, seed, ..Self::inference(layout) }
    }

    /// Training: noise and shuffled orders are drawn from `seed`.
    pub fn training(layout: Layout, seed: Seed) -> Self {
        Self { training: true, seed, ..Self::inference(layout) }
    }

    /// With the modality of every row.
    pub fn with_modality(self, modality: Vec<usize>) -> Self {
        Self { modality: Some(modality), ..self }
    }

    /// With given noise.
    pub fn with_noise(self, noise: Tensor<2>) -> Self {
        Self { noise: Some(noise), ..self }
    }

    /// The noise of a router on such a batch, in units of `1/E`.
    pub(super) fn noise_of(&self, config: &RouterConfig) -> f64 {
        match (self.training, self.sampling) {
            (true, _) => config.noise,
            (false, true) => config.inference_noise,
            (false, false) => 0.0,
        }
    }

    /// `[N]`: the modality of every row, if it is known.
    pub(super) fn modalities(&self) -> Option<Vec<usize>> {
        self.modality.clone().or_else(|| self.layout.modalities())
    }

    /// Fails where the batch does not suit the router.
    pub(super) fn check(&self, config: &RouterConfig) -> Result<()> {
        let members = self.layout.members();
        let tokens = self.layout.kinds().iter().map(|kind| kind.tokens).min().unwrap_or(0);
        if self.layout.rows() == 0 {
            return Err(RoutingError::EmptyBatch);
        }
        if let Some(expected) = config.pool.members()
            && expected != members
        {
            let (expected, found) = (vec![expected], vec![members]);
            return Err(RoutingError::Shape { what: "ensemble members", expected, found });
        }
        if let Scope::Image { decided_by } = config.scope
            && decided_by >= tokens
        {
            return Err(RoutingError::NoSuchToken { token: decided_by, tokens });
        }
        self.check_modality(config)
    }

    fn check_modality(&self, config: &RouterConfig) -> Result<()> {
        let Some(modality) = self.modalities() else {
            let ordered =
                |choice: &crate::TokenChoice| matches!(choice.order, Order::ModalityFirst(_));
            let what = match &config.allocation {
                _ if config.pool.modalities().is_some() => "a gate per modality",
                Allocation::TokenChoice(choice) if ordered(choice) => "serving one modality first",
                _ if config.losses.iter().any(|term| {
                    term.weight > 0.0
                        && (term.modality.is_some() || term.loss.compares_modalities())
                }) =>
                {
                    "a loss on modalities"
                }
                _ => return Ok(()),
            };
            return Err(RoutingError::ModalityMissing { what });
        };
        let rows = self.layout.rows();
        if modality.len() != rows {
            let (expected, found) = (vec![rows], vec![modality.len()]);
            return Err(RoutingError::Shape { what: "the tokens' modalities", expected, found });
        }
        if let Some(modalities) = config.pool.modalities()
            && let Some(token) = modality.iter().position(|modality| *modality >= modalities)
        {
            let modality = modality[token];
            return Err(RoutingError::UnknownModality { token, modality, modalities });
        }
        Ok(())
    }
}
