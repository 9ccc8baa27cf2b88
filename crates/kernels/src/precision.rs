//! What products are computed in.
//!
//! Products take the type of their rows, and weights and biases follow; so whoever makes rows [smaller](Precision::within)
//! says what a part of a model is computed in. Parameters, statistics, softmaxes and sums over experts stay in single
//! precision.

use std::{fmt, str::FromStr};

use burn::tensor::{DType, Device, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

use crate::devices::describe;

/// What products are computed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision: 24 bits.
    #[default]
    F32,
    /// 8 bits, as far as single precision reaches.
    Bf16,
    /// 11 bits, from 6e-8 to 65504.
    F16,
}

impl Precision {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    fn dtype(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
            Self::F16 => FloatDType::F16,
        }
    }

    /// The same values in this precision.
    pub fn cast<const R: usize>(self, x: Tensor<R>) -> Tensor<R> {
        x.cast(self.dtype())
    }

    /// What products make of `x` in this precision, in single precision again.
    pub fn within<const R: usize, const S: usize>(
        self,
        x: Tensor<R>,
        products: impl FnOnce(Tensor<R>) -> Tensor<S>,
    ) -> Tensor<S> {
        Self::F32.cast(products(self.cast(x)))
    }

    /// Fails where a device does not compute in it.
    pub fn check(self, device: &Device) -> Result<(), PrecisionError> {
        if self.is_on(device) {
            return Ok(());
        }
        let there = Self::ALL.into_iter().filter(|other| other.is_on(device)).collect();
        Err(PrecisionError { wanted: self, device: describe(device), there })
    }

    /// Whether a device computes in it.
    pub fn is_on(self, device: &Device) -> bool {
        self == Self::F32 || device.supports_dtype(self.dtype())
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| format!("no precision is called \"{text}\": f32, bf16, f16"))
    }
}

/// That a device does not compute in a precision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrecisionError {
    /// What was asked for.
    pub wanted: Precision,
    /// The device, as it can be said again, and what it calls itself.
    pub device: String,
    /// What it computes in.
    pub there: Vec<Precision>,
}

impl std::error::Error for PrecisionError {}

impl fmt::Display for PrecisionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, device, there } = self;
        let there: Vec<&str> = there.iter().map(|precision| precision.name()).collect();
        write!(f, "{device} does not compute in {wanted}: it has {}", there.join(" and "))
    }
}

/// Values of half precision in single precision; others as they are.
pub(crate) fn widened<const R: usize>(x: Tensor<R>) -> Tensor<R> {
    if is_half(&x) { Precision::F32.cast(x) } else { x }
}

pub(crate) fn is_half<const R: usize>(x: &Tensor<R>) -> bool {
    matches!(x.dtype(), DType::F16 | DType::BF16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes_in_all_of_them() {
        for precision in Precision::ALL {
            assert_eq!(precision.name().parse(), Ok(precision));
            precision.check(&Device::flex()).unwrap();
        }
        assert!("f64".parse::<Precision>().unwrap_err().contains("bf16"));
    }

    #[test]
    fn a_device_without_it_says_what_it_has() {
        let (device, there) = ("wgpu:0 (name)".to_owned(), vec![Precision::F32, Precision::F16]);
        let error = PrecisionError { wanted: Precision::Bf16, device, there };
        assert_eq!(error.to_string(), "wgpu:0 (name) does not compute in bf16: it has f32 and f16");
    }

    /// Gradients come back through the change of type, and parameters do not see it.
    #[test]
    fn gradients_are_in_single_precision() {
        let device = Device::flex().autodiff();
        for precision in [Precision::Bf16, Precision::F16] {
            let x = Tensor::<1>::from_floats([1.5, -2.0, 3.0], &device).require_grad();
            let y = precision.within(x.clone(), |x| {
                assert!(is_half(&x));
                x.clone() * x
            });
            assert_eq!(y.dtype(), DType::F32);
            let gradient = x.grad(&y.sum().backward()).unwrap();
            assert_eq!(gradient.dtype(), DType::F32);
            assert_eq!(gradient.try_into_vec_as::<f32>().unwrap(), [3.0, -4.0, 6.0]);
        }
    }
}
