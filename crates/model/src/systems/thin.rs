//! Layers of experts back to dense ones: only those that matter stay (paper 003 §4, the efficient ViMoE).

use std::collections::HashMap;

use burn::tensor::Device;
use omma_base::Seed;
use rand::RngExt;

use super::upcycle::by_name;
use crate::{
    config::Placement,
    error::{ModelError, Result},
    parameters::{ParameterValues, with_values},
    vit::VisionTransformer,
};

/// A block whose experts become one network.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseBlock {
    /// Which block.
    pub block: usize,
    /// What it becomes.
    pub from: DenseFrom,
    /// What its outputs are multiplied by: experts are weighted by their gates, and a dense network is not.
    pub scale: f32,
}

/// What the network of a block is made of that loses its experts.
#[derive(Debug, Clone, PartialEq)]
pub enum DenseFrom {
    /// The expert that every token passes.
    Shared,
    /// The mean of the experts' weights, each counted by its number in `[E]`; one expert alone is that one.
    Experts(Vec<f64>),
}

/// The same model with dense feed-forward networks in the place of some layers of experts. Everything else stays
/// as it is; without experts in any block, the model is a dense one. Where experts have fewer hidden units than dense
/// blocks, the others are there and change nothing until they learn. Only the tower that images pass is changed.
pub fn thin(
    model: &VisionTransformer,
    dense: &[DenseBlock],
    device: &Device,
) -> Result<VisionTransformer> {
    let mut config = model.config().clone();
    let encoder = &mut config.encoder;
    let Some(moe) = &mut encoder.moe else { return Err(ModelError::NoExperts) };
    let fault = |why: String| ModelError::Adapt {
        from: "layer of experts".to_owned(),
        to: "dense one".to_owned(),
        why,
    };
    if !moe.residual {
        return Err(fault(
            "nothing skips it, and a dense block would be added to its input".to_owned(),
        ));
    }
    let (hidden, mlp) = (moe.hidden.unwrap_or(encoder.mlp), encoder.mlp);
    if hidden > mlp {
        return Err(fault(format!("experts have {hidden} hidden units, and dense blocks {mlp}")));
    }
    let mut blocks = moe.placement.blocks(encoder.depth)?;
    let mut present = HashMap::new();
    for DenseBlock { block, from, scale } in dense {
        if !blocks.contains(block) {
            return Err(fault(format!("block {block} has no experts")));
        }
        blocks.retain(|other| other != block);
        let router = moe.router_of(*block);
        let there = router.pruning.present(router.experts)?;
        if !scale.is_finite() {
            return Err(fault(format!("{scale} is nothing to multiply outputs by")));
        }
        match from {
            DenseFrom::Shared if !moe.shared_expert => {
                return Err(fault("there is no shared expert".to_owned()));
            }
            DenseFrom::Shared => {}
            DenseFrom::Experts(weights) => {
                let sum: f64 = there.iter().filter_map(|expert| weights.get(*expert)).sum();
                if weights.len() != router.experts || !(sum.is_finite() && sum > 0.0) {
                    return Err(fault(format!("{weights:?} are no weights of its experts")));
                }
            }
        }
        present.insert(*block, (from, *scale, there));
    }
    moe.pruned.retain(|pruned| blocks.contains(&pruned.block));
    match blocks.is_empty() {
        true => encoder.moe = None,
        false => moe.placement = Placement::Blocks(blocks),
    }
    let values = by_name(model);
    with_values(config.init(Seed::new(0), device)?, |parameter| {
        if let Some(same) = values.get(&parameter.name) {
            return Ok(Some(same.read()));
        }
        let missing = || fault(format!("there is nothing for {}", parameter.name));
        let (block, name) = dense_parameter(&parameter.name).ok_or_else(missing)?;
        let (from, scale, there) = present.get(&block).ok_or_else(missing)?;
        let inside = |part: &str| {
            let name = format!("blocks.{block}.feed_forward.{part}.{name}");
            values.get(&name).ok_or_else(missing)
        };
        let mut made = match from {
            DenseFrom::Shared => inside("shared")?.read(),
            DenseFrom::Experts(weights) => mean(inside("experts")?, there, weights),
        };
        if name.starts_with("down") {
            made.iter_mut().for_each(|value| *value *= scale);
        }
        Ok(Some(match (made.len() < parameter.shape.iter().product(), name) {
            (true, "up") => with_fresh_units(made, hidden, &parameter.shape, block),
            // Without weights of their own behind them, more hidden units change nothing.
            (true, _) => {
                let mut made = made;
                made.resize(parameter.shape.iter().product(), 0.0);
                made
            }
            (false, _) => made,
        }))
    })
}

/// More hidden units than experts have, drawn as in a fresh network: nothing follows from them yet, and they can
/// learn.
///
/// - `up`: `[D, hidden]`
/// - returns: `[D, H]`
fn with_fresh_units(up: Vec<f32>, hidden: usize, shape: &[usize], block: usize) -> Vec<f32> {
    let (width, wide) = (shape[0], shape[1]);
    let bound = (6.0 / (width + wide) as f32).sqrt();
    let mut rng = Seed::new(0).named("hidden units").numbered(block as u64).rng();
    let mut rows = Vec::with_capacity(width * wide);
    for row in up.chunks_exact(hidden) {
        rows.extend_from_slice(row);
        rows.extend((hidden..wide).map(|_| rng.random_range(-bound..bound)));
    }
    rows
}

/// The block of a dense feed-forward network's parameter, and what it is called there.
fn dense_parameter(name: &str) -> Option<(usize, &str)> {
    let (block, name) = name.strip_prefix("blocks.")?.split_once(".feed_forward.")?;
    Some((block.parse().ok()?, name))
}

/// The weighted mean of a stack's rows, in double precision: of equal ones, that one.
///
/// - `stack`: `[E', …]`; `there`: the experts of its rows; `weights`: `[E]`
fn mean(stack: &ParameterValues, there: &[usize], weights: &[f64]) -> Vec<f32> {
    let all = stack.read();
    let size = all.len() / there.len().max(1);
    let total: f64 = there.iter().map(|expert| weights[*expert]).sum();
    let mut sums = vec![0.0_f64; size];
    for (row, expert) in all.chunks_exact(size).zip(there) {
        let weight = weights[*expert] / total;
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * f64::from(*value));
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}
