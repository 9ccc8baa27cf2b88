//! Entropy-regularised optimal transport by Sinkhorn's algorithm (paper 001 eq. 8).

use burn::tensor::{Tensor, TensorData};
use omma_base::transfer;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{Result, RoutingError};

/// The solver's settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sinkhorn {
    /// Weight of the entropy; the paper's is 1.
    pub regularisation: f64,
    /// Stop when no token's row sum is further from 1 than this.
    pub tolerance: f64,
    /// Stop here in any case; the plan's columns are then exact and its rows are not.
    pub max_iterations: usize,
}

impl Default for Sinkhorn {
    fn default() -> Self {
        Self { regularisation: 1.0, tolerance: 1e-6, max_iterations: 500 }
    }
}

/// A transport plan, its potentials, and how well it was solved.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkhornPlan {
    /// `Π [T, E]`, row-major: `exp(L/reg + f + g)`.
    pub plan: Vec<f32>,
    /// `f [T]`.
    pub token_potential: Vec<f64>,
    /// `g [E]`, with mean 0.
    pub expert_potential: Vec<f64>,
    /// Iterations used.
    pub iterations: usize,
    /// The largest distance of a token's row sum from 1.
    pub row_error: f64,
    regularisation: f64,
}

impl Sinkhorn {
    /// Fails on settings that cannot be solved.
    pub fn check(&self) -> Result<()> {
        let settings = [
            ("the Sinkhorn regularisation", self.regularisation),
            ("the Sinkhorn tolerance", self.tolerance),
            ("the Sinkhorn iteration cap", self.max_iterations as f64),
        ];
        for (name, value) in settings {
            if !(value.is_finite() && value > 0.0) {
                return Err(RoutingError::NotPositive { name, value });
            }
        }
        Ok(())
    }

    /// Maximises `⟨Π, L⟩ + reg · H(Π)` over plans with row sums 1 and column sums `T/E`.
    ///
    /// The potentials live in the log domain. Most iterations run on scalings of the kernel around
    /// the current potentials, which needs no exponential; when a scaling leaves its range it is
    /// absorbed into the potentials by an exact log-domain step (Schmitzer, arXiv:1610.06519).
    ///
    /// - `logits`: `L [tokens, experts]`, finite, row-major
    ///
    /// # Panics
    /// If the logits do not fill their shape, or there are no experts.
    pub fn solve(&self, logits: &[f32], [tokens, experts]: [usize; 2]) -> SinkhornPlan {
        assert_eq!(logits.len(), tokens * experts, "sinkhorn: logits and their shape");
        assert!(experts > 0, "sinkhorn: at least one expert");
        if tokens == 0 {
            return SinkhornPlan::of_no_tokens(experts, self.regularisation);
        }
        let mut state = State::new(logits, experts, self.regularisation);
        let mut iterations = 0;
        let row_error = 'solved: loop {
            state.log_step();
            iterations += 1;
            state.rebuild_kernel();
            loop {
                let (rows, columns) = state.multiply();
                let row_error = state.row_error(&rows);
                if row_error <= self.tolerance || iterations >= self.max_iterations {
                    break 'solved row_error;
                }
                iterations += 1;
                if !state.rescale(&rows, &columns) {
                    break;
                }
            }
        };
        state.absorb();
        state.centre();
        SinkhornPlan {
            plan: state.plan(),
            token_potential: state.f,
            expert_potential: state.g,
            iterations,
            row_error,
            regularisation: self.regularisation,
        }
    }
}

/// Rows of the kernel that one task handles; fixed, so that sums do not depend on the threads.
const ROWS_PER_TASK: usize = 512;

/// Potentials `f, g`, the kernel `exp(L + f + g)` around them, and scalings `u, v` of the kernel.
struct State {
    logits: Vec<f64>,
    experts: usize,
    expert_marginal: f64,
    f: Vec<f64>,
    g: Vec<f64>,
    kernel: Vec<f64>,
    u: Vec<f64>,
    v: Vec<f64>,
}

impl State {
    fn new(logits: &[f32], experts: usize, regularisation: f64) -> Self {
        let tokens = logits.len() / experts;
        Self {
            logits: logits.iter().map(|logit| f64::from(*logit) / regularisation).collect(),
            experts,
            expert_marginal: tokens as f64 / experts as f64,
            f: vec![0.0; tokens],
            g: vec![0.0; experts],
            kernel: vec![0.0; logits.len()],
            u: vec![1.0; tokens],
            v: vec![1.0; experts],
        }
    }

    /// Absorbs the scalings, then normalises the rows, then the columns, all in the log domain.
    fn log_step(&mut self) {
        self.absorb();
        let (experts, g) = (self.experts, &self.g);
        self.f.par_iter_mut().zip(self.logits.par_chunks(experts)).for_each(|(f, row)| {
            *f = -log_sum_exp(row.iter().zip(g).map(|(logit, g)| logit + g));
        });
        let (logits, f) = (&self.logits, &self.f);
        let log_marginal = self.expert_marginal.ln();
        self.g.par_iter_mut().enumerate().for_each(|(expert, g)| {
            let column = logits[expert..].iter().step_by(experts);
            *g = log_marginal - log_sum_exp(column.zip(f).map(|(logit, f)| logit + f));
        });
    }

    fn absorb(&mut self) {
        let potentials = self.f.iter_mut().chain(&mut self.g);
        for (potential, scaling) in potentials.zip(self.u.iter_mut().chain(&mut self.v)) {
            *potential += scaling.ln();
            *scaling = 1.0;
        }
    }

    fn rebuild_kernel(&mut self) {
        let (experts, g) = (self.experts, &self.g);
        let rows = self.kernel.par_chunks_mut(experts).zip(self.logits.par_chunks(experts));
        rows.zip(&self.f).for_each(|((kernel, logits), f)| {
            for ((kernel, logit), g) in kernel.iter_mut().zip(logits).zip(g) {
                *kernel = (logit + f + g).exp();
            }
        });
    }

    /// One pass over the kernel: the row sums under `v`, and the column sums under the scaling that
    /// would make those rows sum to 1.
    fn multiply(&self) -> (Vec<f64>, Vec<f64>) {
        let experts = self.experts;
        let parts: Vec<(Vec<f64>, Vec<f64>)> = self
            .kernel
            .par_chunks(ROWS_PER_TASK * experts)
            .map(|kernel| {
                let mut rows = Vec::with_capacity(ROWS_PER_TASK);
                let mut columns = vec![0.0; experts];
                for kernel in kernel.chunks_exact(experts) {
                    let row: f64 = kernel.iter().zip(&self.v).map(|(k, v)| k * v).sum();
                    for (column, k) in columns.iter_mut().zip(kernel) {
                        *column += k / row;
                    }
                    rows.push(row);
                }
                (rows, columns)
            })
            .collect();
        let mut rows = Vec::with_capacity(self.u.len());
        let mut columns = vec![0.0; experts];
        for (part_rows, part_columns) in parts {
            rows.extend(part_rows);
            columns.iter_mut().zip(part_columns).for_each(|(column, part)| *column += part);
        }
        (rows, columns)
    }

    fn row_error(&self, rows: &[f64]) -> f64 {
        let errors = rows.iter().zip(&self.u).map(|(row, u)| (u * row - 1.0).abs());
        errors.fold(0.0, |worst, error| if error > worst || error.is_nan() { error } else { worst })
    }

    /// Normalises rows and columns by the sums of [`multiply`](Self::multiply); false, and nothing
    /// changed, if a scaling would leave its range.
    fn rescale(&mut self, rows: &[f64], columns: &[f64]) -> bool {
        const RANGE: std::ops::RangeInclusive<f64> = 1e-100..=1e100;
        let v: Vec<f64> = columns.iter().map(|column| self.expert_marginal / column).collect();
        let in_range = rows.iter().chain(&v).all(|scaling| RANGE.contains(scaling));
        if in_range {
            self.u = rows.iter().map(|row| row.recip()).collect();
            self.v = v;
        }
        in_range
    }

    /// Moves a constant between the potentials so that `g` has mean 0.
    fn centre(&mut self) {
        let mean = self.g.iter().sum::<f64>() / self.g.len() as f64;
        self.g.iter_mut().for_each(|g| *g -= mean);
        self.f.iter_mut().for_each(|f| *f += mean);
    }

    fn plan(&mut self) -> Vec<f32> {
        self.rebuild_kernel();
        self.kernel.iter().map(|mass| *mass as f32).collect()
    }
}

fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
    max + values.map(|value| (value - max).exp()).sum::<f64>().ln()
}

impl SinkhornPlan {
    fn of_no_tokens(experts: usize, regularisation: f64) -> Self {
        let expert_potential = vec![0.0; experts];
        let (plan, token_potential) = (vec![], vec![]);
        let (iterations, row_error) = (0, 0.0);
        Self { plan, token_potential, expert_potential, iterations, row_error, regularisation }
    }

    /// The plan as a function of the logits it was solved for, for combine weights that carry
    /// gradient.
    ///
    /// One Newton step of the marginal equations from the solution, with the Jacobian held fixed:
    /// its value is the solution, and its derivative is the implicit one. The `T` token equations
    /// are eliminated by hand, so only an `E × E` matrix is inverted.
    ///
    /// - `logits`: `[T, E]`, as passed to [`Sinkhorn::solve`]
    /// - returns: `Π [T, E]`
    pub fn differentiable(&self, logits: Tensor<2>) -> Tensor<2> {
        let device = logits.device();
        let (tokens, experts) = (self.token_potential.len(), self.expert_potential.len());
        let marginal = tokens as f64 / experts as f64;
        let constant = |values: Vec<f32>, shape: [usize; 2]| {
            transfer::brought(&values);
            Tensor::<2>::from_data(TensorData::new(values, shape), &device)
        };
        let narrow = |values: &[f64]| values.iter().map(|value| *value as f32).collect::<Vec<_>>();

        let solved = constant(self.plan.clone(), [tokens, experts]);
        let inverse = constant(narrow(&self.inverse_schur(marginal)), [experts, experts]);
        let exponent = logits / self.regularisation
            + constant(narrow(&self.token_potential), [tokens, 1])
            + constant(narrow(&self.expert_potential), [1, experts]);
        let plan = exponent.clone().exp();
        // The residuals count as zero, which they are up to the solver's tolerance.
        let only_gradient = |tensor: Tensor<2>| tensor.clone() - tensor.detach();
        let rows = solved.clone().sum_dim(1);
        let row_residual = only_gradient(plan.clone().sum_dim(1).neg()) / rows.clone();
        let column_residual = only_gradient(plan.sum_dim(0).neg());
        let right = column_residual - row_residual.clone().transpose().matmul(solved.clone());
        let expert_step = right.matmul(inverse);
        let token_step = row_residual - solved.matmul(expert_step.clone().transpose()) / rows;
        (exponent + token_step + expert_step).exp()
    }

    /// `(diag(T/E) - Πᵀ diag(Π1)⁻¹ Π + 11ᵀ)⁻¹`: the rank-one term fixes the constant that the potentials
    /// leave free, to which the right-hand side is orthogonal.
    fn inverse_schur(&self, marginal: f64) -> Vec<f64> {
        let n = self.expert_potential.len();
        let mut schur = vec![1.0; n * n];
        for row in self.plan.chunks_exact(n) {
            let sum: f64 = row.iter().map(|mass| f64::from(*mass)).sum();
            for (i, a) in row.iter().enumerate() {
                for (entry, b) in schur[i * n..(i + 1) * n].iter_mut().zip(row) {
                    *entry -= f64::from(*a) * f64::from(*b) / sum;
                }
            }
        }
        for i in 0..n {
            // The ridge bounds the inverse where underflow has cut the plan into separate blocks.
            schur[i * n + i] += marginal * (1.0 + 1e-9);
        }
        inverse(schur, n)
    }
}

/// Gauss–Jordan elimination of a symmetric positive definite matrix.
fn inverse(mut matrix: Vec<f64>, n: usize) -> Vec<f64> {
    for pivot in 0..n {
        let scale = matrix[pivot * n + pivot].recip();
        for row in (0..n).filter(|row| *row != pivot) {
            let factor = matrix[row * n + pivot] * scale;
            for column in (0..n).filter(|column| *column != pivot) {
                matrix[row * n + column] -= factor * matrix[pivot * n + column];
            }
            matrix[row * n + pivot] = -factor;
        }
        for column in (0..n).filter(|column| *column != pivot) {
            matrix[pivot * n + column] *= scale;
        }
        matrix[pivot * n + pivot] = scale;
    }
    matrix
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use proptest::prelude::*;

    use super::*;

    /// Sinkhorn's algorithm as it is written: rows and columns in turn, in the log domain.
    fn literal(logits: &[f32], tokens: usize, experts: usize, iterations: usize) -> Vec<f64> {
        let mut state = State::new(logits, experts, 1.0);
        assert_eq!(state.f.len(), tokens);
        for _ in 0..iterations {
            state.log_step();
        }
        state.rebuild_kernel();
        state.kernel
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn scalings_give_the_plan_of_the_log_domain(
            (tokens, experts, logits) in (1..20_usize, 1..6_usize).prop_flat_map(|(t, e)| {
                (Just(t), Just(e), prop::collection::vec(-2.0..2.0_f32, t * e))
            }),
        ) {
            let exact = Sinkhorn { tolerance: 1e-10, max_iterations: 1000, ..Default::default() };
            let solved = exact.solve(&logits, [tokens, experts]);
            for (a, b) in solved.plan.iter().zip(literal(&logits, tokens, experts, 1000)) {
                prop_assert!((f64::from(*a) - b).abs() < 1e-6, "{a} {b}");
            }
        }
    }

    /// Logits whose scalings leave the range of a double go through the log domain.
    #[test]
    fn huge_logits_give_the_plan_of_the_log_domain() {
        let logits = [900.0, -900.0, 0.0, 800.0, -700.0, 1.0, -800.0, 900.0, 2.0];
        let solver = Sinkhorn { tolerance: 1e-300, max_iterations: 40, ..Default::default() };
        let solved = solver.solve(&logits, [3, 3]);
        for (a, b) in solved.plan.iter().zip(literal(&logits, 3, 3, 40)) {
            assert!((f64::from(*a) - b).abs() < 1e-6, "{a} {b}");
        }
    }

    #[test]
    fn the_iteration_cap_is_kept() {
        let logits = [3.0, 0.0, 3.0, 0.0, 3.0, 1.0];
        let capped = Sinkhorn { max_iterations: 2, tolerance: 1e-12, ..Default::default() };
        assert_eq!(capped.solve(&logits, [3, 2]).iterations, 2);
    }

    /// The implicit gradient against central differences of the solver.
    #[test]
    fn the_gradient_is_that_of_the_solution() {
        let device = Device::flex().autodiff();
        let logits = [0.3, -0.5, 1.0, 0.8, 0.1, -0.2, -1.0, 0.4, 0.6, 0.2, 0.9, -0.7_f32];
        let weights = [1.0, -2.0, 0.5, 0.3, 1.5, -0.4, 0.7, 0.2, -1.1, 0.6, -0.3, 0.9_f32];
        let solver = Sinkhorn { tolerance: 1e-13, max_iterations: 10_000, ..Default::default() };
        let objective = |logits: &[f32]| -> f64 {
            let mut state = State::new(logits, 3, 1.0);
            (0..2000).for_each(|_| state.log_step());
            state.rebuild_kernel();
            state.kernel.iter().zip(weights).map(|(mass, weight)| mass * f64::from(weight)).sum()
        };

        let leaf = Tensor::<2>::from_data(TensorData::new(logits.to_vec(), [4, 3]), &device)
            .require_grad();
        let plan = solver.solve(&logits, [4, 3]).differentiable(leaf.clone());
        let weight = Tensor::<2>::from_data(TensorData::new(weights.to_vec(), [4, 3]), &device);
        let gradients = (plan * weight).sum().backward();
        let gradient: Vec<f32> = leaf.grad(&gradients).unwrap().into_data().try_to_vec().unwrap();
        for (i, gradient) in gradient.into_iter().enumerate() {
            let step = 1.0 / 256.0;
            let moved = |by: f32| {
                let mut logits = logits;
                logits[i] += by;
                objective(&logits)
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
            assert!((f64::from(gradient) - expected).abs() < 1e-4, "{i}: {gradient} {expected}");
        }
    }
}
