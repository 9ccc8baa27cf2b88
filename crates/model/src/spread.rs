//! A model whose experts live on several ranks; the rest of it is on each.

use std::{collections::BTreeMap, ops::Range};

use omma_ranks::World;

use crate::{
    encoder::Encoder,
    error::{ModelError, Result},
    layers::{ExpertGroup, FeedForward, MoeLayer},
    vit::VisionTransformer,
};

/// Which of a layer's experts a rank has the parameters of: some of their first axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertSlice {
    /// Those of this rank, by their places.
    pub own: Range<usize>,
    /// Experts of all ranks.
    pub whole: usize,
}

/// Which of `experts` a rank has: about as many as any other, one after the other.
pub fn experts_of_rank(rank: usize, ranks: usize, experts: usize) -> Range<usize> {
    experts * rank / ranks..experts * (rank + 1) / ranks
}

impl ExpertSlice {
    /// This rank's part of something about all experts, as much of each.
    pub fn part<'a>(&self, values: &'a [f32]) -> &'a [f32] {
        let each = values.len() / self.whole.max(1);
        &values[self.own.start * each..self.own.end * each]
    }

    /// How long something is about all experts, of which this rank has so much.
    pub fn whole_of(&self, own: usize) -> usize {
        own / self.own.len().max(1) * self.whole
    }
}

/// The layers with experts of an encoder, by their blocks.
fn layers(encoder: &Encoder) -> impl Iterator<Item = (usize, &MoeLayer)> {
    encoder.blocks.iter().enumerate().filter_map(|(block, inside)| match &inside.feed_forward {
        FeedForward::Moe(layer) => Some((block, layer)),
        _ => None,
    })
}

impl VisionTransformer {
    /// All layers with experts, and what the names of their parameters begin with.
    fn expert_layers(&self) -> impl Iterator<Item = (String, &MoeLayer)> {
        let texts = self.text.iter().flat_map(|text| &text.encoder);
        let texts =
            texts.flat_map(layers).map(|(block, layer)| (format!("text.blocks.{block}"), layer));
        let own = layers(&self.encoder).map(|(block, layer)| (format!("blocks.{block}"), layer));
        own.chain(texts)
    }

    /// The same model with the experts of this rank alone, of which every rank of `world` has about as many. A
    /// forward pass is then one of all ranks: each has images of its own, or [serves](Self::serve_experts) the others.
    pub fn spread_over(mut self, world: &World) -> Result<Self> {
        let ranks = world.size();
        if ranks == 1 {
            return Ok(self);
        }
        let counts = || self.expert_layers().map(|(_, layer)| layer.experts.present().len());
        let most = counts().max().ok_or(ModelError::NoExperts)?;
        if let Some(experts) = counts().find(|experts| *experts < ranks) {
            return Err(ModelError::TooFewExperts { experts, ranks });
        }
        let group = ExpertGroup::new(world.clone(), most);
        let texts = self.text.as_mut().and_then(|text| text.encoder.as_mut());
        let blocks = self.encoder.blocks.iter_mut();
        let blocks = blocks.chain(texts.into_iter().flat_map(|encoder| encoder.blocks.iter_mut()));
        let layers = blocks.filter_map(|block| match &mut block.feed_forward {
            FeedForward::Moe(layer) => Some(layer),
            _ => None,
        });
        for (number, layer) in layers.enumerate() {
            layer.experts = layer.experts.clone().spread_over(&group, number);
        }
        Ok(self)
    }

    /// The ranks that have the experts between them, if these are several.
    pub fn expert_group(&self) -> Option<&ExpertGroup> {
        self.expert_layers().next()?.1.experts.group()
    }

    /// Computes with the experts of this rank for the others, until none has anything to compute.
    pub fn serve_experts(&self) -> Result<()> {
        let Some(group) = self.expert_group() else { return Ok(()) };
        while let Some(call) = group.called()? {
            let layer = self.expert_layers().nth(call.layer);
            layer.expect("all ranks have the same layers").1.experts.serve(&call);
        }
        Ok(())
    }

    /// The parameters of which this rank has only a part, and which.
    pub fn expert_slices(&self) -> BTreeMap<String, ExpertSlice> {
        let of_layer = |(name, layer): (String, &MoeLayer)| {
            let own = layer.experts.own_of_spread()?;
            let whole = layer.experts.present().len();
            let slice = ExpertSlice { own, whole };
            let parts = ["up", "up_bias", "down", "down_bias"];
            Some(parts.map(|part| (format!("{name}.feed_forward.experts.{part}"), slice.clone())))
        };
        self.expert_layers().filter_map(of_layer).flatten().collect()
    }
}
