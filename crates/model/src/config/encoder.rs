//! The blocks that tokens pass, whatever they were before.

use omma_kernels::Activation;
use serde::{Deserialize, Serialize};

use super::{MoeConfig, Placement};
use crate::error::{ModelError, Result};

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

/// A stack of transformer blocks; it knows nothing of pixels, words or classes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncoderConfig {
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
    /// Whether tokens attend to each other; else a block is its feed-forward network alone (paper 004 E.1).
    pub attention: bool,
    /// Whether tokens are normalised, in front of both halves of a block and behind the last one.
    pub norm: bool,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Where LayerScale starts, if blocks have it.
    pub layer_scale: Option<f32>,
    /// Mixtures of experts.
    pub moe: Option<MoeConfig>,
    /// BatchEnsemble.
    pub batch_ensemble: Option<BatchEnsembleConfig>,
    /// Predictions drawn with dropout at inference (MC Dropout); 1 for none.
    pub mc_samples: usize,
}

impl Default for EncoderConfig {
    /// ViT-B as in JAX.
    fn default() -> Self {
        Self {
            width: 768,
            depth: 12,
            heads: 12,
            mlp: 3072,
            activation: Activation::GeluTanh,
            dropout: 0.0,
            attention: true,
            norm: true,
            qk_norm: false,
            layer_scale: None,
            moe: None,
            batch_ensemble: None,
            mc_samples: 1,
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
    /// The block that they are the first to enter.
    pub block: usize,
    /// How many copies.
    pub members: usize,
}

impl EncoderConfig {
    /// Copies of every sequence that leave the encoder.
    pub fn members(&self) -> usize {
        let tiled = self.tiling().ok().flatten().map_or(1, |tiling| tiling.members);
        tiled * self.predictions_per_copy()
    }

    /// Contributions that the last MoE layer keeps apart.
    pub(crate) fn predictions_per_copy(&self) -> usize {
        self.moe.as_ref().filter(|moe| moe.multi_pred).map_or(1, MoeConfig::experts_per_token)
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

    /// Where tokens are tiled: in front of the first block whose members differ, which has the first
    /// experts, fast weights or, for MC samples, dropout (paper 000 §4.1 and App. G).
    pub fn tiling(&self) -> Result<Option<Tiling>> {
        let kinds = self.feed_forwards()?;
        let first = |wanted| kinds.iter().position(|kind| *kind == wanted);
        let before = |block: Option<usize>, members| block.map(|block| Tiling { block, members });
        if let Some(moe) = self.moe.as_ref().filter(|moe| moe.members() > 1) {
            return Ok(before(first(FeedForwardKind::Moe), moe.members()));
        }
        if let Some(ensemble) = &self.batch_ensemble {
            return Ok(before(first(FeedForwardKind::BatchEnsemble), ensemble.members));
        }
        if self.mc_samples > 1 {
            let in_experts = self.moe.as_ref().is_some_and(|moe| moe.dropout > 0.0);
            let drops = |kind: &FeedForwardKind| match kind {
                FeedForwardKind::Moe => in_experts,
                _ => self.dropout > 0.0,
            };
            return Ok(before(kinds.iter().position(drops), self.mc_samples));
        }
        Ok(None)
    }

    /// Whether it is one layer of experts and nothing else.
    pub(crate) fn is_single_layer(&self) -> bool {
        self.depth == 1 && !self.attention && self.moe.is_some()
    }

    /// Blocks from the first on that all members of an ensemble have in common; all of them without one.
    pub fn shared_blocks(&self) -> Result<usize> {
        Ok(self.tiling()?.map_or(self.depth, |tiling| tiling.block))
    }

    /// Pairs of settings that contradict each other, and whether they are there.
    pub(super) fn clashes(&self) -> Result<Vec<(bool, &'static str, &'static str)>> {
        let moe = self.moe.as_ref();
        Ok(vec![
            (
                moe.is_some_and(|moe| moe.multi_pred && moe.router.token_choice().is_none()),
                "multi-pred",
                "experts that choose",
            ),
            (
                moe.is_some_and(|moe| moe.tiling > 1 && moe.router.pool.members().is_some()),
                "tiling",
                "a pool of members, who are tiled already",
            ),
            (
                moe.is_some_and(|moe| moe.members() > 1)
                    && (self.batch_ensemble.is_some() || self.mc_samples > 1),
                "members with experts",
                "members of another kind",
            ),
            (self.batch_ensemble.is_some() && self.mc_samples > 1, "BatchEnsemble", "MC Dropout"),
            (
                self.mc_samples > 1 && self.tiling()?.is_none(),
                "MC Dropout",
                "no dropout anywhere (set moe.dropout or dropout)",
            ),
        ])
    }
}
