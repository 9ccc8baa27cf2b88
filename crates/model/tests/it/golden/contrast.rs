//! Images and texts: vmoe's two towers, LIMoE's one, and the loss of pairs.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients, Int, Tensor},
};
use omma_base::{Resolution, Seed};
use omma_golden::{Case, Kind};
use omma_model::{
    Activation, ContrastConfig, EncoderConfig, HeadConfig, ImageConfig, Mode, ModelConfig,
    MoeConfig, Pairs, Placement, Pooling, Position, ScaleForm, TextConfig, TextPooling,
    VisionTransformer, parameters, sigmoid_contrast, similarities, softmax_contrast, text_tensor,
    with_values,
};
use omma_routing::{
    Allocation, Capacity, Grouping, Loss, LossTerm, Order, Plan, RouterConfig, TokenChoice,
};

pub(crate) fn check(kind: Kind, case: &Case) {
    match kind {
        Kind::Contrast => loss(case),
        Kind::OneTower => one_tower(case),
        _ => two_towers(case),
    }
}

fn loss(case: &Case) {
    let (images, texts) = (case.tensor("input/image"), case.tensor("input/text"));
    let scale = case.reshaped("input/scale", [1]);
    let loss = softmax_contrast(images.clone(), texts.clone(), scale.clone(), None);
    case.expect("output/loss", &loss);
    let gradients = loss.backward();
    case.expect("grad/input/image", &images.grad(&gradients).unwrap());
    case.expect("grad/input/text", &texts.grad(&gradients).unwrap());
    case.expect("grad/input/scale", &scale.grad(&gradients).unwrap());
}

/// Paper 002 written out in PyTorch.
fn one_tower(case: &Case) {
    let tau = |modality: &str| case.config("tau")[modality].as_f64();
    let blocks: Vec<usize> = serde_json::from_value(case.config("moe_blocks").clone()).unwrap();
    let global = |modality: &str| Loss::GlobalEntropy { threshold: tau(modality) };
    let losses = vec![
        LossTerm::new(Loss::Importance, 1.0),
        LossTerm::new(Loss::Z, 1.0),
        LossTerm::new(Loss::LocalEntropy, 1.0).on_modality(1),
        LossTerm::new(global("text"), 1.0).on_modality(1),
        LossTerm::new(global("image"), 1.0).on_modality(0),
    ];
    let weight = case.config("auxiliary_weight").as_f64().unwrap();
    let router = RouterConfig {
        losses: LossTerm::averaged(losses, weight),
        ..RouterConfig::new(case.size("experts"), Allocation::TokenChoice(TokenChoice::dropless(1)))
    };
    let hidden = case.size("hidden");
    let moe = MoeConfig {
        placement: Placement::Blocks(blocks.clone()),
        hidden: Some(hidden),
        ..MoeConfig::new(router)
    };
    let config = ModelConfig {
        image: ImageConfig {
            resolution: Resolution::square(case.size("pixels")),
            patch: case.size("patch"),
            class_token: false,
            ..ImageConfig::default()
        },
        encoder: EncoderConfig {
            width: case.size("width"),
            depth: case.size("depth"),
            heads: case.size("heads"),
            mlp: hidden,
            moe: Some(moe),
            ..EncoderConfig::default()
        },
        head: HeadConfig::Contrast(ContrastConfig {
            embedding: case.size("embedding"),
            scale_form: ScaleForm::Direct,
            ..ContrastConfig::default()
        }),
        text: Some(TextConfig {
            vocabulary: case.size("vocabulary"),
            length: case.size("text_length"),
            ..TextConfig::default()
        }),
        mimo: None,
    };
    let model = filled(case, &config, one_tower_names);
    let pairs = run(case, &model);
    case.expect("output/image", &pairs.images);
    case.expect("output/text", &pairs.texts);
    for (block, routing) in &pairs.routings {
        assert!(blocks.contains(block));
        let names = ["importance", "z", "local_text", "global_text", "global_image"];
        for (name, value) in names.iter().zip(&routing.losses.terms) {
            case.expect(&format!("output/block{block}.{name}"), &value.values);
        }
        let Plan::Sparse(plan) = &routing.plan else { panic!("tokens choose") };
        let mut chosen = vec![-1; plan.tokens().len()];
        for expert in 0..case.size("experts") {
            for place in plan.of_expert(expert) {
                chosen[plan.tokens()[place] as usize] = expert as i32;
            }
        }
        case.expect_ints(&format!("output/block{block}.chosen"), chosen);
    }
    let auxiliary = pairs.auxiliary_loss().unwrap();
    case.expect("output/auxiliary", &auxiliary);
    let contrast = softmax_contrast(pairs.images, pairs.texts, pairs.scale, pairs.bias);
    case.expect("output/contrastive", &contrast);
    let total = contrast + auxiliary;
    case.expect("output/loss", &total);
    expect_gradients(case, &model, &total.backward(), one_tower_names);
}

/// vmoe's `TwoTower`.
fn two_towers(case: &Case) {
    let config = case.json()["config"].clone();
    let soft = config["txt_moe_layers"].is_null();
    let size = |name: &str| case.size(name);
    let encoder = |tower: &str, router: Option<RouterConfig>| EncoderConfig {
        width: size(&format!("{tower}_hidden")),
        depth: size(&format!("{tower}_layers")),
        heads: size(&format!("{tower}_heads")),
        mlp: size(&format!("{tower}_mlp")),
        activation: Activation::GeluTanh,
        qk_norm: soft,
        moe: router.map(|router| MoeConfig {
            placement: Placement::Blocks(vec![1]),
            ..MoeConfig::new(router)
        }),
        ..EncoderConfig::default()
    };
    let choice = |k: usize, order: Order| {
        let capacity = Capacity {
            multiple_of: size("mult"),
            ..Capacity::factor(case.config("cf").as_f64().unwrap())
        };
        let choice = TokenChoice { capacity: Some(capacity), order, ..TokenChoice::dropless(k) };
        RouterConfig {
            grouping: Grouping::Images(size("seqs_per_group")),
            losses: serde_json::from_value(case.losses()).unwrap(),
            ..RouterConfig::new(size("E"), Allocation::TokenChoice(choice))
        }
    };
    let (images, texts) = match soft {
        true => (RouterConfig::soft(size("E"), 1), None),
        false => (choice(size("K"), Order::MaxGate), Some(choice(size("txt_K"), Order::Arrival))),
    };
    let pooling = if soft { Pooling::Map } else { Pooling::Mean };
    let text_pooling = if soft { TextPooling::Map } else { TextPooling::Last };
    let config = ModelConfig {
        image: ImageConfig {
            resolution: Resolution::new(size("height"), size("width")),
            patch: size("patch"),
            class_token: false,
            position: if soft { Position::Sincos2d } else { Position::Learned },
            ..ImageConfig::default()
        },
        encoder: encoder("img", Some(images)),
        head: HeadConfig::Contrast(ContrastConfig {
            embedding: size("embed"),
            pooling,
            text_pooling,
            projection_bias: true,
            logit_bias: Some(0.0),
            ..ContrastConfig::default()
        }),
        text: Some(TextConfig {
            vocabulary: size("vocab"),
            length: size("text_len"),
            tower: Some(encoder("txt", texts)),
            ..TextConfig::default()
        }),
        mimo: None,
    };
    let model = filled(case, &config, two_tower_names);
    let pairs = run(case, &model);
    case.expect("output/zimg", &pairs.images);
    case.expect("output/ztxt", &pairs.texts);
    case.expect("output/scale", &pairs.scale);
    let depth = config.encoder.depth;
    for (block, routing) in pairs.routings.iter().filter(|_| !soft) {
        let tower = if *block < depth { "img" } else { "txt" };
        let losses = routing.losses.per_group().unwrap();
        case.expect(&format!("output/{tower}_auxiliary_loss"), &losses);
    }
    let Pairs { images, texts, scale, bias, .. } = pairs;
    let parts = || (images.clone(), texts.clone(), scale.clone(), bias.clone());
    let (i, t, s, b) = parts();
    case.expect("output/logits", &similarities(i, t, s, b));
    let (i, t, s, b) = parts();
    case.expect("output/softmax_loss", &softmax_contrast(i, t, s, b));
    let (i, t, s, b) = parts();
    let loss = sigmoid_contrast(i, t, s, b);
    case.expect("output/loss", &loss);
    case.leave("output/loss_rows");
    expect_gradients(case, &model, &loss.backward(), two_tower_names);
}

fn run(case: &Case, model: &VisionTransformer) -> Pairs {
    let device = Device::flex().autodiff();
    let images: Tensor<4> = case.tensor::<4>("input/images").detach();
    let length = case.shape("input/texts")[1];
    let ids: Tensor<2, Int> = text_tensor(case.ints("input/texts").to_vec(), length, &device);
    model.embed_pairs(images, ids, &Mode::Training(Seed::new(0))).unwrap()
}

/// Their names of one of our parameters: one, or those of queries, keys and values.
type Names = fn(&str) -> Vec<String>;

/// Of names that depend on the router, those that are there.
fn found(case: &Case, names: Names, parameter: &str) -> Vec<String> {
    let mut all = names(parameter);
    all.retain(|name| case.has(&format!("param/{name}")));
    all
}

fn filled(case: &Case, config: &ModelConfig, names: Names) -> VisionTransformer {
    let model = config.init(Seed::new(0), &Device::flex().autodiff()).unwrap();
    with_values(model, |parameter| {
        let names = found(case, names, &parameter.name);
        Ok(Some(joined(case, "param/", &names, *parameter.shape.last().unwrap())))
    })
    .unwrap()
}

/// Arrays beside each other, row by row.
fn joined(case: &Case, prefix: &str, names: &[String], width: usize) -> Vec<f32> {
    let arrays: Vec<&[f32]> =
        names.iter().map(|name| case.floats(&format!("{prefix}{name}"))).collect();
    let part = width / arrays.len();
    let rows = arrays[0].len() / part;
    (0..rows)
        .flat_map(|row| arrays.iter().flat_map(move |a| a[row * part..(row + 1) * part].to_vec()))
        .collect()
}

fn expect_gradients(case: &Case, model: &VisionTransformer, gradients: &Gradients, names: Names) {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.0).expect("every parameter has a gradient");
            self.1.push(gradient.try_into_vec_as().unwrap());
        }
    }
    let mut found = Collect(gradients, Vec::new());
    model.visit(&mut found);
    let tolerance = |key: &str| case.json()["tolerance"][key].as_f64().unwrap() as f32;
    let (rtol, atol) = (tolerance("rtol"), tolerance("atol"));
    for (parameter, found) in parameters(model).iter().zip(&found.1) {
        let names = self::found(case, names, &parameter.name);
        let expected = joined(case, "grad/param/", &names, *parameter.shape.last().unwrap());
        assert_eq!(found.len(), expected.len(), "{}", parameter.name);
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= atol + rtol * expected.abs(),
                "gradient of {}[{place}] is {found}, expected {expected}",
                parameter.name
            );
        }
        names.iter().for_each(|name| case.leave(&format!("grad/param/{name}")));
    }
}

fn three(of: impl Fn(&str) -> String) -> Vec<String> {
    ["query", "key", "value"].map(of).to_vec()
}

fn one_tower_names(ours: &str) -> Vec<String> {
    let one = |name: &str| vec![name.to_owned()];
    match ours {
        "embed.weight" => one("image.patch.kernel"),
        "embed.bias" => one("image.patch.bias"),
        "embed.position" => one("image.position"),
        "text.embedding" | "text.position" => one(ours),
        "norm.gamma" => one("norm.scale"),
        "norm.beta" => one("norm.bias"),
        "head.image.weight" => one("image.projection"),
        "head.text.weight" => one("text.projection"),
        "head.scale" => one("temperature"),
        _ => {
            let (number, part) =
                ours.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')).unwrap();
            let block = format!("block{number}");
            match part.trim_start_matches("feed_forward.").trim_start_matches("experts.") {
                "attention.qkv" => three(|name| format!("{block}.attention.{name}.kernel")),
                "attention.qkv_bias" => three(|name| format!("{block}.attention.{name}.bias")),
                "attention.out" => one(&format!("{block}.attention.out.kernel")),
                "attention.out_bias" => one(&format!("{block}.attention.out.bias")),
                "router.weight" => one(&format!("{block}.router.kernel")),
                "up_bias" => one(&format!("{block}.up.bias")),
                "down_bias" => one(&format!("{block}.down.bias")),
                part @ ("up" | "down") => one(&format!("{block}.{part}.kernel")),
                part => one(&format!(
                    "{block}.{}",
                    part.replace("gamma", "scale").replace("beta", "bias")
                )),
            }
        }
    }
}

fn two_tower_names(ours: &str) -> Vec<String> {
    let (tower, part) = match ours.strip_prefix("text.") {
        Some(part) => ("txt", part),
        None => ("img", ours),
    };
    let one = |name: String| vec![format!("{tower}.{name}")];
    let flax = |name: &str| name.replace("gamma", "scale").replace("beta", "bias");
    match (part, part.split('.').next().unwrap()) {
        ("head.scale", _) => vec!["s".to_owned()],
        ("head.bias", _) => vec!["b".to_owned()],
        ("head.image.weight", _) => vec!["img.head.kernel".to_owned()],
        ("head.image.bias", _) => vec!["img.head.bias".to_owned()],
        ("head.text.weight", _) => vec!["txt.head.kernel".to_owned()],
        ("head.text.bias", _) => vec!["txt.head.bias".to_owned()],
        ("embed.weight", _) => one("embedding.kernel".to_owned()),
        ("embed.bias", _) => one("embedding.bias".to_owned()),
        ("embedding", _) => one("Embed_0.embedding".to_owned()),
        ("embed.position" | "position", _) => {
            one("Encoder.posembed_input.pos_embedding".to_owned())
        }
        (_, "norm") => one(format!("Encoder.encoder_{}", flax(part))),
        (_, "pool") => {
            let attention =
                |name: &str| one(format!("MapHead.MultiHeadDotProductAttention.{name}"));
            match part.trim_start_matches("pool.") {
                "probe" => one("MapHead.probe".to_owned()),
                "q_norm" => attention("query_ln.scale"),
                "k_norm" => attention("key_ln.scale"),
                "norm.gamma" => one("MapHead.LayerNorm.scale".to_owned()),
                "norm.beta" => one("MapHead.LayerNorm.bias".to_owned()),
                mlp if mlp.starts_with("mlp.") => one(format!("MapHead.{}", flax_mlp(mlp))),
                dense => attention(&dense.replace("weight", "kernel")),
            }
        }
        _ => {
            let (number, part) =
                part.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')).unwrap();
            let block = format!("Encoder.encoderblock_{number}");
            let attention = |name: &str| one(format!("{block}.SelfAttention.{name}"));
            match part {
                "attention.qkv" => {
                    three(|name| format!("{tower}.{block}.SelfAttention.{name}.kernel"))
                }
                "attention.qkv_bias" => {
                    three(|name| format!("{tower}.{block}.SelfAttention.{name}.bias"))
                }
                "attention.out" => attention("out.kernel"),
                "attention.out_bias" => attention("out.bias"),
                "attention.q_norm" => attention("query_ln.scale"),
                "attention.k_norm" => attention("key_ln.scale"),
                "feed_forward.router.weight" => ["dense.kernel", "mu"]
                    .map(|name| format!("{tower}.{block}.Moe.Router.{name}"))
                    .to_vec(),
                "feed_forward.router.scale" => one(format!("{block}.Moe.Router.scale")),
                _ if part.starts_with("feed_forward.experts.") => one(format!(
                    "{block}.Moe.{}",
                    flax_mlp(&part.replace("feed_forward.experts.", "mlp."))
                )),
                _ if part.starts_with("feed_forward.") => {
                    one(format!("{block}.{}", flax_mlp(&part.replace("feed_forward.", "mlp."))))
                }
                norm => one(format!(
                    "{block}.{}",
                    flax(norm).replace("norm1", "LayerNorm_0").replace("norm2", "LayerNorm_1")
                )),
            }
        }
    }
}

/// `mlp.up_bias` as Flax has it.
fn flax_mlp(part: &str) -> String {
    let (layer, kind) = match part.trim_start_matches("mlp.") {
        "up" => (0, "kernel"),
        "up_bias" => (0, "bias"),
        "down" => (1, "kernel"),
        _ => (1, "bias"),
    };
    format!("Mlp.Dense_{layer}.{kind}")
}
