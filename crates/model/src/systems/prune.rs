//! Fewer experts (paper 002 App. E.4).

use burn::tensor::Device;
use omma_base::Seed;
use omma_routing::{Allocation, PruneMode, RouterConfig};

use super::upcycle::by_name;
use crate::{
    config::{BlockPruning, MoeConfig},
    error::{ModelError, Result},
    parameters::with_values,
    vit::VisionTransformer,
};

/// The experts of a block that stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptExperts {
    /// Which block.
    pub block: usize,
    /// Their numbers, in any order.
    pub experts: Vec<usize>,
}

/// The same model without the parameters of all experts that do not stay; blocks that are not named keep theirs.
///
/// - [`PruneMode::Predict`]: the router keeps the columns of those that go and predicts gates for them, so that
///   the others have the weights that they were trained with. What the model makes of anything is, bit for bit,
///   what the whole model makes of it with these experts masked ([`Pruning`](omma_routing::Pruning)).
/// - [`PruneMode::Drop`]: the router loses their columns, and its softmax is over those that stay.
///
/// A block that was pruned before can lose more; the mode is then that of all that it has lost. Only the tower
/// that images pass is changed.
pub fn prune(
    model: &VisionTransformer,
    keep: &[KeptExperts],
    mode: PruneMode,
    device: &Device,
) -> Result<VisionTransformer> {
    let mut config = model.config().clone();
    let Some(moe) = &mut config.encoder.moe else { return Err(ModelError::NoExperts) };
    let before = moe.clone();
    for KeptExperts { block, experts } in keep {
        lose(moe, *block, experts, mode)?;
    }
    moe.pruned.sort_by_key(|pruned| pruned.block);
    let after = moe.clone();
    let values = by_name(model);
    with_values(config.init(Seed::new(0), device)?, |parameter| {
        let value = &values[&parameter.name];
        if value.parameter.shape == parameter.shape {
            return Ok(Some(value.read()));
        }
        let (block, inside) = place(&parameter.name);
        let (from, to) = (before.router_of(block), after.router_of(block));
        let present = |router: &RouterConfig| router.pruning.present(router.experts);
        let all = value.read();
        let left = match inside {
            "router.weight" => {
                let (from, to) = (columns(&from)?, columns(&to)?);
                let rows = all.chunks_exact(from.len());
                let places = places(&from, &to);
                rows.flat_map(|row| places.iter().map(|place| row[*place])).collect()
            }
            _ => {
                let (from, to) = (present(&from)?, present(&to)?);
                let size = all.len() / from.len();
                let rows = places(&from, &to).into_iter();
                rows.flat_map(|row| &all[row * size..][..size]).copied().collect()
            }
        };
        Ok(Some(left))
    })
}

/// Makes a block keep some of its experts.
fn lose(moe: &mut MoeConfig, block: usize, keep: &[usize], mode: PruneMode) -> Result<()> {
    let fault = |why: String| ModelError::Pruning { block, why };
    let router = moe.router_of(block);
    let present = router.pruning.present(router.experts)?;
    if let Some(other) = keep.iter().find(|expert| !present.contains(expert)) {
        return Err(fault(format!("it has no expert {other} to keep, but {present:?}")));
    }
    let lost: Vec<usize> = (0..router.experts).filter(|expert| !keep.contains(expert)).collect();
    let own = moe.pruned.iter().position(|pruned| pruned.block == block);
    if let Some(own) = own {
        let old = moe.pruned.remove(own);
        if (old.mode, mode) == (PruneMode::Drop, PruneMode::Predict) {
            return Err(fault(
                "its router has lost the columns of experts that it would predict; prune it by router-drop again"
                    .to_owned(),
            ));
        }
    }
    if !lost.is_empty() {
        moe.pruned.push(BlockPruning { block, experts: lost, mode });
    }
    Ok(())
}

/// The block of a parameter, and its name inside the feed-forward network.
fn place(name: &str) -> (usize, &str) {
    let found = name.strip_prefix("blocks.").and_then(|rest| {
        let (block, inside) = rest.split_once(".feed_forward.")?;
        Some((block.parse().ok()?, inside))
    });
    found.expect("only what belongs to experts becomes smaller")
}

/// What the columns of a router's weight stand for: a gate, one of its experts, and a slot of that.
fn columns(router: &RouterConfig) -> Result<Vec<(usize, usize, usize)>> {
    Ok(match &router.allocation {
        Allocation::Soft(soft) => {
            let experts = match router.pruning.mode {
                PruneMode::Predict => (0..router.experts).collect(),
                PruneMode::Drop => router.pruning.present(router.experts)?,
            };
            let slots = |expert| (0..soft.slots).map(move |slot| (0, expert, slot));
            experts.into_iter().flat_map(slots).collect()
        }
        _ => {
            let gates = router.gates()?.into_iter().enumerate();
            let experts = |(gate, own): (usize, omma_routing::Gate)| {
                own.experts.into_iter().map(move |expert| (gate, expert, 0))
            };
            gates.flat_map(experts).collect()
        }
    })
}

/// Where some of many things are among them; both increase.
fn places<T: Ord>(all: &[T], some: &[T]) -> Vec<usize> {
    some.iter().filter_map(|one| all.binary_search(one).ok()).collect()
}
