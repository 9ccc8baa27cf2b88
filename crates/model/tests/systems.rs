//! The systems of the papers as settings of one model.

use burn::tensor::{Device, Int, Tensor, TensorData};
use omma_base::Seed;
use omma_model::{
    BatchEnsembleConfig, FastWeights, Head, MimoConfig, Mode, ModelConfig, MoeConfig,
    VisionTransformer, apply_settings, parameter_values, preset,
    systems::{DeepEnsemble, Start, Target, Upcycling, adapt, step_zero_difference, upcycle},
};
use omma_routing::{Layout, Sequences};
use rand::RngExt;

const SMALL: &[&str] =
    &["width=32", "mlp=48", "depth=4", "heads=2", "resolution=16", "moe.experts=8", "classes=5"];

fn config(settings: &[&str]) -> ModelConfig {
    let settings: Vec<&str> = SMALL.iter().chain(settings).copied().collect();
    apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap()
}

/// A model whose classifier is not 0, as if it had been trained.
fn trained(config: &ModelConfig, device: &Device) -> VisionTransformer {
    let mut model = config.init(Seed::new(3), device).unwrap();
    let Head::Classifier(head) = &mut model.head;
    if let Some(head) = &mut head.linear {
        let random = random::<2>(head.weight.lazy_shape().dims(), Seed::new(4), device);
        head.weight = burn::module::Param::from_tensor(random);
    }
    model
}

fn images(batch: usize, side: usize) -> Tensor<4> {
    random([batch, side, side, 3], Seed::new(5), &Device::flex())
}

/// Numbers between −1 and 1.
fn random<const R: usize>(shape: [usize; R], seed: Seed, device: &Device) -> Tensor<R> {
    let mut rng = seed.rng();
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn values<const R: usize>(tensor: &Tensor<R>) -> Vec<f32> {
    tensor.clone().try_into_vec_as().unwrap()
}

fn largest<const R: usize>(a: &Tensor<R>, b: &Tensor<R>) -> f32 {
    values(&(a.clone() - b.clone())).iter().fold(0.0, |m, v| m.max(v.abs()))
}

/// Settings of every system, and its members.
const SYSTEMS: &[(&str, &[&str], usize)] = &[
    ("ViT", &["moe=null"], 1),
    ("V-MoE", &[], 1),
    ("E³", &["moe.k=1", "moe.members=2"], 2),
    ("E³ with overlap", &["moe.k=1", "moe.members=2", "moe.overlap=4"], 2),
    ("tiling", &["moe.members=2", "moe.own_experts=false"], 2),
    ("partitioning", &["moe.k=1", "moe.partition=2"], 1),
    ("multi-pred", &["moe.k=3", "moe.multi_pred=true"], 3),
    ("Soft MoE", &["moe.router=soft", "moe.slots=2"], 1),
    ("Sinkhorn", &["moe.router=sinkhorn-token-choice"], 1),
    ("expert choice", &["moe.router=softmax-expert-choice", "moe.images_per_group=1"], 1),
    ("Sinkhorn expert choice", &["moe.router=sinkhorn-expert-choice"], 1),
    ("sparse OT", &["moe.router=sparse-expert-choice"], 1),
    ("ViMoE", &["moe.k=1", "moe.shared_expert=true", "moe.scope=image"], 1),
    ("BatchEnsemble", &["moe=null", "batch_ensemble.members=3"], 3),
    ("MC Dropout", &["moe.dropout=0.5", "mc_samples=4"], 4),
    ("MIMO", &["mimo.members=2"], 2),
    ("E³ and MIMO", &["mimo.members=2", "moe.k=1", "moe.members=2"], 4),
];

#[test]
fn every_system_predicts_for_every_member_and_learns() {
    for (name, settings, members) in SYSTEMS {
        let config = config(settings);
        assert_eq!(config.members(), *members, "{name}");
        let device = Device::flex().autodiff();
        let model = trained(&config, &device);
        let predictions = model.predict(Tensor::from_inner(images(3, 16))).unwrap();
        assert_eq!(predictions.logits.dims(), [*members, 3, 5], "{name}");
        let sums = predictions.probabilities().sum_dim(1);
        assert!(values(&sums).iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{name}");

        let output =
            model.forward(Tensor::from_inner(images(3, 16)), &Mode::Training(Seed::new(1)));
        let output = output.unwrap();
        let labels = Tensor::<1, Int>::from_data([0, 1, 2], &device);
        let mut loss = output.predictions.cross_entropy(labels);
        if let Some(auxiliary) = output.auxiliary_loss() {
            loss = loss + auxiliary;
        }
        let gradients = loss.backward();
        let gradient = model.embed.weight.val().grad(&gradients).expect("the first layer learns");
        assert!(values(&gradient).iter().any(|value| *value != 0.0), "{name}");
        assert!(values(&gradient).iter().all(|value| value.is_finite()), "{name}");
    }
}

/// Decision 4 of the design: by default an image's logits do not depend on its neighbours.
#[test]
fn an_image_alone_gets_what_it_gets_in_a_batch() {
    for settings in [&["moe.k=1"][..], &["moe.k=2"], &["moe.k=1", "moe.members=2"]] {
        let model = trained(&config(settings), &Device::flex());
        let batch = images(64, 16);
        let together = model.predict(batch.clone()).unwrap().logits;
        for image in [0, 17, 63] {
            let alone = model.predict(batch.clone().narrow(0, image, 1)).unwrap().logits;
            let difference = largest(&alone, &together.clone().narrow(1, image, 1));
            assert!(difference < 1e-5, "{settings:?}, image {image}: {difference}");
        }
    }
}

#[test]
fn tiling_starts_where_members_begin_to_differ() {
    let tiling = |settings: &[&str]| config(settings).encoder.tiling().unwrap();
    let e3 = tiling(&["moe.k=1", "moe.members=2", "moe.placement=2,3"]).unwrap();
    assert_eq!((e3.block, e3.before_attention, e3.members), (2, true, 2));
    let samples = tiling(&["moe.dropout=0.1", "mc_samples=5", "moe.placement=3"]).unwrap();
    assert_eq!((samples.block, samples.before_attention, samples.members), (3, false, 5));
    assert_eq!(tiling(&[]), None);
}

#[test]
fn samples_with_dropout_differ_and_repeat() {
    let model = trained(&config(&["moe.dropout=0.5", "mc_samples=3"]), &Device::flex());
    let images = images(2, 16);
    let first = model.predict(images.clone()).unwrap().logits;
    assert_eq!(values(&first), values(&model.predict(images.clone()).unwrap().logits));
    let [a, b] = [0, 1].map(|member| first.clone().narrow(0, member, 1));
    assert!(largest(&a, &b) > 1e-3);
    // Without dropout there is one prediction.
    let plain = model.forward(images, &Mode::Inference).unwrap();
    assert_eq!(plain.predictions.logits.dims(), [1, 2, 5]);
}

#[test]
fn other_resolutions_interpolate_positions() {
    for position in ["learned", "learned-patches", "sincos2d", "none"] {
        let model = trained(&config(&[&format!("position={position}")]), &Device::flex());
        assert_eq!(model.predict(images(2, 32)).unwrap().logits.dims(), [1, 2, 5]);
        assert_eq!(model.predict(images(2, 18)).unwrap().logits.dims(), [1, 2, 5]);
    }
}

#[test]
fn images_need_not_be_square() {
    for position in ["learned", "learned-patches", "sincos2d", "none"] {
        let wide = config(&[&format!("position={position}"), "resolution=[8, 24]"]);
        let model = trained(&wide, &Device::flex());
        let images = |height, width| random([2, height, width, 3], Seed::new(5), &Device::flex());
        let own = model.predict(images(8, 24)).unwrap().logits;
        assert_eq!(own.dims(), [1, 2, 5]);
        assert_eq!(model.predict(images(24, 8)).unwrap().logits.dims(), [1, 2, 5]);
        // The same patches in 6 rows of 2 instead of 2 rows of 6 are another picture to a model that knows
        // where patches are, and the same to one that does not.
        let patches = images(8, 24).reshape([2, 2, 4, 6, 12]).swap_dims(2, 3); // [B, rows, columns, 4, 12]
        let stacked = patches.reshape([2, 6, 2, 4, 12]).swap_dims(2, 3).reshape([2, 24, 8, 3]);
        let other = model.predict(stacked).unwrap().logits;
        assert_eq!(largest(&own, &other) > 1e-4, position != "none", "{position}");
    }
}

/// A batch of images beside texts: what attention and dense layers do to an image does not depend on what
/// lies beside it, and experts are shared.
#[test]
fn an_encoder_takes_sequences_of_several_kinds() {
    let device = Device::flex();
    for (settings, alike) in [
        (&["moe=null"][..], true),
        (&["moe.k=1", "moe.members=2"], true),
        (&["moe.router=sinkhorn-token-choice"], false),
    ] {
        let model = trained(&config(settings), &device);
        let kind = |count, tokens, modality| Sequences { count, tokens, modality: Some(modality) };
        let (images, texts) = (kind(3, 17, 0), kind(2, 5, 1));
        let tokens = random([3 * 17 + 2 * 5, 32], Seed::new(6), &device);
        let run = |tokens: Tensor<2>, kinds: Vec<Sequences>| {
            model.encoder.forward(tokens, Layout::of(kinds), &Mode::Inference).unwrap()
        };
        let together = run(tokens.clone(), vec![images, texts]);
        let members = together.layout.members();
        assert_eq!(together.tokens.dims(), [members * 61, 32]);
        let alone = [
            run(tokens.clone().slice([0..51, 0..32]), vec![images]).tokens,
            run(tokens.slice([51..61, 0..32]), vec![texts]).tokens,
        ];
        let difference = largest(&together.tokens, &Tensor::cat(alone.to_vec(), 0));
        assert_eq!(difference < 1e-5, alike, "{settings:?}: {difference}");
    }
}

#[test]
fn wrong_images_are_errors() {
    let model = trained(&config(&[]), &Device::flex());
    let device = Device::flex();
    for shape in [[1, 3, 16, 3], [0, 16, 16, 3], [1, 16, 16, 1]] {
        assert!(model.predict(Tensor::zeros(shape, &device)).is_err(), "{shape:?}");
    }
}

#[test]
fn a_deep_ensemble_averages_its_members_probabilities() {
    let device = Device::flex();
    let one = trained(&config(&[]), &device);
    let two = trained(&config(&["moe.k=1", "moe.members=2"]), &device);
    let images = images(4, 16);
    let ensemble = DeepEnsemble::new(vec![one.clone(), two.clone()]).unwrap();
    let predictions = ensemble.predict(images.clone()).unwrap();
    assert_eq!(predictions.logits.dims(), [3, 4, 5]);
    let [a, b] = [one, two].map(|model| model.predict(images.clone()).unwrap());
    let mean = (a.probabilities() + b.probabilities() * 2.0) / 3.0;
    assert!(largest(&predictions.probabilities(), &mean) < 1e-6);
    assert!(largest(&predictions.log_probabilities().exp(), &mean) < 1e-6);

    let other = trained(&config(&["classes=6"]), &device);
    let error = DeepEnsemble::new(vec![trained(&config(&[]), &device), other]).unwrap_err();
    assert!(error.to_string().contains("number of classes is 5 in the first and 6"), "{error}");
    assert!(DeepEnsemble::new(Vec::new()).is_err());
}

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
        let before = dense.predict(images.clone()).unwrap().probabilities();
        let after = model.predict(images).unwrap().probabilities();
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

#[test]
fn a_v_moe_becomes_e3_with_every_parameter_kept() {
    let device = Device::flex();
    let vmoe = trained(&config(&[]), &device);
    let e3 = adapt(&vmoe, &Target::E3 { members: 2, k: 1 }, Seed::new(0), &device).unwrap();
    assert_eq!(e3.config().members(), 2);
    let (before, after) = (parameter_values(&vmoe), parameter_values(&e3));
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.parameter, after.parameter);
        assert_eq!(before.read(), after.read(), "{}", before.parameter.name);
    }
    let e3_again = adapt(&e3, &Target::E3 { members: 2, k: 1 }, Seed::new(0), &device);
    assert!(e3_again.is_err());
    assert!(adapt(&dense(), &Target::E3 { members: 2, k: 1 }, Seed::new(0), &device).is_err());
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

#[test]
fn batch_ensemble_members_are_rank_one_changes_of_the_dense_model() {
    let device = Device::flex();
    let vit = dense();
    for fast_weights in [FastWeights::RandomSign, FastWeights::Gaussian] {
        let ensemble = BatchEnsembleConfig { members: 2, fast_weights, ..Default::default() };
        let target = Target::BatchEnsemble(ensemble);
        let mut adapted = adapt(&vit, &target, Seed::new(9), &device).unwrap();
        let images = images(2, 16);
        let logits = adapted.predict(images.clone()).unwrap().logits;
        let [a, b] = [0, 1].map(|member| logits.clone().narrow(0, member, 1));
        assert!(largest(&a, &b) > 1e-4, "members differ");
        // With fast weights of 1 every member is the dense model.
        for block in &mut adapted.encoder.blocks {
            if let omma_model::FeedForward::BatchEnsemble(mlp) = &mut block.feed_forward {
                for fast in [&mut mlp.up_in, &mut mlp.up_out, &mut mlp.down_in, &mut mlp.down_out] {
                    *fast = burn::module::Param::from_tensor(Tensor::ones_like(&fast.val()));
                }
            }
        }
        let same = adapted.predict(images.clone()).unwrap().logits.narrow(0, 1, 1);
        assert!(largest(&same, &vit.predict(images).unwrap().logits) < 1e-5);
    }
}
