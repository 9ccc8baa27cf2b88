//! Gradients of parameters that somebody wants as soon as a backward pass has them.

use std::{fmt::Debug, sync::Arc};

use burn::tensor::Tensor;

use crate::fused::{Array, FusedOp, Input, apply};

/// Who wants gradients.
pub trait Listener: Debug + Send + Sync {
    /// The gradient of a parameter is complete. The backward pass that has found it goes on when this returns.
    fn hear(&self, parameter: usize, gradient: &[f32]);
}

/// The same parameter, whose gradient goes to a listener instead of into the graph, as soon as the backward pass is done
/// with what was computed behind a tensor: Burn goes backwards by depth, where a parameter by itself comes last.
///
/// - `parameter`: all its uses that have a gradient must be of what is returned
/// - `number`: what the listener knows it by
/// - `behind`: a tensor that the first use is computed with
///
/// On other devices than the CPU the parameter stays as it is.
pub fn tap<const D: usize, const E: usize>(
    parameter: Tensor<D>,
    number: usize,
    behind: &Tensor<E>,
    listener: Arc<dyn Listener>,
) -> Tensor<D> {
    let inputs = [Input::new(&parameter), Input::new(behind)];
    apply(&Tap { number, listener }, inputs).unwrap_or(parameter)
}

#[derive(Debug, Clone)]
struct Tap {
    number: usize,
    listener: Arc<dyn Listener>,
}

impl FusedOp<2> for Tap {
    type Saved = ();

    fn forward(&self, [parameter, _]: [Array; 2], _: bool) -> (Array, Option<()>) {
        (parameter, Some(()))
    }

    fn backward(&self, (): (), gradient: Array, _: [bool; 2]) -> [Option<Array>; 2] {
        self.listener.hear(self.number, gradient.values());
        [None, None]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use burn::tensor::Device;

    use super::*;

    #[derive(Debug, Default)]
    struct Heard(Mutex<Vec<(usize, Vec<f32>)>>);

    impl Listener for Heard {
        fn hear(&self, parameter: usize, gradient: &[f32]) {
            let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            heard.push((parameter, gradient.to_vec()));
        }
    }

    /// `y = (x · a + a) · b`, backwards: those of `b` come before those of `a`, and the input gets its own.
    #[test]
    fn gradients_are_heard_once_each_from_the_last_layer_to_the_first() {
        let device = Device::flex().autodiff();
        let leaf = |values: [f32; 2]| Tensor::<1>::from_floats(values, &device).require_grad();
        let (x, a, b) = (leaf([1.0, 2.0]), leaf([3.0, 4.0]), leaf([5.0, 6.0]));
        let heard = Arc::new(Heard::default());
        let first = tap(a.clone(), 0, &x, heard.clone());
        let hidden = x.clone() * first.clone() + first;
        let second = tap(b.clone(), 1, &hidden, heard.clone());
        let gradients = (hidden * second).sum().backward();
        let heard = heard.0.lock().unwrap();
        assert_eq!(*heard, [(1, vec![6.0, 12.0]), (0, vec![10.0, 18.0])]);
        let of_x: Vec<f32> = x.grad(&gradients).unwrap().try_into_vec_as().unwrap();
        assert_eq!(of_x, [15.0, 24.0]);
        assert!(a.grad(&gradients).is_none() && b.grad(&gradients).is_none());
    }
}
