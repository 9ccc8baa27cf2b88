//! From one system to another with the same parameters: upcycling, adaptation, permutation, settings.

use burn::tensor::{Device, Tensor};
use omma_base::Seed;
use omma_model::{
    BatchEnsembleConfig, FastWeights, FeedForward, MimoConfig, Mode, MoeConfig, VisionTransformer,
    apply_settings, parameter_values,
    systems::{
        Start, Target, Upcycling, adapt, permute_experts, reconfigure, step_zero_difference,
        upcycle,
    },
};

use super::{config, images, largest, sampling, trained, values};

fn dense() -> VisionTransformer {
    trained(&config(&["moe=null"]), &Device::flex())
}

fn upcycled(settings: &[&str], start: Start, noise: f32) -> (VisionTransformer, VisionTransformer) {
    let dense = dense();
    let moe = config(settings).encoder.moe.unwrap();
    let how = Upcycling { moe, start, noise, seed: Seed::new(5) };
    let model = upcycle(&dense, &how, &Device::flex()).unwrap();
    (dense, model)
}

#[test]
fn an_upcycled_model_says_at_first_what_the_dense_one_says() {
    let settings: &[&[&str]] = &[
        &["moe.k=1"],
        &["moe.k=2"],
        &["moe.k=1", "moe.members=2"],
        &["moe.k=1", "moe.shared_expert=true", "moe.scope=image", "moe.placement=tail-2"],
        &["moe.k=2", "moe.shared_expert=true"],
    ];
    for settings in settings {
        let (dense, model) = upcycled(settings, Start::Equal, 0.0);
        let images = images(4, 16);
        let before = dense.predict(images.clone(), Seed::new(0)).unwrap().probabilities();
        let after = model.predict(images, Seed::new(0)).unwrap().probabilities();
        assert!(largest(&before, &after) < 1e-5, "{settings:?}: {}", largest(&before, &after));
        let (difference, scale) =
            step_zero_difference(&dense, &model, Seed::new(1), &Device::flex()).unwrap();
        assert!(difference < 1e-5 && scale > 0.0);
    }
}

#[test]
fn plain_copies_and_noise_differ_and_say_so() {
    for (start, noise, settings) in [
        (Start::Copies, 0.0, &["moe.k=1"][..]),
        (Start::Copies, 0.0, &["moe.k=1", "moe.shared_expert=true"]),
        (Start::Equal, 0.1, &["moe.k=1"]),
    ] {
        let (dense, model) = upcycled(settings, start, noise);
        let (difference, _) =
            step_zero_difference(&dense, &model, Seed::new(1), &Device::flex()).unwrap();
        assert!(difference > 1e-3, "{start:?} {noise} {settings:?}: {difference}");
    }
}

#[test]
fn what_cannot_be_upcycled_is_an_error() {
    let device = Device::flex();
    let how =
        |moe: MoeConfig| Upcycling { moe, start: Start::Equal, noise: 0.0, seed: Seed::new(0) };
    let moe = config(&[]).encoder.moe.unwrap();
    let sparse = trained(&config(&[]), &device);
    assert!(upcycle(&sparse, &how(moe.clone()), &device).is_err());
    let wider = MoeConfig { hidden: Some(96), ..moe };
    let error = upcycle(&dense(), &how(wider), &device).unwrap_err().to_string();
    assert!(error.contains("96 hidden units"), "{error}");
}

/// A model's experts with settings on top.
fn experts(model: &VisionTransformer, settings: &[&str]) -> Target {
    let config = apply_settings(model.config(), settings).unwrap();
    Target::Experts(config.encoder.moe.unwrap().into())
}

#[test]
fn a_v_moe_becomes_e3_with_every_parameter_kept() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let target = experts(&vmoe, &["moe.k=1", "moe.members=2"]);
    let e3 = adapt(&vmoe, &target, Seed::new(0), &device).unwrap();
    assert_eq!(e3.config().members(), 2);
    let (before, after) = (parameter_values(&vmoe), parameter_values(&e3));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.parameter, after.parameter);
        assert_eq!(before.read(), after.read(), "{}", before.parameter.name);
    }
    assert!(adapt(&e3, &target, Seed::new(0), &device).is_err());
    assert!(adapt(&dense(), &target, Seed::new(0), &device).is_err());
}

/// Paper 000 App. B.1: a gate of the E³ is the rows of the V-MoE's router for its experts, whatever else is
/// set, so every expert keeps its logit.
#[test]
fn every_setting_of_the_experts_survives_adaptation() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let all: &[&[&str]] = &[
        &["moe.k=1", "moe.members=2", "moe.overlap=4", "moe.noise=2", "moe.inference_noise=3"],
        &["moe.k=1", "moe.partition=2"],
        &["moe.multi_pred=true"],
        &["moe.members=2", "moe.own_experts=false", "moe.inference_capacity_ratio=8"],
        &["moe.k=1", "moe.members=2", "moe.order=shuffled", "moe.dropout=0.25", "moe.z_loss=0.1"],
    ];
    let original = router_weight(&vmoe);
    for settings in all {
        let target = experts(&vmoe, settings);
        let adapted = adapt(&vmoe, &target, Seed::new(0), &device).unwrap();
        let Target::Experts(moe) = target else { unreachable!() };
        assert_eq!(adapted.config().moe(), Some(&*moe), "{settings:?}");
        let gates = moe.router.pool.gates(moe.router.experts).unwrap();
        let weight = router_weight(&adapted);
        for gate in gates {
            for (column, expert) in gate.columns.zip(gate.experts) {
                let [own, from] = [(&weight, column), (&original, expert)]
                    .map(|(weight, column)| weight.clone().narrow(1, column, 1));
                assert_eq!(values(&own), values(&from), "{settings:?}: expert {expert}");
            }
        }
    }
}

fn router_weight(model: &VisionTransformer) -> Tensor<2> {
    let layer = model.encoder.blocks.iter().find_map(|block| match &block.feed_forward {
        FeedForward::Moe(layer) => Some(layer.router.weight.val()),
        _ => None,
    });
    layer.expect("a block has experts")
}

/// Paper 000 Table 3, last row: an overlap of all experts is tiling only.
#[test]
fn an_overlap_of_all_experts_is_tiling() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let all = format!("moe.overlap={}", vmoe.config().moe().unwrap().router.experts);
    let adapted =
        |settings: &[&str]| adapt(&vmoe, &experts(&vmoe, settings), Seed::new(0), &device).unwrap();
    let overlap = adapted(&["moe.members=2", &all, "moe.inference_noise=1"]);
    let tiling = adapted(&["moe.members=2", "moe.own_experts=false", "moe.inference_noise=1"]);
    for (one, other) in parameter_values(&overlap).iter().zip(&parameter_values(&tiling)) {
        assert_eq!((&one.parameter, one.read()), (&other.parameter, other.read()));
    }
    let images = images(4, 16);
    // With noise in training, too, and with what the routers pay for.
    for mode in [Mode::Inference, sampling(3), Mode::Training(Seed::new(4))] {
        let [one, other] =
            [&overlap, &tiling].map(|model| model.forward(images.clone(), &mode).unwrap());
        assert_eq!(values(&one.predictions.logits), values(&other.predictions.logits), "{mode:?}");
        let [one, other] =
            [one, other].map(|output| output.auxiliary_loss().map(|loss| values(&loss)));
        assert_eq!(one, other, "{mode:?}");
    }
}

/// Paper 000 §4.2.2: without noise the copies of a tiled token choose alike and say the same; noise at
/// prediction makes them differ, the more of it the more, and draws anew for every seed.
#[test]
fn noise_at_prediction_tells_the_copies_of_a_token_apart() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let images = images(16, 16);
    let mut before = 0.0;
    for noise in [0.0, 1.0, 2.0, 4.0] {
        let noise = format!("moe.inference_noise={noise}");
        let target = experts(&vmoe, &["moe.members=2", "moe.own_experts=false", &noise]);
        let tiling = adapt(&vmoe, &target, Seed::new(0), &device).unwrap();
        let logits = |seed| tiling.predict(images.clone(), Seed::new(seed)).unwrap().logits;
        let first = logits(1);
        let members = [0, 1].map(|member| first.clone().narrow(0, member, 1));
        let apart = values(&(members[0].clone() - members[1].clone()).square().mean())[0];
        assert_eq!(values(&first), values(&logits(1)), "the same seed draws the same");
        match before == 0.0 && apart == 0.0 {
            true => assert_eq!(values(&first), values(&logits(2)), "nothing is drawn"),
            false => {
                assert!(apart > before, "{noise}: {apart} after {before}");
                assert_ne!(values(&first), values(&logits(2)), "another seed draws another");
            }
        }
        // The noise of training is not that of predictions, and a prediction that is not drawn has none.
        let still = tiling.forward(images.clone(), &Mode::Inference).unwrap().predictions.logits;
        let [a, b] = [0, 1].map(|member| still.clone().narrow(0, member, 1));
        assert_eq!(values(&a), values(&b));
        before = apart;
    }
    assert!(before > 0.0);
}

/// Paper 000 App. H.3: experts in another order, and the columns of the router with them, are the same
/// V-MoE; cut into subsets they are another E³.
#[test]
fn a_permutation_of_the_experts_changes_nothing_but_the_subsets() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let permuted = permute_experts(&vmoe, Seed::new(1), &device).unwrap();
    let images = images(8, 16);
    let logits = |model: &VisionTransformer| model.predict(images.clone(), Seed::new(0)).unwrap();
    assert_ne!(values(&router_weight(&vmoe)), values(&router_weight(&permuted)));
    assert!(largest(&logits(&vmoe).logits, &logits(&permuted).logits) < 1e-5);
    let cut = |model: &VisionTransformer, settings: &[&str]| {
        let adapted = adapt(model, &experts(model, settings), Seed::new(0), &device).unwrap();
        logits(&adapted).logits
    };
    let tiling = ["moe.members=2", "moe.own_experts=false"];
    assert!(largest(&cut(&vmoe, &tiling), &cut(&permuted, &tiling)) < 1e-5);
    let e3 = ["moe.members=2", "moe.k=1"];
    assert!(largest(&cut(&vmoe, &e3), &cut(&permuted, &e3)) > 1e-3, "other subsets");
    // Every expert is still there, with its own column of the router.
    for (before, after) in parameter_values(&vmoe).iter().zip(&parameter_values(&permuted)) {
        let sorted = |values: Vec<f32>| {
            let mut bits: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
            bits.sort_unstable();
            bits
        };
        assert_eq!(sorted(before.read()), sorted(after.read()), "{}", before.parameter.name);
    }
    assert_ne!(
        values(&router_weight(&permuted)),
        values(&router_weight(&permute_experts(&vmoe, Seed::new(2), &device).unwrap()))
    );
    assert!(permute_experts(&dense(), Seed::new(1), &device).is_err());
}

/// Paper 000 App. L.8: K is changed at test time, with the parameters as they are.
#[test]
fn settings_of_predictions_can_be_changed_and_those_of_training_are_refused() {
    let device = Device::flex();
    let vmoe = || trained(&config(&[]), &device);
    let images = images(4, 16);
    let changed = reconfigure(vmoe(), &["moe.k=1"], &device).unwrap();
    assert_eq!(changed.config().moe().unwrap().k(), Some(1));
    let [one, two] = [&changed, &vmoe()]
        .map(|model| model.predict(images.clone(), Seed::new(0)).unwrap().logits);
    assert!(largest(&one, &two) > 1e-4, "one expert is not two");
    let back = reconfigure(changed, &["moe.k=2"], &device).unwrap();
    assert_eq!(values(&back.predict(images, Seed::new(0)).unwrap().logits), values(&two));
    let message = |settings: &[&str]| {
        reconfigure(vmoe(), settings, &device).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        message(&["moe.noise=4"]),
        "moe.noise=4 makes no difference to predictions: only training uses it; predictions have \
         moe.inference_noise"
    );
    for idle in
        ["moe.importance_loss=1", "moe.capacity_ratio=9", "moe.dropout=0.3", "moe.start.noise=1"]
    {
        assert!(message(&["moe.k=1", idle]).starts_with(idle), "{idle}");
    }
    assert!(
        message(&["moe.experts=2"]).contains("blocks.") && message(&["width=8"]).contains("embed")
    );
    assert!(reconfigure(vmoe(), &["moe.dropout=0.3", "mc_samples=2"], &device).is_ok());
    assert!(reconfigure(vmoe(), &["moe.k=2"], &device).is_ok(), "as it is");
    assert!(message(&["moe.kk=2"]).contains("moe.k"));
}

#[test]
fn mimo_keeps_the_scale_of_what_it_replicates() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let mimo = MimoConfig { members: 2, ..MimoConfig::default() };
    let adapted = adapt(&vmoe, &Target::Mimo(mimo), Seed::new(0), &device).unwrap();
    // The same image twice, at 1/2 each, is the image once; the classifier says half of it, twice.
    let images = images(2, 16);
    let before = vmoe.forward(images.clone(), &Mode::Inference).unwrap();
    let after = adapted.forward(images, &Mode::Inference).unwrap();
    assert!(largest(&before.features, &after.features) < 1e-5);
    let [a, b] = [0, 1].map(|member| after.predictions.logits.clone().narrow(0, member, 1));
    assert!(largest(&a, &b) < 1e-6);
    assert!(largest(&(before.predictions.logits / 2.0), &a) < 1e-5);
}

/// Paper 000 Table 11: kernels are shared, "fast-weights and biases" are every member's own.
#[test]
fn batch_ensemble_members_have_biases_of_their_own() {
    let device = Device::flex();
    let target = Target::BatchEnsemble(BatchEnsembleConfig::default());
    let mut model = adapt(&dense(), &target, Seed::new(9), &device).unwrap();
    let images = images(2, 16);
    let before = model.predict(images.clone(), Seed::new(0)).unwrap().logits;
    let last = model.encoder.blocks.last_mut().unwrap();
    let FeedForward::BatchEnsemble(mlp) = &mut last.feed_forward else { panic!("no fast weights") };
    assert_eq!((mlp.up_bias.dims(), mlp.down_bias.dims()), ([2, 48], [2, 32]));
    let second = Tensor::<2>::from_data([[0.0], [1.0]], &device).expand([2, 48]);
    mlp.up_bias = burn::module::Param::from_tensor(mlp.up_bias.val() + second);
    let after = model.predict(images, Seed::new(0)).unwrap().logits;
    let change = [0, 1].map(|member| {
        largest(&before.clone().narrow(0, member, 1), &after.clone().narrow(0, member, 1))
    });
    assert!(change[0] == 0.0 && change[1] > 1e-3, "{change:?}");
}

#[test]
fn batch_ensemble_members_are_rank_one_changes_of_the_dense_model() {
    let device = Device::flex();
    let vit = dense();
    for fast_weights in [FastWeights::RandomSign, FastWeights::Gaussian] {
        let ensemble = BatchEnsembleConfig { members: 2, fast_weights, ..Default::default() };
        let target = Target::BatchEnsemble(ensemble);
        let mut adapted = adapt(&vit, &target, Seed::new(9), &device).unwrap();
        let images = images(2, 16);
        let logits = adapted.predict(images.clone(), Seed::new(0)).unwrap().logits;
        let [a, b] = [0, 1].map(|member| logits.clone().narrow(0, member, 1));
        assert!(largest(&a, &b) > 1e-4, "members differ");
        // With fast weights of 1 every member is the dense model.
        for block in &mut adapted.encoder.blocks {
            if let FeedForward::BatchEnsemble(mlp) = &mut block.feed_forward {
                for fast in [&mut mlp.up_in, &mut mlp.up_out, &mut mlp.down_in, &mut mlp.down_out] {
                    *fast = burn::module::Param::from_tensor(Tensor::ones_like(&fast.val()));
                }
            }
        }
        let same = adapted.predict(images.clone(), Seed::new(0)).unwrap().logits.narrow(0, 1, 1);
        assert!(largest(&same, &vit.predict(images, Seed::new(0)).unwrap().logits) < 1e-5);
    }
}
