//! Experts that are gone are experts that are masked, and their parameters are gone.

use omma_model::{
    BlockPruning, MoeLayer, checkpoint, parameter_values, parameters,
    systems::{KeptExperts, adapt, permute_experts, prune},
};
use omma_routing::{Context, PruneMode, Pruning, RouterConfig};

use super::*;

/// Blocks 1 and 3 have experts; each keeps others.
const KEPT: [(usize, &[usize]); 2] = [(1, &[0, 2, 3, 6, 7]), (3, &[1, 5, 6])];

fn kept() -> Vec<KeptExperts> {
    KEPT.map(|(block, experts)| KeptExperts { block, experts: experts.to_vec() }).to_vec()
}

/// The whole model with the same experts masked: the definition.
fn masked(model: &VisionTransformer, keep: &[KeptExperts], mode: PruneMode) -> VisionTransformer {
    let mut model = model.clone();
    for KeptExperts { block, experts } in keep {
        let layer = layer_mut(&mut model, *block);
        let config = layer.router.config();
        let lost = (0..config.experts).filter(|expert| !experts.contains(expert)).collect();
        let pruning = Pruning { experts: lost, mode, removed: Vec::new() };
        let config = RouterConfig { pruning, ..config.clone() };
        layer.router = layer.router.clone().with_config(config).unwrap();
    }
    model
}

fn layer_mut(model: &mut VisionTransformer, block: usize) -> &mut MoeLayer {
    match &mut model.encoder.blocks[block].feed_forward {
        FeedForward::Moe(layer) => layer,
        _ => panic!("block {block} has experts"),
    }
}

fn bits<const R: usize>(tensor: &Tensor<R>) -> Vec<u32> {
    values(tensor).into_iter().map(f32::to_bits).collect()
}

const SYSTEMS: &[&[&str]] = &[
    &["moe.k=1"],
    &["moe.k=2"],
    &["moe.k=2", "moe.shared_expert=true"],
    &["moe.k=1", "moe.shared_expert=true", "moe.scope=image"],
    &["moe.k=1", "moe.members=2"],
    &["moe.k=1", "moe.members=2", "moe.overlap=4"],
    &["moe.k=1", "moe.members=2", "moe.own_experts=false"],
    &["moe.k=1", "moe.partition=2"],
    &["moe.k=2", "moe.multi_pred=true"],
    &["moe.k=2", "moe.combine=normalised"],
    &["moe.k=2", "moe.inference_capacity_ratio=0.5"],
    &["moe.router=soft", "moe.slots=2"],
    &["moe.router=sinkhorn-token-choice"],
    &["moe.router=softmax-expert-choice", "moe.images_per_group=1"],
    &["moe.k=2", "moe.placement=every-2", "moe.hidden=20"],
];

#[test]
fn a_model_that_has_lost_experts_is_the_masked_model_bit_for_bit() {
    let device = Device::flex();
    for settings in SYSTEMS {
        let whole = trained(&config(settings), &device);
        let expected = masked(&whole, &kept(), PruneMode::Predict);
        let pruned = prune(&whole, &kept(), PruneMode::Predict, &device).unwrap();
        let images = images(3, 16);
        for mode in [Mode::Inference, Mode::Training(Seed::new(9))] {
            let outputs =
                [&expected, &pruned, &whole].map(|one| one.forward(images.clone(), &mode).unwrap());
            let [expected, pruned, whole] = outputs.map(|one| bits(&one.predictions.logits));
            assert_eq!(pruned, expected, "{settings:?} {mode:?}");
            assert_ne!(pruned, whole, "{settings:?}: nothing was pruned");
        }
    }
}

#[test]
fn parameters_of_lost_experts_are_gone_and_the_others_are_what_they_were() {
    let device = Device::flex();
    let whole = trained(&config(&["moe.members=2", "moe.k=1", "moe.overlap=4"]), &device);
    let find = |model: &VisionTransformer, name: &str| {
        let all = parameter_values(model).into_iter();
        let found = all.into_iter().find(|one| one.parameter.name == name).unwrap();
        (found.parameter.shape.clone(), found.read())
    };
    for mode in [PruneMode::Predict, PruneMode::Drop] {
        let pruned = prune(&whole, &kept(), mode, &device).unwrap();
        for (block, experts) in KEPT {
            for name in ["up", "up_bias", "down", "down_bias"] {
                let name = format!("blocks.{block}.feed_forward.experts.{name}");
                let (shape, all) = find(&whole, &name);
                let (own_shape, own) = find(&pruned, &name);
                assert_eq!((own_shape[0], &own_shape[1..]), (experts.len(), &shape[1..]));
                let size = all.len() / 8;
                for (row, expert) in own.chunks_exact(size).zip(experts) {
                    assert_eq!(row, &all[expert * size..][..size], "{name} {expert}");
                }
            }
            // Members see experts 0, 1, 4 to 7 and 2 to 7: each of their columns by itself.
            let gates: [&[usize]; 2] = [&[0, 1, 4, 5, 6, 7], &[2, 3, 4, 5, 6, 7]];
            let columns = gates.concat();
            let name = format!("blocks.{block}.feed_forward.router.weight");
            let (_, all) = find(&whole, &name);
            let (_, own) = find(&pruned, &name);
            let stays = |expert: &usize| mode == PruneMode::Predict || experts.contains(expert);
            let expected: Vec<f32> = all
                .chunks_exact(columns.len())
                .flat_map(|row| row.iter().zip(&columns))
                .filter(|(_, expert)| stays(expert))
                .map(|(value, _)| *value)
                .collect();
            assert_eq!(own, expected);
        }
        let cost = pruned.config().cost(pruned.config().image.resolution).unwrap();
        let count: usize =
            parameters(&pruned).iter().map(|one| one.shape.iter().product::<usize>()).sum();
        assert_eq!(cost.params_total, count as u64);
        let layer = cost.layers.iter().find(|row| row.name == "blocks.3.feed_forward").unwrap();
        assert_eq!(layer.kind, "3 of 8 experts, K = 1");
    }
}

/// By hand: a softmax over the logits of those that are left, the largest gate, its expert's network.
#[test]
fn dropped_experts_are_gone_from_the_softmax() {
    let device = Device::flex();
    let whole = trained(&config(&["moe.k=1", "moe.noise=0", "moe.losses=[]"]), &device);
    let mut pruned = prune(&whole, &kept(), PruneMode::Drop, &device).unwrap();
    let x = random::<2>([10, 32], Seed::new(6), &device);
    let mut original = whole.clone();
    for (block, experts) in KEPT {
        let context = Context::inference(Layout::new(2, 5));
        let found =
            layer_mut(&mut pruned, block).forward(x.clone(), &context, None).unwrap().output;
        let layer = layer_mut(&mut original, block);
        let logits = values(&x.clone().matmul(layer.router.weight.val()));
        for (row, logits) in logits.chunks_exact(8).enumerate() {
            let left: Vec<f32> = experts.iter().map(|expert| logits[*expert].exp()).collect();
            let place = (0..left.len()).max_by(|a, b| left[*a].total_cmp(&left[*b])).unwrap();
            let (gate, expert) = (left[place] / left.iter().sum::<f32>(), experts[place]);
            let own = |stack: Tensor<3>| stack.narrow(0, expert, 1).squeeze_dim::<2>(0);
            let token = x.clone().narrow(0, row, 1);
            let hidden = token.matmul(own(layer.experts.up.val()))
                + layer.experts.up_bias.as_ref().unwrap().val().narrow(0, expert, 1);
            let hidden = burn::tensor::activation::gelu_approximate(hidden);
            let output = hidden.matmul(own(layer.experts.down.val()))
                + layer.experts.down_bias.as_ref().unwrap().val().narrow(0, expert, 1);
            assert!(largest(&found.clone().narrow(0, row, 1), &(output * gate)) < 1e-5);
        }
    }
}

#[test]
fn columns_that_are_gone_are_columns_that_are_left_out() {
    let device = Device::flex();
    for settings in SYSTEMS {
        let whole = trained(&config(settings), &device);
        let expected = masked(&whole, &kept(), PruneMode::Drop);
        let pruned = prune(&whole, &kept(), PruneMode::Drop, &device).unwrap();
        let [expected, pruned] = [expected, pruned].map(|model| {
            model.forward(images(3, 16), &Mode::Inference).unwrap().predictions.logits
        });
        assert!(largest(&pruned, &expected) < 1e-4, "{settings:?}");
    }
}

/// Joint experts, a gate per modality, experts per modality.
#[test]
fn images_and_texts_find_the_experts_that_are_left() {
    let device = Device::flex();
    let pools = [
        r#"{"kind": "all"}"#,
        r#"{"kind": "gate-per-modality", "modalities": 2}"#,
        r#"{"kind": "experts-per-modality", "experts": [5, 3]}"#,
    ];
    for pool in pools {
        let pool = format!("moe.router.pool={pool}");
        let small = [
            "width=32",
            "mlp=48",
            "depth=4",
            "heads=2",
            "resolution=16",
            "patch=4",
            "moe.experts=8",
            "moe.placement=1,3",
            "moe.losses=[]",
            "moe.start.shared=false",
            "text.vocabulary=30",
            "text.length=6",
            "embedding=16",
            &pool,
        ];
        let config = apply_settings(&preset("limoe-tiny").unwrap(), &small).unwrap();
        let whole = config.init(Seed::new(3), &device).unwrap();
        let expected = masked(&whole, &kept(), PruneMode::Predict);
        let pruned = prune(&whole, &kept(), PruneMode::Predict, &device).unwrap();
        let ids: Vec<i32> = (0..18).map(|place| 1 + place * 7 % 29).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [3, 6]), &device);
        let all = [&expected, &pruned].map(|model| {
            let pairs =
                model.embed_pairs(images(3, 16), ids.clone(), &Mode::Training(Seed::new(1)));
            let pairs = pairs.unwrap();
            let own = model.embed_images(images(3, 16), &Mode::Inference).unwrap().embeddings;
            let texts = model.embed_texts(ids.clone(), &Mode::Inference).unwrap().embeddings;
            [pairs.images, pairs.texts, own, texts].map(|one| bits(&one))
        });
        assert_eq!(all[0], all[1], "{pool}");
    }
}

#[test]
fn a_pruned_model_learns_and_is_what_its_file_says() {
    let device = Device::flex();
    let folder = tempfile::tempdir().unwrap();
    for mode in [PruneMode::Predict, PruneMode::Drop] {
        let whole = trained(&config(&["moe.k=2", "moe.shared_expert=true"]), &device);
        let pruned = prune(&whole, &kept(), mode, &device).unwrap();
        checkpoint::save(&pruned, folder.path()).unwrap();
        let read = checkpoint::load(folder.path(), &device).unwrap();
        assert_eq!(read.config(), pruned.config());
        let logits = |model: &VisionTransformer| {
            bits(&model.forward(images(2, 16), &Mode::Inference).unwrap().predictions.logits)
        };
        assert_eq!(logits(&read), logits(&pruned));

        let learning = checkpoint::load(folder.path(), &device.clone().autodiff()).unwrap();
        let images = images(4, 16).to_device(&device.clone().autodiff());
        let output = learning.forward(images, &Mode::Training(Seed::new(2))).unwrap();
        let loss =
            output.predictions.logits.clone().square().mean() + output.auxiliary_loss().unwrap();
        let gradients = loss.backward();
        let FeedForward::Moe(layer) = &learning.encoder.blocks[3].feed_forward else { panic!() };
        let up = layer.experts.up.val().grad(&gradients).unwrap();
        assert_eq!(up.dims()[0], 3);
        assert!(values(&up).iter().any(|value| *value != 0.0));
        let router = layer.router.weight.val().grad(&gradients).unwrap();
        assert_eq!(router.dims()[1], if mode == PruneMode::Predict { 8 } else { 3 });
        assert!(values(&router).iter().any(|value| *value != 0.0));
    }
}

#[test]
fn what_was_pruned_once_can_be_pruned_again() {
    let device = Device::flex();
    let whole = trained(&config(&["moe.k=2"]), &device);
    let keep = |block, experts: &[usize]| vec![KeptExperts { block, experts: experts.to_vec() }];
    let logits = |model: &VisionTransformer| {
        bits(&model.forward(images(2, 16), &Mode::Inference).unwrap().predictions.logits)
    };
    let modes = [PruneMode::Predict, PruneMode::Drop];
    for (first, then) in modes.into_iter().flat_map(|a| modes.map(|b| (a, b))) {
        let some = prune(&whole, &keep(3, &[1, 2, 5, 6]), first, &device).unwrap();
        let again = prune(&some, &keep(3, &[6, 1]), then, &device);
        if (first, then) == (PruneMode::Drop, PruneMode::Predict) {
            assert!(again.unwrap_err().to_string().contains("router-drop again"));
            continue;
        }
        let again = again.unwrap();
        let once = prune(&whole, &keep(3, &[1, 6]), then, &device).unwrap();
        assert_eq!(again.config(), once.config());
        assert_eq!(logits(&again), logits(&once));
        let gone = BlockPruning { block: 3, experts: vec![0, 2, 3, 4, 5, 7], mode: then };
        assert_eq!(again.config().moe().unwrap().pruned, [gone]);
    }
    // All of them stay: nothing changes.
    let same =
        prune(&whole, &keep(3, &[0, 1, 2, 3, 4, 5, 6, 7]), PruneMode::Drop, &device).unwrap();
    assert_eq!(same.config(), whole.config());
}

#[test]
fn what_cannot_be_pruned_is_said() {
    let device = Device::flex();
    let error = |settings: &[&str], block: usize, experts: &[usize]| {
        let model = config(settings).init(Seed::new(1), &device).unwrap();
        let keep = [KeptExperts { block, experts: experts.to_vec() }];
        prune(&model, &keep, PruneMode::Predict, &device).unwrap_err().to_string()
    };
    assert!(error(&["moe=null"], 3, &[0]).contains("no experts"));
    assert!(error(&[], 3, &[]).contains("every expert"), "{}", error(&[], 3, &[]));
    assert!(error(&["moe.k=2"], 3, &[4]).contains("k = 2"));
    assert!(error(&[], 2, &[0, 1]).contains("block 2"), "{}", error(&[], 2, &[0, 1]));
    assert!(error(&[], 3, &[0, 8]).contains("no expert 8"));
    // The second member has experts 4 to 7.
    let members = error(&["moe.k=1", "moe.members=2"], 3, &[0, 1, 2]);
    assert!(members.contains("block 3") && members.contains("every expert"), "{members}");

    let whole = config(&["moe.k=1"]).init(Seed::new(1), &device).unwrap();
    let pruned = prune(&whole, &kept(), PruneMode::Predict, &device).unwrap();
    let moe = apply_settings(pruned.config(), &["moe.members=2"]).unwrap().encoder.moe.unwrap();
    let target = omma_model::systems::Target::Experts(moe.into());
    assert!(
        adapt(&pruned, &target, Seed::new(0), &device).unwrap_err().to_string().contains("pruned")
    );
    assert!(permute_experts(&pruned, Seed::new(0), &device).is_err());
}
