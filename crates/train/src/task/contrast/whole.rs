//! The contrast of a whole batch that is computed in parts: embeddings first, the loss over all of them, then
//! gradients through one part after the other (cached gradients, arXiv:2101.06983).

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::{Seed, transfer};
use omma_model::VisionTransformer;

use super::{ACCURACY, Contrast, found};
use crate::{
    error::Result,
    task::{Forward, TaskScores, WholeBatch},
    trainer::{Examples, Learner},
};

/// What a part gives to the loss of the whole: its vectors, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    rows: usize,
    images: Vec<f32>,
    texts: Vec<f32>,
    scale: f32,
    bias: Option<f32>,
}

impl Part {
    /// All that it is, in one row.
    pub(crate) fn values(&self) -> Vec<f32> {
        let one = [self.scale].into_iter().chain(self.bias);
        self.images.iter().chain(&self.texts).copied().chain(one).collect()
    }

    /// Another part of as many vectors, from such a row.
    pub(crate) fn with_values(&self, values: &[f32]) -> Self {
        let (images, rest) = values.split_at(self.images.len());
        let (texts, rest) = rest.split_at(self.texts.len());
        Self {
            rows: self.rows,
            images: images.to_vec(),
            texts: texts.to_vec(),
            scale: rest[0],
            bias: self.bias.and(rest.get(1).copied()),
        }
    }
}

/// What the loss of the whole gives back to a part.
pub(crate) struct Pull {
    /// The loss of the whole.
    loss: f64,
    /// Parts that it is the loss of.
    parts: usize,
    /// Images of the part that find their text among all.
    right: f64,
    /// `[B, E]`: gradients of the loss with respect to the part's vectors.
    images: TensorData,
    texts: TensorData,
    /// The same with respect to what all parts share, in one of them.
    scale: Option<f32>,
    bias: Option<f32>,
}

/// All parts' vectors as leaves of a graph.
pub(super) struct Batch {
    images: Tensor<2>,
    texts: Tensor<2>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
}

impl Batch {
    fn of(parts: &[Part], device: &Device) -> Self {
        let leaf = |values: Vec<f32>, rows: usize| -> Tensor<2> {
            let width = values.len() / rows.max(1);
            transfer::brought(&values);
            Tensor::from_data(TensorData::new(values, [rows, width]), device).require_grad()
        };
        let one = |value: f32| {
            transfer::brought(&[value]);
            Tensor::<1>::from_floats([value], device).require_grad()
        };
        let rows = parts.iter().map(|part| part.rows).sum();
        let all = |of: fn(&Part) -> &Vec<f32>| parts.iter().flat_map(of).copied().collect();
        Self {
            images: leaf(all(|part| &part.images), rows),
            texts: leaf(all(|part| &part.texts), rows),
            scale: one(parts[0].scale),
            bias: parts[0].bias.map(one),
        }
    }
}

impl WholeBatch for Contrast {
    fn embed(
        &self,
        model: &VisionTransformer,
        examples: Examples,
        seed: Seed,
        device: &Device,
    ) -> Result<Part> {
        let pairs = self.pairs(model, examples, seed, device)?;
        let values = |x: Tensor<2>| x.try_into_vec_as().expect("vectors are floats");
        let part = Part {
            rows: pairs.images.dims()[0],
            images: values(pairs.images),
            texts: values(pairs.texts),
            scale: pairs.scale.into_scalar(),
            bias: pairs.bias.map(|bias| bias.into_scalar()),
        };
        transfer::fetched(&part.values());
        Ok(part)
    }

    fn compare(&self, parts: Vec<Part>, device: &Device) -> Vec<Pull> {
        let Batch { images, texts, scale, bias } = Batch::of(&parts, &device.clone().autodiff());
        let loss = self.loss.of(images.clone(), texts.clone(), scale.clone(), bias.clone());
        let value = f64::from(loss.clone().into_scalar::<f32>());
        let gradients = loss.backward();
        let pulled = |leaf: &Tensor<2>| leaf.grad(&gradients).expect("a leaf of the loss");
        let (of_images, of_texts) = (pulled(&images), pulled(&texts));
        let shared = |leaf: &Tensor<1>| leaf.grad(&gradients).map(|g| g.into_scalar::<f32>());
        let (of_scale, of_bias) = (shared(&scale), bias.as_ref().and_then(shared));
        let right = found(images.detach(), texts.detach()) / parts.len() as f64;
        let mut first = 0;
        let count = parts.len();
        // The gradients, and the loss.
        parts.iter().for_each(|part| transfer::fetched(&part.values()));
        transfer::fetched(&[value as f32]);
        let pull = |(number, part): (usize, Part)| {
            let rows = |all: &Tensor<2>| all.clone().narrow(0, first, part.rows).into_data();
            let pull = Pull {
                loss: value,
                parts: count,
                right,
                images: rows(&of_images),
                texts: rows(&of_texts),
                scale: of_scale.filter(|_| number == 0),
                bias: of_bias.filter(|_| number == 0),
            };
            first += part.rows;
            pull
        };
        parts.into_iter().enumerate().map(pull).collect()
    }

    /// A loss whose gradients are those of the whole, `Σ z · ∂L/∂z`. Parts are averaged, and what each adds to
    /// this sum is not: it counts as often as there are parts.
    fn forward_part(
        &self,
        learner: &Learner,
        examples: Examples,
        pull: Pull,
        seed: Seed,
        device: &Device,
    ) -> Result<Forward> {
        let pairs = self.pairs(learner.model(), examples, seed, device)?;
        let auxiliary_loss = pairs.auxiliary_loss();
        let rows = pairs.images.dims()[0];
        let along = |vectors: Tensor<2>, pull: TensorData| {
            transfer::brought(pull.as_bytes());
            (vectors * Tensor::<2>::from_data(pull, device)).sum()
        };
        let mut loss = along(pairs.images, pull.images) + along(pairs.texts, pull.texts);
        for (leaf, pull) in [(Some(pairs.scale), pull.scale), (pairs.bias, pull.bias)] {
            if let (Some(leaf), Some(pull)) = (leaf, pull) {
                loss = loss + leaf * f64::from(pull);
            }
        }
        Ok(Forward {
            examples: rows,
            loss: loss * pull.parts as f64,
            value: Some(pull.loss),
            auxiliary_loss,
            scores: TaskScores::from_iter([(ACCURACY.key, pull.right)]),
            routings: pairs.routings,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use omma_base::Resolution;
    use omma_data::Targets;
    use omma_ranks::{Share, World};
    use rand::RngExt;

    use crate::{
        Recipe, Resolved,
        trainer::{Examples, Input, Outlet, Pass, Shards, add_gradients, divide_gradients},
    };

    use super::*;

    const SIDE: usize = 16;

    fn resolved(more: &str) -> Resolved {
        let text = format!(
            "task = 'contrast'\n{more}\n[data]\nname = 'world'\ntrain_samples = 300\n\
             test_samples = 20\n[train]\nbatch = 12\n[model]\npreset = 'limoe-tiny'\n\
             resolution = {SIDE}\npatch = 4\nwidth = 32\ndepth = 2\nheads = 2\nmlp = 48\n\
             embedding = 16\nmoe = 'none'\ntext.vocabulary = 200\ntext.length = 8\n"
        );
        let recipe = Recipe::parse::<&str>(&text, "test".as_ref(), &[]).unwrap();
        Resolved::new(recipe, &Device::flex()).unwrap()
    }

    /// Twelve pairs, cut into so many parts.
    fn parts(count: usize) -> Vec<(Examples, Seed)> {
        let mut rng = Seed::new(5).rng();
        let pixels: Vec<f32> =
            (0..12 * SIDE * SIDE * 3).map(|_| rng.random_range(-1.0..1.0)).collect();
        let words = ["red", "blue", "green", "circle", "square", "star"];
        let text = |pair: usize| format!("a {} {}", words[pair % 3], words[3 + pair / 4]);
        let texts: Vec<String> = (0..12).map(text).collect();
        let each = 12 / count;
        let part = |number: usize| {
            let of = |size: usize| number * each * size..(number + 1) * each * size;
            let values = pixels[of(SIDE * SIDE * 3)].to_vec();
            let input = Input::Pixels { values, resolution: Resolution::square(SIDE) };
            let targets = Targets::Texts(texts[of(1)].to_vec());
            (Examples { input, targets }, Seed::new(1).numbered(number as u64))
        };
        (0..count).map(part).collect()
    }

    /// The same, whose gradients go nowhere before they are all there.
    fn by_themselves(count: usize) -> Vec<(Examples, Seed, Option<Arc<Outlet>>)> {
        parts(count).into_iter().map(|(examples, seed)| (examples, seed, None)).collect()
    }

    fn trained(resolved: &Resolved, count: usize) -> Pass {
        let device = Device::flex().autodiff();
        let model = resolved.recipe.model.init(Seed::new(3), &device).unwrap();
        let freezing = resolved.recipe.train.freeze.of(&model).unwrap();
        let shards = Shards::new(2).unwrap();
        let (task, model) = (resolved.task.as_ref(), (&model, &freezing));
        let passes: Vec<crate::Result<Pass>> = match count {
            1 => shards.run(task, model, by_themselves(1), &device, 1.0),
            _ => {
                let world = World::alone();
                let share = Share::new(&world, count).unwrap();
                let (whole, all) = (task.whole_batch().unwrap(), (&world, &share));
                shards.run_whole(whole, model, Ok(parts(count)), all, &device, 1.0).unwrap()
            }
        };
        let mut sum = passes.into_iter().map(Result::unwrap);
        let mut first = sum.next().unwrap();
        sum.for_each(|other| {
            first.facts.add(other.facts);
            add_gradients(&mut first.gradients, &other.gradients);
        });
        first.facts.divide(count);
        divide_gradients(&mut first.gradients, count as f64);
        first
    }

    #[test]
    fn parts_have_the_gradients_of_the_whole() {
        for loss in ["contrast.loss = 'softmax'", "contrast.loss = 'sigmoid'"] {
            let resolved = resolved(loss);
            let whole = trained(&resolved, 1);
            assert!(whole.gradients.iter().flatten().any(|value| value.abs() > 1e-3));
            for count in [2, 3, 6] {
                let parts = trained(&resolved, count);
                let (facts, expected) = (&parts.facts, &whole.facts);
                assert!((facts.loss - expected.loss).abs() < 1e-5, "{facts:?} {expected:?}");
                assert_eq!(facts.scores, expected.scores);
                assert_eq!(facts.examples, 12);
                let pairs = parts.gradients.iter().zip(&whole.gradients);
                for (parts, whole) in pairs.flat_map(|(a, b)| a.iter().zip(b)) {
                    assert!((parts - whole).abs() <= 1e-5 + 1e-3 * whole.abs(), "{parts} {whole}");
                }
            }
        }
    }

    /// The loss of a part alone would have fewer texts to choose from.
    #[test]
    fn the_loss_of_parts_is_over_the_whole_batch() {
        let resolved = resolved("");
        let device = Device::flex().autodiff();
        let model = resolved.recipe.model.init(Seed::new(3), &device).unwrap();
        let freezing = resolved.recipe.train.freeze.of(&model).unwrap();
        let alone = Shards::new(1).unwrap().run::<Vec<Vec<f32>>>(
            resolved.task.as_ref(),
            (&model, &freezing),
            by_themselves(6),
            &device,
            1.0,
        );
        let alone: f64 = alone.into_iter().map(|pass| pass.unwrap().facts.loss).sum::<f64>() / 6.0;
        assert!(trained(&resolved, 6).facts.loss > alone + 1.0);
    }
}
