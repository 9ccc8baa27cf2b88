//! A linear probe in closed form: L2-regularised least squares on features (paper 000 App. A.5).
//!
//! Features are whitened by the mean and deviation of the support set, a constant of 100 is added as a
//! bias that is regularised like the rest, and targets are +1 for the class and −1 for the others.
//! The bias dominates the spectrum, so everything is solved in double precision.

mod algebra;
mod logistic;

use burn::tensor::{Device, Tensor};
use thiserror::Error;

use self::algebra::{matrix, solve, values};
pub use self::logistic::{LogisticSupport, Start};

/// The constant feature.
const BIAS: f64 = 100.0;
/// What is added to a deviation.
const EPSILON: f64 = 1e-5;
/// Rows that are whitened and multiplied at a time; all of them in double precision may not fit.
const ROWS: usize = 1024;

/// Why there is no probe.
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
    #[error("stopped before its end")]
    Interrupted,
}

/// A support set, whitened, ready to be solved for any regulariser.
pub struct Support {
    whitening: Whitening,
    classes: usize,
    equations: Equations,
    device: Device,
}

/// What is solved is as large as the smaller side of `X [N, D + 1]`.
struct Equations {
    /// `XᵀX`, or `XXᵀ` where there are fewer rows than columns.
    gram: Vec<f64>,
    /// `XᵀY [D + 1, classes]`, or `Y [N, classes]`.
    right: Vec<f64>,
    /// `X`, where there are fewer rows than columns: it leads from the solution to the weights.
    rows: Option<Tensor<2>>,
}

struct Whitening {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

/// A linear classifier of features as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearHead {
    /// `[D, classes]`
    pub weights: Vec<f64>,
    /// `[classes]`
    pub bias: Vec<f64>,
}

impl LinearHead {
    /// `[N, classes]` for features `[N, D]`.
    pub fn logits(&self, features: &[f32]) -> Vec<f32> {
        let classes = self.bias.len();
        let width = self.weights.len() / classes.max(1);
        let mut logits = Vec::with_capacity(features.len() / width.max(1) * classes);
        for row in features.chunks_exact(width.max(1)) {
            let mut sums = self.bias.clone();
            for (x, weights) in row.iter().zip(self.weights.chunks_exact(classes)) {
                sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum += f64::from(*x) * w);
            }
            logits.extend(sums.iter().map(|sum| *sum as f32));
        }
        logits
    }

    /// The same with all logits divided by a temperature.
    pub fn at_temperature(&self, temperature: f64) -> Self {
        let over = |values: &[f64]| values.iter().map(|value| value / temperature).collect();
        Self { weights: over(&self.weights), bias: over(&self.bias) }
    }
}

/// A linear classifier of features.
pub struct Probe<'a> {
    support: &'a Support,
    /// `[D + 1, classes]`
    weights: Tensor<2>,
}

impl Support {
    /// - `features`: `[N, D]`; `labels`: `[N]`
    pub fn new(
        features: &[f32],
        labels: &[usize],
        classes: usize,
        device: &Device,
    ) -> Result<Self, ProbeError> {
        Self::unless(features, labels, classes, device, || false)
    }

    /// The same, unless it is to stop, which is asked every thousand rows.
    pub(crate) fn unless(
        features: &[f32],
        labels: &[usize],
        classes: usize,
        device: &Device,
        stopped: impl Fn() -> bool,
    ) -> Result<Self, ProbeError> {
        let (rows, width) = (labels.len(), width(features, labels, classes)?);
        let whitening = Whitening::of(features, width);
        let equations = match rows <= width {
            true => Equations::dual(&whitening, features, labels, classes, device),
            false => Equations::primal(&whitening, features, labels, classes, device, stopped)?,
        };
        Ok(Self { whitening, classes, equations, device: device.clone() })
    }

    /// `[D]`: of the support features.
    pub fn mean(&self) -> &[f64] {
        &self.whitening.mean
    }

    /// `[D]`: of the support features.
    pub fn deviation(&self) -> &[f64] {
        &self.whitening.deviation
    }

    /// `W = (XᵀX + λI)⁻¹ XᵀY`, or `Xᵀ (XXᵀ + λI)⁻¹ Y` where there are fewer rows than columns.
    pub fn solve(&self, l2: f64) -> Result<Probe<'_>, ProbeError> {
        let Equations { gram, right, rows } = &self.equations;
        let size = right.len() / self.classes;
        let (mut gram, mut solution) = (gram.clone(), right.clone());
        (0..size).for_each(|i| gram[i * size + i] += l2);
        solve(&mut gram, size, &mut solution, self.classes, &self.device)?;
        let solution = matrix(solution, [size, self.classes], &self.device);
        let weights = match rows {
            Some(x) => x.clone().transpose().matmul(solution),
            None => solution,
        };
        Ok(Probe { support: self, weights })
    }
}

/// Features of a row, if rows and labels are what they should be.
fn width(features: &[f32], labels: &[usize], classes: usize) -> Result<usize, ProbeError> {
    let rows = labels.len();
    if rows == 0 {
        return Err(ProbeError::Empty);
    }
    if features.is_empty() || !features.len().is_multiple_of(rows) {
        return Err(ProbeError::Shape { values: features.len(), rows });
    }
    match labels.iter().find(|label| **label >= classes) {
        Some(label) => Err(ProbeError::Label { label: *label, classes }),
        None => Ok(features.len() / rows),
    }
}

impl Equations {
    fn dual(
        whitening: &Whitening,
        features: &[f32],
        labels: &[usize],
        classes: usize,
        device: &Device,
    ) -> Self {
        let x = whitening.apply(features);
        let shape = [labels.len(), x.len() / labels.len()];
        let x = matrix(x, shape, device);
        let gram = values(x.clone().matmul(x.clone().transpose()));
        let mut right = vec![-1.0; labels.len() * classes];
        labels.iter().enumerate().for_each(|(row, label)| right[row * classes + label] = 1.0);
        Self { gram, right, rows: Some(x) }
    }

    fn primal(
        whitening: &Whitening,
        features: &[f32],
        labels: &[usize],
        classes: usize,
        device: &Device,
        stopped: impl Fn() -> bool,
    ) -> Result<Self, ProbeError> {
        let width = whitening.mean.len();
        let mut sums = Sums::new(width + 1, classes);
        let mut gram: Option<Tensor<2>> = None;
        for (features, labels) in features.chunks(ROWS * width).zip(labels.chunks(ROWS)) {
            if stopped() {
                return Err(ProbeError::Interrupted);
            }
            let x = whitening.apply(features);
            sums.add(&x, labels);
            let x = matrix(x, [labels.len(), width + 1], device);
            let part = x.clone().transpose().matmul(x);
            gram = Some(match gram {
                Some(sum) => sum + part,
                None => part,
            });
        }
        let gram = gram.map(values).unwrap_or_default();
        Ok(Self { gram, right: sums.products(), rows: None })
    }
}

impl Whitening {
    /// - `features`: `[N, width]`
    fn of(features: &[f32], width: usize) -> Self {
        let rows = (features.len() / width) as f64;
        let mut mean = vec![0.0; width];
        for row in features.chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        mean.iter_mut().for_each(|sum| *sum /= rows);
        let mut deviation = vec![0.0; width];
        for row in features.chunks_exact(width) {
            let centred = row.iter().zip(&mean).map(|(x, mean)| f64::from(*x) - mean);
            deviation.iter_mut().zip(centred).for_each(|(sum, x)| *sum += x * x);
        }
        deviation.iter_mut().for_each(|sum: &mut f64| *sum = (*sum / rows).sqrt() + EPSILON);
        Self { mean, deviation }
    }

    /// `[N, D]` to `[N, D + 1]`.
    fn apply(&self, features: &[f32]) -> Vec<f64> {
        self.with_constant(features, BIAS)
    }

    /// The same with another constant feature.
    fn with_constant(&self, features: &[f32], constant: f64) -> Vec<f64> {
        let width = self.mean.len();
        let mut x = Vec::with_capacity(features.len() / width * (width + 1));
        for row in features.chunks_exact(width) {
            let statistics = self.mean.iter().zip(&self.deviation);
            x.extend(row.iter().zip(statistics).map(|(x, (m, d))| (f64::from(*x) - m) / d));
            x.push(constant);
        }
        x
    }

    /// The classifier of features as they are that weights `[D + 1, classes]` of whitened ones are.
    fn folded(&self, weights: &[f64], classes: usize, constant: f64) -> LinearHead {
        let width = self.mean.len();
        let mut bias: Vec<f64> =
            weights[width * classes..].iter().map(|weight| weight * constant).collect();
        let mut folded = Vec::with_capacity(width * classes);
        let rows = weights.chunks_exact(classes.max(1));
        for (row, (mean, deviation)) in rows.zip(self.mean.iter().zip(&self.deviation)) {
            for (bias, weight) in bias.iter_mut().zip(row) {
                *bias -= weight * mean / deviation;
                folded.push(weight / deviation);
            }
        }
        LinearHead { weights: folded, bias }
    }
}

/// Sums of whitened rows by class: with targets of ±1 they are all that `XᵀY` takes.
struct Sums {
    columns: usize,
    /// `[classes, D + 1]`
    by_class: Vec<f64>,
    all: Vec<f64>,
}

impl Sums {
    fn new(columns: usize, classes: usize) -> Self {
        Self { columns, by_class: vec![0.0; classes * columns], all: vec![0.0; columns] }
    }

    fn add(&mut self, x: &[f64], labels: &[usize]) {
        for (row, label) in x.chunks_exact(self.columns).zip(labels) {
            let own = &mut self.by_class[label * self.columns..(label + 1) * self.columns];
            own.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            self.all.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
    }

    /// `[D + 1, classes]`: what is of the class counts once, what is not counts once against it.
    fn products(&self) -> Vec<f64> {
        let column = |(place, all): (usize, &f64)| {
            let own = self.by_class.iter().skip(place).step_by(self.columns);
            own.map(|own| 2.0 * own - all).collect::<Vec<f64>>()
        };
        self.all.iter().enumerate().flat_map(column).collect()
    }
}

impl Probe<'_> {
    /// `[D + 1, classes]`: the constant feature's come last.
    pub fn weights(&self) -> Vec<f64> {
        values(self.weights.clone())
    }

    /// The same as a classifier of features as they are, whitening and constant folded in.
    pub fn folded(&self) -> LinearHead {
        self.support.whitening.folded(&self.weights(), self.support.classes, BIAS)
    }

    /// `[N, classes]` for features `[N, D]`.
    pub fn scores(&self, features: &[f32]) -> Vec<f64> {
        let whitening = &self.support.whitening;
        let x = whitening.apply(features);
        let columns = whitening.mean.len() + 1;
        let shape = [x.len() / columns, columns];
        values(matrix(x, shape, &self.support.device).matmul(self.weights.clone()))
    }

    /// How many of the features `[N, D]` it gets right.
    pub(crate) fn right(&self, features: &[f32], labels: &[usize]) -> usize {
        let width = self.support.whitening.mean.len();
        let blocks = features.chunks(ROWS * width).zip(labels.chunks(ROWS));
        let right = blocks.map(|(features, labels)| {
            count_right(&self.scores(features), self.support.classes, labels)
        });
        right.sum()
    }

    /// Share of the features `[N, D]` that it gets right.
    pub fn accuracy(&self, features: &[f32], labels: &[usize]) -> f64 {
        self.right(features, labels) as f64 / labels.len().max(1) as f64
    }
}

/// Rows of `scores`, `[N, classes]`, whose largest is that of the label.
pub(crate) fn count_right(scores: &[f64], classes: usize, labels: &[usize]) -> usize {
    let predicted = scores.chunks_exact(classes).map(crate::metrics::largest);
    predicted.zip(labels).filter(|(predicted, label)| predicted == *label).count()
}
