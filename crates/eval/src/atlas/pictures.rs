//! The patches that experts are surest of, to look at (paper 002 Figs. 23–25).

use std::collections::BTreeMap;

use omma_base::Resolution;

use super::{layer::LayerTally, subject::RoutedModel, tally::ModelTally};
use crate::{
    gallery::{ExpertPictures, Experts, Gallery, Layer, ModelExperts, Taken},
    routing::Group,
    stream::Images,
};

/// Pictures of an atlas, which a page shows and a record does not hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RoutePictures {
    /// What the experts of the layers that images pass take.
    pub(super) gallery: Gallery,
}

impl RoutePictures {
    /// Reads every image once that a patch is cut from.
    ///
    /// - `images`: what was looked at, in the order in which it was
    pub(super) fn of(tally: &ModelTally, subject: &RoutedModel, images: &Images) -> Self {
        let config = subject.model.config();
        let resolution: Resolution = config.image.resolution;
        let (_, columns) = config.image.grid(resolution);
        let Some(first) = tally.of_images().next() else { return Self::default() };
        let model = ModelExperts {
            name: subject.name.clone(),
            tokens: subject.tokens(),
            prefix: config.image.prefix_tokens(),
            patch: config.image.patch,
            columns,
            whole: first.router.scope != omma_routing::Scope::Token,
            soft: first.soft,
            groups: first.parts.all.clone(),
            layers: tally
                .of_images()
                .filter(|own| own.parts.all == first.parts.all)
                .map(taken)
                .collect(),
        };
        let experts = Experts { models: vec![model], every: 1, images: tally.images };
        let experts = ExpertPictures::of(&experts, images.data.as_ref(), resolution);
        Self { gallery: Gallery { experts, ..Gallery::default() } }
    }
}

/// What the experts of a layer took. Classes have figures of their own, so that all of it is of one.
fn taken(layer: &LayerTally) -> Layer {
    let load = &layer.modalities[omma_model::IMAGES].load;
    let of_part = |(part, range): (&Group, std::ops::Range<usize>)| Taken {
        by_class: BTreeMap::from([(0, part.experts.iter().map(|expert| load[*expert]).collect())]),
        patches: layer.surest[range].to_vec(),
    };
    Layer { block: layer.block, taken: layer.parts.ranges().map(of_part).collect() }
}
