//! The contrast of a whole batch that is computed in parts: embeddings first, the loss over all of them, then
//! gradients through one part after the other (cached gradients, arXiv:2101.06983).

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::Seed;
use omma_model::VisionTransformer;

use super::{ACCURACY, Contrast, found};
use crate::{
    error::Result,
    task::{Forward, TaskScores, WholeBatch},
    trainer::{Examples, Learner},
};

/// What a part gives to the loss of the whole: its vectors, row by row.
pub(crate) struct Part {
    rows: usize,
    images: Vec<f32>,
    texts: Vec<f32>,
    scale: f32,
    bias: Option<f32>,
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
            Tensor::from_data(TensorData::new(values, [rows, width]), device).require_grad()
        };
        let one = |value: f32| Tensor::<1>::from_floats([value], device).require_grad();
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
        Ok(Part {
            rows: pairs.images.dims()[0],
            images: values(pairs.images),
            texts: values(pairs.texts),
            scale: pairs.scale.into_scalar(),
            bias: pairs.bias.map(|bias| bias.into_scalar()),
        })
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
