//! Percentage gains, and how hard they were (paper 000 App. D, eq. 4).
//!
//! A larger model's NLL is harder to better. `φ` maps FLOPs to the NLL of plain models by a polynomial in
//! `ln FLOPs`, fitted by least squares; a gain in family `v` is then multiplied by
//! `φ′(FLOPs of the largest family) / φ′(FLOPs of v)`.

use serde::Serialize;

use super::{Paired, Row};
use crate::metrics::Estimate;

/// How a system does against the baseline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gain {
    /// Which system.
    pub label: String,
    /// Percent less NLL; like the others, nothing if the baseline has none.
    pub nll: Option<f64>,
    /// Percent less NLL on corrupted images, whose NLL is the mean over corruptions and severities (paper
    /// 000 App. M.3, Table 24); nothing if one of both was not judged by such.
    pub shift_nll: Option<f64>,
    /// Percent less error.
    pub error: Option<f64>,
    /// Percent less calibration error.
    pub ece: Option<f64>,
    /// Percent less training FLOPs.
    pub flops: Option<f64>,
    /// Percent less NLL than the plain model of its own family, normalised by difficulty (eq. 4).
    pub normalised_nll: Option<f64>,
    /// Both on the same images, image by image.
    pub paired: Option<Paired>,
    /// Why there is no such comparison.
    pub unpaired: Option<String>,
}

/// The fit of NLL against cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difficulty {
    /// `φ = Σ c_i · (ln FLOPs − shift)^i`
    pub coefficients: Vec<f64>,
    /// The mean of the logarithms.
    pub shift: f64,
    /// FLOPs of the largest plain model.
    pub largest: f64,
}

fn percent_less(value: f64, base: f64) -> Option<f64> {
    (base > 0.0).then(|| 100.0 * (base - value) / base)
}

impl Gain {
    pub(super) fn new(row: &Row, base: &Row, all: &[Row], difficulty: Option<&Difficulty>) -> Self {
        let flops = |row: &Row| row.cost.training_flops as f64;
        let less = |own: Option<Estimate>, base: Option<Estimate>| {
            own.zip(base).and_then(|(own, base)| percent_less(own.mean, base.mean))
        };
        let plain = |other: &&Row| other.kind.is_plain() && other.kind.family == row.kind.family;
        let normalised = |(plain, difficulty): (&Row, &Difficulty)| {
            Some(less(row.nll, plain.nll)? * difficulty.factor(flops(plain))?)
        };
        let normalised_nll = all.iter().find(plain).zip(difficulty).and_then(normalised);
        Self {
            label: row.label.clone(),
            nll: less(row.nll, base.nll),
            shift_nll: less(row.shift_nll, base.shift_nll),
            error: less(row.error, base.error),
            ece: less(row.ece, base.ece),
            flops: percent_less(flops(row), flops(base)),
            normalised_nll,
            paired: None,
            unpaired: None,
        }
    }

    pub(super) fn with_pairs(self, paired: Result<Paired, String>) -> Self {
        match paired {
            Ok(paired) => Self { paired: Some(paired), ..self },
            Err(why) => Self { unpaired: Some(why), ..self },
        }
    }
}

/// A gain as it is read: `+12.5 %` less, or `15.7×` as much where there is more than twice as much and a
/// percentage makes no sense.
pub(super) fn in_words(gain: f64) -> String {
    match factor(gain) {
        Some(factor) if factor >= 100.0 => format!("{factor:.0}×"),
        Some(factor) => format!("{factor:.1}×"),
        None => format!("{gain:+.1} %"),
    }
}

/// How many times as much there is, if more than twice.
pub(crate) fn factor(gain: f64) -> Option<f64> {
    (gain < -100.0).then(|| 1.0 - gain / 100.0)
}

/// The highest power of the logarithm.
const DEGREE: usize = 3;

impl Difficulty {
    /// Of the plain models; nothing if they have less than two different costs. With less than four,
    /// the polynomial has as many coefficients as there are costs.
    pub(super) fn fit(rows: &[Row]) -> Option<Self> {
        let plain = rows.iter().filter(|row| row.kind.is_plain());
        let points: Vec<(f64, f64)> =
            plain.filter_map(|row| Some((row.cost.training_flops as f64, row.nll?.mean))).collect();
        Self::of(&points)
    }

    /// Of pairs of FLOPs and NLL.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let mut costs: Vec<f64> = points.iter().map(|(flops, _)| *flops).collect();
        costs.sort_by(f64::total_cmp);
        costs.dedup();
        if costs.len() < 2 || costs[0] <= 0.0 {
            return None;
        }
        let count = costs.len().min(DEGREE + 1);
        let shift = points.iter().map(|(flops, _)| flops.ln()).sum::<f64>() / points.len() as f64;
        let mut normal = vec![vec![0.0; count + 1]; count];
        for (flops, nll) in points {
            let x = flops.ln() - shift;
            for (i, row) in normal.iter_mut().enumerate() {
                for (j, value) in row[..count].iter_mut().enumerate() {
                    *value += x.powi((i + j) as i32);
                }
                row[count] += x.powi(i as i32) * nll;
            }
        }
        let coefficients = solve(normal)?;
        Some(Self { coefficients, shift, largest: *costs.last()? })
    }

    /// `φ`
    pub fn nll(&self, flops: f64) -> f64 {
        let x = flops.ln() - self.shift;
        self.coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
    }

    /// `dφ / dFLOPs`
    pub fn slope(&self, flops: f64) -> f64 {
        let x = flops.ln() - self.shift;
        let powers = self.coefficients.iter().enumerate().skip(1);
        powers.map(|(i, c)| i as f64 * c * x.powi(i as i32 - 1)).sum::<f64>() / flops
    }

    /// What a gain at this cost is multiplied by; nothing where NLL does not fall with the cost, since
    /// eq. 4 takes for granted that it does.
    pub fn factor(&self, flops: f64) -> Option<f64> {
        let (largest, here) = (self.slope(self.largest), self.slope(flops));
        (largest < 0.0 && here < 0.0).then(|| largest / here)
    }
}

/// Gaussian elimination with pivots, of rows `[n, n + 1]`.
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let n = rows.len();
    for column in 0..n {
        let pivot =
            (column..n).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs() < 1e-12 {
            return None;
        }
        let leading = rows[column].clone();
        for (place, row) in rows.iter_mut().enumerate() {
            if place != column {
                let factor = row[column] / leading[column];
                row.iter_mut().zip(&leading).for_each(|(value, lead)| *value -= factor * lead);
            }
        }
    }
    Some((0..n).map(|i| rows[i][n] / rows[i][i]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cubic_in_the_logarithm_is_found_with_its_slope() {
        let truth = |flops: f64| {
            let x = flops.ln();
            3.0 - 0.2 * x + 0.004 * x * x - 0.0001 * x.powi(3)
        };
        let flops = [1e8, 3e8, 1e9, 5e9, 2e10];
        let points: Vec<(f64, f64)> = flops.iter().map(|f| (*f, truth(*f))).collect();
        let fit = Difficulty::of(&points).unwrap();
        for flops in flops {
            assert!((fit.nll(flops) - truth(flops)).abs() < 1e-9);
            let step = flops * 1e-5;
            let slope = (truth(flops + step) - truth(flops - step)) / (2.0 * step);
            assert!((fit.slope(flops) / slope - 1.0).abs() < 1e-5);
        }
        assert_eq!(fit.factor(2e10), Some(1.0));
        assert!(fit.factor(1e8) < Some(1.0), "a gain counts less where gains are easy");
        let rising = Difficulty::of(&[(1e8, 0.5), (1e9, 0.4), (1e10, 0.45)]).unwrap();
        assert_eq!(rising.factor(1e8), None);
    }

    #[test]
    fn what_is_many_times_as_much_is_said_in_times() {
        let said = [20.0, -99.9, -100.0, -1468.0, -99_900.0, 99.7].map(in_words);
        assert_eq!(said, ["+20.0 %", "-99.9 %", "-100.0 %", "15.7×", "1000×", "+99.7 %"]);
    }

    #[test]
    fn few_sizes_give_a_simpler_fit_and_one_gives_none() {
        assert_eq!(Difficulty::of(&[(1e9, 0.5), (1e9, 0.6)]), None);
        let fit = Difficulty::of(&[(1e9, 0.5), (4e9, 0.4)]).unwrap();
        assert_eq!(fit.coefficients.len(), 2);
        assert!((fit.factor(1e9).unwrap() - 0.25).abs() < 1e-9);
    }
}
