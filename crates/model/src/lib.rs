//! Layers, models, checkpoints and costs of vision mixtures of experts.
//!
//! One module, [`VisionTransformer`], is every system of the papers; which one it is says its
//! [`ModelConfig`], and a [`preset`] is a named value of that.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use omma_model::{Mode, apply_settings, preset};
//! use omma_base::Seed;
//!
//! // E³ with two members on a model that a laptop trains.
//! let config = apply_settings(&preset("e3-tiny")?, &["classes=100", "depth=4"])?;
//! let model = config.init(Seed::new(1), &Device::flex())?;
//! let images = Tensor::zeros([3, 32, 32, 3], &Device::flex());
//! let output = model.forward(images, &Mode::Inference)?;
//! assert_eq!(output.predictions.logits.dims(), [2, 3, 100]); // [members, batch, classes]
//! # Ok::<(), omma_model::ModelError>(())
//! ```
//!
//! | folder | room for |
//! |---|---|
//! | `config/` | what a model is: sizes, placement, presets, `key=value` settings |
//! | `inputs/` | what becomes tokens: patches of images, words of texts |
//! | `encoder.rs`, `layers/` | what tokens pass: blocks and their parts, one file each |
//! | `early.rs` | gradients that leave a backward pass before its end |
//! | `heads/` | what tokens become: a classifier's predictions, vectors of images and texts |
//! | `pairs.rs`, `contrast.rs` | images and texts as vectors in one space, and the losses of pairs |
//! | `systems/` | what goes around a model: deep ensembles, upcycling, adaptation, pruning |
//! | `checkpoint/` | our files: names, checksums, atomic writes |
//! | `import/` | other people's files: readers, tables of names, their definitions |
//! | `cost/` | parameters and FLOPs from the configuration alone |

#![forbid(unsafe_code)]

/// What the README shows compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

pub mod checkpoint;
pub mod cost;
pub mod import;
pub mod systems;

mod config;
mod contrast;
mod early;
mod encoder;
mod error;
mod heads;
mod inputs;
mod layers;
mod mode;
mod pairs;
mod parameters;
mod precision;
mod predictions;
mod spread;
mod tensors;
mod vit;

pub use config::{
    BatchEnsembleConfig, BlockPruning, ClassifierConfig, ContrastConfig, EncoderConfig,
    ExpertStart, FastWeights, FeedForwardKind, HeadConfig, ImageConfig, Margin, MimoConfig,
    ModelConfig, MoeConfig, Normalisation, PRESETS, Padding, Placement, Pooling, Position,
    ScaleForm, SegmenterConfig, TextConfig, TextPooling, Tiling, apply_settings, apply_value,
    full_name, precedence, preset, short_name,
};
pub use contrast::{sigmoid_contrast, similarities, softmax_contrast};
pub use encoder::{Encoded, Encoder, Stage};
pub use error::{ModelError, Result};
pub use heads::{
    AttentionPooling, Classifier, Contrast, Head, Projection, Segmenter, interpolated,
    pixel_cross_entropy, upsampled,
};
pub use inputs::{PatchEmbedding, TextTower};
pub use layers::{
    Attention, BatchEnsembleMlp, Block, Dense, ExpertGroup, Experts, ExpertsConfig, FeedForward,
    LAYER_NORM_EPSILON, Mlp, MlpConfig, MoeLayer, MoeLayerConfig, MoeOutput, Norm, SharedMatrices,
};
pub use mode::Mode;
pub use omma_kernels::Activation;
pub use omma_kernels::{PackedWeights, Precision};
pub use pairs::{Embedded, Pairs, TEXTS, text_tensor};
pub use parameters::{
    Parameter, ParameterValues, frozen, packed_weights, parameter_values, parameters, with_values,
};
pub use predictions::Predictions;
pub use spread::{ExpertSlice, experts_of_rank};
pub use tensors::{FloatType, TensorInfo, TensorSource, open_tensors};
pub use vit::{IMAGES, Output, VisionTransformer};
