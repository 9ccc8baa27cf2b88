//! What experts take: per layer, the patches that they are drawn to most, and what of every class.

use std::collections::BTreeMap;

use omma_data::Batch;
use omma_routing::{Allocation, Routing, Scope};

use crate::{
    routing::{BatchShape, Group, Visit, visits},
    system::System,
};

/// Test images that are looked at, evenly spread over all.
pub(super) const MOST_IMAGES: usize = 512;
/// Patches of every expert.
pub(super) const PATCHES: usize = 8;

/// What the experts of a system's models take, summed as batches come. Memory depends on experts and on the
/// number of images that are looked at, which is bounded.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Experts {
    pub(crate) models: Vec<ModelExperts>,
    /// Every how many images one is looked at.
    pub(crate) every: usize,
    /// Images that were looked at.
    pub(crate) images: usize,
}

/// Those of one model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelExperts {
    pub(crate) name: String,
    pub(crate) tokens: usize,
    /// Tokens in front of the patches.
    pub(crate) prefix: usize,
    pub(crate) patch: usize,
    /// Patches beside each other.
    pub(crate) columns: usize,
    /// Whether an image is taken as a whole.
    pub(crate) whole: bool,
    /// Whether every expert gets some of every token.
    pub(crate) soft: bool,
    pub(crate) groups: Vec<Group>,
    pub(crate) layers: Vec<Layer>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layer {
    pub(crate) block: usize,
    /// One for every group.
    pub(crate) taken: Vec<Taken>,
}

/// What the experts of a group took.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Taken {
    /// By class, `[experts of the group]`: its tokens.
    pub(crate) by_class: BTreeMap<usize, Vec<f64>>,
    /// `[experts of the group]`: what each is drawn to most, the strongest first, one patch of an image.
    pub(crate) patches: Vec<Vec<Patch>>,
}

/// A patch, or a whole image where these are taken whole.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Patch {
    /// Which sample of the data.
    pub(crate) index: usize,
    /// Place among the patches.
    pub(crate) place: usize,
    pub(crate) gate: f32,
}

impl Experts {
    /// For a pass over so many images.
    pub(crate) fn of(system: &System, images: usize) -> Self {
        let resolution = system.pixels().resolution;
        let models = system.names().iter().zip(system.models()).map(|(name, model)| {
            let config = model.config();
            let (_, columns) = config.image.grid(resolution);
            let router = config.moe().map(|moe| &moe.router);
            ModelExperts {
                name: name.clone(),
                tokens: config.image.tokens(resolution),
                prefix: config.image.prefix_tokens(),
                patch: config.image.patch,
                columns,
                whole: router.is_some_and(|router| router.scope != Scope::Token),
                soft: router.is_some_and(|router| matches!(router.allocation, Allocation::Soft(_))),
                groups: router.map(Group::of_router).unwrap_or_default(),
                layers: Vec::new(),
            }
        });
        Self { models: models.collect(), every: images.div_ceil(MOST_IMAGES).max(1), images: 0 }
    }

    /// - `routings`: per model, its blocks with experts and who went where in them
    pub(crate) fn add(&mut self, batch: &Batch, routings: &[Vec<(usize, Routing)>]) {
        let looked_at = |place: &usize| batch.indices[*place].is_multiple_of(self.every);
        let watched: Vec<usize> = (0..batch.len()).filter(looked_at).collect();
        self.images += watched.len();
        for (model, routings) in self.models.iter_mut().zip(routings) {
            let shape = BatchShape { images: batch.len(), tokens: model.tokens };
            for (number, (block, routing)) in routings.iter().enumerate() {
                if model.layers.len() <= number {
                    let taken = model.groups.iter().map(Taken::of).collect();
                    model.layers.push(Layer { block: *block, taken });
                }
                visits(routing, shape, &watched, |visit| {
                    let (index, label) = (batch.indices[visit.image], batch.labels()[visit.image]);
                    model.add(number, visit, index, label);
                });
            }
        }
    }
}

impl ModelExperts {
    fn add(&mut self, layer: usize, visit: Visit, index: usize, label: usize) {
        let Self { groups, layers, prefix, .. } = self;
        for (group, taken) in groups.iter().zip(&mut layers[layer].taken) {
            if group.member.is_some_and(|member| member != visit.member) {
                continue;
            }
            let Ok(column) = group.experts.binary_search(&visit.expert) else { continue };
            let nothing = || vec![0.0; group.experts.len()];
            let of_class = taken.by_class.entry(label).or_insert_with(nothing);
            of_class[column] += f64::from(visit.count);
            if let Some(place) = visit.token.checked_sub(*prefix) {
                keep_strongest(
                    &mut taken.patches[column],
                    Patch { index, place, gate: visit.gate },
                );
            }
        }
    }
}

impl Taken {
    fn of(group: &Group) -> Self {
        Self { by_class: BTreeMap::new(), patches: vec![Vec::new(); group.experts.len()] }
    }
}

/// Keeps the strongest patch of every image, of those the strongest; of equals the earlier one.
pub(crate) fn keep_strongest(kept: &mut Vec<Patch>, patch: Patch) {
    if kept.len() == PATCHES && kept[PATCHES - 1].gate >= patch.gate {
        return;
    }
    if let Some(own) = kept.iter().position(|other| other.index == patch.index) {
        if kept[own].gate >= patch.gate {
            return;
        }
        kept.remove(own);
    }
    let place = kept.partition_point(|other| other.gate >= patch.gate);
    kept.insert(place, patch);
    kept.truncate(PATCHES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_patch_of_an_image_is_kept() {
        let mut kept = Vec::new();
        // Twenty images of three patches, of which the middle one is strongest.
        for index in 0..20 {
            for (place, more) in [0.01, 0.02, 0.0].into_iter().enumerate() {
                let gate = 0.5 + index as f32 / 40.0 * if index < 10 { 1.0 } else { -1.0 } + more;
                keep_strongest(&mut kept, Patch { index, place, gate });
            }
        }
        let expected: Vec<(usize, usize)> = (2..10).rev().map(|index| (index, 1)).collect();
        let found: Vec<(usize, usize)> = kept.iter().map(|kept| (kept.index, kept.place)).collect();
        assert_eq!(found, expected);
        let last = kept[PATCHES - 1].gate;
        keep_strongest(&mut kept, Patch { index: 30, place: 0, gate: last });
        assert_eq!(kept.len(), PATCHES);
        assert_eq!(kept[PATCHES - 1].index, 2, "of equals the earlier one stays");
    }
}
