//! A linear probe in closed form: L2-regularised least squares on frozen features (paper 000 App. A.5).
//!
//! Features are whitened by the mean and deviation of the support set, a constant of 100 is added as a
//! bias that is regularised like the rest, and targets are +1 for the class and −1 for the others.
//! The bias dominates the spectrum, so everything is solved in double precision.

use thiserror::Error;

/// The constant feature.
const BIAS: f64 = 100.0;
/// What is added to a deviation.
const EPSILON: f64 = 1e-5;

/// What can go wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every message says what its fields are")]
pub enum ProbeError {
    #[error("{values} features cannot be cut into {rows} rows")]
    Shape { values: usize, rows: usize },
    #[error("label {label} is not one of {classes} classes")]
    Label { label: usize, classes: usize },
    #[error("the support set is empty")]
    Empty,
    #[error("the features are not finite, or the regulariser is not positive")]
    Singular,
}

/// A support set, whitened, ready to be solved for any regulariser.
pub struct Support {
    features: usize,
    classes: usize,
    mean: Vec<f64>,
    deviation: Vec<f64>,
    /// `[N, D + 1]`
    x: Vec<f64>,
    /// `[N, classes]`
    y: Vec<f64>,
    /// The smaller of `X Xᵀ` and `Xᵀ X`.
    gram: Vec<f64>,
}

/// A linear classifier of features.
pub struct Probe<'a> {
    support: &'a Support,
    /// `[D + 1, classes]`
    pub weights: Vec<f64>,
}

impl Support {
    /// - `features`: `[N, D]`; `labels`: `[N]`
    pub fn new(features: &[f32], labels: &[usize], classes: usize) -> Result<Self, ProbeError> {
        let rows = labels.len();
        if rows == 0 {
            return Err(ProbeError::Empty);
        }
        if features.is_empty() || !features.len().is_multiple_of(rows) {
            return Err(ProbeError::Shape { values: features.len(), rows });
        }
        if let Some(label) = labels.iter().find(|label| **label >= classes) {
            return Err(ProbeError::Label { label: *label, classes });
        }
        let width = features.len() / rows;
        let column = |d: usize| features.iter().skip(d).step_by(width).map(|x| f64::from(*x));
        let mean: Vec<f64> = (0..width).map(|d| column(d).sum::<f64>() / rows as f64).collect();
        let spread = |d: usize| column(d).map(|x| (x - mean[d]).powi(2)).sum::<f64>() / rows as f64;
        let deviation: Vec<f64> = (0..width).map(|d| spread(d).sqrt() + EPSILON).collect();
        let mut support = Self {
            features: width,
            classes,
            mean,
            deviation,
            x: Vec::new(),
            y: vec![-1.0; rows * classes],
            gram: Vec::new(),
        };
        for (row, label) in labels.iter().enumerate() {
            support.y[row * classes + label] = 1.0;
        }
        support.x = support.whiten(features);
        support.gram = support.products(rows);
        Ok(support)
    }

    /// Of the support features, without the constant.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Of the support features, without the constant.
    pub fn deviation(&self) -> &[f64] {
        &self.deviation
    }

    /// `W = (XᵀX + λI)⁻¹ XᵀY`, or `Xᵀ (XXᵀ + λI)⁻¹ Y` where there are fewer rows than columns.
    pub fn solve(&self, l2: f64) -> Result<Probe<'_>, ProbeError> {
        let (rows, columns) = (self.y.len() / self.classes, self.features + 1);
        let size = rows.min(columns);
        let mut matrix = self.gram.clone();
        (0..size).for_each(|i| matrix[i * size + i] += l2);
        let weights = match rows < columns {
            true => {
                let mut dual = self.y.clone();
                cholesky_solve(&mut matrix, size, &mut dual, self.classes)?;
                self.transposed_times(&dual)
            }
            false => {
                let mut weights = self.transposed_times(&self.y);
                cholesky_solve(&mut matrix, size, &mut weights, self.classes)?;
                weights
            }
        };
        Ok(Probe { support: self, weights })
    }

    /// `[N, D]` to `[N, D + 1]`.
    fn whiten(&self, features: &[f32]) -> Vec<f64> {
        let mut x = Vec::with_capacity(features.len() / self.features * (self.features + 1));
        for row in features.chunks_exact(self.features) {
            let statistics = self.mean.iter().zip(&self.deviation);
            x.extend(row.iter().zip(statistics).map(|(x, (m, d))| (f64::from(*x) - m) / d));
            x.push(BIAS);
        }
        x
    }

    fn products(&self, rows: usize) -> Vec<f64> {
        let columns = self.features + 1;
        let size = rows.min(columns);
        let mut gram = vec![0.0; size * size];
        match rows < columns {
            true => {
                let row = |i: usize| &self.x[i * columns..(i + 1) * columns];
                for i in 0..rows {
                    for j in 0..=i {
                        let dot: f64 = row(i).iter().zip(row(j)).map(|(a, b)| a * b).sum();
                        (gram[i * size + j], gram[j * size + i]) = (dot, dot);
                    }
                }
            }
            false => {
                for row in self.x.chunks_exact(columns) {
                    for (i, a) in row.iter().enumerate() {
                        let line = &mut gram[i * size..(i + 1) * size];
                        line.iter_mut().zip(row).for_each(|(sum, b)| *sum += a * b);
                    }
                }
            }
        }
        gram
    }

    /// `Xᵀ` times a matrix `[N, classes]`.
    fn transposed_times(&self, matrix: &[f64]) -> Vec<f64> {
        let columns = self.features + 1;
        let mut result = vec![0.0; columns * self.classes];
        for (x, y) in self.x.chunks_exact(columns).zip(matrix.chunks_exact(self.classes)) {
            for (x, line) in x.iter().zip(result.chunks_exact_mut(self.classes)) {
                line.iter_mut().zip(y).for_each(|(sum, y)| *sum += x * y);
            }
        }
        result
    }
}

impl Probe<'_> {
    /// `[N, classes]` for features `[N, D]`.
    pub fn scores(&self, features: &[f32]) -> Vec<f64> {
        let (columns, classes) = (self.support.features + 1, self.support.classes);
        let x = self.support.whiten(features);
        let mut scores = vec![0.0; x.len() / columns * classes];
        for (x, line) in x.chunks_exact(columns).zip(scores.chunks_exact_mut(classes)) {
            for (x, weights) in x.iter().zip(self.weights.chunks_exact(classes)) {
                line.iter_mut().zip(weights).for_each(|(sum, w)| *sum += x * w);
            }
        }
        scores
    }

    /// Share of features whose class it says.
    pub fn accuracy(&self, features: &[f32], labels: &[usize]) -> f64 {
        let scores = self.scores(features);
        let says = scores.chunks_exact(self.support.classes).map(crate::metrics::largest);
        let right = says.zip(labels).filter(|(said, label)| said == *label).count();
        right as f64 / labels.len().max(1) as f64
    }
}

/// Solves `A X = B` in place for a symmetric positive definite `A [n, n]` and `B [n, columns]`.
fn cholesky_solve(
    a: &mut [f64],
    n: usize,
    b: &mut [f64],
    columns: usize,
) -> Result<(), ProbeError> {
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| a[i * n + k] * a[j * n + k]).sum();
            let rest = a[i * n + j] - dot;
            a[i * n + j] = match i == j {
                true if rest > 0.0 && rest.is_finite() => rest.sqrt(),
                true => return Err(ProbeError::Singular),
                false => rest / a[j * n + j],
            };
        }
    }
    for c in 0..columns {
        for i in 0..n {
            let dot: f64 = (0..i).map(|k| a[i * n + k] * b[k * columns + c]).sum();
            b[i * columns + c] = (b[i * columns + c] - dot) / a[i * n + i];
        }
        for i in (0..n).rev() {
            let dot: f64 = (i + 1..n).map(|k| a[k * n + i] * b[k * columns + c]).sum();
            b[i * columns + c] = (b[i * columns + c] - dot) / a[i * n + i];
        }
    }
    Ok(())
}
