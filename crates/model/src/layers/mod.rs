//! The parts of a vision transformer, one file each.

mod attention;
mod batch_ensemble;
mod block;
mod dense;
mod experts;
mod init;
mod moe_layer;
mod norm;

pub use attention::Attention;
pub use batch_ensemble::{BatchEnsembleMlp, SharedMatrices};
pub(crate) use block::tile;
pub use block::{Block, FeedForward};
pub use dense::Dense;
pub use experts::{Experts, ExpertsConfig, Mlp, MlpConfig};
pub(crate) use init::{constant, normal, xavier};
pub use moe_layer::{MoeLayer, MoeLayerConfig, MoeOutput};
pub use norm::{LAYER_NORM_EPSILON, Norm};
