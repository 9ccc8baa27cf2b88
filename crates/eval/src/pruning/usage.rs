//! Which share of the tokens each expert serves.

use omma_base::Seed;
use omma_model::{IMAGES, ModelError, TEXTS, VisionTransformer, text_tensor};
use omma_routing::{Plan, RouterConfig, Routing};

use super::judge::Judge;
use crate::{
    error::{EvalError, Result},
    inputs::{images_of, pixels_for},
    reader::Unlabelled,
    stream::{Images, Watcher},
};

/// What the experts of a layer served.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerUsage {
    /// Which block.
    pub block: usize,
    /// Its router.
    pub router: RouterConfig,
    /// Of images and of texts, `[E]`: choices of tokens that each expert served; where slots mix tokens, the
    /// weight that it has in them.
    served: [Vec<f64>; 2],
    /// The sum of all combine weights, and of how many tokens.
    weights: (f64, f64),
}

impl LayerUsage {
    /// Nothing yet.
    pub(super) fn new(block: usize, router: RouterConfig) -> Self {
        let none = vec![0.0; router.experts];
        Self { block, router, served: [none.clone(), none], weights: (0.0, 0.0) }
    }

    /// Adds what each expert served of the tokens of a modality, `[E]`.
    pub(super) fn add(&mut self, modality: usize, served: &[f64]) {
        self.served[modality].iter_mut().zip(served).for_each(|(sum, own)| *sum += own);
    }

    /// `[E]`: the share of all that each expert served, of one modality or of both together.
    pub fn shares(&self, modality: Option<usize>) -> Vec<f64> {
        let sums: Vec<f64> = match modality {
            Some(modality) => self.served[modality].clone(),
            None => {
                self.served[IMAGES].iter().zip(&self.served[TEXTS]).map(|(a, b)| a + b).collect()
            }
        };
        let total: f64 = sums.iter().sum();
        sums.iter().map(|sum| if total > 0.0 { sum / total } else { 0.0 }).collect()
    }

    /// What the weights of a token's experts add up to, on average; 1 where nothing was counted.
    pub fn mean_weight(&self) -> f64 {
        match self.weights {
            (sum, tokens) if tokens > 0.0 => sum / tokens,
            _ => 1.0,
        }
    }

    /// Whether tokens of a modality were served.
    pub fn saw(&self, modality: usize) -> bool {
        self.served[modality].iter().any(|served| *served > 0.0)
    }
}

/// Counts who serves how much, in one pass over images and, for a model that reads, over their captions; where
/// they have none, over the names of their classes. Images and texts pass by themselves (paper 002 App. D.1).
pub fn expert_usage(
    model: &VisionTransformer,
    judge: &Judge,
    watcher: &mut dyn Watcher,
) -> Result<Vec<LayerUsage>> {
    let encoder = &model.config().encoder;
    let moe = encoder.moe.as_ref().ok_or(ModelError::NoExperts)?;
    let blocks = moe.placement.blocks(encoder.depth)?.into_iter();
    let mut layers: Vec<LayerUsage> =
        blocks.map(|block| LayerUsage::new(block, moe.router_of(block))).collect();
    let mut texts = judge.prompts();
    let data = judge.images.data.clone();
    let captions = model.reads() && data.has_captions();
    let source =
        Images { data: std::sync::Arc::new(Unlabelled::new(data.clone())), ..judge.images.clone() };
    watcher.begins("experts of images", data.len());
    source.batches(pixels_for(&model.config().image), judge.batch, watcher, |batch| {
        let first = batch.indices.first().copied().unwrap_or_default();
        let mode = model.config().prediction_mode(Seed::new(0).numbered(first as u64));
        if captions {
            for index in &batch.indices {
                texts.extend(data.captions(*index)?);
            }
        }
        let images = images_of(batch, judge.device);
        let routings = match model.reads() {
            true => model.embed_images(images, &mode)?.routings,
            false => model.forward(images, &mode)?.routings,
        };
        add(&mut layers, IMAGES, &routings);
        Ok(())
    })?;
    let Some(text) = model.config().text.as_ref().filter(|_| !texts.is_empty()) else {
        return Ok(layers);
    };
    let Some(tokenizer) = judge.tokenizer else { return Ok(layers) };
    watcher.begins("experts of texts", texts.len());
    for (number, texts) in texts.chunks(judge.batch.max(1)).enumerate() {
        if watcher.stopped() {
            return Err(EvalError::Interrupted);
        }
        let (ids, _) = tokenizer.encode_all(texts, text.length);
        let mode = model.config().prediction_mode(Seed::new(1).numbered(number as u64));
        let ids = text_tensor(ids, text.length, judge.device);
        add(&mut layers, TEXTS, &model.embed_texts(ids, &mode)?.routings);
        watcher.done(texts.len());
    }
    Ok(layers)
}

/// Adds what a forward pass did; blocks of a tower that only texts pass are none of these.
fn add(layers: &mut [LayerUsage], modality: usize, routings: &[(usize, Routing)]) {
    for (block, routing) in routings {
        if let Some(layer) = layers.iter_mut().find(|layer| layer.block == *block) {
            layer.add(modality, &served(routing));
            let (sum, tokens) = weights(routing);
            layer.weights.0 += sum;
            layer.weights.1 += tokens;
        }
    }
}

/// `[E]`: what each expert served.
fn served(routing: &Routing) -> Vec<f64> {
    match &routing.plan {
        Plan::Sparse(plan) => {
            let load = |expert| (plan.of_expert(expert).len() * plan.span()) as f64;
            (0..plan.n_experts()).map(load).collect()
        }
        Plan::Soft(_) => routing.statistics().importance,
    }
}

/// The sum of the combine weights, and the tokens that have them.
fn weights(routing: &Routing) -> (f64, f64) {
    match &routing.plan {
        Plan::Sparse(plan) => {
            let weights: Vec<f32> =
                plan.weights().clone().try_into_vec_as().expect("weights are floats");
            (weights.into_iter().map(f64::from).sum(), plan.n_tokens() as f64)
        }
        Plan::Soft(_) => {
            let statistics = routing.statistics();
            (statistics.importance.iter().sum(), statistics.tokens as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::tensor::Device;
    use omma_base::Resolution;
    use omma_data::{
        Split,
        world::{Variant, World},
    };
    use omma_model::{Mode, apply_settings, preset};

    use super::*;
    use crate::routing::{BatchShape, visits};

    /// Every visit of every token, stored and counted.
    #[test]
    fn counts_are_those_of_all_visits() {
        let device = Device::flex();
        let side = Resolution::square(16);
        let world = World::new(1, side, 11, Split::Test, Variant::Usual);
        let images = Images::new("world", Arc::new(world));
        for settings in [
            &["moe.k=1"][..],
            &["moe.k=2", "moe.shared_expert=true"],
            &["moe.k=1", "moe.members=2"],
            &["moe.k=2", "moe.scope=image"],
            &["moe.router=soft", "moe.slots=2"],
            &["moe.k=1", r#"moe.pruned=[{"block": 1, "experts": [0, 2]}]"#],
        ] {
            let small = [
                "resolution=16",
                "patch=4",
                "width=16",
                "depth=4",
                "heads=2",
                "mlp=16",
                "moe.experts=6",
                "moe.placement=1,3",
            ];
            let settings: Vec<&str> = small.iter().chain(settings).copied().collect();
            let config = apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap();
            let model = config.init(Seed::new(7), &device).unwrap();
            let judge = Judge::new(&images, 4, &device);
            let found = expert_usage(&model, &judge, &mut ()).unwrap();

            let (mut counted, mut weights) = (vec![vec![0.0_f64; 6]; 2], [0.0_f64; 2]);
            images
                .batches(pixels_for(&model.config().image), 11, &mut (), |batch| {
                    let shape = BatchShape { images: batch.len(), tokens: 17 };
                    let all: Vec<usize> = (0..batch.len()).collect();
                    let output = model.forward(images_of(batch, &device), &Mode::Inference)?;
                    let sums = counted.iter_mut().zip(&mut weights);
                    for ((layer, sum), (_, routing)) in sums.zip(&output.routings) {
                        visits(routing, shape, &all, |visit| {
                            layer[visit.expert] += f64::from(visit.count);
                            *sum += f64::from(visit.weight);
                        });
                    }
                    Ok(())
                })
                .unwrap();
            assert_eq!(found.iter().map(|layer| layer.block).collect::<Vec<_>>(), [1, 3]);
            let tokens = (11 * 17 * model.config().members()) as f64;
            for ((layer, counted), weights) in found.iter().zip(counted).zip(weights) {
                assert!((layer.mean_weight() - weights / tokens).abs() < 1e-5, "{settings:?}");
                let total: f64 = counted.iter().sum();
                for (share, count) in layer.shares(None).into_iter().zip(counted) {
                    assert!((share - count / total).abs() < 1e-5, "{settings:?}");
                }
                assert_eq!(layer.shares(Some(IMAGES)), layer.shares(None));
                assert!(layer.saw(IMAGES) && !layer.saw(TEXTS));
                assert_eq!(layer.shares(Some(TEXTS)), [0.0; 6], "no texts, and no division by 0");
            }
        }
    }
}
