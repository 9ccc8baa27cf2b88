//! The same parameters under other settings, for predictions: `K` at test time (paper 000 App. L.8), a
//! capacity, noise, MC samples, pruned experts, images of another size.

use burn::tensor::Device;
use omma_base::Seed;
use omma_routing::{Allocation, RouterConfig};

use super::upcycle::by_name;
use crate::{
    config::{EncoderConfig, ExpertStart, MimoConfig, ModelConfig, MoeConfig, apply_settings},
    error::{ModelError, Result},
    parameters::{parameters, with_values},
    vit::VisionTransformer,
};

/// A model whose predictions are made with settings on top of its own. Fails on a setting that needs other
/// parameters, and on one that predictions do not depend on.
pub fn reconfigure<S: AsRef<str>>(
    model: VisionTransformer,
    settings: &[S],
    device: &Device,
) -> Result<VisionTransformer> {
    if settings.is_empty() {
        return Ok(model);
    }
    let base = anchored(model.config());
    let config = settled(apply_settings(&base, settings)?);
    for (place, setting) in settings.iter().enumerate() {
        let others = settings.iter().enumerate().filter(|(other, _)| *other != place);
        let others: Vec<&str> = others.map(|(_, other)| other.as_ref()).collect();
        // Without it the others may contradict each other, and then it does make a difference.
        let Ok(without) = apply_settings(&base, &others).map(settled) else { continue };
        if without != config && for_predictions(&without) == for_predictions(&config) {
            let setting = setting.as_ref().to_owned();
            return Err(ModelError::IdleSetting { hint: instead_of(&setting), setting });
        }
    }
    let fresh = config.init(Seed::new(0), device)?;
    let (here, there) = (parameters(&model), parameters(&fresh));
    if let Some(other) = there.iter().find(|other| !here.contains(other)) {
        return Err(ModelError::OtherParameters { parameter: other.name.clone() });
    }
    if let Some(own) = here.iter().find(|own| !there.contains(own)) {
        return Err(ModelError::OtherParameters { parameter: own.name.clone() });
    }
    let values = by_name(&model);
    with_values(fresh, |parameter| Ok(Some(values[&parameter.name].read())))
}

/// A configuration that says for itself which images its learned positions are made for, so that the size
/// of the images can change without them: they are interpolated (see `inputs/position.rs`).
fn anchored(config: &ModelConfig) -> ModelConfig {
    let mut config = config.clone();
    let image = &mut config.image;
    if image.learns_positions() {
        image.position_resolution.get_or_insert(image.resolution);
    }
    config
}

/// The same without what goes without saying.
fn settled(mut config: ModelConfig) -> ModelConfig {
    let image = &mut config.image;
    image.position_resolution.take_if(|grid| *grid == image.resolution);
    config
}

/// What its user may have meant by a setting that only training uses.
fn instead_of(setting: &str) -> &'static str {
    match setting.split('=').next().unwrap_or_default().trim() {
        "moe.noise" => "; predictions have moe.inference_noise",
        "moe.capacity_ratio" => "; predictions have moe.inference_capacity_ratio",
        "moe.dropout" | "dropout" => "; with mc_samples predictions are drawn with it",
        "moe.order" => "; without moe.inference_capacity_ratio nobody has to wait",
        _ => "",
    }
}

/// A configuration with everything that only training uses as it is by default.
fn for_predictions(config: &ModelConfig) -> ModelConfig {
    let samples = config.encoder.mc_samples > 1;
    let dropout = |rate: f32| if samples { rate } else { 0.0 };
    let moe = config.moe().map(|moe| {
        let mut allocation = moe.router.allocation;
        if let Allocation::TokenChoice(choice) = &mut allocation {
            choice.capacity = None;
            if choice.inference_capacity.is_none() {
                choice.order = Default::default();
            }
        }
        let router =
            RouterConfig { allocation, noise: 0.0, losses: Vec::new(), ..moe.router.clone() };
        let (dropout, start) = (dropout(moe.dropout), ExpertStart::default());
        MoeConfig { router, dropout, start, ..moe.clone() }
    });
    let mimo = config.mimo.as_ref();
    let mimo = mimo.map(|mimo| MimoConfig { members: mimo.members, ..MimoConfig::default() });
    let encoder =
        EncoderConfig { moe, dropout: dropout(config.encoder.dropout), ..config.encoder.clone() };
    ModelConfig { encoder, mimo, ..config.clone() }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Distribution, Tensor, TensorData};
    use omma_base::Resolution;

    use super::*;
    use crate::{
        config::{Position, preset},
        inputs::interpolate,
    };

    const SMALL: [&str; 7] =
        ["resolution=16", "patch=4", "width=16", "depth=2", "heads=2", "mlp=32", "classes=5"];

    fn model(name: &str, more: &[&str]) -> VisionTransformer {
        let settings: Vec<&str> = SMALL.iter().chain(more).copied().collect();
        let config = apply_settings(&preset(name).unwrap(), &settings).unwrap();
        config.init(Seed::new(3), &Device::flex()).unwrap()
    }

    fn logits(model: &VisionTransformer, images: &Tensor<4>) -> Vec<f32> {
        let predictions = model.predict(images.clone(), Seed::new(0)).unwrap();
        predictions.logits.try_into_vec_as().unwrap()
    }

    /// The same model with a grid of positions of its own at another size, made from the old one.
    fn with_positions_at(model: &VisionTransformer, resolution: Resolution) -> VisionTransformer {
        let device = Device::flex();
        let mut config = model.config().clone();
        let old = config.image.position_grid();
        (config.image.resolution, config.image.position_resolution) = (resolution, None);
        let new = config.image.position_grid();
        let learned = config.image.position == Position::Learned;
        let class = usize::from(config.image.class_token && learned);
        let values = by_name(model);
        with_values(config.init(Seed::new(0), &device).unwrap(), |parameter| {
            let stored = values[&parameter.name].read();
            if parameter.name != "embed.position" {
                return Ok(Some(stored));
            }
            let width = parameter.shape[1];
            let (first, grid) = stored.split_at(class * width);
            let grid = TensorData::new(grid.to_vec(), [grid.len() / width, width]);
            let grid = interpolate(Tensor::from_data(grid, &device), old, new);
            let grid: Vec<f32> = grid.try_into_vec_as().unwrap();
            Ok(Some([first.to_vec(), grid].concat()))
        })
        .unwrap()
    }

    #[test]
    fn at_another_size_a_model_says_what_one_with_positions_of_that_size_says() {
        let soft = ["moe.experts=4", "moe.slots=3", "moe.placement=1"];
        let sparse = ["moe.experts=4", "moe.placement=1", "moe.inference_capacity_ratio=1"];
        let models = [
            model("vit-tiny", &[]),
            model("vit-tiny", &["position=learned-patches", "registers=2"]),
            model("vmoe-tiny", &sparse),
            model("e3-tiny", &sparse),
            model("softmoe-tiny", &soft),
        ];
        for (model, resolution) in models
            .into_iter()
            .flat_map(|model| [(24, 24), (12, 20)].map(|sides| (model.clone(), sides)))
        {
            let (height, width) = resolution;
            let told = format!("resolution=[{height}, {width}]");
            let images =
                Tensor::random([3, height, width, 3], Distribution::Default, &Device::flex());
            let expected =
                logits(&with_positions_at(&model, Resolution::new(height, width)), &images);
            let moved = reconfigure(model.clone(), &[&told], &Device::flex()).unwrap();
            assert_eq!(moved.config().image.resolution, Resolution::new(height, width));
            for (found, expected) in logits(&moved, &images).into_iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-4, "{told}: {found} {expected}");
            }
            // And back again is what it was.
            let back = reconfigure(moved, &["resolution=16"], &Device::flex()).unwrap();
            assert_eq!(back.config(), model.config());
        }
    }

    #[test]
    fn without_learned_positions_any_size_does_and_no_grid_is_kept() {
        for position in ["sincos2d", "none"] {
            let model = model("vmoe-tiny", &["moe.placement=1", &format!("position={position}")]);
            let moved = reconfigure(model, &["resolution=32"], &Device::flex()).unwrap();
            assert_eq!(moved.config().image.position_resolution, None);
            assert_eq!(moved.config().image.resolution, Resolution::square(32));
            let images = Tensor::random([2, 32, 32, 3], Distribution::Default, &Device::flex());
            assert!(logits(&moved, &images).iter().all(|logit| logit.is_finite()));
        }
    }

    #[test]
    fn a_size_without_a_patch_and_another_grid_of_parameters_are_refused() {
        let refused = |setting: &str| {
            let model = model("vit-tiny", &[]);
            reconfigure(model, &[setting], &Device::flex()).unwrap_err().to_string()
        };
        assert!(refused("resolution=3").contains("no patch of 4"));
        assert!(refused("position_resolution=32").contains("other parameters"));
    }
}
