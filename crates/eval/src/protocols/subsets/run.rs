//! Images through a Soft MoE with some of its experts.

use std::collections::HashSet;

use burn::tensor::Tensor;
use omma_base::Seed;
use omma_model::{FeedForwardKind, ModelConfig, VisionTransformer};
use omma_routing::{Allocation, Plan, PruneMode, Pruning, Routing, Soft, SubsetChoice};

use super::{ExhaustiveRecord, LayerSubsets, SubsetRecord, SubsetsProtocol, SubsetsRecord};
use crate::{
    error::{EvalError, Result},
    inputs::images_of,
    metrics::{largest, mean_of_members, softmax},
    stream::{Images, Watcher},
    system::System,
};

/// Judges the one model of a system with some of its experts. What lies below its first layer of experts is run once
/// for all subsets.
pub(in crate::protocols) fn subsets(
    system: &System,
    images: &Images,
    protocol: &SubsetsProtocol,
    batch: usize,
    watcher: &mut dyn Watcher,
) -> Result<SubsetsRecord> {
    let not_soft = || EvalError::NotSoft { model: system.name() };
    let mut models = system.models();
    let (Some(model), None) = (models.next(), models.next()) else { return Err(not_soft()) };
    let soft = soft(model.config()).ok_or_else(not_soft)?;
    let experts = model.config().moe().map_or(0, |moe| moe.router.experts);
    let mut serving: Vec<usize> =
        protocol.sizes.iter().filter_map(|size| size.of(experts)).collect();
    serving.sort_unstable_by(|a, b| b.cmp(a));
    serving.dedup();
    let classes = images.data.classes().len();
    let mut all = Variant::new(model, Soft { subset: None, ..soft }, 0)?;
    let sizes = serving.into_iter().map(|k| Size::new(model, soft, k, classes, protocol));
    let mut sizes = sizes.collect::<Result<Vec<Size>>>()?;
    let first = first_moe(model.config())?;
    let mut samples = 0;
    watcher.begins("subsets of experts", images.data.len());
    images.batches(system.pixels(), batch, watcher, |batch| {
        let start = batch.indices.first().map_or(0, |index| *index as u64);
        let pixels = images_of(batch, system.device());
        let tokens = rayon::scope(|_| model.trunk(first, pixels))?;
        let seen = Seen { tokens, labels: batch.labels(), first, start };
        let outcomes = all.see(&seen)?.0;
        if let Some(broken) = outcomes.iter().position(|one| !one.probability.is_finite()) {
            let (model, data) = (system.name(), images.name.clone());
            return Err(EvalError::NotFinite { model, data, index: batch.indices[broken] });
        }
        sizes.iter_mut().try_for_each(|size| size.see(&seen))?;
        samples += seen.labels.len();
        Ok(())
    })?;
    let share = |right: usize| right as f64 / samples.max(1) as f64;
    Ok(SubsetsRecord {
        experts,
        samples,
        all: share(all.right),
        sizes: sizes.into_iter().map(|size| size.record(share)).collect(),
    })
}

fn soft(config: &ModelConfig) -> Option<Soft> {
    match config.moe()?.router.allocation {
        Allocation::Soft(soft) => Some(soft),
        _ => None,
    }
}

fn first_moe(config: &ModelConfig) -> Result<usize> {
    let kinds = config.encoder.feed_forwards()?;
    Ok(kinds.iter().position(|kind| *kind == FeedForwardKind::Moe).unwrap_or(kinds.len()))
}

/// A batch in front of the first layer of experts.
struct Seen<'a> {
    /// `[B, T, D]`
    tokens: Tensor<3>,
    labels: &'a [usize],
    /// That layer's block.
    first: usize,
    /// Where in its data the batch begins.
    start: u64,
}

/// The blocks with experts, and who went where in them.
type Routings = Vec<(usize, Routing)>;

/// What is said of an image.
struct Outcome {
    right: bool,
    /// Of its label.
    probability: f64,
}

/// A model with one choice of experts, and how many images it has right.
struct Variant {
    model: VisionTransformer,
    seed: Seed,
    right: usize,
}

impl Variant {
    /// - `draw`: which draw of random experts it is
    fn new(model: &VisionTransformer, soft: Soft, draw: u64) -> Result<Self> {
        let moe = model.config().moe().expect("a Soft MoE has experts");
        let mut router = moe.router.clone();
        router.allocation = Allocation::Soft(soft);
        let seed = Seed::new(0).named("subsets").numbered(draw);
        Ok(Self { model: model.rerouted(router)?, seed, right: 0 })
    }

    /// Every image of a batch, and who went where.
    fn see(&mut self, seen: &Seen) -> Result<(Vec<Outcome>, Routings)> {
        let mode = self.model.config().prediction_mode(self.seed.numbered(seen.start));
        let tokens = seen.tokens.clone();
        let output = rayon::scope(|_| self.model.forward_from(seen.first, tokens, &mode))?;
        let logits = output.predictions.logits;
        let [members, images, classes] = logits.dims();
        let logits: Vec<f32> = logits.try_into_vec_as().expect("logits are floats");
        let row = |member: usize, image: usize| {
            softmax(&logits[(member * images + image) * classes..][..classes], 1.0)
        };
        let outcome = |(image, label): (usize, &usize)| {
            let rows: Vec<Vec<f64>> = (0..members).map(|member| row(member, image)).collect();
            let mean = mean_of_members(rows.iter().map(Vec::as_slice));
            Outcome { right: largest(&mean) == *label, probability: mean[*label] }
        };
        let outcomes: Vec<Outcome> = seen.labels.iter().enumerate().map(outcome).collect();
        self.right += outcomes.iter().filter(|outcome| outcome.right).count();
        Ok((outcomes, output.routings))
    }
}

/// All choices of so many experts.
struct Size {
    serving: usize,
    best: Variant,
    least: Variant,
    random: Vec<Variant>,
    exhaustive: Option<Exhaustive>,
    chosen: Vec<Chosen>,
}

impl Size {
    fn new(
        model: &VisionTransformer,
        soft: Soft,
        serving: usize,
        classes: usize,
        protocol: &SubsetsProtocol,
    ) -> Result<Self> {
        let variant = |subset_choice, draw| {
            let soft = Soft { subset: Some(serving), subset_choice, ..soft };
            Variant::new(model, soft, draw)
        };
        let draws = 0..protocol.draws as u64;
        Ok(Self {
            serving,
            best: variant(SubsetChoice::Best, 0)?,
            least: variant(SubsetChoice::Least, 0)?,
            random: draws.map(|draw| variant(SubsetChoice::Random, draw)).collect::<Result<_>>()?,
            exhaustive: Exhaustive::new(model, serving, protocol.exhaustive)?,
            chosen: Chosen::of(model.config(), classes)?,
        })
    }

    fn see(&mut self, seen: &Seen) -> Result<()> {
        let (_, routings) = self.best.see(seen)?;
        for chosen in &mut self.chosen {
            let own = routings.iter().find(|(block, _)| *block == chosen.block);
            if let Some((_, Routing { plan: Plan::Soft(plan), .. })) = own {
                chosen.add(plan.run().unwrap_or_default(), seen.labels);
            }
        }
        self.least.see(seen)?;
        self.random.iter_mut().try_for_each(|draw| draw.see(seen).map(drop))?;
        self.exhaustive.as_mut().map_or(Ok(()), |all| all.see(seen))
    }

    fn record(self, share: impl Fn(usize) -> f64) -> SubsetRecord {
        SubsetRecord {
            serving: self.serving,
            best: share(self.best.right),
            least: share(self.least.right),
            random: self.random.iter().map(|draw| share(draw.right)).collect(),
            exhaustive: self.exhaustive.map(|all| ExhaustiveRecord {
                accuracy: share(all.right),
                subsets: all.variants.len(),
                distinct: all.used.len(),
            }),
            layers: self.chosen.into_iter().map(Chosen::record).collect(),
        }
    }
}

/// Every subset of a size.
struct Exhaustive {
    variants: Vec<Variant>,
    right: usize,
    /// Subsets that serve an image.
    used: HashSet<usize>,
}

impl Exhaustive {
    /// Nothing where there are too many, or several layers that would each have their own, or experts that are gone.
    fn new(model: &VisionTransformer, serving: usize, most: usize) -> Result<Option<Self>> {
        let Some(moe) = model.config().moe() else { return Ok(None) };
        let layers = moe.placement.blocks(model.config().encoder.depth)?.len();
        let whole = moe.pruned.is_empty() && moe.router.pruning == Pruning::default();
        let experts = moe.router.experts;
        if layers != 1 || !whole || combinations(experts, serving) > most as f64 {
            return Ok(None);
        }
        let variant = |subset: Vec<usize>| {
            // Masked behind the softmax, as Algorithm 1 does: the weights of the others stay.
            let others = (0..experts).filter(|expert| !subset.contains(expert)).collect();
            let pruning =
                Pruning { experts: others, mode: PruneMode::Predict, ..Pruning::default() };
            let mut router = moe.router.clone();
            router.pruning = pruning;
            if let Allocation::Soft(soft) = &mut router.allocation {
                soft.subset = None;
            }
            Ok(Variant { model: model.rerouted(router)?, seed: Seed::new(0), right: 0 })
        };
        let variants = all_subsets(experts, serving).into_iter().map(variant);
        let variants = variants.collect::<Result<_>>()?;
        Ok(Some(Self { variants, right: 0, used: HashSet::new() }))
    }

    fn see(&mut self, seen: &Seen) -> Result<()> {
        let mut best: Vec<Option<(usize, f64)>> = vec![None; seen.labels.len()];
        for (number, variant) in self.variants.iter_mut().enumerate() {
            let (outcomes, _) = variant.see(seen)?;
            for (best, outcome) in best.iter_mut().zip(outcomes) {
                let surer = best.is_none_or(|(_, known)| outcome.probability > known);
                if outcome.right && surer {
                    *best = Some((number, outcome.probability));
                }
            }
        }
        self.right += best.iter().flatten().count();
        self.used.extend(best.into_iter().flatten().map(|(number, _)| number));
        Ok(())
    }
}

/// How many subsets of `k` out of `n` there are.
fn combinations(n: usize, k: usize) -> f64 {
    (0..k).fold(1.0, |count, place| count * (n - place) as f64 / (place + 1) as f64).round()
}

/// The subsets of `k` out of `n`, each in increasing order.
fn all_subsets(n: usize, k: usize) -> Vec<Vec<usize>> {
    let mut subsets: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..k {
        let longer = |subset: Vec<usize>| {
            let from = subset.last().map_or(0, |last| last + 1);
            (from..n).map(move |next| subset.iter().copied().chain([next]).collect())
        };
        subsets = subsets.into_iter().flat_map(longer).collect();
    }
    subsets
}

/// The experts of a layer that Algorithm 1 chooses, as images come.
struct Chosen {
    block: usize,
    /// `[classes, E]`: images of a class that an expert serves.
    served: Vec<Vec<usize>>,
    /// `[classes]`
    images: Vec<usize>,
    distinct: HashSet<Vec<usize>>,
}

impl Chosen {
    fn of(config: &ModelConfig, classes: usize) -> Result<Vec<Self>> {
        let Some(moe) = config.moe() else { return Ok(Vec::new()) };
        let new = |block| Self {
            block,
            served: vec![vec![0; moe.router.experts]; classes],
            images: vec![0; classes],
            distinct: HashSet::new(),
        };
        Ok(moe.placement.blocks(config.encoder.depth)?.into_iter().map(new).collect())
    }

    /// - `groups`: the experts of every copy of every image, those of an image next to each other
    fn add(&mut self, groups: &[Vec<usize>], labels: &[usize]) {
        let copies = (groups.len() / labels.len().max(1)).max(1);
        for (groups, label) in groups.chunks(copies).zip(labels) {
            for group in groups {
                self.images[*label] += 1;
                group.iter().for_each(|expert| self.served[*label][*expert] += 1);
                if !self.distinct.contains(group) {
                    self.distinct.insert(group.clone());
                }
            }
        }
    }

    fn record(self) -> LayerSubsets {
        let shares = self.served.iter().zip(&self.images).map(|(served, images)| {
            served.iter().map(|count| *count as f64 / (*images).max(1) as f64).collect()
        });
        LayerSubsets { block: self.block, distinct: self.distinct.len(), classes: shares.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_are_all_there_and_each_once() {
        assert_eq!(all_subsets(4, 2), [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        for (n, k) in [(4, 1), (8, 2), (16, 4), (5, 5)] {
            let all: HashSet<Vec<usize>> = all_subsets(n, k).into_iter().collect();
            assert_eq!(all.len() as f64, combinations(n, k), "{k} of {n}");
        }
        assert_eq!(combinations(16, 4), 1_820.0);
        assert!(combinations(512, 128) > 1e100);
    }

    #[test]
    fn classes_have_the_experts_that_serve_their_images() {
        let mut chosen = Chosen {
            block: 0,
            served: vec![vec![0; 3]; 2],
            images: vec![0; 2],
            distinct: HashSet::new(),
        };
        // Two copies of each of two images.
        chosen.add(&[vec![0, 1], vec![0, 2], vec![1, 2], vec![1, 2]], &[1, 0]);
        let LayerSubsets { distinct, classes, .. } = chosen.record();
        assert_eq!((distinct, classes), (3, vec![vec![0.0, 1.0, 1.0], vec![1.0, 0.5, 0.5]]));
    }
}
