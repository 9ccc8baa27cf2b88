//! From a dense model to one with experts (sparse upcycling; paper 003 §3.1).

use std::collections::HashMap;

use burn::tensor::{Device, Tensor, TensorData};
use omma_routing::{CombineWeights, RouterConfig, Seed};
use rand::RngExt;
use rand_distr::StandardNormal;

use crate::{
    config::{EncoderConfig, FeedForwardKind, ImageConfig, ModelConfig, MoeConfig},
    error::{ModelError, Result},
    mode::Mode,
    parameters::{ParameterValues, parameter_values, with_values},
    vit::VisionTransformer,
};

/// What experts start as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// So that the model says what the dense one says. With a shared expert, that one keeps the dense
    /// weights and the last layer of the others is 0; without one, every expert is a copy and the
    /// weights of a token's experts add up to 1 ([`CombineWeights::Normalised`]).
    #[default]
    Equal,
    /// Every expert, the shared one too, is a copy (paper 003), and combine weights are as configured.
    Copies,
}

/// How a dense model becomes one with experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Upcycling {
    /// What to make; everything but the experts stays as it is.
    pub moe: MoeConfig,
    /// What experts start as.
    pub start: Start,
    /// Standard deviation of the noise on the copies, in units of each matrix's own.
    pub noise: f32,
    /// Where noise and routers come from.
    pub seed: Seed,
}

/// The parameters of a model, by name.
pub(super) fn by_name(model: &VisionTransformer) -> HashMap<String, ParameterValues> {
    let values = parameter_values(model).into_iter();
    values.map(|value| (value.parameter.name.clone(), value)).collect()
}

/// A model with experts from a dense one.
pub fn upcycle(
    dense: &VisionTransformer,
    how: &Upcycling,
    device: &Device,
) -> Result<VisionTransformer> {
    let from = dense.config();
    let fault = |why: &str| ModelError::Adapt {
        from: "model".to_owned(),
        to: "mixture of experts".to_owned(),
        why: why.to_owned(),
    };
    if from.moe().is_some() || from.encoder.batch_ensemble.is_some() {
        return Err(fault("its feed-forward networks are not plain"));
    }
    let mlp = from.encoder.mlp;
    let hidden = how.moe.hidden.unwrap_or(mlp);
    if hidden != mlp {
        return Err(fault(&format!("experts of {hidden} hidden units are no copies of {mlp}")));
    }
    let equal = how.start == Start::Equal;
    let soft = how.moe.slots().is_some();
    let router = how.moe.router.clone();
    let combine = match equal && !how.moe.shared_expert && !soft {
        true => CombineWeights::Normalised,
        false => router.combine,
    };
    let moe = MoeConfig { router: RouterConfig { combine, ..router }, ..how.moe.clone() };
    let encoder = EncoderConfig { moe: Some(moe), ..from.encoder.clone() };
    let config = ModelConfig { encoder, ..from.clone() };
    let blank = equal && how.moe.shared_expert;
    let values = by_name(dense);
    config.check_memory()?;
    let model = config.init(how.seed.named("model"), device)?;
    let mut draw = how.seed.named("noise").rng();
    with_values(model, |parameter| {
        let name = &parameter.name;
        if let Some(same) = values.get(name) {
            return Ok(Some(same.read()));
        }
        if name.contains(".router.") {
            return Ok(None);
        }
        let original = name.replace(".experts.", ".").replace(".shared.", ".");
        let Some(original) = values.get(&original) else {
            return Err(fault(&format!("it has no {original} for {name}")));
        };
        if !name.contains(".experts.") {
            return Ok(Some(original.read()));
        }
        let copies = parameter.shape[0];
        if blank && name.contains(".down") {
            return Ok(Some(vec![0.0; parameter.shape.iter().product()]));
        }
        let one = original.read();
        let mut all: Vec<f32> =
            std::iter::repeat_n(one.as_slice(), copies).flatten().copied().collect();
        if how.noise > 0.0 && !name.ends_with("_bias") {
            let deviation = how.noise * deviation(&one);
            all.iter_mut()
                .for_each(|value| *value += draw.sample::<f32, _>(StandardNormal) * deviation);
        }
        Ok(Some(all))
    })
}

fn deviation(values: &[f32]) -> f32 {
    let count = values.len().max(1) as f64;
    let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
    let squares = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>();
    (squares / count).sqrt() as f32
}

impl Upcycling {
    /// The blocks that get experts.
    pub fn blocks(&self, dense: &ModelConfig) -> Result<Vec<usize>> {
        let encoder = EncoderConfig { moe: Some(self.moe.clone()), ..dense.encoder.clone() };
        let kinds = encoder.feed_forwards()?.into_iter().enumerate();
        Ok(kinds.filter(|(_, kind)| *kind == FeedForwardKind::Moe).map(|(i, _)| i).collect())
    }
}

/// The largest difference between two models' mean logits on one seeded image, and the largest logit of
/// the first, to judge it by.
pub fn step_zero_difference(
    before: &VisionTransformer,
    after: &VisionTransformer,
    seed: Seed,
    device: &Device,
) -> Result<(f32, f32)> {
    let ImageConfig { resolution, channels, .. } = before.config().image;
    let mut rng = seed.named("image").rng();
    let shape = [1, resolution.height, resolution.width, channels];
    let pixels: Vec<f32> =
        (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    let image = Tensor::<4>::from_data(TensorData::new(pixels, shape), device);
    let mean = |model: &VisionTransformer| -> Result<Tensor<3>> {
        Ok(model.forward(image.clone(), &Mode::Inference)?.predictions.logits.mean_dim(0))
    };
    let (before, after) = (mean(before)?, mean(after)?);
    let largest =
        |x: Tensor<3>| -> f32 { x.abs().max().try_into_vec_as::<f32>().expect("a float")[0] };
    Ok((largest(before.clone() - after), largest(before)))
}
