//! Single Soft MoE layers (paper 004 E.1), and experts that nothing skips (E.2).

use std::collections::HashMap;

use burn::tensor::{Device, Tensor, TensorData};
use omma_base::Seed;
use omma_model::{
    FeedForward, Mode, ModelConfig, ModelError, VisionTransformer, apply_settings, checkpoint,
    parameter_values, parameters, preset, with_values,
};
use rand::RngExt;

/// A model with every parameter drawn, so that a fresh head does not hide what is in front of it.
fn drawn(config: &ModelConfig) -> VisionTransformer {
    let model = config.init(Seed::new(1), &Device::flex()).unwrap();
    with_values(model, |parameter| {
        let mut rng = Seed::new(2).named(&parameter.name).rng();
        let size = parameter.shape.iter().product();
        Ok(Some((0..size).map(|_| rng.random_range(-0.2..0.2)).collect()))
    })
    .unwrap()
}

fn pictures(count: usize, side: usize, channels: usize) -> Tensor<4> {
    let mut rng = Seed::new(3).rng();
    let values: Vec<f32> = (0..count * side * side)
        .flat_map(|_| std::iter::repeat_n(rng.random_range(0.0..1.0), channels))
        .collect();
    Tensor::from_data(TensorData::new(values, [count, side, side, channels]), &Device::flex())
}

fn logits(model: &VisionTransformer, images: Tensor<4>) -> Vec<f32> {
    let output = model.forward(images, &Mode::Inference).unwrap();
    output.predictions.logits.try_into_vec_as().unwrap()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{found} {expected}");
    }
}

fn softmax(values: &[f64]) -> Vec<f64> {
    let sum: f64 = values.iter().map(|value| value.exp()).sum();
    values.iter().map(|value| value.exp() / sum).collect()
}

/// Definition 1 and a linear head on all tokens, written out for one picture of one channel.
fn by_definition(values: &HashMap<String, Vec<f32>>, picture: &[f32], experts: usize) -> Vec<f32> {
    let (patch, side, width) = (14, 28, 196);
    let hidden = 784 / experts;
    let one = |name: &str, place: usize| f64::from(values[name][place]);
    let moe = |name: &str, place: usize| one(&format!("blocks.0.feed_forward.{name}"), place);
    let token = |t: usize, d: usize| {
        let (row, column) = (t / 2 * patch + d / patch, t % 2 * patch + d % patch);
        f64::from(picture[row * side + column])
    };
    let logit = |t: usize, e: usize| {
        (0..width).map(|d| token(t, d) * moe("router.weight", d * experts + e)).sum::<f64>()
    };
    let outputs: Vec<Vec<f64>> = (0..experts)
        .map(|e| {
            let dispatch = softmax(&[0, 1, 2, 3].map(|t| logit(t, e)));
            let slot: Vec<f64> =
                (0..width).map(|d| (0..4).map(|t| dispatch[t] * token(t, d)).sum()).collect();
            let up = |h: usize| {
                let place = |d: usize| (e * width + d) * hidden + h;
                (0..width).map(|d| slot[d] * moe("experts.up", place(d))).sum::<f64>().max(0.0)
            };
            let inside: Vec<f64> = (0..hidden).map(up).collect();
            let down = |d: usize| {
                let place = |h: usize| (e * hidden + h) * width + d;
                (0..hidden).map(|h| inside[h] * moe("experts.down", place(h))).sum()
            };
            (0..width).map(down).collect()
        })
        .collect();
    let tokens: Vec<f64> = (0..4)
        .flat_map(|t| {
            let combine = softmax(&(0..experts).map(|e| logit(t, e)).collect::<Vec<_>>());
            let outputs = &outputs;
            (0..width).map(move |d| (0..experts).map(|e| combine[e] * outputs[e][d]).sum())
        })
        .collect();
    let class = |c: usize| {
        let sum: f64 =
            tokens.iter().enumerate().map(|(i, x)| x * one("head.weight", i * 10 + c)).sum();
        (sum + one("head.bias", c)) as f32
    };
    (0..10).map(class).collect()
}

#[test]
fn a_single_layer_is_definition_1_and_a_linear_head() {
    for experts in [2, 8, 32] {
        let model = drawn(&preset(&format!("softlayer-{experts}")).unwrap());
        let names: Vec<String> = parameters(&model).into_iter().map(|one| one.name).collect();
        let inside = |name: &str| format!("blocks.0.feed_forward.{name}");
        let expected = ["router.weight", "experts.up", "experts.down"].map(inside);
        assert_eq!(names[..3], expected);
        assert_eq!(names[3..], ["head.weight", "head.bias"]);
        let all = parameter_values(&model).into_iter();
        let values = all.map(|one| (one.parameter.name.clone(), one.read())).collect();
        let picture: Vec<f32> = pictures(1, 28, 1).try_into_vec_as().unwrap();
        let expected = by_definition(&values, &picture, experts);
        assert_close(&logits(&model, pictures(1, 28, 1)), &expected);
        // Pictures have three channels, which are the same where they are grey.
        assert_close(&logits(&model, pictures(1, 28, 3)), &expected);
    }
}

#[test]
fn tokens_with_weights_of_their_own_are_those_of_one_size() {
    let model = drawn(&preset("softlayer-4").unwrap());
    let error = model.forward(pictures(1, 42, 3), &Mode::Inference).unwrap_err();
    assert!(matches!(error, ModelError::Shape { .. }), "{error}");
    let base = preset("softlayer-4").unwrap();
    let error = apply_settings(&base, &["patch=7"]).unwrap_err().to_string();
    assert!(error.contains("49 values") && error.contains("the width is 196"), "{error}");
    let wider = apply_settings(&base, &["patch=7", "width=49"]).unwrap();
    assert_eq!(wider.cost(wider.image.resolution).unwrap().tokens, 16);
}

#[test]
fn a_single_layer_is_saved_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let model = drawn(&preset("softlayer-16").unwrap());
    checkpoint::save(&model, folder.path()).unwrap();
    let read = checkpoint::load(folder.path(), &Device::flex()).unwrap();
    assert_eq!(read.config(), model.config());
    assert_eq!(logits(&read, pictures(2, 28, 3)), logits(&model, pictures(2, 28, 3)));
}

/// A block is `x + a(x)`, then `f(x)` where nothing is added to what experts give.
#[test]
fn nothing_skips_experts_without_a_residual() {
    let settings = ["depth=1", "width=16", "heads=2", "mlp=32", "moe.placement=0", "moe.experts=4"];
    let config = apply_settings(&preset("softmoe-tiny").unwrap(), &settings).unwrap();
    let with = drawn(&config);
    let without = drawn(&apply_settings(&config, &["moe.residual=false"]).unwrap());
    let images = pictures(2, 32, 3);
    let mut blocks = Vec::new();
    for model in [&with, &without] {
        model
            .forward_observed(images.clone(), &Mode::Inference, |stage, tokens| {
                if stage == omma_model::Stage::Block(0) {
                    blocks.push(tokens.clone());
                }
            })
            .unwrap();
    }
    // What is missing is what went into the experts' half of the block: the tokens behind attention.
    let missing = blocks[0].clone() - blocks[1].clone();
    let tokens = with.embed.forward(images);
    let [batch, length, width] = tokens.dims();
    let layout = omma_routing::Layout::new(batch, length);
    let attended = with.encoder.blocks[0].attend(tokens.reshape([batch * length, width]), &layout);
    let flat = |x: Tensor<3>| x.try_into_vec_as::<f32>().unwrap();
    assert_close(&flat(missing), &attended.try_into_vec_as::<f32>().unwrap());
    assert!(matches!(without.encoder.blocks[0].feed_forward, FeedForward::Moe(_)));
}

#[test]
fn a_rerouted_model_has_the_same_parameters_and_other_experts_that_serve() {
    let model = drawn(&preset("softlayer-8").unwrap());
    let asked = apply_settings(model.config(), &["moe.subset=2"]).unwrap();
    let rerouted = model.rerouted(asked.moe().unwrap().router.clone()).unwrap();
    assert_eq!(*rerouted.config(), asked);
    let reconfigured =
        omma_model::systems::reconfigure(model.clone(), &["moe.subset=2"], &Device::flex())
            .unwrap();
    let images = pictures(3, 28, 3);
    let found = logits(&rerouted, images.clone());
    assert_eq!(found, logits(&reconfigured, images.clone()));
    assert_ne!(found, logits(&model, images));
    let dense = preset("vit-tiny").unwrap().init(Seed::new(0), &Device::flex()).unwrap();
    let router = asked.moe().unwrap().router.clone();
    assert!(matches!(dense.rerouted(router), Err(ModelError::NoExperts)));
}
