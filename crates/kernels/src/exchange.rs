//! Rows that travel to experts of other processes, and back.
//!
//! Both ways are operations with a backward pass, in which gradients travel the other way. All processes run them in
//! the same order, with rows or without.

use std::{fmt::Debug, sync::Arc};

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::{
    Dispatch,
    fused::{Array, FusedOp, Input, apply},
};

/// What takes values to other processes.
pub trait Exchange: Debug + Send + Sync {
    /// Gives every process its part of `values`, and returns what every process has for this one, in their order.
    ///
    /// - `sent`, `received`: how many values each gets and gives
    fn swap(&self, values: Vec<f32>, sent: &[usize], received: &[usize]) -> Vec<f32>;
}

/// How many rows go where, and come from where.
#[derive(Debug, Clone)]
pub struct Journey {
    exchange: Arc<dyn Exchange>,
    sent: Arc<[usize]>,
    received: Arc<[usize]>,
}

impl Journey {
    /// - `sent`, `received`: rows that each process gets and gives
    pub fn new(
        exchange: Arc<dyn Exchange>,
        sent: impl Into<Arc<[usize]>>,
        received: impl Into<Arc<[usize]>>,
    ) -> Self {
        Self { exchange, sent: sent.into(), received: received.into() }
    }

    /// Rows that arrive.
    pub fn arriving(&self) -> usize {
        self.received.iter().sum()
    }

    fn leaving(&self) -> usize {
        self.sent.iter().sum()
    }

    /// - `rows`: `[leaving, width]`
    /// - returns: `[arriving, width]`
    fn there(&self, rows: Vec<f32>, width: usize) -> Vec<f32> {
        let [sent, received] = [&self.sent, &self.received].map(|rows| values(rows, width));
        self.exchange.swap(rows, &sent, &received)
    }

    /// - `rows`: `[arriving, width]`
    /// - returns: `[leaving, width]`
    fn back(&self, rows: Vec<f32>, width: usize) -> Vec<f32> {
        let [sent, received] = [&self.sent, &self.received].map(|rows| values(rows, width));
        self.exchange.swap(rows, &received, &sent)
    }
}

fn values(rows: &[usize], width: usize) -> Vec<usize> {
    rows.iter().map(|rows| rows * width).collect()
}

/// Sends the rows of a dispatch, one after the other, to where their experts are.
///
/// - `tokens`: `[N, D]`, on the CPU
/// - returns: the rows that arrive here, `[arriving, D]`
///
/// # Panics
///
/// If tokens are on another device.
pub fn to_experts(tokens: Tensor<2>, dispatch: &Dispatch, journey: &Journey) -> Tensor<2> {
    assert_eq!(dispatch.tokens().len(), journey.leaving(), "to_experts: all rows leave");
    let op = ToExperts { dispatch: dispatch.clone(), journey: journey.clone() };
    apply(&op, [Input::new(&tokens)]).expect("experts are spread over processes on the CPU alone")
}

/// Sends what experts have made of the rows that arrived back to where these came from, and adds them up for every
/// token: `y[t] = Σ_rows of t  weight · row`.
///
/// - `outputs`: `[arriving, D]`, on the CPU; `weights`: `[rows]` of the dispatch
/// - returns: `[N, D]`
///
/// # Panics
///
/// If tensors are on another device.
pub fn from_experts(
    outputs: Tensor<2>,
    weights: Tensor<1>,
    dispatch: &Dispatch,
    journey: &Journey,
) -> Tensor<2> {
    assert_eq!(outputs.dims()[0], journey.arriving(), "from_experts: a row for every one");
    assert_eq!(weights.dims(), [journey.leaving()], "from_experts: a weight per row");
    let op = FromExperts { dispatch: dispatch.clone(), journey: journey.clone() };
    apply(&op, [Input::new(&outputs), Input::new(&weights)])
        .expect("experts are spread over processes on the CPU alone")
}

#[derive(Debug, Clone)]
struct ToExperts {
    dispatch: Dispatch,
    journey: Journey,
}

impl FusedOp<1> for ToExperts {
    /// The width of a row.
    type Saved = usize;

    fn forward(&self, [tokens]: [Array; 1], keep: bool) -> (Array, Option<usize>) {
        let width = tokens.shape()[1];
        let rows = picked(tokens.values(), width, &self.dispatch, |_| 1.0);
        let rows = self.journey.there(rows, width);
        (Array::new(rows, &[self.journey.arriving(), width]), keep.then_some(width))
    }

    fn backward(&self, width: usize, drows: Array, wanted: [bool; 1]) -> [Option<Array>; 1] {
        let drows = self.journey.back(drows.values().to_vec(), width);
        let dtokens = wanted[0].then(|| self.dispatch.routes(None).collect(&drows, width, false));
        [dtokens.map(|dtokens| Array::new(dtokens, &[self.dispatch.n_tokens(), width]))]
    }
}

#[derive(Debug, Clone)]
struct FromExperts {
    dispatch: Dispatch,
    journey: Journey,
}

impl FusedOp<2> for FromExperts {
    /// Rows as they came back, and their weights.
    type Saved = [Array; 2];

    fn forward(&self, [outputs, weights]: [Array; 2], keep: bool) -> (Array, Option<Self::Saved>) {
        let width = outputs.shape()[1];
        let rows = self.journey.back(outputs.values().to_vec(), width);
        let sums = self.dispatch.routes(Some(weights.values())).collect(&rows, width, true);
        let rows = Array::new(rows, &[self.journey.leaving(), width]);
        let sums = Array::new(sums, &[self.dispatch.n_tokens(), width]);
        (sums, keep.then_some([rows, weights]))
    }

    fn backward(
        &self,
        [rows, weights]: Self::Saved,
        doutput: Array,
        wanted: [bool; 2],
    ) -> [Option<Array>; 2] {
        let (width, tokens) = (rows.shape()[1], self.dispatch.tokens());
        let drows = wanted[0].then(|| {
            let weights = weights.values();
            let drows = picked(doutput.values(), width, &self.dispatch, |row| weights[row]);
            let drows = self.journey.there(drows, width);
            Array::new(drows, &[self.journey.arriving(), width])
        });
        let dweights = wanted[1].then(|| {
            let of_row = |(row, token): (&[f32], &u32)| {
                let doutput = &doutput.values()[*token as usize * width..][..width];
                row.iter().zip(doutput).map(|(a, b)| a * b).sum()
            };
            let rows = rows.values().par_chunks_exact(width.max(1)).zip(tokens);
            Array::new(rows.with_min_len(64).map(of_row).collect(), &[tokens.len()])
        });
        [drows, dweights]
    }
}

/// `[rows, width]`: the values of every row's token, times something.
fn picked(
    values: &[f32],
    width: usize,
    dispatch: &Dispatch,
    factor: impl Fn(usize) -> f32 + Sync,
) -> Vec<f32> {
    let mut rows = vec![0.0; dispatch.tokens().len() * width];
    let each = rows.par_chunks_exact_mut(width.max(1)).zip(dispatch.tokens()).enumerate();
    each.with_min_len(64).for_each(|(row, (to_fill, token))| {
        let factor = factor(row);
        let own = &values[*token as usize * width..][..width];
        to_fill.iter_mut().zip(own).for_each(|(to_fill, value)| *to_fill = factor * value);
    });
    rows
}
