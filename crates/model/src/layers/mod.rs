//! The parts of a vision transformer, one file each.

mod attention;
mod batch_ensemble;
mod block;
mod dense;
mod experts;
mod init;
mod moe_layer;
mod norm;
mod spread;

pub use attention::Attention;
pub(crate) use attention::{attention_to_present, per_head_norm};
pub use batch_ensemble::{BatchEnsembleMlp, SharedMatrices};
pub use block::{Block, FeedForward};
pub(crate) use block::{present, tile};
pub use dense::Dense;
pub use experts::{Experts, ExpertsConfig, Mlp, MlpConfig};
pub(crate) use init::{constant, normal, xavier};
pub use moe_layer::{MoeLayer, MoeLayerConfig, MoeOutput};
pub use norm::{LAYER_NORM_EPSILON, Norm};
pub use spread::ExpertGroup;
