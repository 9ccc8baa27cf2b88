//! Named points in the configuration.

use omma_base::{Resolution, nearest};
use omma_kernels::Activation;
use omma_routing::{Allocation, Loss, LossTerm, Pool, RouterConfig, Scope, Soft, TokenChoice};

use super::{
    ClassifierConfig, ContrastConfig, EncoderConfig, ExpertStart, HeadConfig, ImageConfig,
    ModelConfig, MoeConfig, Normalisation, Placement, Pooling, Position, TextConfig,
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
pub const PRESETS: &[&str] = &["vit-", "vmoe-", "e3-", "softmoe-", "vimoe-", "limoe-"];

/// What the number of experts follows in the names of single layers.
const SOFT_LAYER: &str = "softlayer-";

/// The configuration of a name such as `vmoe-b32`, at 384 pixels (paper 000's fine-tuning) or, for
/// `softmoe-`, `vimoe-` and every `dinos` model, 224. `vimoe-` is a backbone without classes, as
/// paper 003 counts it; the others have ImageNet's 1000.
///
/// - `vit-`, `vmoe-` (32 experts, K = 2, `last-2`; `last-5` for `h`), `e3-` (32 experts, K = 1,
///   M = 2), `softmoe-` (the later half of the blocks, as many slots as tokens), `vimoe-` (8 experts,
///   `tail-2`, a shared expert, one decision per image)
/// - then a size, `ti`, `s`, `b`, `l` or `h`, or `dinos` for the ViT-S of timm and DINOv2, and the side
///   of a patch: 32, 16, 14 or 8. Paper 003's S/14 is `vimoe-s14`, which is `dinos` too.
/// - `limoe-`: images and texts through one tower (paper 002 Table 4), `every-2` block with 32 experts and
///   K = 1, batch priority, at 224 pixels; `h14` has its twelve blocks and 288 pixels (App. A.3)
/// - `softlayer-` and a number of experts: one Soft MoE layer on the four patches of an MNIST digit (paper 004 E.1)
/// - or `tiny`: 32 pixels, patches of 4, width 128, 6 blocks, 10 classes; a laptop trains it
pub fn preset(name: &str) -> Result<ModelConfig> {
    let unknown = || {
        let names: Vec<String> = names().collect();
        let hint = nearest(name, names.iter().map(String::as_str));
        let hint = match hint.is_empty() {
            true => format!(
                "; known are {} with s32, b16, … or tiny, and {SOFT_LAYER} with a number of experts",
                PRESETS.join(", ")
            ),
            false => hint,
        };
        ModelError::UnknownPreset { name: name.to_owned(), hint }
    };
    if let Some(experts) = name.strip_prefix(SOFT_LAYER) {
        let experts = experts.parse().ok().filter(|experts| (1..=LAYER_UNITS).contains(experts));
        return Ok(soft_layer(experts.ok_or_else(unknown)?));
    }
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
            // Eq. 1 and §6.1: weighted by the gate, without noise and without a capacity.
            let router = RouterConfig {
                losses: vec![LossTerm::new(Loss::Balance, 0.01)],
                scope: Scope::Image { decided_by: 0 },
                ..RouterConfig::new(8, Allocation::TokenChoice(TokenChoice::dropless(1)))
            };
            let placement = Placement::Tail(2);
            let moe = MoeConfig { placement, shared_expert: true, ..MoeConfig::new(router) };
            with(moe, small).with_classes(if tiny { 10 } else { 0 })
        }
        "limoe" => limoe(size, small),
        _ => return Err(unknown()),
    })
}

/// Soft minima of experts that texts and images use, `S = e^τ`, per size of paper 002 (Table 5, A.3); of
/// other sizes, those of its ablations (A.2).
const SOFT_MINIMA: &[(&str, (f64, f64))] = &[
    ("s32", (12.0, 17.0)),
    ("b32", (12.0, 17.0)),
    ("l32", (20.0, 1.0)),
    ("l16", (28.0, 8.0)),
    ("h14", (4.0, 25.0)),
    // 9 and 20 of 32 experts, of 8.
    ("tiny", (3.0, 5.0)),
];

/// Blocks of H/14 that have experts, counted from 1 (paper 002 App. A.3).
const H14_BLOCKS: [usize; 12] = [3, 7, 11, 15, 18, 21, 24, 26, 28, 30, 31, 32];

/// LIMoE over a dense backbone. The appendices name neither the capacity in training, which is V-MoE's
/// here, nor the numbers of H/14's vectors, which are 512 as everywhere else.
fn limoe(size: &str, dense: ModelConfig) -> ModelConfig {
    let (text, image) = SOFT_MINIMA
        .iter()
        .find(|(name, _)| *name == size)
        .map_or((9.0, 20.0), |(_, minima)| *minima);
    let (tiny, huge) = (size == "tiny", size == "h14");
    let router = RouterConfig::limoe(if tiny { 8 } else { 32 }, text, image);
    let placement = match huge {
        true => Placement::Blocks(H14_BLOCKS.map(|block| block - 1).to_vec()),
        false => Placement::Every(2),
    };
    let mlp = if huge { 5120 } else { dense.encoder.mlp };
    let resolution = if huge { Resolution::square(288) } else { dense.image.resolution };
    let text = match tiny {
        true => TextConfig { vocabulary: 512, ..TextConfig::default() },
        false => TextConfig::default(),
    };
    let embedding = if tiny { 128 } else { 512 };
    ModelConfig {
        image: ImageConfig { class_token: false, resolution, ..dense.image },
        encoder: EncoderConfig {
            mlp,
            moe: Some(MoeConfig { placement, ..MoeConfig::new(router) }),
            ..dense.encoder
        },
        head: HeadConfig::Contrast(ContrastConfig { embedding, ..ContrastConfig::default() }),
        text: Some(text),
        mimo: None,
    }
}

/// Hidden units of all experts of a single layer together: `196 × 4` (paper 004 E.1).
const LAYER_UNITS: usize = 196 * 4;
/// Experts of the paper's nine single layers.
const LAYER_EXPERTS: [usize; 9] = [2, 4, 8, 16, 32, 64, 128, 256, 512];

/// A single Soft MoE layer and a linear head on MNIST (paper 004 E.1): four patches of 14 × 14 are the tokens as they
/// are, an expert has `196 × 4 / n` hidden units with ReLU, rounded down where that is no whole number, and the head
/// sees all tokens. That, and experts without biases, gives the parameters of §4.4.1, 318K with 307K of experts.
/// Pixels are from 0 to 1, which the paper says nothing of.
fn soft_layer(experts: usize) -> ModelConfig {
    let soft = Allocation::Soft(Soft::new(1, false));
    let moe = MoeConfig {
        placement: Placement::Tail(1),
        hidden: Some(LAYER_UNITS / experts),
        residual: false,
        bias: false,
        start: ExpertStart { shared: false, noise: 0.0 },
        ..MoeConfig::new(RouterConfig { allocation: soft, ..RouterConfig::soft(experts, 1) })
    };
    let (patch, channels) = (14, 1);
    let width = patch * patch * channels;
    let head = ClassifierConfig { pooling: Pooling::Flat, classes: 10, ..Default::default() };
    ModelConfig {
        image: ImageConfig {
            resolution: Resolution::square(28),
            channels,
            patch,
            projection: false,
            class_token: false,
            position: Position::None,
            normalisation: Normalisation::NONE,
            ..ImageConfig::default()
        },
        encoder: EncoderConfig {
            width,
            depth: 1,
            heads: 1,
            mlp: LAYER_UNITS,
            activation: Activation::Relu,
            attention: false,
            norm: false,
            moe: Some(moe),
            ..EncoderConfig::default()
        },
        head: HeadConfig::Classifier(head),
        ..ModelConfig::default()
    }
}

/// Every name that [`preset`] knows with the papers' patches.
pub(super) fn names() -> impl Iterator<Item = String> {
    let sizes =
        SIZES.iter().flat_map(|(size, _)| [32, 16, 14].map(|patch| format!("{size}{patch}")));
    let sizes: Vec<String> = sizes.chain(["tiny".to_owned()]).collect();
    let layers = LAYER_EXPERTS.iter().map(|experts| format!("{SOFT_LAYER}{experts}"));
    let systems = PRESETS.iter().flat_map(move |system| {
        sizes.iter().map(|size| format!("{system}{size}")).collect::<Vec<_>>()
    });
    systems.chain(layers)
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

    /// Paper 003 eq. 1 (weighted by the gate, no capacity), §3.2 (one expert for an image), §6.1 (top-1,
    /// balancing loss 0.01), Table 1 (8 experts in the last 2 blocks, with a shared one).
    #[test]
    fn vimoe_has_the_experts_of_paper_003() {
        let config = preset("vimoe-s14").unwrap();
        let moe = config.moe().unwrap();
        assert_eq!((moe.placement.clone(), moe.shared_expert), (Placement::Tail(2), true));
        let router = &moe.router;
        let choice = router.token_choice().unwrap();
        assert_eq!((router.experts, choice.k, choice.capacity), (8, 1, None));
        assert_eq!((router.noise, router.combine), (0.0, Default::default()));
        assert_eq!(router.losses, [LossTerm::new(Loss::Balance, 0.01)]);
        assert_eq!(router.scope, Scope::Image { decided_by: 0 });
    }

    /// E.1: four tokens of 196 pixels, one layer, ReLU, `196 × 4 / n` hidden units, one slot (§2.1), a linear head;
    /// §4.4.1: 318K parameters, of which 307K are of experts (with 16 of them, and a head on all tokens).
    #[test]
    fn single_layers_are_those_of_paper_004() {
        for experts in LAYER_EXPERTS {
            let config = preset(&format!("softlayer-{experts}")).unwrap();
            let cost = config.cost(config.image.resolution).unwrap();
            let moe = config.moe().unwrap();
            let hidden = moe.hidden.unwrap();
            assert_eq!((cost.tokens, config.encoder.width, hidden), (4, 196, 784 / experts));
            assert_eq!((config.encoder.activation, moe.slots()), (Activation::Relu, Some(1)));
            let Allocation::Soft(soft) = moe.router.allocation else { panic!("{moe:?}") };
            assert!(!soft.normalised, "Definition 1");
            let of_experts = experts * 2 * 196 * hidden;
            assert_eq!(cost.params_total, (of_experts + 196 * experts + 784 * 10 + 10) as u64);
            if 784 % experts == 0 {
                assert_eq!(of_experts, 307_328, "{experts}");
            }
            // Slots mixed, computed and mixed again, and the head.
            let (routing, mixing) = (4 * 196 * experts, 2 * 4 * 196 * experts);
            assert_eq!(cost.forward_macs, (routing + mixing + of_experts + 7_840) as u64);
        }
        let config = preset("softlayer-16").unwrap();
        assert_eq!(config.cost(config.image.resolution).unwrap().params_total, 318_314);
        assert!(preset("softlayer-0").is_err() && preset("softlayer-785").is_err());
    }

    #[test]
    fn every_name_is_a_model_that_can_be_built() {
        for name in names() {
            preset(&name).unwrap().check().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Table 4 (sizes), A and A.3 (32 experts, every 2 layers, H/14's blocks, 16 tokens, 512 numbers, a
    /// temperature of 10), Table 5 (thresholds), B.1 (the average of six losses, times 0.04).
    #[test]
    fn limoe_is_that_of_paper_002() {
        let sizes = [
            ("s32", (8, 8, 512, 2048), (12.0, 17.0)),
            ("s16", (8, 8, 512, 2048), (9.0, 20.0)),
            ("b32", (12, 12, 768, 3072), (12.0, 17.0)),
            ("b16", (12, 12, 768, 3072), (9.0, 20.0)),
            ("l32", (24, 16, 1024, 4096), (20.0, 1.0)),
            ("l16", (24, 16, 1024, 4096), (28.0, 8.0)),
            ("h14", (32, 16, 1280, 5120), (4.0, 25.0)),
        ];
        for (name, size, (text, image)) in sizes {
            let config = preset(&format!("limoe-{name}")).unwrap();
            let EncoderConfig { depth, heads, width, mlp, .. } = config.encoder;
            assert_eq!((depth, heads, width, mlp), size, "{name}");
            let moe = config.moe().unwrap();
            let blocks = moe.placement.blocks(depth).unwrap();
            let expected: Vec<usize> = match name {
                "h14" => vec![2, 6, 10, 14, 17, 20, 23, 25, 27, 29, 30, 31],
                _ => (1..depth).step_by(2).collect(),
            };
            assert_eq!(blocks, expected, "{name}");
            assert_eq!((moe.router.experts, moe.k()), (32, Some(1)));
            assert_eq!(moe.router.losses, LossTerm::limoe(text, image));
            assert_eq!(config.text.as_ref().unwrap().length, 16);
            let head = config.head.contrast().unwrap();
            assert_eq!((head.embedding, head.scale), (512, 10.0));
        }
        let total: f64 = LossTerm::limoe(9.0, 20.0).iter().map(|term| term.weight).sum();
        assert!((total - 0.04).abs() < 1e-12 && LossTerm::limoe(9.0, 20.0).len() == 6);
    }

    #[test]
    fn a_wrong_name_gets_the_nearest() {
        let message = preset("vmeo-b32").unwrap_err().to_string();
        assert!(message.contains("vmoe-b32"), "{message}");
        assert!(preset("b32").is_err() && preset("vit-b33").is_err() && preset("").is_err());
    }
}
