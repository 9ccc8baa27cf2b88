//! GELU in both forms and ReLU, and their derivatives.
//!
//! `gelu(x) = x · Φ(x)` with `Φ` the normal distribution function, or its tanh approximation. Against
//! double precision the error of either is at most `3e-7 · |x|`, two and a half times the machine
//! epsilon relative to `x`, and that of its derivative at most `2e-6`; see the tests. Where the result
//! itself is tiny, for inputs far below zero, this is no relative accuracy.

use serde::{Deserialize, Serialize};

use super::simd::{LANES, exp, multiply_add, multiversion, sum};

/// The nonlinearity of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// GELU by the error function (timm, DINOv2).
    GeluErf,
    /// GELU by tanh (vmoe, ViT in JAX).
    GeluTanh,
    /// What is above zero (paper 004 App. E.1).
    Relu,
}

impl Activation {
    /// `y = f(x + bias)` row by row; `x` keeps the biased input.
    ///
    /// - `x`, `y`: `[rows, width]`; `bias`: `[width]`
    pub(crate) fn forward_biased(self, x: &mut [f32], bias: &[f32], y: &mut [f32]) {
        for (x, y) in x.chunks_exact_mut(bias.len()).zip(y.chunks_exact_mut(bias.len())) {
            match self {
                Self::GeluErf => erf_biased(x, bias, y),
                Self::GeluTanh => tanh_biased(x, bias, y),
                Self::Relu => relu_biased(x, bias, y),
            }
        }
    }

    /// `x = f(x + bias)`, where nobody needs the input again.
    pub(crate) fn forward_biased_in_place(self, x: &mut [f32], bias: &[f32]) {
        /// Values at a time, in the first cache.
        const CHUNK: usize = 256;
        let mut activated = [0.0; CHUNK];
        for row in x.chunks_exact_mut(bias.len()) {
            for (x, bias) in row.chunks_mut(CHUNK).zip(bias.chunks(CHUNK)) {
                let activated = &mut activated[..x.len()];
                self.forward_biased(x, bias, activated);
                x.copy_from_slice(activated);
            }
        }
    }

    /// `y = f(x)`.
    pub(crate) fn forward(self, x: &[f32], y: &mut [f32]) {
        match self {
            Self::GeluErf => erf_forward(x, y),
            Self::GeluTanh => tanh_forward(x, y),
            Self::Relu => relu_forward(x, y),
        }
    }

    /// `y = f(x)` and `gradient *= f'(x)`; returns `Σ y · gradient` with the gradient as it came.
    pub(crate) fn backward(self, x: &[f32], y: &mut [f32], gradient: &mut [f32]) -> f32 {
        match self {
            Self::GeluErf => erf_backward(x, y, gradient),
            Self::GeluTanh => tanh_backward(x, y, gradient),
            Self::Relu => relu_backward(x, y, gradient),
        }
    }
}

multiversion! {
    fn tanh_biased(x: &mut [f32], bias: &[f32], y: &mut [f32]) {
        for ((x, bias), y) in x.iter_mut().zip(bias).zip(y) {
            *x += bias;
            *y = *x * tanh_probability::<FUSED>(*x).0;
        }
    }
}

multiversion! {
    fn erf_biased(x: &mut [f32], bias: &[f32], y: &mut [f32]) {
        for ((x, bias), y) in x.iter_mut().zip(bias).zip(y) {
            *x += bias;
            *y = *x * normal::<FUSED>(*x);
        }
    }
}

multiversion! {
    fn tanh_forward(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y = x * tanh_probability::<FUSED>(*x).0;
        }
    }
}

multiversion! {
    fn erf_forward(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y = x * normal::<FUSED>(*x);
        }
    }
}

/// `y = f(x)` and `gradient *= f'(x)` for the values and derivatives that `both` gives; returns `Σ y · gradient` with
/// the gradient as it came.
#[inline(always)]
fn backward<const FUSED: bool>(
    x: &[f32],
    y: &mut [f32],
    gradient: &mut [f32],
    both: impl Fn(f32) -> (f32, f32),
) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let one = |sum: &mut f32, x: f32, y: &mut f32, gradient: &mut f32| {
        let (value, slope) = both(x);
        *y = value;
        *sum = multiply_add::<FUSED>(value, *gradient, *sum);
        *gradient *= slope;
    };
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks_mut::<LANES>());
    let (gradient, gradient_rest) = gradient.as_chunks_mut::<LANES>();
    for ((x, y), gradient) in x.iter().zip(y).zip(gradient) {
        for (((sum, x), y), gradient) in sums.iter_mut().zip(x).zip(y).zip(gradient) {
            one(sum, *x, y, gradient);
        }
    }
    let rest = x_rest.iter().zip(y_rest).zip(gradient_rest);
    for (sum, ((x, y), gradient)) in sums.iter_mut().zip(rest) {
        one(sum, *x, y, gradient);
    }
    sum(sums)
}

multiversion! {
    fn tanh_backward(x: &[f32], y: &mut [f32], gradient: &mut [f32]) -> f32 {
        backward::<FUSED>(x, y, gradient, |x| {
            let (p, slope) = tanh_probability::<FUSED>(x);
            (x * p, multiply_add::<FUSED>(x, slope, p))
        })
    }
}

multiversion! {
    fn erf_backward(x: &[f32], y: &mut [f32], gradient: &mut [f32]) -> f32 {
        backward::<FUSED>(x, y, gradient, |x| {
            let p = normal::<FUSED>(x);
            (x * p, multiply_add::<FUSED>(x, density::<FUSED>(x), p))
        })
    }
}

multiversion! {
    fn relu_biased(x: &mut [f32], bias: &[f32], y: &mut [f32]) {
        for ((x, bias), y) in x.iter_mut().zip(bias).zip(y) {
            *x += bias;
            *y = if *x > 0.0 { *x } else { 0.0 };
        }
    }
}

multiversion! {
    fn relu_forward(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y = if *x > 0.0 { *x } else { 0.0 };
        }
    }
}

multiversion! {
    fn relu_backward(x: &[f32], y: &mut [f32], gradient: &mut [f32]) -> f32 {
        backward::<FUSED>(x, y, gradient, |x| if x > 0.0 { (x, 1.0) } else { (0.0, 0.0) })
    }
}

/// `½ (1 + tanh u) = 1 / (1 + e^(-2u))` with `u = √(2/π) (x + 0.044715 x³)`, and its derivative.
#[inline(always)]
fn tanh_probability<const FUSED: bool>(x: f32) -> (f32, f32) {
    const TWICE_ROOT: f32 = 1.595_769;
    const CUBE: f32 = 0.044_715;
    let square = x * x;
    let twice_u = TWICE_ROOT * x * multiply_add::<FUSED>(CUBE, square, 1.0);
    let e = exp::<FUSED>(-twice_u);
    let p = 1.0 / (1.0 + e);
    let slope = TWICE_ROOT * multiply_add::<FUSED>(3.0 * CUBE, square, 1.0);
    (p, p * (e * p) * slope)
}

/// `Φ(x) = ½ (1 + erf(x/√2))`, with the error function as a quotient of polynomials, the one that
/// Eigen uses for floats; past `±4√2` it is 0 or 1.
#[inline(always)]
fn normal<const FUSED: bool>(x: f32) -> f32 {
    const FURTHEST: f32 = 4.0;
    let z = (x * std::f32::consts::FRAC_1_SQRT_2).clamp(-FURTHEST, FURTHEST);
    let square = z * z;
    let mut p = -2.726_142_3e-10;
    for coefficient in [
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906_3e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ] {
        p = multiply_add::<FUSED>(p, square, coefficient);
    }
    let mut q = -1.456_607_2e-5;
    for coefficient in [-2.133_740_5e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2] {
        q = multiply_add::<FUSED>(q, square, coefficient);
    }
    let erf = z * p / q;
    let p = multiply_add::<FUSED>(0.5, erf, 0.5).clamp(0.0, 1.0);
    let p = if z >= FURTHEST { 1.0 } else { p };
    if z <= -FURTHEST { 0.0 } else { p }
}

/// The density of the normal distribution.
#[inline(always)]
fn density<const FUSED: bool>(x: f32) -> f32 {
    const INVERSE_ROOT_TWO_PI: f32 = 0.398_942_3;
    INVERSE_ROOT_TWO_PI * exp::<FUSED>(-0.5 * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `erf` by its series and its continued fraction, in double precision.
    fn erfc(z: f64) -> f64 {
        if z < 0.0 {
            return 2.0 - erfc(-z);
        }
        if z < 2.5 {
            let (mut term, mut sum) = (z, z);
            for n in 1..200 {
                term *= -z * z / n as f64;
                sum += term / (2 * n + 1) as f64;
            }
            1.0 - sum * 2.0 / std::f64::consts::PI.sqrt()
        } else {
            let fraction = (1..120).rev().fold(0.0, |tail, n| n as f64 / 2.0 / (z + tail));
            (-z * z).exp() / (z + fraction) / std::f64::consts::PI.sqrt()
        }
    }

    fn reference(activation: Activation, x: f64) -> (f64, f64) {
        match activation {
            Activation::GeluErf => {
                let p = 0.5 * erfc(-x / std::f64::consts::SQRT_2);
                let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
                (x * p, p + x * density)
            }
            Activation::GeluTanh => {
                let root = (2.0 / std::f64::consts::PI).sqrt();
                let u = root * (x + 0.044715 * x * x * x);
                let p = 0.5 * (1.0 + u.tanh());
                let slope = 0.5 * (1.0 - u.tanh().powi(2)) * root * (1.0 + 3.0 * 0.044715 * x * x);
                (x * p, p + x * slope)
            }
            Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        }
    }

    #[test]
    fn all_forms_agree_with_double_precision() {
        for activation in [Activation::GeluErf, Activation::GeluTanh, Activation::Relu] {
            let x: Vec<f32> = (-120_000..=120_000).map(|i| i as f32 * 1e-4).collect();
            let (mut y, mut gradient) = (vec![0.0; x.len()], vec![1.0; x.len()]);
            activation.backward(&x, &mut y, &mut gradient);
            let mut again = vec![0.0; x.len()];
            activation.forward(&x, &mut again);
            assert_eq!(y, again);
            let (mut worst, mut worst_slope) = (0.0_f64, 0.0_f64);
            for ((x, y), slope) in x.iter().zip(&y).zip(&gradient) {
                let (expected, expected_slope) = reference(activation, f64::from(*x));
                worst = worst.max((f64::from(*y) - expected).abs() / f64::from(x.abs().max(1e-30)));
                worst_slope = worst_slope.max((f64::from(*slope) - expected_slope).abs());
            }
            assert!(worst <= 3e-7, "{activation:?}: {worst}");
            assert!(worst_slope <= 2e-6, "{activation:?}: slope {worst_slope}");
        }
    }

    #[test]
    fn far_from_zero_it_is_the_identity_or_nothing() {
        for activation in [Activation::GeluErf, Activation::GeluTanh] {
            let x = [-1e4, -50.0, 50.0, 1e4];
            let mut y = [0.0; 4];
            activation.forward(&x, &mut y);
            assert!(y[..2].iter().all(|y| y.abs() < 1e-30), "{activation:?}: {y:?}");
            assert_eq!(y[2..], [50.0, 1e4], "{activation:?}");
        }
    }
}
