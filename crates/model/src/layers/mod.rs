//! The parts of a vision transformer, one file each.

mod attention;
mod batch_ensemble;
mod block;
mod embedding;
mod experts;
mod head;
mod init;
mod moe_layer;
mod norm;
mod pooling;
mod position;

pub use attention::Attention;
pub use batch_ensemble::BatchEnsembleMlp;
pub(crate) use block::tile;
pub use block::{Block, FeedForward};
pub use embedding::Embedding;
pub use experts::{Experts, ExpertsConfig, Mlp, MlpConfig};
pub use head::Dense;
pub use moe_layer::{MoeLayer, MoeLayerConfig, MoeOutput};
pub use norm::{LAYER_NORM_EPSILON, Norm};
pub use pooling::AttentionPooling;
pub(crate) use position::sincos2d;
