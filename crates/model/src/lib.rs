//! Layers and models of vision mixtures of experts.
//!
//! The first inhabitant is [`MoeLayer`]: a router, its experts, and optionally an expert that every
//! token passes.

#![forbid(unsafe_code)]

mod experts;
mod init;
mod moe_layer;

pub use experts::{Experts, ExpertsConfig, Mlp, MlpConfig};
pub use moe_layer::{MoeLayer, MoeLayerConfig, MoeOutput};
pub use omma_kernels::Activation;
