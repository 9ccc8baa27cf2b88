//! Steps whose weights, gradients, averages and optimiser's memories stay on a device. A step brings its examples in
//! and takes a few numbers out: the loss, the norm of the gradient, and what routing is planned from. Copies are made
//! where a checkpoint is written, and where a run has diverged.
//!
//! With several ranks gradients go through the host, because that is where ranks meet.

use std::{borrow::Cow, time::Instant};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Gradients, Tensor},
};
use omma_model::VisionTransformer;
use omma_ranks::sum_over_shards;

use super::{
    Weights,
    divergence::Divergence,
    learner::Feed,
    step::GradientSum,
    stepper::{At, Stepper, Taken},
};
use crate::{
    error::Result,
    optimiser::{DeviceMemories, global_norm, read, row},
    resolved::Resolved,
};

/// What a stepper keeps on its device beside the model; nothing before its first step.
#[derive(Default)]
pub(super) struct OnDevice(Option<DeviceMemories>);

/// Gradients of the parameters that learn, in their order, a row each.
pub(crate) struct DeviceGradients(Vec<Tensor<1>>);

impl GradientSum for DeviceGradients {
    fn of(model: &VisionTransformer, gradients: &Gradients) -> Self {
        Self(rows(model, Some(gradients)))
    }

    fn add(&mut self, other: Self) {
        let sum = std::mem::take(&mut self.0).into_iter().zip(other.0);
        self.0 = sum.map(|(sum, other)| sum + other).collect();
    }
}

impl DeviceGradients {
    /// From a sum over equal parts to their mean: by how many they are, and how many times too large.
    fn divide(self, by: f64) -> Self {
        if by == 1.0 {
            return self;
        }
        let share = (1.0 / by) as f32;
        Self(self.0.into_iter().map(|gradient| gradient * share).collect())
    }

    fn on_host(&self) -> Vec<Vec<f32>> {
        self.0.iter().map(read).collect()
    }
}

/// The parameters of a model that learn, a row each, or their gradients; zeros for those without one.
fn rows(model: &VisionTransformer, gradients: Option<&Gradients>) -> Vec<Tensor<1>> {
    struct Collect<'a>(Option<&'a Gradients>, Vec<Tensor<1>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if !value.is_require_grad() {
                return;
            }
            let found = match self.0 {
                Some(gradients) => {
                    value.grad(gradients).unwrap_or_else(|| value.inner().zeros_like())
                }
                None => value.inner(),
            };
            self.1.push(found.reshape([-1]));
        }
    }
    let mut all = Collect(gradients, Vec::new());
    model.visit(&mut all);
    all.1
}

/// The parameters of a model that learn, on its device.
pub(super) fn learning_rows(model: &VisionTransformer) -> Vec<Tensor<1>> {
    rows(model, None)
}

/// The model with other values of the parameters that learn.
pub(super) fn with_rows(model: VisionTransformer, values: Vec<Tensor<1>>) -> VisionTransformer {
    struct Put(std::vec::IntoIter<Tensor<1>>);
    impl ModuleMapper for Put {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let value = param.val();
            if !value.is_require_grad() {
                return param;
            }
            let next = self.0.next().expect("a row for every parameter that learns");
            let next = Tensor::from_inner(next.reshape(value.dims())).require_grad();
            let (id, _, mapper) = param.consume();
            Param::from_mapped_value(id, next, mapper)
        }
    }
    model.map(&mut Put(values.into_iter()))
}

impl Stepper {
    /// Takes a step, on all ranks or on none.
    pub(super) fn step_on_device(
        &mut self,
        resolved: &Resolved,
        feed: &mut Feed,
        At { step, rate }: At,
        last_good: &dyn Fn() -> String,
    ) -> Result<Taken> {
        let recipe = &resolved.recipe;
        let parts = recipe.train.parts();
        let (facts, shards) = self.computed(resolved, feed, step, last_good)?;
        let begin = Instant::now();
        let gradients = self.over_all_shards(shards);
        let waited = begin.elapsed();
        let gradients = gradients.divide(parts as f64 * f64::from(self.scale()));
        let norm = f64::from(read(&global_norm(&gradients.0))[0]);
        if self.skips(facts.loss, norm) {
            return Ok(Taken { facts, norm, skipped: true, transfer: None, waited });
        }
        let limit = recipe.train.explosion * resolved.task.chance();
        if Divergence::is_one(facts.loss, norm, limit) {
            let (weights, gradients) = (self.host_weights(), gradients.on_host());
            Divergence {
                step: step + 1,
                loss: facts.loss,
                gradient_norm: norm,
                limit,
                weights: &weights,
                gradients: &gradients,
            }
            .check(last_good)?;
        }
        let device = self.device.clone().inner();
        let OnDevice(memories) = self.on_device.as_mut().expect("what steps on a device is there");
        let memories = memories.get_or_insert_with(|| {
            self.weights.values = Vec::new();
            self.optimiser.move_to(&device)
        });
        let values = learning_rows(&self.model);
        let values = self.optimiser.step_on_device(rate, memories, values, (gradients.0, norm));
        self.model = with_rows(self.model.clone(), values);
        Ok(Taken { facts, norm, skipped: false, transfer: None, waited })
    }

    /// The sum over the shards of all ranks.
    fn over_all_shards(&self, shards: Vec<DeviceGradients>) -> DeviceGradients {
        if !self.world.is_alone() {
            let shards = shards.iter().map(DeviceGradients::on_host).collect();
            let sum = sum_over_shards(&self.world, &self.share, shards);
            let device = self.device.clone().inner();
            return DeviceGradients(sum.into_iter().map(|sum| row(sum, &device)).collect());
        }
        let mut shards = shards.into_iter();
        let mut sum = shards.next().expect("a shard at least");
        shards.for_each(|shard| sum.add(shard));
        sum
    }

    /// Whether weights and memories are on a device, and not on the host.
    fn has_moved(&self) -> bool {
        self.on_device.as_ref().is_some_and(|OnDevice(memories)| memories.is_some())
    }

    /// The weights on the host, copied where they are not there.
    pub(super) fn host_weights(&self) -> Cow<'_, Weights> {
        match self.has_moved() {
            false => Cow::Borrowed(&self.weights),
            true => Cow::Owned(Weights {
                parameters: self.weights.parameters.clone(),
                values: learning_rows(&self.model).iter().map(read).collect(),
            }),
        }
    }

    /// Copies what the optimiser remembers to the host, and the weights where they are wanted, until they are
    /// [released](Self::release).
    pub(super) fn fetch(&mut self, weights: bool) {
        let Some(OnDevice(Some(memories))) = &self.on_device else { return };
        self.optimiser.fetch(memories);
        if weights {
            self.weights = self.host_weights().into_owned();
        }
    }

    /// Forgets what was fetched.
    pub(super) fn release(&mut self) {
        if self.has_moved() {
            self.optimiser.release();
            self.weights.values = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests;
