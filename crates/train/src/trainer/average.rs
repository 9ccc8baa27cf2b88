//! An exponential moving average of the weights.

use rayon::prelude::*;

/// Averages of all parameters. Early steps count more, so that the start is forgotten quickly: the
/// decay at step `t` is at most `(1 + t) / (10 + t)`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Average {
    /// The longest decay.
    pub(crate) decay: f64,
    /// The averages, in the order of the parameters.
    pub(crate) values: Vec<Vec<f32>>,
}

impl Average {
    /// Starts at the given values.
    pub(crate) fn new(decay: f64, values: &[Vec<f32>]) -> Self {
        Self { decay, values: values.to_vec() }
    }

    /// Moves towards the values after step `step`, counted from 1.
    pub(crate) fn follow(&mut self, step: u64, values: &[Vec<f32>]) {
        let step = step as f64;
        let rest = (1.0 - self.decay.min((1.0 + step) / (10.0 + step))) as f32;
        self.values.par_iter_mut().zip(values).for_each(|(average, values)| {
            average.iter_mut().zip(values).for_each(|(a, v)| *a += rest * (v - *a));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_forgets_its_start() {
        let mut average = Average::new(0.9, &[vec![100.0]]);
        (1..200).for_each(|step| average.follow(step, &[vec![1.0]]));
        assert!((average.values[0][0] - 1.0).abs() < 1e-3);
    }

    #[test]
    fn late_steps_have_the_decay_that_was_asked_for() {
        let mut average = Average::new(0.5, &[vec![0.0]]);
        average.follow(1000, &[vec![1.0]]);
        assert_eq!(average.values[0][0], 0.5);
    }
}
