//! One source, several instruction sets.
//!
//! [`multiversion!`] compiles a function several times, for the widest vectors of this machine, for
//! AVX2, and for whatever every machine of this kind has, and picks one at run time. The bodies are
//! plain loops without branches, which the compiler turns into vector code. Only [`multiply_add`] is
//! fused, where the machine can, so all versions but that for every machine round alike.

use std::sync::OnceLock;

/// The instruction set that [`multiversion!`] functions use on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// What every machine of this architecture has.
    Baseline,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, VL and DQ.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The best of this machine, detected once.
#[inline]
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(detected)
}

fn detected() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        if avx2 && avx512 {
            return Level::Avx512;
        }
        if avx2 {
            return Level::Avx2;
        }
    }
    Level::Baseline
}

/// Declares a function that is compiled for every [`Level`] and called at the best one. Its body may ask
/// whether the level has fused multiply-adds, `FUSED`.
macro_rules! multiversion {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block) => {
        $(#[$meta])*
        $visibility fn $name($($argument: $type),*) $(-> $output)? {
            #[inline(always)]
            fn generic<const FUSED: bool>($($argument: $type),*) $(-> $output)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),*) $(-> $output)? { generic::<true>($($argument),*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
            fn avx512($($argument: $type),*) $(-> $output)? { generic::<true>($($argument),*) }

            match $crate::cpu::simd::level() {
                $crate::cpu::simd::Level::Baseline => generic::<false>($($argument),*),
                // SAFETY: the level says that this machine has the features.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::simd::Level::Avx2 => unsafe { avx2($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::simd::Level::Avx512 => unsafe { avx512($($argument),*) },
            }
        }
    };
}

pub(crate) use multiversion;

/// `a · b + c`, rounded once if `FUSED`.
#[inline(always)]
pub(crate) fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Lanes of the partial sums in reductions: two AVX-512 vectors.
pub(crate) const LANES: usize = 32;

/// One value of all lanes, halves by halves: five steps of vectors, not 31 of values that wait for each other.
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low = join(*low, *high);
        }
        half /= 2;
    }
    lanes[0]
}

/// The sum of all lanes.
#[inline(always)]
pub(crate) fn sum(lanes: [f32; LANES]) -> f32 {
    fold(lanes, |a, b| a + b)
}

/// `Σ f(a)`, in a fixed order.
#[inline(always)]
pub(crate) fn sum_by_lanes(a: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let blocks = a.chunks_exact(LANES);
    let rest: f32 = blocks.remainder().iter().map(|a| f(*a)).sum();
    for block in blocks {
        for (lane, a) in lanes.iter_mut().zip(block) {
            *lane += f(*a);
        }
    }
    sum(lanes) + rest
}

multiversion! {
    /// `Σ a · b`, in a fixed order.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0_f32; LANES];
        let (a_blocks, b_blocks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        let rest: f32 = a_blocks.remainder().iter().zip(b_blocks.remainder()).map(|(a, b)| a * b).sum();
        for (a, b) in a_blocks.zip(b_blocks) {
            for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
                *lane = multiply_add::<FUSED>(*a, *b, *lane);
            }
        }
        sum(lanes) + rest
    }
}

multiversion! {
    /// `y += factor · x`.
    pub(crate) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = multiply_add::<FUSED>(factor, *x, *y);
        }
    }
}

multiversion! {
    /// `y += x`.
    pub(crate) fn add(y: &mut [f32], x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

multiversion! {
    /// `row = exp(scale · row - shift)`, row by row.
    ///
    /// - `rows`: `[shifts.len(), width]`
    pub(crate) fn exp_shifted(rows: &mut [f32], width: usize, scale: f32, shifts: &[f32]) {
        for (row, shift) in rows.chunks_exact_mut(width).zip(shifts) {
            for value in row {
                let exponent = multiply_add::<FUSED>(scale, *value, -shift);
                *value = if exponent < -87.0 { 0.0 } else { exp::<FUSED>(exponent) };
            }
        }
    }
}

multiversion! {
    /// `row = softmax(scale · row)` for a scale above zero, row by row; leaves the logarithms of the denominators.
    ///
    /// - `rows`: `[logs.len(), width]`
    pub(crate) fn softmax(rows: &mut [f32], width: usize, scale: f32, logs: &mut [f32]) {
        for (row, log) in rows.chunks_exact_mut(width).zip(logs) {
            let (blocks, rest) = row.as_chunks_mut::<LANES>();
            // What does not fill the lanes is handled as if it did.
            let mut last = [f32::NEG_INFINITY; LANES];
            last[..rest.len()].copy_from_slice(rest);
            let mut highest = last;
            for block in &*blocks {
                for (highest, value) in highest.iter_mut().zip(block) {
                    *highest = if *value > *highest { *value } else { *highest };
                }
            }
            let shift = scale * fold(highest, |a, b| if b > a { b } else { a });
            let mut sums = [0.0_f32; LANES];
            for block in blocks {
                exponentials::<FUSED>(block, scale, shift, &mut sums);
            }
            if !rest.is_empty() {
                exponentials::<FUSED>(&mut last, scale, shift, &mut sums);
                rest.copy_from_slice(&last[..rest.len()]);
            }
            let sum = sum(sums);
            let factor = 1.0 / sum;
            for value in row.iter_mut() {
                *value *= factor;
            }
            *log = shift + sum.ln();
        }
    }
}

/// `block = exp(scale · block - shift)`, added to the sums of its lanes.
#[inline(always)]
fn exponentials<const FUSED: bool>(
    block: &mut [f32; LANES],
    scale: f32,
    shift: f32,
    sums: &mut [f32; LANES],
) {
    for (value, sum) in block.iter_mut().zip(sums) {
        let exponent = multiply_add::<FUSED>(scale, *value, -shift);
        // A probability below e^-87 is none.
        *value = if exponent < -87.0 { 0.0 } else { exp::<FUSED>(exponent) };
        *sum += *value;
    }
}

multiversion! {
    /// `row *= factor`.
    pub(crate) fn scale(row: &mut [f32], factor: f32) {
        for value in row.iter_mut() {
            *value *= factor;
        }
    }
}

/// `eˣ` without branches, to two units in the last place, for results that are normal numbers; what
/// lies outside is cut off at `e^±87`.
#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    // Adding and subtracting 1.5 · 2²³ rounds to a whole number, and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 87.0);
    let shifted = multiply_add::<FUSED>(x, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let r = multiply_add::<FUSED>(-whole, LN2_HIGH, x);
    let r = multiply_add::<FUSED>(-whole, LN2_LOW, r);
    let mut p = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = multiply_add::<FUSED>(p, r, coefficient);
    }
    let e = multiply_add::<FUSED>(p * r, r, r) + 1.0;
    let power = (shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127)) << 23;
    e * f32::from_bits(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_two_units_in_the_last_place() {
        exp_is_exact(exp::<false>);
        exp_is_exact(exp::<true>);
    }

    fn exp_is_exact(exp: impl Fn(f32) -> f32) {
        let mut worst = 0.0_f64;
        for i in -870_000..=870_000 {
            let x = i as f32 * 1e-4;
            let expected = f64::from(x).exp();
            let unit = f64::from(expected as f32).abs() * f64::from(f32::EPSILON) / 2.0;
            worst = worst.max((f64::from(exp(x)) - expected).abs() / unit);
        }
        assert!(worst <= 2.0, "{worst} units");
        assert_eq!((exp(-200.0), exp(0.0), exp(200.0)), (exp(-87.0), 1.0, exp(87.0)));
    }

    #[test]
    fn reductions_include_what_does_not_fill_a_vector() {
        for length in [0, 1, 31, 32, 33, 100] {
            let a: Vec<f32> = (0..length).map(|i| i as f32).collect();
            let ones = vec![1.0; length];
            let expected: f32 = a.iter().sum();
            assert_eq!(dot(&a, &ones), expected);
        }
    }

    #[test]
    fn softmax_is_what_it_is_defined_as() {
        for length in [1, 31, 32, 33, 100] {
            let values: Vec<f32> = (0..length).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
            let mut row = values.clone();
            let mut log_sum = [0.0];
            softmax(&mut row, length, 0.5, &mut log_sum);
            let sum: f64 = values.iter().map(|x| (0.5 * f64::from(*x)).exp()).sum();
            assert!((f64::from(log_sum[0]) - sum.ln()).abs() < 1e-5);
            for (p, x) in row.iter().zip(&values) {
                assert!((f64::from(*p) - (0.5 * f64::from(*x)).exp() / sum).abs() < 1e-6);
            }
        }
    }
}
