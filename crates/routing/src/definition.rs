//! The definition: dispatch and combine tensors, and an MoE evaluated literally from them.
//!
//! Everything else in this crate is a faster way to the same numbers. The tensors here have
//! `T · E · C` entries and the algorithms are written as the paper writes them, so this module is
//! for reading and for testing, never for speed.

use burn::tensor::{Device, Tensor, TensorData};

/// The routing tensors of one group (paper 001 eq. 5).
#[derive(Debug, Clone)]
pub struct RoutingTensors {
    /// `D [T, E, C]`: how much of token `t` goes into slot `c` of expert `r`.
    pub dispatch: Tensor<3>,
    /// `C [T, E, C]`: how much of slot `c` of expert `r` comes back to token `t`.
    pub combine: Tensor<3>,
}

impl RoutingTensors {
    /// `MoE(X)[t] = Σ_r Σ_c C[t,r,c] · MLP_r(Xᵀ D[:,r,c])` (paper 001 eq. 2).
    ///
    /// - `tokens`: `X [T, D]`
    /// - `expert`: the `r`-th expert, from its slots `[C, D]` to their outputs `[C, D']`
    /// - returns: `[T, D']`
    pub fn moe(
        &self,
        tokens: Tensor<2>,
        mut expert: impl FnMut(usize, Tensor<2>) -> Tensor<2>,
    ) -> Tensor<2> {
        let [_, experts, _] = self.dispatch.dims();
        (0..experts)
            .map(|r| {
                let slots = of_expert(&self.dispatch, r).transpose().matmul(tokens.clone());
                of_expert(&self.combine, r).matmul(expert(r, slots))
            })
            .reduce(|sum, term| sum + term)
            .expect("a router has at least one expert")
    }
}

/// `[T, C]` of expert `r`.
fn of_expert(tensor: &Tensor<3>, r: usize) -> Tensor<2> {
    let [tokens, _, capacity] = tensor.dims();
    tensor.clone().narrow(1, r, 1).reshape([tokens, capacity])
}

/// What the two allocation algorithms read: an affinity and a combine weight for every token and
/// expert. An affinity of `-∞` marks an expert that the token may not use.
#[derive(Debug, Clone)]
pub struct Matrices {
    /// Tokens, `T`.
    pub tokens: usize,
    /// Experts, `E`.
    pub experts: usize,
    /// `Π [T, E]`, row-major.
    pub affinity: Vec<f32>,
    /// `[T, E]`, row-major: the weight of an assignment, if it is made.
    pub weights: Vec<f32>,
}

impl Matrices {
    /// Token choice (Algorithm 1).
    ///
    /// - `order`: the tokens in the order in which they are served
    /// - `subsets`: every token chooses `k` experts in each of these
    pub fn token_choice(
        &self,
        k: usize,
        capacity: usize,
        order: &[usize],
        subsets: &[Vec<usize>],
        device: &Device,
    ) -> RoutingTensors {
        let mut routing = Builder::new(self, capacity);
        for i in 0..k {
            for &t in order {
                for subset in subsets {
                    let best_first =
                        sorted_descending(subset, |r| self.affinity[t * self.experts + r]);
                    let r = best_first[i];
                    let c = routing.tokens_of(r);
                    if c < capacity && self.affinity[t * self.experts + r] > f32::NEG_INFINITY {
                        routing.assign(t, r, c);
                    }
                }
            }
        }
        routing.build(device)
    }

    /// Expert choice (Algorithm 2).
    pub fn expert_choice(&self, capacity: usize, device: &Device) -> RoutingTensors {
        let mut routing = Builder::new(self, capacity);
        let tokens: Vec<usize> = (0..self.tokens).collect();
        for r in 0..self.experts {
            let best_first = sorted_descending(&tokens, |t| self.affinity[t * self.experts + r]);
            for (c, &t) in best_first.iter().enumerate().take(capacity) {
                if self.affinity[t * self.experts + r] > f32::NEG_INFINITY {
                    routing.assign(t, r, c);
                }
            }
        }
        routing.build(device)
    }
}

/// `items` from the largest value to the smallest; equal ones stay as they are.
fn sorted_descending(items: &[usize], value: impl Fn(usize) -> f32) -> Vec<usize> {
    let mut items = items.to_vec();
    items.sort_by(|a, b| value(*b).total_cmp(&value(*a)));
    items
}

/// Routing tensors under construction.
struct Builder<'a> {
    matrices: &'a Matrices,
    capacity: usize,
    dispatch: Vec<f32>,
    combine: Vec<f32>,
}

impl<'a> Builder<'a> {
    fn new(matrices: &'a Matrices, capacity: usize) -> Self {
        let zeros = vec![0.0; matrices.tokens * matrices.experts * capacity];
        Self { matrices, capacity, dispatch: zeros.clone(), combine: zeros }
    }

    /// `‖D[:, r, :]‖₀`.
    fn tokens_of(&self, r: usize) -> usize {
        let of_expert = |cell: usize| cell / self.capacity % self.matrices.experts == r;
        (0..self.dispatch.len())
            .filter(|cell| of_expert(*cell) && self.dispatch[*cell] != 0.0)
            .count()
    }

    fn assign(&mut self, t: usize, r: usize, c: usize) {
        let cell = (t * self.matrices.experts + r) * self.capacity + c;
        self.dispatch[cell] = 1.0;
        self.combine[cell] = self.matrices.weights[t * self.matrices.experts + r];
    }

    fn build(self, device: &Device) -> RoutingTensors {
        let shape = [self.matrices.tokens, self.matrices.experts, self.capacity];
        let tensor = |values| Tensor::from_data(TensorData::new(values, shape), device);
        RoutingTensors { dispatch: tensor(self.dispatch), combine: tensor(self.combine) }
    }
}
