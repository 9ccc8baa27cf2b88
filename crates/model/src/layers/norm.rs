//! Layer normalisation.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_kernels::layer_norm;

use super::init::constant;

/// The same in vmoe, in ViT in JAX, in timm and in DINOv2.
pub const LAYER_NORM_EPSILON: f32 = 1e-6;

/// Layer normalisation with scale and shift.
#[derive(Module, Debug)]
pub struct Norm {
    /// `[D]`.
    pub gamma: Param<Tensor<1>>,
    /// `[D]`.
    pub beta: Param<Tensor<1>>,
}

impl Norm {
    /// Scale 1, shift 0.
    pub fn new(width: usize, device: &Device) -> Self {
        Self { gamma: constant([width], 1.0, device), beta: constant([width], 0.0, device) }
    }

    /// - `x`: `[..., D]`
    pub fn forward<const R: usize>(&self, x: Tensor<R>) -> Tensor<R> {
        layer_norm(x, self.gamma.val(), self.beta.val(), LAYER_NORM_EPSILON)
    }
}
