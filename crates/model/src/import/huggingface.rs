//! Hugging Face's ViT and Dinov2.

use omma_kernels::Activation;

use super::{
    family::{Family, Rule, Shapes, first},
    transform::How,
};
use crate::{
    config::{
        ClassifierConfig, EncoderConfig, HeadConfig, ImageConfig, ModelConfig, Normalisation,
        Pooling, Position,
    },
    error::Result,
};

pub(super) const VIT_RULES: &[Rule] = &[
    ("embed.weight", How::Convolution, &["embeddings.patch_embeddings.projection.weight"]),
    ("embed.bias", How::Same, &["embeddings.patch_embeddings.projection.bias"]),
    ("embed.class_token", How::Same, &["embeddings.cls_token"]),
    ("embed.position", How::Same, &["embeddings.position_embeddings"]),
    ("blocks.{}.norm1.gamma", How::Same, &["encoder.layer.{}.layernorm_before.weight"]),
    ("blocks.{}.norm1.beta", How::Same, &["encoder.layer.{}.layernorm_before.bias"]),
    (
        "blocks.{}.attention.qkv",
        How::TransposedBeside,
        &[
            "encoder.layer.{}.attention.attention.query.weight",
            "encoder.layer.{}.attention.attention.key.weight",
            "encoder.layer.{}.attention.attention.value.weight",
        ],
    ),
    (
        "blocks.{}.attention.qkv_bias",
        How::Beside,
        &[
            "encoder.layer.{}.attention.attention.query.bias",
            "encoder.layer.{}.attention.attention.key.bias",
            "encoder.layer.{}.attention.attention.value.bias",
        ],
    ),
    (
        "blocks.{}.attention.out",
        How::Transposed,
        &["encoder.layer.{}.attention.output.dense.weight"],
    ),
    ("blocks.{}.attention.out_bias", How::Same, &["encoder.layer.{}.attention.output.dense.bias"]),
    ("blocks.{}.norm2.gamma", How::Same, &["encoder.layer.{}.layernorm_after.weight"]),
    ("blocks.{}.norm2.beta", How::Same, &["encoder.layer.{}.layernorm_after.bias"]),
    ("blocks.{}.feed_forward.up", How::Transposed, &["encoder.layer.{}.intermediate.dense.weight"]),
    ("blocks.{}.feed_forward.up_bias", How::Same, &["encoder.layer.{}.intermediate.dense.bias"]),
    ("blocks.{}.feed_forward.down", How::Transposed, &["encoder.layer.{}.output.dense.weight"]),
    ("blocks.{}.feed_forward.down_bias", How::Same, &["encoder.layer.{}.output.dense.bias"]),
    ("norm.gamma", How::Same, &["layernorm.weight"]),
    ("norm.beta", How::Same, &["layernorm.bias"]),
    ("head.weight", How::Transposed, &["/classifier.weight"]),
    ("head.bias", How::Same, &["/classifier.bias"]),
];

pub(super) const DINOV2_RULES: &[Rule] = &[
    ("embed.weight", How::Convolution, &["embeddings.patch_embeddings.projection.weight"]),
    ("embed.bias", How::Same, &["embeddings.patch_embeddings.projection.bias"]),
    ("embed.class_token", How::Same, &["embeddings.cls_token"]),
    ("embed.registers", How::Same, &["embeddings.register_tokens"]),
    ("embed.position", How::Same, &["embeddings.position_embeddings"]),
    ("blocks.{}.norm1.gamma", How::Same, &["encoder.layer.{}.norm1.weight"]),
    ("blocks.{}.norm1.beta", How::Same, &["encoder.layer.{}.norm1.bias"]),
    (
        "blocks.{}.attention.qkv",
        How::TransposedBeside,
        &[
            "encoder.layer.{}.attention.attention.query.weight",
            "encoder.layer.{}.attention.attention.key.weight",
            "encoder.layer.{}.attention.attention.value.weight",
        ],
    ),
    (
        "blocks.{}.attention.qkv_bias",
        How::Beside,
        &[
            "encoder.layer.{}.attention.attention.query.bias",
            "encoder.layer.{}.attention.attention.key.bias",
            "encoder.layer.{}.attention.attention.value.bias",
        ],
    ),
    (
        "blocks.{}.attention.out",
        How::Transposed,
        &["encoder.layer.{}.attention.output.dense.weight"],
    ),
    ("blocks.{}.attention.out_bias", How::Same, &["encoder.layer.{}.attention.output.dense.bias"]),
    ("blocks.{}.scale1", How::Same, &["encoder.layer.{}.layer_scale1.lambda1"]),
    ("blocks.{}.norm2.gamma", How::Same, &["encoder.layer.{}.norm2.weight"]),
    ("blocks.{}.norm2.beta", How::Same, &["encoder.layer.{}.norm2.bias"]),
    ("blocks.{}.feed_forward.up", How::Transposed, &["encoder.layer.{}.mlp.fc1.weight"]),
    ("blocks.{}.feed_forward.up_bias", How::Same, &["encoder.layer.{}.mlp.fc1.bias"]),
    ("blocks.{}.feed_forward.down", How::Transposed, &["encoder.layer.{}.mlp.fc2.weight"]),
    ("blocks.{}.feed_forward.down_bias", How::Same, &["encoder.layer.{}.mlp.fc2.bias"]),
    ("blocks.{}.scale2", How::Same, &["encoder.layer.{}.layer_scale2.lambda1"]),
    ("norm.gamma", How::Same, &["layernorm.weight"]),
    ("norm.beta", How::Same, &["layernorm.bias"]),
    ("head.weight", How::Transposed, &["/classifier.weight"]),
    ("head.bias", How::Same, &["/classifier.bias"]),
];

pub(super) fn config(family: Family, shapes: &Shapes) -> Result<ModelConfig> {
    let projection = "embeddings.patch_embeddings.projection.weight";
    let [width, channels, patch, _] = shapes.get::<4>(projection)?;
    let [_, positions, _] = shapes.get::<3>("embeddings.position_embeddings")?;
    let (_, resolution) = shapes.grid(positions, &[1], patch)?;
    let registers = match shapes.has("embeddings.register_tokens") {
        true => shapes.get::<3>("embeddings.register_tokens")?[1],
        false => 0,
    };
    let dino = family == Family::HfDinov2;
    let (block, up) = match dino {
        true => ("encoder.layer.{}.norm1.weight", "encoder.layer.0.mlp.fc1.weight"),
        false => (
            "encoder.layer.{}.layernorm_before.weight",
            "encoder.layer.0.intermediate.dense.weight",
        ),
    };
    let [mlp, _] = shapes.get::<2>(up)?;
    let beside = shapes.beside();
    let setting = |key: &str| beside.as_ref().and_then(|config| config.get(key)?.as_u64());
    let heads = setting("num_attention_heads").map_or((width / 64).max(1), |heads| heads as usize);
    let head = shapes.find("classifier.weight");
    let pooling = match head {
        Some([_, features]) if features.is_multiple_of(2) && features / 2 == width => {
            Pooling::TokenAndMean
        }
        _ => Pooling::Token,
    };
    let classes = head.map_or(0, first);
    Ok(ModelConfig {
        image: ImageConfig {
            resolution,
            channels,
            patch,
            registers,
            position: Position::Learned,
            normalisation: if dino { Normalisation::IMAGENET } else { Normalisation::SYMMETRIC },
            ..ImageConfig::default()
        },
        encoder: EncoderConfig {
            width,
            depth: shapes.count(block),
            heads,
            mlp,
            activation: Activation::GeluErf,
            layer_scale: dino.then_some(1e-5),
            ..EncoderConfig::default()
        },
        head: HeadConfig::Classifier(ClassifierConfig { pooling, representation: None, classes }),
        mimo: None,
        text: None,
    })
}
