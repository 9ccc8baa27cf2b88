//! One forward and backward pass.

use omma_eval::routing::RoutingTally;

use super::{Learner, weights::gradients};
use crate::task::{Forward, TaskScores};

/// What a pass found.
pub(crate) struct Pass {
    /// Examples in it.
    pub(crate) examples: usize,
    /// Sums over the examples.
    pub(crate) scores: TaskScores,
    /// Mean loss with the routers' own losses.
    pub(crate) loss: f64,
    /// The routers' own part of it.
    pub(crate) auxiliary_loss: f64,
    /// Gradients of the loss, in the order of the parameters that learn.
    pub(crate) gradients: Vec<Vec<f32>>,
    /// Where the tokens went.
    pub(crate) routing: RoutingTally,
}

/// Runs what went forwards backwards.
pub(crate) fn pass(learner: &Learner, forward: Forward) -> Pass {
    let Forward { examples, loss, value, auxiliary_loss, scores, routings } = forward;
    let routing = RoutingTally::of(&routings);
    let own = auxiliary_loss.clone().map_or(0.0, |loss| f64::from(loss.into_scalar::<f32>()));
    let loss = match auxiliary_loss {
        Some(auxiliary) => loss + auxiliary,
        None => loss,
    };
    let value = match value {
        Some(value) => value + own,
        None => f64::from(loss.clone().into_scalar::<f32>()),
    };
    let gradients = gradients(learner.model(), &loss.backward());
    Pass { examples, scores, loss: value, auxiliary_loss: own, gradients, routing }
}

impl Pass {
    /// Adds the pass of another part of the same step.
    pub(crate) fn add(&mut self, other: Self) {
        self.examples += other.examples;
        self.scores.add(&other.scores);
        self.loss += other.loss;
        self.auxiliary_loss += other.auxiliary_loss;
        self.routing.add(other.routing);
        for (own, other) in self.gradients.iter_mut().zip(other.gradients) {
            own.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        }
    }

    /// From a sum over equal parts to their mean.
    pub(crate) fn divide(&mut self, parts: usize) {
        if parts > 1 {
            let share = 1.0 / parts as f64;
            self.loss *= share;
            self.auxiliary_loss *= share;
            self.gradients.iter_mut().flatten().for_each(|g| *g *= share as f32);
        }
    }
}
