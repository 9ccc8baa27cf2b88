//! Sparsity-constrained optimal transport (paper 001 eq. 9; Liu et al., arXiv:2209.15466).

use burn::tensor::{Tensor, TensorData};
use omma_base::transfer;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::simplex::project;
use crate::error::{Result, RoutingError};

/// The solver of the semi-dual: a fixed number of Adam steps from zero.
///
/// It is not run to convergence: the number of steps is part of the router's definition, and the
/// default is the reference implementation's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SparseTransport {
    /// Adam steps.
    pub steps: usize,
    /// Adam's learning rate.
    pub learning_rate: f64,
}

impl Default for SparseTransport {
    fn default() -> Self {
        Self { steps: 20, learning_rate: 1e-2 }
    }
}

/// Which side of the plan has at most `k` non-zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SparseSide {
    /// Every expert takes at most `k` tokens: columns are sparse, for expert choice.
    Experts,
    /// Every token takes at most `k` experts: rows are sparse, for token choice.
    Tokens,
}

/// A transport plan and the dual variable it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct SparseTransportPlan {
    /// `Π [T, E]`, row-major.
    pub plan: Vec<f32>,
    /// The dual variable of the side that is not sparse: `[T]` or `[E]`.
    pub dual: Vec<f64>,
    side: SparseSide,
    shape: [usize; 2],
}

impl SparseTransport {
    /// Fails on settings that cannot be run.
    pub fn check(&self) -> Result<()> {
        if self.learning_rate.is_finite() && self.learning_rate > 0.0 {
            Ok(())
        } else {
            let value = self.learning_rate;
            Err(RoutingError::NotPositive { name: "the transport's learning rate", value })
        }
    }

    /// Maximises `⟨Π, S⟩ - ½‖Π‖²` over plans with marginals 1 (tokens) and `T/E` (experts) and at
    /// most `k` non-zeros along `side`, by the semi-dual of the other side.
    ///
    /// With `b` the marginal of a sparse vector and `α` the dual, the best vector for a given `α` is
    /// `b · proj_k((s + α) / b)`, and the semi-dual's gradient is what the vectors give to the other
    /// side minus what it should get.
    ///
    /// - `similarity`: `S [tokens, experts]`, the softmax gates, row-major
    ///
    /// # Panics
    /// If the similarity does not fill its shape, or `k` is 0.
    pub fn solve(
        &self,
        similarity: &[f32],
        [tokens, experts]: [usize; 2],
        side: SparseSide,
        k: usize,
    ) -> SparseTransportPlan {
        assert_eq!(
            similarity.len(),
            tokens * experts,
            "sparse transport: similarity and its shape"
        );
        assert!(k > 0, "sparse transport: a vector needs at least one non-zero");
        if tokens == 0 {
            return SparseTransportPlan { plan: vec![], dual: vec![], side, shape: [0, experts] };
        }
        let expert_marginal = tokens as f64 / experts as f64;
        let transposed;
        let (vectors, marginal, length, target) = match side {
            SparseSide::Experts => {
                transposed = transpose(similarity, tokens, experts);
                (transposed.as_slice(), expert_marginal, tokens, 1.0)
            }
            SparseSide::Tokens => (similarity, 1.0, experts, expert_marginal),
        };

        let mut dual = vec![0.0; length];
        let mut adam = Adam::new(length, self.learning_rate);
        for _ in 0..self.steps {
            let mut gradient = vec![-target; length];
            for entries in best_vectors(vectors, marginal, &dual, k) {
                for (_, index, mass) in entries {
                    gradient[index as usize] += mass;
                }
            }
            adam.step(&mut dual, &gradient);
        }

        let mut plan = vec![0.0; tokens * experts];
        for (vector, index, mass) in best_vectors(vectors, marginal, &dual, k).into_iter().flatten()
        {
            let (token, expert) = match side {
                SparseSide::Experts => (index as usize, vector as usize),
                SparseSide::Tokens => (vector as usize, index as usize),
            };
            plan[token * experts + expert] = mass as f32;
        }
        SparseTransportPlan { plan, dual, side, shape: [tokens, experts] }
    }
}

/// `(vector, index, mass)` of every non-zero of the best vectors for `dual`, in chunks that do not
/// depend on the number of threads.
fn best_vectors(
    vectors: &[f32],
    marginal: f64,
    dual: &[f64],
    k: usize,
) -> Vec<Vec<(u32, u32, f64)>> {
    const ELEMENTS_PER_CHUNK: usize = 1 << 14;
    let length = dual.len();
    let per_chunk = ELEMENTS_PER_CHUNK.div_ceil(length);
    vectors
        .par_chunks(per_chunk * length)
        .enumerate()
        .map(|(chunk, vectors)| {
            let mut found = Vec::new();
            let mut entries = Vec::new();
            for (i, vector) in vectors.chunks_exact(length).enumerate() {
                let shifted = vector.iter().zip(dual).map(|(s, d)| (f64::from(*s) + d) / marginal);
                project(shifted, k, &mut entries);
                let vector = (chunk * per_chunk + i) as u32;
                found.extend(entries.iter().map(|&(i, p)| (vector, i, p * marginal)));
            }
            found
        })
        .collect()
}

/// `[rows, columns]` to `[columns, rows]`, in tiles that stay in cache.
pub(crate) fn transpose(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const TILE: usize = 32;
    let mut transposed = vec![0.0; matrix.len()];
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..rows.min(top + TILE) {
                for column in left..columns.min(left + TILE) {
                    transposed[column * rows + row] = matrix[row * columns + column];
                }
            }
        }
    }
    transposed
}

/// Adam with the usual constants, in double precision.
struct Adam {
    learning_rate: f64,
    first: Vec<f64>,
    second: Vec<f64>,
    steps: i32,
}

impl Adam {
    fn new(length: usize, learning_rate: f64) -> Self {
        Self { learning_rate, first: vec![0.0; length], second: vec![0.0; length], steps: 0 }
    }

    fn step(&mut self, parameters: &mut [f64], gradient: &[f64]) {
        const DECAY: (f64, f64) = (0.9, 0.999);
        const EPSILON: f64 = 1e-8;
        self.steps += 1;
        let correction = (1.0 - DECAY.0.powi(self.steps), 1.0 - DECAY.1.powi(self.steps));
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, g), (first, second)) in parameters.iter_mut().zip(gradient).zip(moments) {
            *first = DECAY.0 * *first + (1.0 - DECAY.0) * g;
            *second = DECAY.1 * *second + (1.0 - DECAY.1) * g * g;
            let rate = (*second / correction.1).sqrt() + EPSILON;
            *parameter -= self.learning_rate * (*first / correction.0) / rate;
        }
    }
}

impl SparseTransportPlan {
    /// The plan as a function of the gates it was solved for, for combine weights that carry
    /// gradient. The support and the dual are constants; on the support of a vector the projection
    /// is `s - mean(s) + const`.
    ///
    /// - `gates`: `[T, E]`, the similarity passed to [`SparseTransport::solve`]
    /// - returns: `Π [T, E]`
    pub fn differentiable(&self, gates: Tensor<2>) -> Tensor<2> {
        let along = match self.side {
            SparseSide::Experts => 0,
            SparseSide::Tokens => 1,
        };
        let device = gates.device();
        transfer::brought(&self.plan);
        let plan = Tensor::from_data(TensorData::new(self.plan.clone(), self.shape), &device);
        let support = plan.clone().greater_elem(0.0).float();
        let count = support.clone().sum_dim(along).clamp_min(1.0);
        let on_support = gates * support.clone();
        let centred = on_support.clone() - on_support.sum_dim(along) / count * support;
        // The value is the solved plan; the gradient is that of the centred similarity.
        plan + centred.clone() - centred.detach()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four tokens, two experts, everyone prefers expert 0 a little: the dual moves until both
    /// experts are asked for their share.
    #[test]
    fn many_steps_meet_the_marginals_and_the_sparsity() {
        let similarity = [0.9, 0.1, 0.8, 0.2, 0.6, 0.4, 0.7, 0.3];
        let solver = SparseTransport { steps: 2000, ..Default::default() };
        let solved = solver.solve(&similarity, [4, 2], SparseSide::Experts, 2);
        for expert in 0..2 {
            let column: Vec<f32> = (0..4).map(|token| solved.plan[token * 2 + expert]).collect();
            assert!((column.iter().sum::<f32>() - 2.0).abs() < 1e-5, "{column:?}");
            assert!(column.iter().filter(|mass| **mass > 0.0).count() <= 2);
        }
        for token in 0..4 {
            let row: f32 = solved.plan[token * 2..token * 2 + 2].iter().sum();
            assert!((row - 1.0).abs() < 0.05, "token {token} gives {row}");
        }
    }

    /// With the dual and the support held fixed, the plan is linear in the similarity, so a central
    /// difference of the projection itself is exact while the support stays.
    #[test]
    fn the_gradient_is_that_of_the_projection() {
        let device = burn::tensor::Device::flex().autodiff();
        let similarity = [0.62, 0.38, 0.55, 0.45, 0.3, 0.7, 0.48, 0.52_f32];
        let weights = [1.0, -2.0, 0.5, 0.3, 1.5, -0.4, 0.7, 0.2_f32];
        for (side, k) in [(SparseSide::Experts, 3), (SparseSide::Tokens, 2)] {
            let solved = SparseTransport::default().solve(&similarity, [4, 2], side, k);
            let data = TensorData::new(similarity.to_vec(), [4, 2]);
            let leaf = Tensor::<2>::from_data(data, &device).require_grad();
            let plan = solved.differentiable(leaf.clone());
            let values: Vec<f32> = plan.clone().try_into_vec_as().unwrap();
            assert_eq!(values, solved.plan);
            let weight = TensorData::new(weights.to_vec(), [4, 2]);
            let objective = (plan * Tensor::from_data(weight, &device)).sum();
            let gradient = leaf.grad(&objective.backward()).unwrap();
            let gradient: Vec<f32> = gradient.try_into_vec_as().unwrap();

            let project_all = |similarity: &[f64]| -> f64 {
                let (marginal, n) = match side {
                    SparseSide::Experts => (2.0, 4),
                    SparseSide::Tokens => (1.0, 2),
                };
                let cell = |vector: usize, i: usize| match side {
                    SparseSide::Experts => i * 2 + vector,
                    SparseSide::Tokens => vector * 2 + i,
                };
                let mut sum = 0.0;
                for vector in 0..8 / n {
                    let shifted =
                        (0..n).map(|i| (similarity[cell(vector, i)] + solved.dual[i]) / marginal);
                    let mut entries = Vec::new();
                    project(shifted, k, &mut entries);
                    for (i, mass) in entries {
                        sum += mass * marginal * f64::from(weights[cell(vector, i as usize)]);
                    }
                }
                sum
            };
            for (i, gradient) in gradient.into_iter().enumerate() {
                // A step too small to change the support.
                const STEP: f64 = 1e-7;
                let moved = |by: f64| {
                    let mut similarity = similarity.map(f64::from);
                    similarity[i] += by;
                    project_all(&similarity)
                };
                let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let error = (f64::from(gradient) - expected).abs();
                assert!(error < 1e-5, "{side:?} {i}: {gradient} {expected}");
            }
        }
    }

    #[test]
    fn transposing_twice_changes_nothing() {
        let matrix: Vec<f32> = (0..35 * 70).map(|i| i as f32).collect();
        let transposed = transpose(&matrix, 35, 70);
        assert_eq!(transposed[70 - 1], matrix[(70 - 1) % 35 * 70 + (70 - 1) / 35]);
        assert_eq!(transpose(&transposed, 70, 35), matrix);
    }
}
