//! timm's vision transformers, and DINOv2's, which have the same names but for registers.

use omma_kernels::Activation;

use super::{
    family::{Family, Rule, Shapes, first},
    transform::{How, Transform},
};
use crate::{
    config::{
        ClassifierConfig, EncoderConfig, HeadConfig, ImageConfig, ModelConfig, Normalisation,
        Pooling, Position,
    },
    error::Result,
    tensors::{TensorInfo, TensorSource},
};

pub(super) const RULES: &[Rule] = &[
    ("embed.weight", How::Convolution, &["patch_embed.proj.weight"]),
    ("embed.bias", How::Same, &["patch_embed.proj.bias"]),
    ("embed.class_token", How::Same, &["cls_token"]),
    ("embed.registers", How::Same, &["reg_token"]),
    ("embed.registers", How::Same, &["register_tokens"]),
    ("embed.position", How::Same, &["pos_embed"]),
    ("blocks.{}.norm1.gamma", How::Same, &["blocks.{}.norm1.weight"]),
    ("blocks.{}.norm1.beta", How::Same, &["blocks.{}.norm1.bias"]),
    ("blocks.{}.attention.qkv", How::Transposed, &["blocks.{}.attn.qkv.weight"]),
    ("blocks.{}.attention.qkv_bias", How::Same, &["blocks.{}.attn.qkv.bias"]),
    ("blocks.{}.attention.q_norm", How::Same, &["blocks.{}.attn.q_norm.weight"]),
    ("blocks.{}.attention.k_norm", How::Same, &["blocks.{}.attn.k_norm.weight"]),
    ("blocks.{}.attention.out", How::Transposed, &["blocks.{}.attn.proj.weight"]),
    ("blocks.{}.attention.out_bias", How::Same, &["blocks.{}.attn.proj.bias"]),
    ("blocks.{}.scale1", How::Same, &["blocks.{}.ls1.gamma"]),
    ("blocks.{}.norm2.gamma", How::Same, &["blocks.{}.norm2.weight"]),
    ("blocks.{}.norm2.beta", How::Same, &["blocks.{}.norm2.bias"]),
    ("blocks.{}.feed_forward.up", How::Transposed, &["blocks.{}.mlp.fc1.weight"]),
    ("blocks.{}.feed_forward.up_bias", How::Same, &["blocks.{}.mlp.fc1.bias"]),
    ("blocks.{}.feed_forward.down", How::Transposed, &["blocks.{}.mlp.fc2.weight"]),
    ("blocks.{}.feed_forward.down_bias", How::Same, &["blocks.{}.mlp.fc2.bias"]),
    ("blocks.{}.scale2", How::Same, &["blocks.{}.ls2.gamma"]),
    ("norm.gamma", How::Same, &["norm.weight"]),
    ("norm.gamma", How::Same, &["fc_norm.weight"]),
    ("norm.beta", How::Same, &["norm.bias"]),
    ("norm.beta", How::Same, &["fc_norm.bias"]),
    ("head.weight", How::Transposed, &["head.weight"]),
    ("head.bias", How::Same, &["head.bias"]),
];

/// Heads are not to be seen in a fused matrix; all of timm's and DINOv2's ViTs up to L have 64 features
/// in one, and wider ones 80 or more in one of 16.
fn heads(width: usize) -> usize {
    match width {
        1280.. => 16,
        _ => (width / 64).max(1),
    }
}

/// Positions of registers and class token, which we keep in the tokens themselves.
fn positions_of_prefix(shapes: &Shapes) -> Result<(usize, usize, usize)> {
    let [_, positions, _] = shapes.get::<3>("pos_embed")?;
    let registers = ["reg_token", "register_tokens"];
    let registers = registers.iter().find(|name| shapes.has(name));
    let registers = match registers {
        Some(name) => shapes.get::<3>(name)?[1],
        None => 0,
    };
    let class_token = usize::from(shapes.has("cls_token"));
    Ok((positions, registers, class_token))
}

pub(super) fn config(family: Family, shapes: &Shapes) -> Result<ModelConfig> {
    let [width, channels, patch, _] = shapes.get::<4>("patch_embed.proj.weight")?;
    let (positions, registers, class_token) = positions_of_prefix(shapes)?;
    let prefix = registers.saturating_add(class_token);
    let others: &[usize] = match (family, class_token) {
        // Its authors' files give registers no position.
        (Family::Dinov2, _) => &[class_token],
        (_, 1) => &[1, prefix, 0],
        _ => &[prefix, 0],
    };
    let (others, resolution) = shapes.grid(positions, others, patch)?;
    let position = match (class_token, others) {
        (1, 1) => Position::Learned,
        _ => Position::LearnedPatches, // others are folded into their tokens
    };
    let [mlp, _] = shapes.get::<2>("blocks.0.mlp.fc1.weight")?;
    let pooling = match shapes.has("fc_norm.weight") {
        true => Pooling::PatchMean,
        false if class_token == 1 => Pooling::Token,
        false => Pooling::Mean,
    };
    let dino = family == Family::Dinov2 || shapes.has("blocks.0.ls1.gamma") && patch == 14;
    let classes = shapes.find("head.weight").map_or(0, first);
    Ok(ModelConfig {
        image: ImageConfig {
            resolution,
            channels,
            patch,
            class_token: class_token == 1,
            registers,
            position,
            normalisation: if dino { Normalisation::IMAGENET } else { Normalisation::SYMMETRIC },
            ..ImageConfig::default()
        },
        encoder: EncoderConfig {
            width,
            depth: shapes.count("blocks.{}.norm1.weight"),
            heads: heads(width),
            mlp,
            activation: Activation::GeluErf,
            qk_norm: shapes.has("blocks.0.attn.q_norm.weight"),
            layer_scale: shapes.has("blocks.0.ls1.gamma").then_some(1e-5),
            ..EncoderConfig::default()
        },
        head: HeadConfig::Classifier(ClassifierConfig { pooling, representation: None, classes }),
        mimo: None,
        text: None,
    })
}

/// Where positions cover class and register tokens together, they are added to those tokens once and
/// for all. DINOv2's own files give registers no position.
pub(super) fn with_positions(
    parameter: &str,
    transform: Transform,
    image: &ImageConfig,
    source: &dyn TensorSource,
) -> Transform {
    let find = |end: &str| source.tensors().iter().find(|(name, _)| name.ends_with(end));
    let registers = find("reg_token").or(find("register_tokens"));
    let second = |info: &TensorInfo| info.shape.get(1).copied();
    let registers = registers.and_then(|(_, info)| second(info)).unwrap_or(0);
    let class_token = usize::from(find("cls_token").is_some());
    let Some((name, info)) = find("pos_embed") else { return transform };
    let all = second(info).unwrap_or(0);
    let prefix = registers.saturating_add(class_token);
    let (rows, columns) = image.position_grid();
    let folded = registers > 0 && all.checked_sub(prefix) == rows.checked_mul(columns);
    if !folded || transform.tensors.is_empty() {
        return transform;
    }
    let with = |how| Transform { how, tensors: vec![transform.tensors[0].clone(), name.clone()] };
    match parameter {
        "embed.class_token" => with(How::PlusFirst),
        "embed.registers" if class_token == 1 => with(How::PlusNext),
        "embed.position" => Transform { how: How::Without(prefix), tensors: transform.tensors },
        _ => transform,
    }
}
