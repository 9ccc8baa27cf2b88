//! Sums that are cut and added up in one fixed way, whatever the threads do.

use rayon::prelude::*;

/// Values that are added up by themselves before their sum is added to those of others.
pub(super) const PART: usize = 1 << 14;

/// `Σ x²`.
pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
    squares_by_part(values).iter().sum()
}

/// `Σ x²` of every part.
pub(crate) fn squares_by_part(values: &[f32]) -> Vec<f64> {
    let part = |part: &[f32]| part.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    values.par_chunks(PART).map(part).collect()
}

/// The root of the mean square.
pub(super) fn rms(values: &[f32]) -> f64 {
    (sum_of_squares(values) / values.len().max(1) as f64).sqrt()
}

/// Calls `each` with matching parts of the slices, in parallel.
pub(super) fn in_parts<const N: usize>(
    values: &mut [f32],
    others: [&mut [f32]; N],
    gradient: &[f32],
    each: impl Fn(&mut [f32], [&mut [f32]; N], &[f32]) + Sync,
) {
    let mut rests = others;
    let mut cut = Vec::new();
    for (own, gradient) in values.chunks_mut(PART).zip(gradient.chunks(PART)) {
        let parts = rests.each_mut().map(|rest| {
            let (part, left) = std::mem::take(rest).split_at_mut(own.len());
            *rest = left;
            part
        });
        cut.push((own, parts, gradient));
    }
    cut.into_par_iter().for_each(|(own, parts, gradient)| each(own, parts, gradient));
}
