//! Fused CPU operations with hand-written gradients for vision mixtures of experts.
//!
//! Every operation exists twice: fused, for Burn's Flex backend on the CPU, and as a
//! [portable twin](portable) made of plain Burn operations, for every other device. The functions at
//! the root of this crate pick the fused form where it can run; calling code does not know which one
//! ran, and tests hold both to the same values and gradients.
//!
//! | function | what it fuses |
//! |---|---|
//! | [`expert_mlp`] | gather, two products, biases, activation, dropout, weighting, scatter-add, for all experts |
//! | [`to_experts`], [`from_experts`] | gather, travel between processes, weighting, scatter-add; on the CPU alone |
//! | [`soft_moe`] | slots, experts, mixing, optionally for some experts of every image only ([`mix`] around [`expert_mlp`]) |
//! | [`mix`] | the products of tokens and slots with their weights, group by group |
//! | [`mlp`] | two products with biases and activation |
//! | [`linear`] | product and bias |
//! | [`layer_norm`] | statistics, normalisation and affine map |
//! | [`self_attention`], [`attention`] | scores, softmax, mixing, without a tensor of scores |
//! | [`activate`] | GELU in both forms and ReLU, vectorised |
//!
//! # Machines
//!
//! Vector instructions are chosen at run time (AVX-512, AVX2, or what every machine has). Products are
//! packed for these vectors (`cpu/product`); where there is no AVX2, and everywhere with
//! `OMMA_PRODUCTS=library`, they come from the `gemm` crate. Tasks run on rayon's pool, whose size
//! follows the CPUs that the process may use and `RAYON_NUM_THREADS`. Any number of threads gives the
//! same bits, except by the library, whose products are cut differently.
//!
//! [`devices`] says which other devices there are, by the Cargo features `cuda`, `wgpu`, `metal` and `vulkan`.
//!
//! Programs that predict pack a model's weights once with [`PackedWeights`]; programs that train should
//! use [`memory::Allocator`].
//!
//! This is the only crate of the workspace with `unsafe` code: the products, the calls of functions
//! compiled for a detected instruction set, and the allocator.

mod activate;
mod attention;
mod cpu;
pub mod devices;
mod exchange;
mod expert_mlp;
mod fused;
mod layer_norm;
mod linear;
pub mod memory;
mod mixing;
mod mlp;
pub mod on_device;
mod packed_weights;
pub mod portable;
mod precision;
mod soft_moe;
mod tap;

pub use activate::activate;
pub use attention::{attention, self_attention};
pub use cpu::{
    activation::Activation,
    dropout::{Dropout, Origin},
};
pub use exchange::{Exchange, Journey, from_experts, to_experts};
pub use expert_mlp::{Dispatch, ExpertParameters, expert_mlp};
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use mixing::{Mixing, mix};
pub use mlp::mlp;
pub use packed_weights::PackedWeights;
/// Multiplies by the mask of a [`Dropout`]; the same everywhere, no fused form.
pub use portable::dropout;
pub use precision::{Precision, PrecisionError};
pub use soft_moe::{soft_moe, soft_moe_by};
pub use tap::{Listener, tap};
