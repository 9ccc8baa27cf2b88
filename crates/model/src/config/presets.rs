//! Named points in the configuration.

use omma_base::nearest;
use omma_kernels::Activation;

use super::{
    ModelConfig, MoeConfig, MoeScope, Normalisation, Placement, Pooling, Position, RouterKind,
};
use crate::error::{ModelError, Result};

/// Width, hidden size, depth and heads.
type Size = (usize, usize, usize, usize);

/// The sizes by their letter; paper 000 Table 6 for `s` to `h`. Its table prints 5144 for the hidden
/// size of `h`, and only with that its FLOPs come out.
const SIZES: &[(&str, Size)] = &[
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
    let dropout = if tiny { 0.0 } else { 0.1 };
    let placement = Placement::Last(if huge { 5 } else { 2 });
    let vmoe = MoeConfig { placement, experts, dropout, ..MoeConfig::default() };
    let small = ModelConfig { resolution: dense.resolution.min(224), ..dense.clone() };
    Ok(match system {
        "vit" => dense,
        "vmoe" => ModelConfig { moe: Some(vmoe), ..dense },
        "e3" => ModelConfig { moe: Some(MoeConfig { k: 1, members: 2, ..vmoe }), ..dense },
        "softmoe" => {
            let experts = if tiny { 8 } else { 128 };
            let slots = small.grid(small.resolution).pow(2).div_ceil(experts);
            let moe = MoeConfig {
                placement: Placement::Tail(small.depth / 2),
                experts,
                slots,
                router: RouterKind::Soft,
                ..MoeConfig::default()
            };
            let (class_token, pooling) = (false, Pooling::Mean);
            ModelConfig { moe: Some(moe), class_token, pooling, ..small }
        }
        "vimoe" => {
            let moe = MoeConfig {
                placement: Placement::Tail(2),
                experts: 8,
                k: 1,
                shared_expert: true,
                scope: MoeScope::Image,
                noise: 0.0,
                importance_loss: 0.0,
                load_loss: 0.0,
                balance_loss: 0.01,
                ..MoeConfig::default()
            };
            ModelConfig { moe: Some(moe), classes: if tiny { 10 } else { 0 }, ..small }
        }
        _ => return Err(unknown()),
    })
}

/// Every name that [`preset`] knows with the papers' patches.
fn names() -> impl Iterator<Item = String> {
    let sizes =
        SIZES.iter().flat_map(|(size, _)| [32, 16, 14].map(|patch| format!("{size}{patch}")));
    let sizes: Vec<String> = sizes.chain(["tiny".to_owned()]).collect();
    PRESETS.iter().flat_map(move |system| {
        sizes.iter().map(|size| format!("{system}{size}")).collect::<Vec<_>>()
    })
}

fn tiny() -> ModelConfig {
    ModelConfig {
        resolution: 32,
        patch: 4,
        width: 128,
        depth: 6,
        heads: 4,
        mlp: 512,
        classes: 10,
        ..ModelConfig::default()
    }
}

fn dense(size: &str) -> Option<ModelConfig> {
    let digits = size.find(|c: char| c.is_ascii_digit())?;
    let (letter, patch) = size.split_at(digits);
    let patch = patch.parse().ok().filter(|patch| [8, 14, 16, 32].contains(patch))?;
    let (_, (width, mlp, depth, heads)) = *SIZES.iter().find(|(name, _)| *name == letter)?;
    let sizes = ModelConfig { patch, width, depth, heads, mlp, ..ModelConfig::default() };
    Some(match letter {
        // DINOv2's grid is 37 × 37; at 224 pixels it is interpolated.
        "dinos" => ModelConfig {
            resolution: 224,
            position_resolution: (patch == 14).then_some(518),
            activation: Activation::GeluErf,
            layer_scale: Some(1e-5),
            position: Position::Learned,
            normalisation: Normalisation::IMAGENET,
            ..sizes
        },
        _ => ModelConfig { resolution: 384, ..sizes },
    })
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
