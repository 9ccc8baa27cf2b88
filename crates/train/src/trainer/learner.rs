//! A model that learns, and what it learns from.

use std::sync::Arc;

use burn::{
    module::Module,
    tensor::{Device, Gradients, Tensor, TensorData},
};
use omma_base::{Resolution, transfer};
use omma_data::{Batch, Targets, TrainLoader};
use omma_model::{Mode, ModelConfig, Output, VisionTransformer};

use super::early::Outlet;
use crate::{activations::ActivationLoader, error::Result, freezing::Freezing};

/// A part of a step: what goes in, and what is to come out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Examples {
    pub(crate) input: Input,
    pub(crate) targets: Targets,
}

/// What goes into a model in training.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Input {
    /// Images from the start.
    Pixels {
        /// `[B, H, W, 3]`, normalised.
        values: Vec<f32>,
        resolution: Resolution,
    },
    /// What the frozen trunk has made of them.
    Tokens {
        values: Vec<f32>,
        /// `B`, `T` and `D`.
        shape: [usize; 3],
    },
}

impl From<Batch> for Examples {
    fn from(batch: Batch) -> Self {
        let Batch { pixels: values, targets, resolution, .. } = batch;
        Self { input: Input::Pixels { values, resolution }, targets }
    }
}

/// Where examples come from, without an end.
pub(crate) enum Feed {
    Images(TrainLoader),
    Activations(ActivationLoader),
}

impl Feed {
    pub(crate) fn next(&mut self) -> Result<Examples> {
        match self {
            Self::Images(loader) => Ok(loader.next_batch()?.into()),
            Self::Activations(loader) => loader.next_batch(),
        }
    }
}

/// A model whose weights are leaves of a graph of its own. Below its first block that learns it is run
/// without one, as in predictions: what is frozen neither drops nor is drawn.
pub(crate) struct Learner {
    model: VisionTransformer,
    /// Its first block above the trunk, and the model without gradients.
    trunk: Option<(usize, VisionTransformer)>,
    /// Where its gradients go before a backward pass is done, if they do.
    outlet: Option<Arc<Outlet>>,
}

/// The same as a tensor.
pub(crate) enum InputTensor {
    /// `[B, H, W, 3]`
    Images(Tensor<4>),
    /// `[B, T, D]`, in front of the first block that learns.
    Trunk(Tensor<3>),
}

impl Input {
    /// On a device.
    pub(crate) fn tensor(self, device: &Device) -> InputTensor {
        match self {
            Self::Pixels { values, resolution } => {
                let Resolution { height, width } = resolution;
                let count = values.len() / (resolution.pixels() * 3).max(1);
                transfer::brought(&values);
                let data = TensorData::new(values, [count, height, width, 3]);
                InputTensor::Images(Tensor::from_data(data, device))
            }
            Self::Tokens { values, shape } => {
                transfer::brought(&values);
                InputTensor::Trunk(Tensor::from_data(TensorData::new(values, shape), device))
            }
        }
    }
}

impl Learner {
    /// The same weights in memory as leaves of another graph: graphs that share a leaf wait for each other.
    pub(crate) fn of(model: &VisionTransformer, freezing: &Freezing) -> Self {
        let plain = model.clone().valid();
        let trunk = freezing.trunk.map(|first| (first, plain.clone()));
        Self { model: plain.train(), trunk, outlet: None }
    }

    /// The same with gradients that leave as soon as they are there.
    pub(crate) fn leaving_by(self, outlet: Option<Arc<Outlet>>) -> Self {
        match outlet {
            Some(outlet) => {
                let model = self.model.heard_by(outlet.clone());
                Self { model, outlet: Some(outlet), ..self }
            }
            None => self,
        }
    }

    /// Lets the gradients of a backward pass leave that have not yet, where they do.
    pub(super) fn let_leave(&self, gradients: &Gradients) {
        if let Some(outlet) = &self.outlet {
            outlet.leave_rest(&self.model, gradients);
        }
    }

    /// What the model is.
    pub(crate) fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// The model with gradients.
    pub(crate) fn model(&self) -> &VisionTransformer {
        &self.model
    }

    /// A training pass.
    pub(crate) fn forward(&self, input: InputTensor, mode: &Mode) -> Result<Output> {
        let (first, tokens) = match (input, &self.trunk) {
            (InputTensor::Images(images), None) => return Ok(self.model.forward(images, mode)?),
            (InputTensor::Images(images), Some((first, plain))) => {
                (*first, Tensor::from_inner(plain.trunk(*first, images.inner())?))
            }
            (InputTensor::Trunk(tokens), trunk) => {
                (trunk.as_ref().map_or(0, |(first, _)| *first), tokens)
            }
        };
        Ok(self.model.forward_from(first, tokens, mode)?)
    }
}
