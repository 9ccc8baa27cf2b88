//! A number from several seeds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Mean and standard error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error, `s / √n`; nothing for one value.
    pub standard_error: Option<f64>,
    /// Values, `n`.
    pub count: usize,
}

impl Estimate {
    /// Of values from different seeds.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let standard_error =
            (count > 1).then(|| (squares / (count - 1) as f64 / count as f64).sqrt());
        Self { mean, standard_error, count }
    }

    /// The same in another unit.
    pub fn times(self, factor: f64) -> Self {
        let standard_error = self.standard_error.map(|error| error * factor);
        Self { mean: self.mean * factor, standard_error, ..self }
    }
}

/// `{:.2}` gives `1.23 ± 0.04`.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let digits = f.precision().unwrap_or(3);
        write!(f, "{:.digits$}", self.mean)?;
        match self.standard_error {
            Some(error) => write!(f, " ± {error:.digits$}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_the_mean() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
        assert_eq!(estimate.mean, 2.0);
        assert!((estimate.standard_error.unwrap() - 1.0 / 3_f64.sqrt()).abs() < 1e-12);
        assert_eq!(format!("{:.2}", estimate.times(10.0)), "20.00 ± 5.77");
        assert_eq!(format!("{:.1}", Estimate::of(&[4.0])), "4.0");
    }
}
