//! Named points in the configuration.

use omma_base::{Resolution, nearest};
use omma_kernels::Activation;
use omma_routing::{Loss, LossTerm, Pool, RouterConfig, Scope};

use super::{
    ClassifierConfig, EncoderConfig, HeadConfig, ImageConfig, ModelConfig, MoeConfig,
    Normalisation, Placement, Pooling,
};
use crate::error::{ModelError, Result};

/// Width, hidden size, depth and heads.
pub(super) type Size = (usize, usize, usize, usize);

/// The sizes by their letter; paper 000 Table 6 for `s` to `h`. Its table prints 5144 for the hidden
/// size of `h`, and only with that its FLOPs come out.
pub(super) const SIZES: &[(&str, Size)] = &[
    ("ti", (192, 768, 12, 3)),
    ("s", (512, 2048, 8, 8)),
    ("b", (768, 3072, 12, 12)),
    ("l", (1024, 4096, 24, 16)),
    ("h", (1280, 5144, 32, 16)),
    // ViT-S of timm and DINOv2, which paper 003 builds on.
    ("dinos", (384, 1536, 12, 6)),
];

/// The presets that `s14` and its like can follow, and `tiny`.
pub const PRESETS: &[&str] = &["vit-", "vmoe-", "e3-", "softmoe-", "vimoe-"];

/// The configuration of a name such as `vmoe-b32`, at 384 pixels (paper 000's fine-tuning) or, for
/// `softmoe-`, `vimoe-` and every `dinos` model, 224. `vimoe-` is a backbone without classes, as
/// paper 003 counts it; the others have ImageNet's 1000.
///
/// - `vit-`, `vmoe-` (32 experts, K = 2, `last-2`; `last-5` for `h`), `e3-` (32 experts, K = 1,
///   M = 2), `softmoe-` (the later half of the blocks, as many slots as tokens), `vimoe-` (8 experts,
///   `tail-2`, a shared expert, one decision per image)
/// - then a size, `ti`, `s`, `b`, `l` or `h`, or `dinos` for the ViT-S of timm and DINOv2, and the side
///   of a patch: 32, 16, 14 or 8. Paper 003's S/14 is `vimoe-s14`, which is `dinos` too.
/// - or `tiny`: 32 pixels, patches of 4, width 128, 6 blocks, 10 classes; a laptop trains it
pub fn preset(name: &str) -> Result<ModelConfig> {
    let unknown = || {
        let names: Vec<String> = names().collect();
        let hint = nearest(name, names.iter().map(String::as_str));
        let hint = match hint.is_empty() {
            true => format!("; known are {} with s32, b16, … or tiny", PRESETS.join(", ")),
            false => hint,
        };
        ModelError::UnknownPreset { name: name.to_owned(), hint }
    };
    let (system, size) = name.split_once('-').ok_or_else(unknown)?;
    let dense = match (size, system) {
        ("tiny", _) => tiny(),
        (_, "vimoe") if size.starts_with('s') => {
            dense(&format!("dino{size}")).ok_or_else(unknown)?
        }
        _ => dense(size).ok_or_else(unknown)?,
    };
    let tiny = size == "tiny";
    let huge = size.starts_with('h');
    let experts = if tiny { 8 } else { 32 };
    let vmoe = |k| MoeConfig {
        placement: Placement::Last(if huge { 5 } else { 2 }),
        dropout: if tiny { 0.0 } else { 0.1 },
        ..MoeConfig::new(RouterConfig::softmax_token_choice(experts, k))
    };
    let with = |moe: MoeConfig, model: ModelConfig| ModelConfig {
        encoder: EncoderConfig { moe: Some(moe), ..model.encoder },
        ..model
    };
    let resolution = Resolution::square(dense.image.resolution.shortest().min(224));
    let image = ImageConfig { resolution, ..dense.image.clone() };
    let small = ModelConfig { image, ..dense.clone() };
    Ok(match system {
        "vit" => dense,
        "vmoe" => with(vmoe(2), dense),
        "e3" => {
            let moe = vmoe(1);
            let pool = Pool::Members { members: 2, overlap: 0 };
            with(MoeConfig { router: RouterConfig { pool, ..moe.router }, ..moe }, dense)
        }
        "softmoe" => {
            let experts = if tiny { 8 } else { 128 };
            let (rows, columns) = small.image.grid(resolution);
            let router = RouterConfig::soft(experts, (rows * columns).div_ceil(experts));
            let placement = Placement::Tail(small.encoder.depth / 2);
            let model = with(MoeConfig { placement, ..MoeConfig::new(router) }, small);
            let classes = model.classes();
            let head = ClassifierConfig { pooling: Pooling::Mean, classes, ..Default::default() };
            ModelConfig {
                image: ImageConfig { class_token: false, ..model.image },
                head: HeadConfig::Classifier(head),
                ..model
            }
        }
        "vimoe" => {
            let router = RouterConfig {
                noise: 0.0,
                losses: vec![LossTerm::new(Loss::Balance, 0.01)],
                scope: Scope::Image { decided_by: 0 },
                ..RouterConfig::softmax_token_choice(8, 1)
            };
            let placement = Placement::Tail(2);
            let moe = MoeConfig { placement, shared_expert: true, ..MoeConfig::new(router) };
            with(moe, small).with_classes(if tiny { 10 } else { 0 })
        }
        _ => return Err(unknown()),
    })
}

/// Every name that [`preset`] knows with the papers' patches.
pub(super) fn names() -> impl Iterator<Item = String> {
    let sizes =
        SIZES.iter().flat_map(|(size, _)| [32, 16, 14].map(|patch| format!("{size}{patch}")));
    let sizes: Vec<String> = sizes.chain(["tiny".to_owned()]).collect();
    PRESETS.iter().flat_map(move |system| {
        sizes.iter().map(|size| format!("{system}{size}")).collect::<Vec<_>>()
    })
}

fn tiny() -> ModelConfig {
    let (width, depth, heads, mlp) = (128, 6, 4, 512);
    ModelConfig {
        image: ImageConfig {
            resolution: Resolution::square(32),
            patch: 4,
            ..ImageConfig::default()
        },
        encoder: EncoderConfig { width, depth, heads, mlp, ..EncoderConfig::default() },
        ..ModelConfig::default()
    }
    .with_classes(10)
}

fn dense(size: &str) -> Option<ModelConfig> {
    let digits = size.find(|c: char| c.is_ascii_digit())?;
    let (letter, patch) = size.split_at(digits);
    let patch = patch.parse().ok().filter(|patch| [8, 14, 16, 32].contains(patch))?;
    let (_, (width, mlp, depth, heads)) = *SIZES.iter().find(|(name, _)| *name == letter)?;
    let encoder = EncoderConfig { width, depth, heads, mlp, ..EncoderConfig::default() };
    let image = ImageConfig { patch, ..ImageConfig::default() };
    let (image, encoder) = match letter {
        // DINOv2's grid is 37 × 37; at 224 pixels it is interpolated.
        "dinos" => (
            ImageConfig {
                position_resolution: (patch == 14).then_some(Resolution::square(518)),
                normalisation: Normalisation::IMAGENET,
                ..image
            },
            EncoderConfig { activation: Activation::GeluErf, layer_scale: Some(1e-5), ..encoder },
        ),
        _ => (ImageConfig { resolution: Resolution::square(384), ..image }, encoder),
    };
    Some(ModelConfig { image, encoder, ..ModelConfig::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_model_that_can_be_built() {
        for name in names() {
            preset(&name).unwrap().check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn a_wrong_name_gets_the_nearest() {
        let message = preset("vmeo-b32").unwrap_err().to_string();
        assert!(message.contains("vmoe-b32"), "{message}");
        assert!(preset("b32").is_err() && preset("vit-b33").is_err() && preset("").is_err());
    }
}
