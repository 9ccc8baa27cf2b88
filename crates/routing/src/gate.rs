//! The values of a gate, on the host.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The values of one gate for the tokens that called it, in routing order.
///
/// Allocation reads nothing but these tables: a router is its gates' tables plus an algorithm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateTable {
    /// The expert behind each column, in increasing order.
    pub experts: Vec<usize>,
    /// Whether each column's expert may be chosen; false for experts that router-pred masks.
    pub available: Vec<bool>,
    /// The token of each row, group after group.
    pub tokens: Vec<u32>,
    /// Rows of group `g` are `bounds[g]..bounds[g + 1]`.
    pub bounds: Vec<usize>,
    /// Softmax probabilities `[rows, columns]`, row-major.
    pub gates: Vec<f32>,
    /// The affinity `[rows, columns]` where it is not the gates themselves.
    pub affinity: Option<Vec<f32>>,
}

impl GateTable {
    /// Experts this gate knows.
    pub fn columns(&self) -> usize {
        self.experts.len()
    }

    /// What allocation decides by.
    pub fn scores(&self) -> &[f32] {
        self.affinity.as_deref().unwrap_or(&self.gates)
    }

    /// The rows of one group.
    pub fn rows(&self, group: usize) -> Range<usize> {
        self.bounds[group]..self.bounds[group + 1]
    }
}
