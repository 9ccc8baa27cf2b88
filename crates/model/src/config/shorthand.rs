//! Settings of experts that stand for more than one value.

use omma_routing::{
    Allocation, Capacity, Grouping, Loss, LossTerm, Pool, RouterConfig, RoutingError, Scope,
};
use serde_json::Value;

use super::MoeConfig;
use crate::{pairs::TEXTS, vit::IMAGES};

/// What the average of LIMoE's losses is multiplied by (paper 002 B.1).
const LIMOE_WEIGHT: f64 = 0.04;

/// Their names below `moe`.
///
/// | setting | stands for |
/// |---|---|
/// | `members=2` | a pool of two members with experts of their own; 1 for one pool |
/// | `own_experts=false` | the same members, tiled over one pool |
/// | `partition=2` | a pool that is cut into two subsets; 1 for one pool |
/// | `capacity_multiple=4` | capacities in training and at inference are rounded up to a multiple of four |
/// | `images_per_group=4` | groups of four images; 0 for the whole batch |
/// | `scope=image` | the class token decides for its image; `token` for every token |
/// | `text_experts=9`, `image_experts=20` | experts that the tokens of a modality shall use at least, `S = e^τ` (paper 002 B.2); 0 for no such loss. Losses keep their sum of weights, and all have the same |
/// | `local_entropy=merged` | how sure tokens of texts shall be: `plain`, `target` or `merged` for more than one expert each (E.1), `none` for no such loss |
/// | `importance_loss=0.01`, `load_loss`, `balance_loss`, `z_loss` | the weight of this loss on all tokens; 0 for none |
pub(super) const SHORTHANDS: &[&str] = &[
    "members",
    "own_experts",
    "partition",
    "capacity_multiple",
    "images_per_group",
    "scope",
    "text_experts",
    "image_experts",
    "local_entropy",
    "importance_loss",
    "load_loss",
    "balance_loss",
    "z_loss",
];

/// Another router for the same experts, members and number of choices, or of slots.
pub(super) fn renamed(router: &RouterConfig, name: &str) -> Result<RouterConfig, RoutingError> {
    let k = match &router.allocation {
        Allocation::TokenChoice(choice) => choice.k,
        Allocation::ExpertChoice(choice) => choice.capacity.factor.round().max(1.0) as usize,
        Allocation::Soft(_) => 1,
    };
    let mut fresh = RouterConfig::named(name, router.experts, k)?;
    if let (Allocation::Soft(fresh), Allocation::Soft(old)) =
        (&mut fresh.allocation, &router.allocation)
    {
        (fresh.slots, fresh.subset) = (old.slots, old.subset);
    }
    let soft = |router: &RouterConfig| matches!(router.allocation, Allocation::Soft(_));
    let grouping = if soft(&fresh) || soft(router) { fresh.grouping } else { router.grouping };
    // Soft routing has none of these, and says so when it is checked.
    let RouterConfig { pool, pruning, scope, .. } = router.clone();
    Ok(RouterConfig { pool, pruning, grouping, scope, ..fresh })
}

/// Applies a shorthand; nothing where the key is none.
pub(super) fn apply(moe: &mut MoeConfig, key: &str, value: &Value) -> Option<Result<(), String>> {
    SHORTHANDS.contains(&key).then(|| change(moe, key, value))
}

fn change(moe: &mut MoeConfig, key: &str, value: &Value) -> Result<(), String> {
    let router = &mut moe.router;
    match key {
        "members" => {
            let members = whole(value, 1, 1_024)?;
            match router.pool {
                _ if moe.tiling > 1 => moe.tiling = members,
                Pool::Members { .. } if members == 1 => router.pool = Pool::All,
                Pool::Members { overlap, .. } => router.pool = Pool::Members { members, overlap },
                _ if members == 1 => {}
                Pool::All => router.pool = Pool::Members { members, overlap: 0 },
                _ => {
                    return Err("the experts are shared out already (see moe.partition)".to_owned());
                }
            }
        }
        "own_experts" => {
            let own = value.as_bool().ok_or("it is true or false")?;
            match (own, &router.pool) {
                (true, Pool::Members { .. }) => {}
                (false, Pool::Members { members, .. }) => {
                    (moe.tiling, router.pool) = (*members, Pool::All);
                }
                (false, _) if moe.tiling > 1 => {}
                (true, Pool::All) if moe.tiling > 1 => {
                    router.pool = Pool::Members { members: moe.tiling, overlap: 0 };
                    moe.tiling = 1;
                }
                _ => return Err("there is one member; set moe.members first".to_owned()),
            }
        }
        "partition" => match (whole(value, 1, 1_024)?, &router.pool) {
            (1, Pool::Partition { .. }) => router.pool = Pool::All,
            (1, _) => {}
            (subsets, Pool::All | Pool::Partition { .. }) => {
                router.pool = Pool::Partition { subsets };
            }
            _ => return Err("every member has experts of its own, and no partition".to_owned()),
        },
        "capacity_multiple" => {
            let multiple_of = whole(value, 1, 1_048_576)?;
            let limits: Vec<&mut Capacity> = match &mut router.allocation {
                Allocation::TokenChoice(choice) => {
                    choice.capacity.iter_mut().chain(&mut choice.inference_capacity).collect()
                }
                Allocation::ExpertChoice(choice) => vec![&mut choice.capacity],
                Allocation::Soft(_) => return Err("soft routing has no capacity".to_owned()),
            };
            limits.into_iter().for_each(|limit| limit.multiple_of = multiple_of);
        }
        "images_per_group" => {
            router.grouping = match whole(value, 0, 1_000_000_000)? {
                0 => Grouping::Batch,
                images => Grouping::Images(images),
            };
        }
        "scope" => {
            router.scope = match value.as_str() {
                Some("token") => Scope::Token,
                Some("image") => Scope::Image { decided_by: 0 },
                _ => return Err("it is token or image".to_owned()),
            };
        }
        "text_experts" | "image_experts" => {
            let modality = if key == "text_experts" { TEXTS } else { IMAGES };
            let experts = value.as_f64().filter(|experts| *experts == 0.0 || *experts >= 1.0);
            let experts = experts.ok_or("it is 0, or 1 and more")?;
            let loss = Loss::GlobalEntropy { threshold: Some(experts.ln()) };
            let is_it = |loss: &Loss| matches!(loss, Loss::GlobalEntropy { .. });
            replace(router, modality, is_it, (experts > 0.0).then_some(loss));
        }
        "local_entropy" => {
            let loss = match value.as_str() {
                Some("none") | None => None,
                Some("plain") => Some(Loss::LocalEntropy),
                Some("target") => Some(Loss::TargetEntropy),
                Some("merged") => Some(Loss::MergedEntropy),
                _ => return Err("it is plain, target, merged or none".to_owned()),
            };
            let is_it = |loss: &Loss| {
                matches!(loss, Loss::LocalEntropy | Loss::TargetEntropy | Loss::MergedEntropy)
            };
            replace(router, TEXTS, is_it, loss);
        }
        _ => {
            let loss = match key {
                "importance_loss" => Loss::Importance,
                "load_loss" => Loss::Load,
                "balance_loss" => Loss::Balance,
                _ => Loss::Z,
            };
            let weight = value.as_f64().filter(|weight| (0.0..=1_000.0).contains(weight));
            let weight = weight.ok_or("it is from 0 to 1000")?;
            router.losses.retain(|term| term.loss != loss || term.modality.is_some());
            if weight > 0.0 {
                router.losses.push(LossTerm::new(loss, weight));
            }
        }
    }
    Ok(())
}

/// Puts a loss on a modality in the place of those like it. Where that changes how many there are, they all
/// have the same share of what they weighed together (paper 002 B.1).
fn replace(
    router: &mut RouterConfig,
    modality: usize,
    is_it: impl Fn(&Loss) -> bool,
    loss: Option<Loss>,
) {
    let before = router.losses.len();
    let total: f64 = router.losses.iter().map(|term| term.weight).sum();
    let total = if total > 0.0 { total } else { LIMOE_WEIGHT };
    let own = |term: &LossTerm| term.modality == Some(modality) && is_it(&term.loss);
    let place = router.losses.iter().position(own).unwrap_or(before);
    let weight = router.losses.get(place).map_or(total, |term| term.weight);
    router.losses.retain(|term| !own(term));
    if let Some(loss) = loss {
        let place = place.min(router.losses.len());
        router.losses.insert(place, LossTerm::new(loss, weight).on_modality(modality));
    }
    if router.losses.len() != before {
        router.losses = LossTerm::averaged(std::mem::take(&mut router.losses), total);
    }
}

fn whole(value: &Value, least: u64, most: u64) -> Result<usize, String> {
    let number = value.as_u64().filter(|number| (least..=most).contains(number));
    number.map(|number| number as usize).ok_or(format!("it is from {least} to {most}"))
}
