//! Google's ViTs and vmoe, in the names of Flax. big_vision names a block's parts with other numbers.

use omma_base::Resolution;
use omma_kernels::Activation;
use omma_routing::{Pool, RouterConfig};

use super::{
    family::{Family, Rule, Shapes, first},
    transform::How,
};
use crate::{
    config::{
        ClassifierConfig, EncoderConfig, HeadConfig, ImageConfig, ModelConfig, MoeConfig,
        Normalisation, Placement, Pooling, Position,
    },
    error::Result,
};

pub(super) const VIT_RULES: &[Rule] = &[
    ("embed.weight", How::Same, &["embedding/kernel"]),
    ("embed.bias", How::Same, &["embedding/bias"]),
    ("embed.class_token", How::Same, &["cls"]),
    ("embed.position", How::Same, &["Transformer/posembed_input/pos_embedding"]),
    ("embed.position", How::Same, &["pos_embedding"]),
    ("blocks.{}.norm1.gamma", How::Same, &["Transformer/encoderblock_{}/LayerNorm_0/scale"]),
    ("blocks.{}.norm1.beta", How::Same, &["Transformer/encoderblock_{}/LayerNorm_0/bias"]),
    (
        "blocks.{}.attention.qkv",
        How::Beside,
        &[
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/query/kernel",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/key/kernel",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/value/kernel",
        ],
    ),
    (
        "blocks.{}.attention.qkv",
        How::Beside,
        &[
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/query/kernel",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/key/kernel",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/value/kernel",
        ],
    ),
    (
        "blocks.{}.attention.qkv_bias",
        How::Beside,
        &[
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/query/bias",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/key/bias",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/value/bias",
        ],
    ),
    (
        "blocks.{}.attention.qkv_bias",
        How::Beside,
        &[
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/query/bias",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/key/bias",
            "Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/value/bias",
        ],
    ),
    (
        "blocks.{}.attention.out",
        How::Same,
        &["Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/out/kernel"],
    ),
    (
        "blocks.{}.attention.out",
        How::Same,
        &["Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/out/kernel"],
    ),
    (
        "blocks.{}.attention.out_bias",
        How::Same,
        &["Transformer/encoderblock_{}/MultiHeadDotProductAttention_1/out/bias"],
    ),
    (
        "blocks.{}.attention.out_bias",
        How::Same,
        &["Transformer/encoderblock_{}/MultiHeadDotProductAttention_0/out/bias"],
    ),
    ("blocks.{}.norm2.gamma", How::Same, &["Transformer/encoderblock_{}/LayerNorm_2/scale"]),
    ("blocks.{}.norm2.gamma", How::Same, &["Transformer/encoderblock_{}/LayerNorm_1/scale"]),
    ("blocks.{}.norm2.beta", How::Same, &["Transformer/encoderblock_{}/LayerNorm_2/bias"]),
    ("blocks.{}.norm2.beta", How::Same, &["Transformer/encoderblock_{}/LayerNorm_1/bias"]),
    (
        "blocks.{}.feed_forward.up",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_3/Dense_0/kernel"],
    ),
    (
        "blocks.{}.feed_forward.up",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_0/Dense_0/kernel"],
    ),
    (
        "blocks.{}.feed_forward.up_bias",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_3/Dense_0/bias"],
    ),
    (
        "blocks.{}.feed_forward.up_bias",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_0/Dense_0/bias"],
    ),
    (
        "blocks.{}.feed_forward.down",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_3/Dense_1/kernel"],
    ),
    (
        "blocks.{}.feed_forward.down",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_0/Dense_1/kernel"],
    ),
    (
        "blocks.{}.feed_forward.down_bias",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_3/Dense_1/bias"],
    ),
    (
        "blocks.{}.feed_forward.down_bias",
        How::Same,
        &["Transformer/encoderblock_{}/MlpBlock_0/Dense_1/bias"],
    ),
    ("norm.gamma", How::Same, &["Transformer/encoder_norm/scale"]),
    ("norm.beta", How::Same, &["Transformer/encoder_norm/bias"]),
    ("pool.probe", How::Same, &["MAPHead_0/probe"]),
    ("pool.query.weight", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/query/kernel"]),
    ("pool.query.bias", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/query/bias"]),
    ("pool.key.weight", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/key/kernel"]),
    ("pool.key.bias", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/key/bias"]),
    ("pool.value.weight", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/value/kernel"]),
    ("pool.value.bias", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/value/bias"]),
    ("pool.out.weight", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/out/kernel"]),
    ("pool.out.bias", How::Same, &["MAPHead_0/MultiHeadDotProductAttention_0/out/bias"]),
    ("pool.norm.gamma", How::Same, &["MAPHead_0/LayerNorm_0/scale"]),
    ("pool.norm.beta", How::Same, &["MAPHead_0/LayerNorm_0/bias"]),
    ("pool.mlp.up", How::Same, &["MAPHead_0/MlpBlock_0/Dense_0/kernel"]),
    ("pool.mlp.up_bias", How::Same, &["MAPHead_0/MlpBlock_0/Dense_0/bias"]),
    ("pool.mlp.down", How::Same, &["MAPHead_0/MlpBlock_0/Dense_1/kernel"]),
    ("pool.mlp.down_bias", How::Same, &["MAPHead_0/MlpBlock_0/Dense_1/bias"]),
    ("representation.weight", How::Same, &["pre_logits/kernel"]),
    ("representation.bias", How::Same, &["pre_logits/bias"]),
    ("head.weight", How::Same, &["head/kernel"]),
    ("head.bias", How::Same, &["head/bias"]),
];

pub(super) const VMOE_RULES: &[Rule] = &[
    ("embed.weight", How::Same, &["embedding/kernel"]),
    ("embed.bias", How::Same, &["embedding/bias"]),
    ("embed.class_token", How::Same, &["cls"]),
    ("embed.position", How::Same, &["Encoder/posembed_input/pos_embedding"]),
    ("blocks.{}.norm1.gamma", How::Same, &["Encoder/encoderblock_{}/LayerNorm_0/scale"]),
    ("blocks.{}.norm1.beta", How::Same, &["Encoder/encoderblock_{}/LayerNorm_0/bias"]),
    (
        "blocks.{}.attention.qkv",
        How::Beside,
        &[
            "Encoder/encoderblock_{}/SelfAttention/query/kernel",
            "Encoder/encoderblock_{}/SelfAttention/key/kernel",
            "Encoder/encoderblock_{}/SelfAttention/value/kernel",
        ],
    ),
    (
        "blocks.{}.attention.qkv_bias",
        How::Beside,
        &[
            "Encoder/encoderblock_{}/SelfAttention/query/bias",
            "Encoder/encoderblock_{}/SelfAttention/key/bias",
            "Encoder/encoderblock_{}/SelfAttention/value/bias",
        ],
    ),
    (
        "blocks.{}.attention.q_norm",
        How::Same,
        &["Encoder/encoderblock_{}/SelfAttention/query_ln/scale"],
    ),
    (
        "blocks.{}.attention.k_norm",
        How::Same,
        &["Encoder/encoderblock_{}/SelfAttention/key_ln/scale"],
    ),
    ("blocks.{}.attention.out", How::Same, &["Encoder/encoderblock_{}/SelfAttention/out/kernel"]),
    (
        "blocks.{}.attention.out_bias",
        How::Same,
        &["Encoder/encoderblock_{}/SelfAttention/out/bias"],
    ),
    ("blocks.{}.norm2.gamma", How::Same, &["Encoder/encoderblock_{}/LayerNorm_1/scale"]),
    ("blocks.{}.norm2.beta", How::Same, &["Encoder/encoderblock_{}/LayerNorm_1/bias"]),
    ("blocks.{}.feed_forward.up", How::Same, &["Encoder/encoderblock_{}/Mlp/Dense_0/kernel"]),
    ("blocks.{}.feed_forward.up_bias", How::Same, &["Encoder/encoderblock_{}/Mlp/Dense_0/bias"]),
    ("blocks.{}.feed_forward.down", How::Same, &["Encoder/encoderblock_{}/Mlp/Dense_1/kernel"]),
    ("blocks.{}.feed_forward.down_bias", How::Same, &["Encoder/encoderblock_{}/Mlp/Dense_1/bias"]),
    (
        "blocks.{}.feed_forward.router.weight",
        How::Same,
        &["Encoder/encoderblock_{}/Moe/Router/dense/kernel"],
    ),
    ("blocks.{}.feed_forward.router.weight", How::Same, &["Encoder/encoderblock_{}/Moe/Router/mu"]),
    (
        "blocks.{}.feed_forward.router.scale",
        How::Same,
        &["Encoder/encoderblock_{}/Moe/Router/scale"],
    ),
    (
        "blocks.{}.feed_forward.experts.up",
        How::Same,
        &["Encoder/encoderblock_{}/Moe/Mlp/Dense_0/kernel"],
    ),
    (
        "blocks.{}.feed_forward.experts.up_bias",
        How::Same,
        &["Encoder/encoderblock_{}/Moe/Mlp/Dense_0/bias"],
    ),
    (
        "blocks.{}.feed_forward.experts.down",
        How::Same,
        &["Encoder/encoderblock_{}/Moe/Mlp/Dense_1/kernel"],
    ),
    (
        "blocks.{}.feed_forward.experts.down_bias",
        How::Same,
        &["Encoder/encoderblock_{}/Moe/Mlp/Dense_1/bias"],
    ),
    ("norm.gamma", How::Same, &["Encoder/encoder_norm/scale"]),
    ("norm.beta", How::Same, &["Encoder/encoder_norm/bias"]),
    ("pool.probe", How::Same, &["MapHead/probe"]),
    ("pool.query.weight", How::Same, &["MapHead/MultiHeadDotProductAttention/query/kernel"]),
    ("pool.query.bias", How::Same, &["MapHead/MultiHeadDotProductAttention/query/bias"]),
    ("pool.key.weight", How::Same, &["MapHead/MultiHeadDotProductAttention/key/kernel"]),
    ("pool.key.bias", How::Same, &["MapHead/MultiHeadDotProductAttention/key/bias"]),
    ("pool.value.weight", How::Same, &["MapHead/MultiHeadDotProductAttention/value/kernel"]),
    ("pool.value.bias", How::Same, &["MapHead/MultiHeadDotProductAttention/value/bias"]),
    ("pool.out.weight", How::Same, &["MapHead/MultiHeadDotProductAttention/out/kernel"]),
    ("pool.out.bias", How::Same, &["MapHead/MultiHeadDotProductAttention/out/bias"]),
    ("pool.norm.gamma", How::Same, &["MapHead/LayerNorm/scale"]),
    ("pool.norm.beta", How::Same, &["MapHead/LayerNorm/bias"]),
    ("pool.mlp.up", How::Same, &["MapHead/Mlp/Dense_0/kernel"]),
    ("pool.mlp.up_bias", How::Same, &["MapHead/Mlp/Dense_0/bias"]),
    ("pool.mlp.down", How::Same, &["MapHead/Mlp/Dense_1/kernel"]),
    ("pool.mlp.down_bias", How::Same, &["MapHead/Mlp/Dense_1/bias"]),
    ("representation.weight", How::Same, &["pre_logits/kernel"]),
    ("representation.bias", How::Same, &["pre_logits/bias"]),
    ("head.weight", How::Same, &["head/kernel"]),
    ("head.bias", How::Same, &["head/bias"]),
];

pub(super) fn config(family: Family, shapes: &Shapes) -> Result<ModelConfig> {
    let (encoder, attention, mlp, map) = match family {
        Family::Vmoe => ("Encoder", "SelfAttention", "Mlp", "MapHead/probe"),
        _ => match shapes.has("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel") {
            true => {
                ("Transformer", "MultiHeadDotProductAttention_1", "MlpBlock_3", "MAPHead_0/probe")
            }
            false => {
                ("Transformer", "MultiHeadDotProductAttention_0", "MlpBlock_0", "MAPHead_0/probe")
            }
        },
    };
    let block = format!("{encoder}/encoderblock_{{}}");
    let depth = shapes.count(&format!("{block}/LayerNorm_0/scale"));
    let of_block =
        |index: usize, part: &str| format!("{}/{part}", block.replace("{}", &index.to_string()));
    let [patch, _, channels, width] = shapes.get::<4>("embedding/kernel")?;
    let [_, heads, _] = shapes.get::<3>(&of_block(0, &format!("{attention}/query/kernel")))?;
    let moe = moe(depth, shapes, of_block)?;
    let dense = (0..depth).find_map(|index| {
        shapes.find(&of_block(index, &format!("{mlp}/Dense_0/kernel")))?.get(1).copied()
    });
    let class_token = shapes.has("cls");
    let positions = ["posembed_input/pos_embedding"];
    let positions = positions
        .iter()
        .find_map(|name| shapes.find(&format!("{encoder}/{name}")))
        .or(shapes.find("pos_embedding"));
    let (resolution, position) = match positions {
        Some([_, positions, _]) => {
            let others: &[usize] = if class_token { &[0, 1] } else { &[0] };
            let (covered, resolution) = shapes.grid(*positions, others, patch)?;
            let kind = if covered == 1 || !class_token {
                Position::Learned
            } else {
                Position::LearnedPatches
            };
            (resolution, kind)
        }
        // Nothing in the file says how large its images were.
        _ => (Resolution::square(224), Position::Sincos2d),
    };
    let pooling = match () {
        _ if shapes.has(map) => Pooling::Map,
        _ if class_token => Pooling::Token,
        _ => Pooling::Mean,
    };
    let hidden = moe.as_ref().and_then(|moe| moe.hidden);
    Ok(ModelConfig {
        image: ImageConfig {
            resolution,
            channels,
            patch,
            class_token,
            position,
            normalisation: Normalisation::SYMMETRIC,
            ..ImageConfig::default()
        },
        encoder: EncoderConfig {
            width,
            depth,
            heads,
            mlp: dense
                .or(hidden)
                .ok_or_else(|| shapes.fault("no block has a feed-forward network"))?,
            activation: Activation::GeluTanh,
            qk_norm: shapes.has(&of_block(0, &format!("{attention}/query_ln/scale"))),
            moe,
            ..EncoderConfig::default()
        },
        head: HeadConfig::Classifier(ClassifierConfig {
            pooling,
            representation: shapes.find("pre_logits/bias").map(first),
            classes: shapes.find("head/bias").map_or(0, first),
        }),
        mimo: None,
        text: None,
    })
}

/// The experts of a vmoe checkpoint. How many of them a token takes is not to be seen in it: 2 where
/// there is one gate, 1 where every member has its own, as in the papers; `moe.k` corrects it.
fn moe(
    depth: usize,
    shapes: &Shapes,
    of_block: impl Fn(usize, &str) -> String,
) -> Result<Option<MoeConfig>> {
    let experts = |index: usize| shapes.find(&of_block(index, "Moe/Mlp/Dense_0/kernel"));
    let blocks: Vec<usize> = (0..depth).filter(|index| experts(*index).is_some()).collect();
    let Some(&first) = blocks.first() else { return Ok(None) };
    let [experts, _, hidden] = shapes.get::<3>(&of_block(first, "Moe/Mlp/Dense_0/kernel"))?;
    let gate = shapes.find(&of_block(first, "Moe/Router/dense/kernel"));
    let router = match (shapes.find(&of_block(first, "Moe/Router/mu")), gate) {
        (Some(mu), _) => RouterConfig::soft(experts, mu.last().copied().unwrap_or(1)),
        (None, Some([_, members, _])) => RouterConfig {
            pool: Pool::Members { members: *members, overlap: 0 },
            ..RouterConfig::softmax_token_choice(experts, 1)
        },
        _ => RouterConfig::softmax_token_choice(experts, 2.min(experts)),
    };
    Ok(Some(MoeConfig {
        placement: Placement::Blocks(blocks),
        hidden: Some(hidden),
        ..MoeConfig::new(router)
    }))
}
