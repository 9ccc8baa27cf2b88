//! Which expert took which patch of an image.

use omma_eval::{
    System,
    routing::{BatchShape, visits},
};
use omma_routing::{Plan, Routing};
use serde::Serialize;

/// Experts of a patch that are named; a soft router gives every expert some of it.
const MOST_EXPERTS: usize = 4;

/// The experts of an image's patches in one layer, of one copy of the image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ExpertMap {
    /// The model that the layer is in.
    pub(crate) model: String,
    /// The block that the layer is in.
    pub(crate) block: usize,
    /// Experts that there are.
    pub(crate) experts: usize,
    /// The ensemble member whose copy it is, of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) member: Option<usize>,
    /// Rows and columns of patches.
    pub(crate) grid: (usize, usize),
    /// Row by row, the experts of each patch with their weights, the heaviest first; none for a patch that
    /// found no room.
    pub(crate) patches: Vec<Vec<(usize, f32)>>,
}

/// The maps of some images of a batch, in the order of `wanted`.
///
/// - `routings`: per model, its blocks with experts and who went where in them
/// - `images`: of the batch
/// - `wanted`: places of images in it, increasing
pub(crate) fn expert_maps(
    system: &System,
    routings: &[Vec<(usize, Routing)>],
    images: usize,
    wanted: &[usize],
) -> Vec<Vec<ExpertMap>> {
    let mut found = vec![Vec::new(); wanted.len()];
    for ((model, name), routings) in system.models().zip(system.names()).zip(routings) {
        let image = &model.config().image;
        let grid = image.grid(image.resolution);
        let (prefix, tokens) = (image.prefix_tokens(), image.tokens(image.resolution));
        for (block, routing) in routings {
            let experts = match &routing.plan {
                Plan::Sparse(plan) => plan.n_experts(),
                Plan::Soft(plan) => plan.experts().iter().max().map_or(0, |last| last + 1),
            };
            let patches = || vec![Vec::<(usize, f32)>::new(); grid.0 * grid.1];
            // [wanted] of [members]
            let mut copies = vec![vec![patches()]; wanted.len()];
            visits(routing, BatchShape { images, tokens }, wanted, |visit| {
                let Ok(place) = wanted.binary_search(&visit.image) else { return };
                let own = &mut copies[place];
                while own.len() <= visit.member {
                    own.push(patches());
                }
                if let Some(patch) = visit.token.checked_sub(prefix) {
                    own[visit.member][patch].push((visit.expert, visit.weight));
                }
            });
            for (maps, copies) in found.iter_mut().zip(copies) {
                let several = copies.len() > 1;
                for (member, mut patches) in copies.into_iter().enumerate() {
                    patches.iter_mut().for_each(heaviest);
                    let member = several.then_some(member);
                    let (model, block) = (name.clone(), *block);
                    maps.push(ExpertMap { model, block, experts, member, grid, patches });
                }
            }
        }
    }
    found
}

fn heaviest(experts: &mut Vec<(usize, f32)>) {
    experts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    experts.truncate(MOST_EXPERTS);
}
