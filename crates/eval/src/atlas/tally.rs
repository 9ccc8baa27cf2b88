//! All layers of a model, as batches come.

use omma_routing::Routing;

use super::{
    combinations::Combinations,
    flow::Transitions,
    layer::{BatchFacts, LayerOptions, LayerTally, Scratch},
    rows::{BatchShape, RowPlace},
    subject::{Routed, RoutedModel},
};

/// Numbers that samples for permutation tests may take, in all layers together.
const SAMPLE_BUDGET: usize = 4_000_000;
/// Images of a sample, at most.
const MOST_SAMPLED: usize = 4096;

/// An encoder's layers, and the ways of tokens between them.
#[derive(Debug, Default)]
struct Tower {
    /// Places of its layers among all.
    layers: Vec<usize>,
    /// Between one layer and the next.
    transitions: Vec<Transitions>,
    shape: BatchShape,
    /// `[N]`, of the last batch.
    places: Vec<RowPlace>,
    previous: Vec<u16>,
    paths: Vec<u64>,
}

/// Sums of a model.
#[derive(Debug)]
pub(super) struct ModelTally {
    pub(super) layers: Vec<LayerTally>,
    /// The images' encoder, and the texts' own if they have one.
    towers: [Tower; 2],
    /// Of images, of texts.
    pub(super) combinations: [Combinations; 2],
    scratch: Scratch,
    pub(super) images: usize,
    pub(super) texts: usize,
}

impl ModelTally {
    /// - `classes`: that are told apart; 0 for none
    pub(super) fn new(subject: &RoutedModel, classes: usize, tokens_are_labelled: bool) -> Self {
        let (found, depth) = (subject.layers(), subject.depth());
        let image = &subject.model.config().image;
        let tokens = subject.tokens();
        let numbers: usize = match tokens_are_labelled {
            true => found.len() * tokens,
            false => found.iter().map(|(_, layer)| layer.router.config().experts).sum(),
        };
        let sampled = (SAMPLE_BUDGET / numbers.max(1)).clamp(64, MOST_SAMPLED);
        let prefix = image.prefix_tokens();
        let options = LayerOptions { classes, tokens, prefix, sampled };
        let layer = |(block, layer): &(usize, &omma_model::MoeLayer)| {
            LayerTally::new(*block, layer.router.config(), options)
        };
        let layers: Vec<LayerTally> = found.iter().map(layer).collect();
        let tower = |inside: &dyn Fn(usize) -> bool| {
            let own: Vec<usize> =
                (0..layers.len()).filter(|place| inside(layers[*place].block)).collect();
            let end = |place: usize| (layers[place].block, layers[place].router.experts);
            let transitions =
                own.windows(2).map(|pair| Transitions::new(end(pair[0]), end(pair[1]))).collect();
            Tower { layers: own, transitions, ..Tower::default() }
        };
        let towers = [tower(&|block| block < depth), tower(&|block| block >= depth)];
        Self {
            layers,
            towers,
            combinations: Default::default(),
            scratch: Scratch::default(),
            images: 0,
            texts: 0,
        }
    }

    pub(super) fn add(&mut self, routed: &Routed, facts: &BatchFacts) {
        self.images += facts.indices.len();
        self.texts += facts.ids.len() / facts.text_length.max(1);
        let shapes = [Some(&routed.shape), routed.tower.as_ref()];
        for (tower, shape) in self.towers.iter_mut().zip(shapes) {
            let Some(shape) = shape else { continue };
            let own = routed.routings.iter().filter_map(|(block, routing)| {
                let of = |place: &&usize| self.layers[**place].block == *block;
                tower.layers.iter().position(|place| of(&place)).map(|number| (number, routing))
            });
            let own: Vec<(usize, &Routing)> = own.collect();
            if own.is_empty() {
                continue;
            }
            let rows = rows(own[0].1);
            if tower.shape != *shape || tower.places.len() != rows {
                (tower.shape, tower.places) = (shape.clone(), shape.places(rows));
            }
            tower.paths.clear();
            tower.paths.resize(rows, 0);
            tower.previous.clear();
            for (number, routing) in own {
                let layer = &mut self.layers[tower.layers[number]];
                let Tower { places, paths, .. } = &mut *tower;
                layer.add(number, routing, facts, places, paths, &mut self.scratch);
                if number > 0 && !tower.previous.is_empty() {
                    let transitions = &mut tower.transitions[number - 1];
                    let ends = tower.previous.iter().zip(&self.scratch.main);
                    for (place, (from, to)) in tower.places.iter().zip(ends) {
                        transitions.add(place.modality, *from, *to);
                    }
                }
                std::mem::swap(&mut tower.previous, &mut self.scratch.main);
            }
            for (place, path) in tower.places.iter().zip(&tower.paths) {
                self.combinations[usize::from(place.modality)].add(*path);
            }
        }
    }

    /// Between layers of one encoder.
    pub(super) fn transitions(&self) -> impl Iterator<Item = &Transitions> {
        self.towers.iter().flat_map(|tower| &tower.transitions)
    }

    /// The layers that images pass.
    pub(super) fn of_images(&self) -> impl Iterator<Item = &LayerTally> {
        self.towers[0].layers.iter().map(|place| &self.layers[*place])
    }

    /// The layers that texts pass.
    pub(super) fn of_texts(&self) -> impl Iterator<Item = &LayerTally> {
        let own = &self.towers[1].layers;
        let shared = if own.is_empty() { &self.towers[0].layers } else { own };
        shared.iter().map(|place| &self.layers[*place])
    }
}

/// Rows of a layer's token matrix.
pub(super) fn rows(routing: &Routing) -> usize {
    match &routing.plan {
        omma_routing::Plan::Sparse(plan) => plan.n_tokens() * plan.span(),
        omma_routing::Plan::Soft(plan) => {
            let [groups, size, _] = plan.dispatch().dims();
            groups * size
        }
    }
}
