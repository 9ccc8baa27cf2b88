//! A plain linear layer: the classifier, and the representation in front of it.

use burn::{
    module::{Module, Param},
    tensor::{Device, Tensor},
};
use omma_base::Seed;
use omma_kernels::linear;

use super::init::{constant, xavier};

/// `x · weight + bias`.
#[derive(Module, Debug)]
pub struct Dense {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Param<Tensor<1>>,
}

impl Dense {
    /// Zeros, so that a fresh classifier is undecided.
    pub fn zeros(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            weight: constant([inputs, outputs], 0.0, device),
            bias: constant([outputs], 0.0, device),
        }
    }

    /// Xavier uniform, bias 0.
    pub fn new(inputs: usize, outputs: usize, seed: Seed, device: &Device) -> Self {
        let weight = xavier([inputs, outputs], (inputs, outputs), seed, device);
        Self { weight, ..Self::zeros(inputs, outputs, device) }
    }

    /// - `x`: `[..., inputs]`
    /// - returns: `[..., outputs]`
    pub fn forward<const R: usize>(&self, x: Tensor<R>) -> Tensor<R> {
        linear(x, self.weight.val(), Some(self.bias.val()))
    }
}
