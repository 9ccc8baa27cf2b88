//! One forward and backward pass.

use burn::tensor::{Gradients, Tensor};
use omma_base::transfer;
use omma_eval::routing::RoutingTally;
use omma_model::VisionTransformer;
use serde::{Deserialize, Serialize};

use super::{Learner, weights::gradients};
use crate::task::{Forward, TaskScores};

/// What a pass found.
pub(crate) struct Pass<G = Vec<Vec<f32>>> {
    /// Everything but the gradients.
    pub(crate) facts: Facts,
    /// Gradients of the loss, in the order of the parameters that learn.
    pub(crate) gradients: G,
}

/// Gradients of the parameters that learn, where they are added up: on the host, or on a device.
pub(crate) trait GradientSum: Send {
    /// Those of one pass.
    fn of(model: &VisionTransformer, gradients: &Gradients) -> Self;

    /// Adds those of another part.
    fn add(&mut self, other: Self);
}

impl GradientSum for Vec<Vec<f32>> {
    fn of(model: &VisionTransformer, all: &Gradients) -> Self {
        gradients(model, all)
    }

    fn add(&mut self, other: Self) {
        add_gradients(self, &other);
    }
}

/// What a pass found beside its gradients; a sum over several passes of a step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Examples in it.
    pub(crate) examples: usize,
    /// Sums over the examples.
    pub(crate) scores: TaskScores,
    /// Mean loss with the routers' own losses.
    pub(crate) loss: f64,
    /// The routers' own part of it.
    pub(crate) auxiliary_loss: f64,
    /// Where the tokens went.
    pub(crate) routing: RoutingTally,
}

/// Runs what went forwards backwards.
///
/// - `scale`: how many times as large as the loss' own the gradients are to be
pub(crate) fn pass<G: GradientSum>(learner: &Learner, forward: Forward, scale: f32) -> Pass<G> {
    let Forward { examples, loss, value, auxiliary_loss, scores, routings } = forward;
    let routing = RoutingTally::of(&routings);
    let number = |loss: Tensor<1>| {
        let number = loss.into_scalar::<f32>();
        transfer::fetched(&[number]);
        f64::from(number)
    };
    let own = auxiliary_loss.clone().map(Tensor::inner);
    let loss = match auxiliary_loss {
        Some(auxiliary) => loss + auxiliary,
        None => loss,
    };
    let whole = loss.clone().inner();
    let loss = if scale == 1.0 { loss } else { loss * scale };
    let gradients = loss.backward();
    learner.let_leave(&gradients);
    let gradients = G::of(learner.model(), &gradients);
    // A device has everything to do by now, and is not waited for before.
    let own = own.map_or(0.0, number);
    let value = value.map_or_else(|| number(whole), |value| value + own);
    Pass { facts: Facts { examples, scores, loss: value, auxiliary_loss: own, routing }, gradients }
}

/// Adds gradients of the same parameters.
pub(crate) fn add_gradients(sum: &mut [Vec<f32>], other: &[Vec<f32>]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        sum.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    }
}

/// From a sum over equal parts to their mean: by how many they are, and how many times too large.
pub(crate) fn divide_gradients(sum: &mut [Vec<f32>], by: f64) {
    if by != 1.0 {
        let share = (1.0 / by) as f32;
        sum.iter_mut().flatten().for_each(|g| *g *= share);
    }
}

impl Facts {
    /// Adds those of another part of the same step.
    pub(crate) fn add(&mut self, other: Self) {
        self.examples += other.examples;
        self.scores.add(&other.scores);
        self.loss += other.loss;
        self.auxiliary_loss += other.auxiliary_loss;
        self.routing.add(other.routing);
    }

    /// From a sum over equal parts to their mean.
    pub(crate) fn divide(&mut self, parts: usize) {
        if parts > 1 {
            let share = 1.0 / parts as f64;
            self.loss *= share;
            self.auxiliary_loss *= share;
        }
    }
}
