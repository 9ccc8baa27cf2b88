//! Experts in another order (paper 000 App. H.3).

use burn::tensor::Device;
use omma_base::Seed;
use rand::seq::SliceRandom;

use super::{adapt::one_gate, upcycle::by_name};
use crate::{error::Result, parameters::with_values, vit::VisionTransformer};

/// The same model with the experts of every layer in an order drawn from `seed`, and the columns of its
/// router with them: it predicts what it did, and its subsets of experts are others once it is cut.
pub fn permute_experts(
    model: &VisionTransformer,
    seed: Seed,
    device: &Device,
) -> Result<VisionTransformer> {
    let config = model.config();
    one_gate(config)?;
    let experts = config.moe().map_or(0, |moe| moe.router.experts);
    let order = |layer: &str| {
        let mut order: Vec<usize> = (0..experts).collect();
        order.shuffle(&mut seed.named(layer).rng());
        order
    };
    let values = by_name(model);
    with_values(config.init(seed, device)?, |parameter| {
        let (name, values) = (&parameter.name, values[&parameter.name].read());
        if let Some((layer, _)) = name.split_once(".experts.") {
            let size = values.len() / experts;
            let moved =
                order(layer).into_iter().flat_map(|expert| &values[expert * size..][..size]);
            return Ok(Some(moved.copied().collect()));
        }
        if let Some(layer) = name.strip_suffix(".router.weight") {
            let order = order(layer);
            let rows = values.chunks_exact(experts);
            let moved = rows.flat_map(|row| order.iter().map(|expert| row[*expert]));
            return Ok(Some(moved.collect()));
        }
        Ok(Some(values))
    })
}
