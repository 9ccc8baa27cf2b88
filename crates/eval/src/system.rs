//! What is judged: one model, or several as one.

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::Resolution;
use omma_data::{Batch, Pixels};
use omma_model::{ModelConfig, VisionTransformer, systems::DeepEnsemble};
use serde::{Deserialize, Serialize};

use crate::error::{EvalError, Result};

/// One model, or a deep ensemble of several. Either way it has members, each with its own say.
#[derive(Debug)]
pub struct System {
    names: Vec<String>,
    ensemble: DeepEnsemble,
    pixels: Pixels,
}

/// What all members say of a batch.
#[derive(Debug, Clone)]
pub struct Said {
    /// Members, `M`.
    pub members: usize,
    /// Images, `B`.
    pub images: usize,
    /// Values per member and image.
    pub width: usize,
    /// `[M, B, width]`.
    values: Vec<f32>,
}

impl Said {
    /// `[M]` of `[width]`: what the members say of one image.
    pub fn of(&self, image: usize) -> impl Iterator<Item = &[f32]> {
        let rows = self.values.chunks_exact(self.width.max(1));
        rows.skip(image).step_by(self.images.max(1)).take(self.members)
    }

    /// The first image of which something is said that is not a number.
    pub fn first_broken(&self) -> Option<usize> {
        (0..self.images).find(|image| self.of(*image).flatten().any(|value| !value.is_finite()))
    }

    /// `[B, width]`: what one member says.
    pub fn by(&self, member: usize) -> &[f32] {
        let size = self.images * self.width;
        &self.values[member * size..(member + 1) * size]
    }
}

/// What kind of system it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SystemKind {
    /// Width, depth and patch of the backbone, as in `64x4/7`; systems of one family differ in what is
    /// put into it.
    pub family: String,
    /// Models, which is what an ensemble has several of.
    pub models: usize,
    /// Predictions per image.
    pub members: usize,
    /// Experts in a layer; none in a dense model.
    pub experts: Option<usize>,
    /// Experts per token and member, `K`; none where models differ in it, or where tokens choose in
    /// several subsets.
    pub k: Option<usize>,
}

impl SystemKind {
    /// Whether it is one dense model with one prediction.
    pub fn is_plain(&self) -> bool {
        self.models == 1 && self.members == 1 && self.experts.is_none()
    }
}

/// What one image costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemCost {
    /// Parameters of all models.
    pub parameters: u64,
    /// Multiply-adds forwards.
    pub forward_macs: u64,
    /// Operations in a training step.
    pub training_flops: u64,
}

impl System {
    /// Models with their names. Those of an ensemble agree on classes, image size and normalisation.
    pub fn new(models: Vec<(String, VisionTransformer)>) -> Result<Self> {
        let (names, models): (Vec<String>, Vec<VisionTransformer>) = models.into_iter().unzip();
        let pixels = models.first().map(pixels_of);
        for (name, model) in names.iter().zip(&models).skip(1) {
            let (first, other) = (models[0].config(), model.config());
            let sides = [
                ("the number of classes", first.classes.to_string(), other.classes.to_string()),
                (
                    "the side of the images",
                    first.resolution.to_string(),
                    other.resolution.to_string(),
                ),
                (
                    "the normalisation of pixels",
                    format!("{:?}", first.normalisation),
                    format!("{:?}", other.normalisation),
                ),
            ];
            if let Some((what, left, right)) = sides.into_iter().find(|(_, a, b)| a != b) {
                let (first, other) = (names[0].clone(), name.clone());
                return Err(EvalError::Ensemble { first, other, what, left, right });
            }
        }
        let ensemble = DeepEnsemble::new(models)?;
        let pixels = pixels.expect("an ensemble has a first model");
        Ok(Self { names, ensemble, pixels })
    }

    /// Its models' names, joined.
    pub fn name(&self) -> String {
        self.names.join(" + ")
    }

    /// Its models' names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// What the models expect of pixels.
    pub fn pixels(&self) -> Pixels {
        self.pixels
    }

    /// Predictions per image.
    pub fn members(&self) -> usize {
        self.models().map(|model| model.config().members()).sum()
    }

    /// Classes that are told apart; 0 without a classifier.
    pub fn classes(&self) -> usize {
        self.ensemble.models()[0].config().classes
    }

    /// What kind of system it is, by its first model.
    pub fn kind(&self) -> SystemKind {
        let first = self.ensemble.models()[0].config();
        let k = |config: &ModelConfig| {
            config.moe.as_ref().filter(|moe| moe.partition <= 1).map(|moe| moe.k)
        };
        let same = self.models().all(|model| k(model.config()) == k(first));
        SystemKind {
            family: format!("{}x{}/{}", first.width, first.depth, first.patch),
            models: self.names.len(),
            members: self.members(),
            experts: first.moe.as_ref().map(|moe| moe.experts),
            k: k(first).filter(|_| same),
        }
    }

    /// What one image costs in all models.
    pub fn cost(&self) -> Result<SystemCost> {
        let mut sum = SystemCost { parameters: 0, forward_macs: 0, training_flops: 0 };
        for model in self.models() {
            let cost = model.config().cost(model.config().resolution)?;
            sum.parameters += cost.params_total;
            sum.forward_macs += cost.forward_macs;
            sum.training_flops += cost.training_flops;
        }
        Ok(sum)
    }

    /// Fails unless there is a classifier for so many classes.
    pub fn check_classes(&self, data: &str, classes: usize) -> Result<()> {
        match self.classes() {
            0 => Err(EvalError::NoHead { model: self.name() }),
            head if head != classes => {
                let (model, data) = (self.name(), data.to_owned());
                Err(EvalError::Classes { model, head, data, classes })
            }
            _ => Ok(()),
        }
    }

    /// `[M, B, classes]`: the members' logits. The batch gives its pixels away.
    pub fn logits(&self, batch: &mut Batch) -> Result<Said> {
        let logits = self.ensemble.predict(images(batch))?.logits;
        Ok(said(logits))
    }

    /// Per model, `[M, B, features]`: what the members' classifiers see. The batch gives its pixels
    /// away.
    pub fn features(&self, batch: &mut Batch) -> Result<Vec<Said>> {
        let images = images(batch);
        let features = self.models().map(|model| {
            Ok(said(model.forward(images.clone(), &model.config().prediction_mode())?.features))
        });
        features.collect()
    }

    fn models(&self) -> impl Iterator<Item = &VisionTransformer> {
        self.ensemble.models().iter()
    }
}

fn pixels_of(model: &VisionTransformer) -> Pixels {
    let config = model.config();
    let (mean, deviation) = (config.normalisation.mean, config.normalisation.deviation);
    Pixels { resolution: Resolution::square(config.resolution), mean, deviation }
}

/// `[B, H, W, 3]`
fn images(batch: &mut Batch) -> Tensor<4> {
    let shape = [batch.len(), batch.resolution.height, batch.resolution.width, 3];
    Tensor::from_data(TensorData::new(std::mem::take(&mut batch.pixels), shape), &Device::flex())
}

fn said(values: Tensor<3>) -> Said {
    let [members, images, width] = values.dims();
    let values = values.try_into_vec_as().expect("predictions are floats");
    Said { members, images, width, values }
}
