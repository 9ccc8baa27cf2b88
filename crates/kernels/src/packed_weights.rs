//! Weights that do not change any more, packed once.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use burn::{
    backend::{DType, Flex, TensorMetadata, flex::FlexTensor},
    tensor::Tensor,
};

use crate::cpu::product::Kept;

/// The weights of a model that only predicts, packed for products when they are first used.
///
/// Every product packs its right operand in the order in which the machine reads it. Weights that learn
/// are packed anew in every step; those of a loaded model need it once. What runs inside
/// [`PackedWeights::using`] takes the panels of the weights that were [added](PackedWeights::add), for
/// as much memory again. Results have the same bits with and without.
#[derive(Debug, Default)]
pub struct PackedWeights {
    /// By the place of their values, which nobody else can have: the tensors are held.
    by_address: HashMap<usize, (FlexTensor, Arc<Kept>)>,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<PackedWeights>>> = const { RefCell::new(None) };
}

impl PackedWeights {
    /// Adds matrices, `[inputs, outputs]` or `[experts, inputs, outputs]`. Anything else, or on another device,
    /// is passed over.
    pub fn add<const R: usize>(&mut self, weights: &Tensor<R>) {
        if !(2..=3).contains(&R) || weights.dtype() != DType::F32 || weights.is_autodiff() {
            return;
        }
        let Ok(weights) = weights.clone().try_into_primitive::<Flex>() else { return };
        if weights.is_contiguous() && weights.shape().num_elements() > 0 {
            let matrices = weights.shape()[..R - 2].iter().product();
            let kept = Arc::new(Kept::new(matrices));
            self.by_address.insert(address(weights.storage()), (weights, kept));
        }
    }

    /// Runs something, on this thread, that may multiply by these weights.
    pub fn using<T>(self: &Arc<Self>, run: impl FnOnce() -> T) -> T {
        /// Puts back who was there before, also when `run` panics.
        struct Before(Option<Arc<PackedWeights>>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(Some(self.clone())));
        run()
    }
}

/// What keeps the panels of these weights, if they are of those that this thread is [using].
///
/// [using]: PackedWeights::using
pub(crate) fn kept(weights: &[f32]) -> Option<Arc<Kept>> {
    CURRENT.with_borrow(|current| {
        let (tensor, kept) = current.as_ref()?.by_address.get(&address(weights))?;
        (tensor.shape().num_elements() == weights.len()).then(|| kept.clone())
    })
}

fn address(values: &[f32]) -> usize {
    values.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;
    use crate::{Activation, linear, mlp};

    #[test]
    fn kept_panels_give_the_same_bits_and_are_packed_once() {
        let device = Device::flex();
        let random = |shape| Tensor::<2>::random(shape, Distribution::Default, &device);
        let (x, up, down) = (random([37, 50]), random([50, 70]), random([70, 50]));
        let [up_bias, down_bias] = [70, 50].map(|n| random([1, n]).flatten::<1>(0, 1));
        let run = || {
            let mlp = mlp(
                x.clone(),
                (up.clone(), up_bias.clone()),
                (down.clone(), down_bias.clone()),
                Activation::GeluErf,
                None,
            );
            linear(mlp, up.clone(), None).into_data()
        };
        let mut weights = PackedWeights::default();
        weights.add(&up);
        weights.add(&down);
        let weights = Arc::new(weights);
        let panels = |weights: &PackedWeights| {
            let kept = weights.by_address.values().map(|(_, kept)| kept.packed().count());
            kept.sum::<usize>()
        };
        let plain = run();
        assert_eq!(panels(&weights), 0);
        for _ in 0..2 {
            assert_eq!(weights.using(run), plain);
            assert_eq!(panels(&weights), 2);
        }
        assert!(CURRENT.with_borrow(Option::is_none));
    }

    #[test]
    fn weights_that_were_not_added_are_not_kept() {
        let device = Device::flex();
        let [one, other] = [2.0, 3.0].map(|value| Tensor::<2>::full([20, 20], value, &device));
        let mut weights = PackedWeights::default();
        weights.add(&one);
        let weights = Arc::new(weights);
        let x = Tensor::<2>::ones([1, 20], &device);
        let y = weights.using(|| linear(x, other, None)).into_data();
        assert!(y.iter::<f32>().all(|value| value == 60.0));
        assert!(weights.by_address.values().all(|(_, kept)| kept.packed().count() == 0));
    }
}
