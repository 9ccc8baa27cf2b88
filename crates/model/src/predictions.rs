//! Predictions: one per member, averaged late.

use burn::tensor::{
    Int, Tensor,
    activation::{log_softmax, softmax},
};

/// The predictions of an ensemble's members, or of one model, which is an ensemble of one.
#[derive(Debug, Clone)]
pub struct Predictions {
    /// `[M, B, classes]`.
    pub logits: Tensor<3>,
}

impl Predictions {
    /// `[M, B, classes]`: what each member believes.
    pub fn member_probabilities(&self) -> Tensor<3> {
        softmax(self.logits.clone(), 2)
    }

    /// `[B, classes]`: the mean of the members' probabilities.
    pub fn probabilities(&self) -> Tensor<2> {
        let [_, batch, classes] = self.logits.dims();
        self.member_probabilities().mean_dim(0).reshape([batch, classes])
    }

    /// `[B, classes]`: the logarithm of the mean probability, safe where that is tiny.
    pub fn log_probabilities(&self) -> Tensor<2> {
        let [members, batch, classes] = self.logits.dims();
        let logs = log_softmax(self.logits.clone(), 2);
        let largest = logs.clone().max_dim(0); // [1, B, classes]
        let sum = (logs - largest.clone()).exp().sum_dim(0);
        (sum.log() + largest - (members as f64).ln()).reshape([batch, classes])
    }

    /// `[M, B]`: every member's cross-entropy against the same labels.
    pub fn member_losses(&self, labels: Tensor<1, Int>) -> Tensor<2> {
        let [members, batch, _] = self.logits.dims();
        let labels = labels.reshape([1, batch, 1]).expand([members, batch, 1]);
        -log_softmax(self.logits.clone(), 2).gather(2, labels).reshape([members, batch])
    }

    /// `[1]`: the mean of the members' cross-entropies (paper 000 App. C.1), which trains better than
    /// the cross-entropy of their mean.
    pub fn cross_entropy(&self, labels: Tensor<1, Int>) -> Tensor<1> {
        self.member_losses(labels).mean()
    }

    /// `[1]`: the same against soft targets, as mixup and label smoothing make them.
    ///
    /// - `targets`: `[M, B, classes]`, or `[1, B, classes]` for all members
    pub fn soft_cross_entropy(&self, targets: Tensor<3>) -> Tensor<1> {
        let [members, batch, _] = self.logits.dims();
        let logs = log_softmax(self.logits.clone(), 2);
        -(logs * targets).sum() / (members * batch) as f64
    }
}
