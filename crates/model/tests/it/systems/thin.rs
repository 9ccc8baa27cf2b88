//! Layers of experts become dense ones again.

use burn::module::Param;
use omma_model::{
    MoeConfig, Parameter, parameter_values,
    systems::{DenseBlock, DenseFrom, KeptExperts, Start, Upcycling, prune, thin, upcycle},
};
use omma_routing::PruneMode;

use super::*;

fn all(model: &VisionTransformer) -> Vec<(Parameter, Vec<u32>)> {
    let bits = |value: Vec<f32>| value.into_iter().map(f32::to_bits).collect();
    parameter_values(model)
        .into_iter()
        .map(|one| (one.parameter.clone(), bits(one.read())))
        .collect()
}

fn upcycled(dense: &VisionTransformer, settings: &[&str], start: Start) -> VisionTransformer {
    let moe: MoeConfig =
        apply_settings(dense.config(), settings).unwrap().encoder.moe.expect("experts are set");
    let how = Upcycling { moe, start, noise: 0.0, seed: Seed::new(2) };
    upcycle(dense, &how, &Device::flex()).unwrap()
}

fn blocks(blocks: &[usize], from: DenseFrom) -> Vec<DenseBlock> {
    blocks
        .iter()
        .map(|block| DenseBlock { block: *block, from: from.clone(), scale: 1.0 })
        .collect()
}

fn one_of_eight(expert: usize) -> Vec<f64> {
    (0..8).map(|other| if other == expert { 1.0 } else { 0.0 }).collect()
}

#[test]
fn a_model_of_equal_experts_becomes_the_dense_model() {
    let device = Device::flex();
    let dense = trained(&config(&["moe=null"]), &device);
    let settings = ["moe.experts=4", "moe.k=2", "moe.placement=1,3"];
    let copies = upcycled(&dense, &settings, Start::Copies);
    for weights in [vec![0.0, 1.0, 0.0, 0.0], vec![0.3, 0.1, 0.45, 0.15], vec![7.0, 0.0, 2.0, 1.0]]
    {
        let thinned =
            thin(&copies, &blocks(&[1, 3], DenseFrom::Experts(weights)), &device).unwrap();
        assert_eq!(thinned.config(), dense.config());
        assert_eq!(all(&thinned), all(&dense));
    }
    let with_shared = [&settings[..], &["moe.shared_expert=true"]].concat();
    let equal = upcycled(&dense, &with_shared, Start::Equal);
    let thinned = thin(&equal, &blocks(&[1, 3], DenseFrom::Shared), &device).unwrap();
    assert_eq!(all(&thinned), all(&dense));
    // Every layer by itself, one after the other.
    let half = thin(&equal, &blocks(&[1], DenseFrom::Shared), &device).unwrap();
    assert_eq!(half.config().moe().unwrap().placement.to_string(), "3");
    let logits = |model: &VisionTransformer| {
        model.forward(images(2, 16), &Mode::Inference).unwrap().predictions.logits
    };
    assert!(largest(&logits(&half), &logits(&dense)) < 1e-5, "it says what the dense model says");
    let whole = thin(&half, &blocks(&[3], DenseFrom::Shared), &device).unwrap();
    assert_eq!(all(&whole), all(&dense));
}

#[test]
fn a_dense_layer_is_one_expert_or_the_mean_of_those_that_are_there() {
    let device = Device::flex();
    let sparse = trained(&config(&["moe.k=1", "moe.members=2"]), &device);
    let find = |model: &VisionTransformer, name: &str| {
        let all = parameter_values(model).into_iter();
        all.into_iter().find(|one| one.parameter.name == name).unwrap().read()
    };
    let weights = vec![0.0, 0.5, 0.0, 0.0, 0.0, 0.25, 0.25, 0.0];
    let dense = thin(&sparse, &blocks(&[1], DenseFrom::Experts(weights.clone())), &device).unwrap();
    assert_eq!(dense.config().members(), 2, "members are tiled in front of block 3 now");
    let stack = find(&sparse, "blocks.1.feed_forward.experts.down");
    let own = find(&dense, "blocks.1.feed_forward.down");
    for (place, value) in own.iter().enumerate() {
        let at = |expert: usize| f64::from(stack[expert * own.len() + place]);
        let expected = 0.5 * at(1) + 0.25 * at(5) + 0.25 * at(6);
        assert!((f64::from(*value) - expected).abs() < 1e-7);
    }
    // Of a block that has lost experts, those that are left.
    let keep = [
        KeptExperts { block: 1, experts: vec![1, 5] },
        KeptExperts { block: 3, experts: vec![0, 4, 6] },
    ];
    let pruned = prune(&sparse, &keep, PruneMode::Drop, &device).unwrap();
    let only = DenseFrom::Experts(one_of_eight(5));
    let dense = thin(&pruned, &blocks(&[1], only), &device).unwrap();
    let own = find(&dense, "blocks.1.feed_forward.down");
    assert_eq!(own, stack[5 * own.len()..][..own.len()]);
    let left = &dense.config().moe().unwrap().pruned;
    assert_eq!(left.iter().map(|one| one.block).collect::<Vec<_>>(), [3]);
    dense.forward(images(2, 16), &Mode::Inference).unwrap();
}

#[test]
fn hidden_units_that_an_expert_lacks_change_nothing() {
    let device = Device::flex();
    let small = trained(&config(&["moe.k=1", "moe.hidden=20", "moe.placement=3"]), &device);
    let dense = thin(&small, &blocks(&[3], DenseFrom::Experts(one_of_eight(2))), &device).unwrap();
    let FeedForward::Dense(mlp) = &dense.encoder.blocks[3].feed_forward else { panic!() };
    assert_eq!(mlp.up.val().dims(), [32, 48]);
    assert!(values(&mlp.up.val()).iter().all(|value| *value != 0.0), "all can learn");
    let FeedForward::Moe(layer) = &small.encoder.blocks[3].feed_forward else { panic!() };
    let x = random::<2>([5, 32], Seed::new(8), &device);
    let own = |stack: Tensor<3>| stack.narrow(0, 2, 1).squeeze_dim::<2>(0);
    let bias = |stack: &Option<Param<Tensor<2>>>| stack.as_ref().unwrap().val().narrow(0, 2, 1);
    let hidden = x.clone().matmul(own(layer.experts.up.val())) + bias(&layer.experts.up_bias);
    let hidden = burn::tensor::activation::gelu_approximate(hidden);
    let expected = hidden.matmul(own(layer.experts.down.val())) + bias(&layer.experts.down_bias);
    assert!(largest(&mlp.forward(x.clone(), None), &expected) < 1e-5);
    let half = DenseBlock { block: 3, from: DenseFrom::Experts(one_of_eight(2)), scale: 0.5 };
    let half = thin(&small, &[half], &device).unwrap();
    let FeedForward::Dense(mlp) = &half.encoder.blocks[3].feed_forward else { panic!() };
    assert!(largest(&mlp.forward(x, None), &(expected * 0.5)) < 1e-5);
}

#[test]
fn what_cannot_become_dense_is_said() {
    let device = Device::flex();
    let error = |settings: &[&str], dense: &[DenseBlock]| {
        let model = config(settings).init(Seed::new(1), &device).unwrap();
        thin(&model, dense, &device).unwrap_err().to_string()
    };
    let shared = |block| blocks(&[block], DenseFrom::Shared);
    let experts = |block, weights: &[f64]| blocks(&[block], DenseFrom::Experts(weights.to_vec()));
    assert!(error(&["moe=null"], &shared(3)).contains("no experts"));
    assert!(error(&[], &shared(3)).contains("no shared expert"));
    assert!(error(&[], &experts(2, &[1.0; 8])).contains("block 2 has no experts"));
    assert!(error(&[], &experts(3, &[1.0; 7])).contains("no weights"));
    assert!(error(&[], &experts(3, &[0.0; 8])).contains("no weights"));
    assert!(error(&["moe.hidden=60"], &experts(3, &[1.0; 8])).contains("60 hidden units"));
}
