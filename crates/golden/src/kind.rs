//! What a case is about.

use crate::case::Case;

/// Kinds of cases, by the code that answers for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Capacities from factors.
    Capacity,
    /// How ties are broken.
    TieOrder,
    /// Projections onto the sparse simplex.
    Simplex,
    /// Token-choice routers without experts.
    TokenChoice,
    /// Token-choice routers with experts.
    MoeLayer,
    /// Expert-choice routers with experts.
    ExpertChoice,
    /// Soft routers with experts.
    SoftMoe,
    /// E³ routers with experts.
    Ensemble,
    /// Sinkhorn routers.
    Sinkhorn,
    /// Sparsity-constrained transport routers.
    SparseTransport,
    /// LIMoE's losses.
    LimoeLosses,
    /// Whole V-MoEs.
    VisionMoe,
    /// Whole E³ models.
    EnsembleModel,
    /// Vision transformers in timm's layout.
    Timm,
    /// Optimisers on given gradients.
    Optimiser,
    /// Metrics of predictions.
    Metrics,
    /// Linear probes on few examples.
    FewShot,
    /// Images from elsewhere among others.
    Detection,
    /// Two towers, of images and of texts.
    TwoTowers,
    /// One tower for both.
    OneTower,
    /// The loss of pairs.
    Contrast,
    /// Classifiers from texts.
    ZeroShot,
    /// Finding images by texts and texts by images.
    Retrieval,
    /// A class for every pixel.
    Segmentation,
    /// Some experts of a soft router.
    SoftSubset,
}

/// Words of a description, and the kind they mean.
const KINDS: &[(&str, Kind)] = &[
    ("Expert buffer capacity", Kind::Capacity),
    ("How exact ties are ordered", Kind::TieOrder),
    ("probability simplex with at most k non-zeros", Kind::Simplex),
    ("Token-choice (top-", Kind::TokenChoice),
    ("Complete sparse MoE MLP layer", Kind::MoeLayer),
    ("Expert-choice routing", Kind::ExpertChoice),
    ("Soft MoE layer", Kind::SoftMoe),
    ("Ensemble (E3) router", Kind::Ensemble),
    ("Entropic optimal-transport (Sinkhorn)", Kind::Sinkhorn),
    ("Sparsity-constrained OT router", Kind::SparseTransport),
    ("LIMoE router losses", Kind::LimoeLosses),
    ("Tiny V-MoE Vision Transformer", Kind::VisionMoe),
    ("Tiny ensemble V-MoE", Kind::EnsembleModel),
    ("timm VisionTransformer", Kind::Timm),
    ("on given gradients", Kind::Optimiser),
    ("few-shot probe", Kind::FewShot),
    ("OOD-detection and segmentation metrics", Kind::Metrics),
    ("Detection of images from elsewhere", Kind::Detection),
    ("Two-tower contrastive model", Kind::TwoTowers),
    ("One tower for images and text", Kind::OneTower),
    ("Contrastive softmax loss", Kind::Contrast),
    ("Text-to-image and image-to-text recall", Kind::Retrieval),
    ("Zero-shot classifier", Kind::ZeroShot),
    ("Linear segmentation head", Kind::Segmentation),
    ("Best subset of a Soft MoE's experts", Kind::SoftSubset),
];

impl Kind {
    /// The kind of a case; panics where nothing answers for its description.
    pub fn of(case: &Case) -> Self {
        let description = case.json()["description"].as_str().unwrap_or_default();
        let kind = KINDS.iter().find(|(words, _)| description.contains(words));
        kind.unwrap_or_else(|| panic!("nothing answers for \"{description}\"")).1
    }

    /// Whether the case is about routing, rather than about models, training or metrics.
    pub fn is_routing(self) -> bool {
        let others = [
            Self::VisionMoe,
            Self::EnsembleModel,
            Self::Timm,
            Self::Optimiser,
            Self::Metrics,
            Self::FewShot,
            Self::Detection,
            Self::TwoTowers,
            Self::OneTower,
            Self::Contrast,
            Self::ZeroShot,
            Self::Retrieval,
            Self::Segmentation,
            Self::SoftSubset,
        ];
        !others.contains(&self)
    }
}
