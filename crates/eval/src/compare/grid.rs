//! Experts per token against models: adaptive and static combination (paper 000 §3, Fig. 2).

use serde::Serialize;

use super::Row;
use crate::metrics::Estimate;

/// One pair of `K` and `M`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Experts per token.
    pub k: usize,
    /// Models.
    pub m: usize,
    /// Negative log-likelihood.
    pub nll: Estimate,
    /// Training FLOPs of one image.
    pub flops: u64,
    /// Logarithm of the gain in log-likelihood per GFLOP over the smallest K and M (Fig. 2c); nothing
    /// where there is no gain.
    pub log_gain_per_gflop: Option<f64>,
}

/// NLL and cost over `K` and `M`, of sparse models of one family with equally many experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Grid {
    /// Which family.
    pub family: String,
    /// Experts in a layer.
    pub experts: usize,
    /// Values of `K`, rising.
    pub ks: Vec<usize>,
    /// Values of `M`, rising.
    pub ms: Vec<usize>,
    /// What is known of it, by `M`, then by `K`.
    pub cells: Vec<Cell>,
}

impl Grid {
    /// Of the family that covers most; nothing unless it has several values of both.
    pub(super) fn new(rows: &[Row]) -> Option<Self> {
        let sparse = |row: &Row| Some((row.kind.family.clone(), row.kind.experts?));
        let mut families: Vec<(String, usize)> = rows.iter().filter_map(sparse).collect();
        families.sort_unstable();
        families.dedup();
        let grids =
            families.into_iter().filter_map(|(family, experts)| Self::of(&family, experts, rows));
        grids.max_by_key(|grid| grid.cells.len())
    }

    fn of(family: &str, experts: usize, rows: &[Row]) -> Option<Self> {
        // A member of its own per model: E³ is not on the axis of models.
        let on_grid = |row: &&Row| {
            let kind = &row.kind;
            kind.family == family && kind.experts == Some(experts) && kind.members == kind.models
        };
        let mut cells: Vec<Cell> = Vec::new();
        for row in rows.iter().filter(on_grid) {
            let Some((k, nll)) = row.kind.k.zip(row.nll) else { continue };
            let m = row.kind.models;
            if cells.iter().all(|cell| (cell.k, cell.m) != (k, m)) {
                let flops = row.cost.training_flops;
                cells.push(Cell { k, m, nll, flops, log_gain_per_gflop: None });
            }
        }
        cells.sort_by_key(|cell| (cell.m, cell.k));
        let distinct = |of: fn(&Cell) -> usize| {
            let mut values: Vec<usize> = cells.iter().map(of).collect();
            values.sort_unstable();
            values.dedup();
            values
        };
        let (ks, ms) = (distinct(|cell| cell.k), distinct(|cell| cell.m));
        if ks.len() < 2 || ms.len() < 2 || cells.len() < ks.len() * ms.len() {
            return None;
        }
        let (nll, flops) = (cells[0].nll.mean, cells[0].flops as f64);
        for cell in &mut cells[1..] {
            let (gain, more) = (nll - cell.nll.mean, (cell.flops as f64 - flops) / 1e9);
            cell.log_gain_per_gflop = (gain > 0.0 && more > 0.0).then(|| (gain / more).ln());
        }
        Some(Self { family: family.to_owned(), experts, ks, ms, cells })
    }
}
