//! Multi-head attention.

use std::sync::Arc;

use burn::tensor::Tensor;

use crate::{
    cpu::attention::{Packed, Rows, Separate, Shape},
    fused::{Array, FusedOp, Input, apply},
    portable,
};

/// Attention of tokens to each other, from queries, keys and values side by side.
///
/// - `qkv`: `[batch, tokens, 3 · features]`, each third split into `heads` heads
/// - returns: `[batch, tokens, features]`, scores scaled by `1/√(features / heads)`
pub fn self_attention(qkv: Tensor<3>, heads: usize) -> Tensor<3> {
    let [_, _, columns] = qkv.dims();
    assert!(columns.is_multiple_of(3 * heads), "self_attention: {columns} columns, {heads} heads");
    apply(&SelfAttention { heads }, [Input::new(&qkv)])
        .unwrap_or_else(|| portable::self_attention(qkv, heads))
}

/// Attention of queries to keys.
///
/// - `queries`: `[batch, queries, features]`; `keys`, `values`: `[batch, keys, features]`
/// - returns: `[batch, queries, features]`
pub fn attention(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    heads: usize,
) -> Tensor<3> {
    let [batch, _, features] = queries.dims();
    assert_eq!(keys.dims(), values.dims(), "attention: keys and values");
    assert_eq!([keys.dims()[0], keys.dims()[2]], [batch, features], "attention: queries and keys");
    assert!(features.is_multiple_of(heads), "attention: {features} features, {heads} heads");
    let inputs = [Input::new(&queries), Input::new(&keys), Input::new(&values)];
    apply(&CrossAttention { heads }, inputs)
        .unwrap_or_else(|| portable::attention(queries, keys, values, heads))
}

#[derive(Debug, Clone, Copy)]
struct SelfAttention {
    heads: usize,
}

impl SelfAttention {
    fn shape(&self, qkv: &Array) -> Shape {
        let [batch, tokens, columns] = qkv.shape().try_into().expect("three axes");
        let width = columns / 3 / self.heads;
        Shape { batch, queries: tokens, keys: tokens, heads: self.heads, width }
    }

    fn rows<'a>(&self, qkv: &'a Array) -> [Rows<'a>; 3] {
        let features = self.shape(qkv).features();
        let part = |offset| Rows { values: qkv.values(), stride: 3 * features, offset };
        [part(0), part(features), part(2 * features)]
    }
}

impl FusedOp<1> for SelfAttention {
    type Saved = (Array, Array, Arc<Vec<f32>>);

    fn forward(&self, [qkv]: [Array; 1], keep: bool) -> (Array, Option<Self::Saved>) {
        let shape = self.shape(&qkv);
        let (output, denominators) = shape.forward(self.rows(&qkv));
        let output = Array::new(output, &[shape.batch, shape.queries, shape.features()]);
        (output.clone(), keep.then(|| (qkv, output, Arc::new(denominators))))
    }

    fn backward(
        &self,
        (qkv, output, logs): Self::Saved,
        gradient: Array,
        _: [bool; 1],
    ) -> [Option<Array>; 1] {
        let shape = self.shape(&qkv);
        let features = shape.features();
        let mut gradients = vec![0.0; qkv.values().len()];
        let sinks = gradients.chunks_mut((3 * features * shape.queries).max(1));
        let sinks = sinks.map(|values| Packed { values, features }).collect();
        shape.backward(self.rows(&qkv), &logs, output.values(), gradient.values(), sinks);
        [Some(Array::new(gradients, &qkv.shape()))]
    }
}

#[derive(Debug, Clone, Copy)]
struct CrossAttention {
    heads: usize,
}

impl CrossAttention {
    fn shape(&self, [q, k, _]: &[Array; 3]) -> Shape {
        let [batch, queries, features] = q.shape().try_into().expect("three axes");
        Shape {
            batch,
            queries,
            keys: k.shape()[1],
            heads: self.heads,
            width: features / self.heads,
        }
    }

    fn rows<'a>(inputs: &'a [Array; 3], shape: &Shape) -> [Rows<'a>; 3] {
        let stride = shape.features();
        inputs.each_ref().map(|input| Rows { values: input.values(), stride, offset: 0 })
    }
}

impl FusedOp<3> for CrossAttention {
    type Saved = ([Array; 3], Array, Arc<Vec<f32>>);

    fn forward(&self, inputs: [Array; 3], keep: bool) -> (Array, Option<Self::Saved>) {
        let shape = self.shape(&inputs);
        let (output, denominators) = shape.forward(Self::rows(&inputs, &shape));
        let output = Array::new(output, &inputs[0].shape());
        (output.clone(), keep.then(|| (inputs, output, Arc::new(denominators))))
    }

    fn backward(
        &self,
        (inputs, output, logs): Self::Saved,
        gradient: Array,
        _: [bool; 3],
    ) -> [Option<Array>; 3] {
        let shape = self.shape(&inputs);
        let features = shape.features();
        let [mut dq, mut dk, mut dv] =
            inputs.each_ref().map(|input| vec![0.0; input.values().len()]);
        let (queries, keys) = ((features * shape.queries).max(1), (features * shape.keys).max(1));
        let parts = dq.chunks_mut(queries).zip(dk.chunks_mut(keys)).zip(dv.chunks_mut(keys));
        let sinks = parts.map(|((q, k), v)| Separate { values: [q, k, v], features }).collect();
        let rows = Self::rows(&inputs, &shape);
        shape.backward(rows, &logs, output.values(), gradient.values(), sinks);
        let mut gradients = [dq, dk, dv].into_iter().zip(&inputs);
        std::array::from_fn(|_| {
            gradients.next().map(|(values, input)| Array::new(values, &input.shape()))
        })
    }
}
