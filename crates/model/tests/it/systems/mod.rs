//! The systems of the papers as settings of one model, and the ways from one to another.

mod adapt;
mod prune;
mod thin;

use burn::tensor::{Device, Int, Tensor, TensorData};
use omma_base::Seed;
use omma_model::{
    ExpertStart, FeedForward, Head, Mode, ModelConfig, VisionTransformer, apply_settings, preset,
    systems::DeepEnsemble,
};
use omma_routing::{Layout, Sequences};
use rand::RngExt;

/// Experts are different, as if they had been trained.
const SMALL: &[&str] = &[
    "width=32",
    "mlp=48",
    "depth=4",
    "heads=2",
    "resolution=16",
    "moe.experts=8",
    "moe.start.shared=false",
    "classes=5",
];

fn config(settings: &[&str]) -> ModelConfig {
    let settings: Vec<&str> = SMALL.iter().chain(settings).copied().collect();
    apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap()
}

/// A model whose classifier is not 0, as if it had been trained.
fn trained(config: &ModelConfig, device: &Device) -> VisionTransformer {
    let mut model = config.init(Seed::new(3), device).unwrap();
    let Head::Classifier(head) = &mut model.head else { panic!("it is a classifier") };
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

/// Predictions are distributions, one per member, and a few steps along the gradient of the loss make the
/// labels of these very images likelier for all of them together.
#[test]
fn every_system_predicts_for_every_member_and_learns() {
    for (name, settings, members) in SYSTEMS {
        let config = config(settings);
        assert_eq!(config.members(), *members, "{name}");
        let device = Device::flex().autodiff();
        let mut model = trained(&config, &device);
        let batch = || Tensor::from_inner(images(3, 16));
        let predictions = model.predict(batch(), Seed::new(0)).unwrap();
        assert_eq!(predictions.logits.dims(), [*members, 3, 5], "{name}");
        let sums = predictions.probabilities().sum_dim(1);
        assert!(values(&sums).iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{name}");

        let labels = || Tensor::<1, Int>::from_data([0, 1, 2], &device);
        let likelihood = |model: &VisionTransformer| {
            let predictions = model.predict(batch(), Seed::new(0)).unwrap();
            values(&predictions.cross_entropy(labels()))[0]
        };
        let before = likelihood(&model);
        for step in 0..8 {
            let output = model.forward(batch(), &Mode::Training(Seed::new(step))).unwrap();
            let mut loss = output.predictions.cross_entropy(labels());
            if let Some(auxiliary) = output.auxiliary_loss() {
                loss = loss + auxiliary;
            }
            model = descended(model, &loss.backward());
        }
        let after = likelihood(&model);
        assert!(after < before - 0.1, "{name}: {before} before, {after} after");
    }
}

/// A model one short step further down.
fn descended(model: VisionTransformer, gradients: &burn::tensor::Gradients) -> VisionTransformer {
    use burn::module::{Module, ModuleMapper, Param};
    struct Descend<'a>(&'a burn::tensor::Gradients);
    impl ModuleMapper for Descend<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| match value.grad(self.0) {
                Some(gradient) => {
                    Tensor::from_inner(value.inner() - gradient * 0.05).require_grad()
                }
                None => value,
            })
        }
    }
    model.map(&mut Descend(gradients))
}

/// Decision 4 of the design: by default an image's logits do not depend on its neighbours.
#[test]
fn an_image_alone_gets_what_it_gets_in_a_batch() {
    for settings in [&["moe.k=1"][..], &["moe.k=2"], &["moe.k=1", "moe.members=2"]] {
        let model = trained(&config(settings), &Device::flex());
        let batch = images(64, 16);
        let together = model.predict(batch.clone(), Seed::new(0)).unwrap().logits;
        for image in [0, 17, 63] {
            let alone =
                model.predict(batch.clone().narrow(0, image, 1), Seed::new(0)).unwrap().logits;
            let difference = largest(&alone, &together.clone().narrow(1, image, 1));
            assert!(difference < 1e-5, "{settings:?}, image {image}: {difference}");
        }
    }
}

#[test]
fn tiling_starts_where_members_begin_to_differ() {
    let tiling = |settings: &[&str]| config(settings).encoder.tiling().unwrap();
    let e3 = tiling(&["moe.k=1", "moe.members=2", "moe.placement=2,3"]).unwrap();
    assert_eq!((e3.block, e3.members), (2, 2));
    let samples = tiling(&["moe.dropout=0.1", "mc_samples=5", "moe.placement=3"]).unwrap();
    assert_eq!((samples.block, samples.members), (3, 5));
    assert_eq!(tiling(&[]), None);
}

#[test]
fn samples_with_dropout_differ_and_repeat() {
    let model = trained(&config(&["moe.dropout=0.5", "mc_samples=3"]), &Device::flex());
    let images = images(2, 16);
    let first = model.predict(images.clone(), Seed::new(0)).unwrap().logits;
    assert_eq!(
        values(&first),
        values(&model.predict(images.clone(), Seed::new(0)).unwrap().logits)
    );
    let [a, b] = [0, 1].map(|member| first.clone().narrow(0, member, 1));
    assert!(largest(&a, &b) > 1e-3);
    let other = model.predict(images.clone(), Seed::new(1)).unwrap().logits;
    assert!(largest(&first, &other) > 1e-3, "another batch draws other samples");
    // Without dropout there is one prediction.
    let plain = model.forward(images, &Mode::Inference).unwrap();
    assert_eq!(plain.predictions.logits.dims(), [1, 2, 5]);
}

#[test]
fn other_resolutions_interpolate_positions() {
    for position in ["learned", "learned-patches", "sincos2d", "none"] {
        let model = trained(&config(&[&format!("position={position}")]), &Device::flex());
        assert_eq!(model.predict(images(2, 32), Seed::new(0)).unwrap().logits.dims(), [1, 2, 5]);
        assert_eq!(model.predict(images(2, 18), Seed::new(0)).unwrap().logits.dims(), [1, 2, 5]);
    }
}

#[test]
fn images_need_not_be_square() {
    for position in ["learned", "learned-patches", "sincos2d", "none"] {
        let wide = config(&[&format!("position={position}"), "resolution=[8, 24]"]);
        let model = trained(&wide, &Device::flex());
        let images = |height, width| random([2, height, width, 3], Seed::new(5), &Device::flex());
        let own = model.predict(images(8, 24), Seed::new(0)).unwrap().logits;
        assert_eq!(own.dims(), [1, 2, 5]);
        assert_eq!(model.predict(images(24, 8), Seed::new(0)).unwrap().logits.dims(), [1, 2, 5]);
        // The same patches in 6 rows of 2 instead of 2 rows of 6 are another picture to a model that knows
        // where patches are, and the same to one that does not.
        let patches = images(8, 24).reshape([2, 2, 4, 6, 12]).swap_dims(2, 3); // [B, rows, columns, 4, 12]
        let stacked = patches.reshape([2, 6, 2, 4, 12]).swap_dims(2, 3).reshape([2, 24, 8, 3]);
        let other = model.predict(stacked, Seed::new(0)).unwrap().logits;
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
        assert!(model.predict(Tensor::zeros(shape, &device), Seed::new(0)).is_err(), "{shape:?}");
    }
}

#[test]
fn a_deep_ensemble_averages_its_members_probabilities() {
    let device = Device::flex();
    let one = trained(&config(&[]), &device);
    let two = trained(&config(&["moe.k=1", "moe.members=2"]), &device);
    let images = images(4, 16);
    let ensemble = DeepEnsemble::new(vec![one.clone(), two.clone()]).unwrap();
    let predictions = ensemble.predict(images.clone(), Seed::new(0)).unwrap();
    assert_eq!(predictions.logits.dims(), [3, 4, 5]);
    let [a, b] = [one, two].map(|model| model.predict(images.clone(), Seed::new(0)).unwrap());
    let mean = (a.probabilities() + b.probabilities() * 2.0) / 3.0;
    assert!(largest(&predictions.probabilities(), &mean) < 1e-6);
    assert!(largest(&predictions.log_probabilities().exp(), &mean) < 1e-6);

    let other = trained(&config(&["classes=6"]), &device);
    let error = DeepEnsemble::new(vec![trained(&config(&[]), &device), other]).unwrap_err();
    assert!(error.to_string().contains("number of classes is 5 in the first and 6"), "{error}");
    assert!(DeepEnsemble::new(Vec::new()).is_err());
}

/// As vmoe starts its experts (`split_rngs: False`), and with the noise of paper 000 App. H.2.
#[test]
fn fresh_experts_start_alike_unless_noise_or_their_own_values_are_asked_for() {
    let device = Device::flex();
    let up = |settings: &[&str]| {
        let model = config(settings).init(Seed::new(3), &device).unwrap();
        let layer = model.encoder.blocks.into_iter().find_map(|block| match block.feed_forward {
            FeedForward::Moe(layer) => Some(layer),
            _ => None,
        });
        let up = layer.unwrap().experts.up.val();
        let [experts, ..] = up.dims();
        let size = up.shape().num_elements() / experts;
        let values = values(&up);
        values.chunks_exact(size).map(<[f32]>::to_vec).collect::<Vec<Vec<f32>>>()
    };
    let default = apply_settings(&preset("vmoe-b32").unwrap(), &["classes=5"]).unwrap();
    assert_eq!(default.moe().unwrap().start, ExpertStart { shared: true, noise: 0.0 });
    let shared = up(&["moe.start.shared=true"]);
    assert!(shared.iter().all(|expert| *expert == shared[0]));
    let own = up(&["moe.start.shared=false"]);
    assert!(own.iter().skip(1).all(|expert| *expert != own[0]));
    assert_eq!(own[0], shared[0]);
    let noisy = up(&["moe.start.shared=true", "moe.start.noise=0.01"]);
    let differences = noisy.concat().into_iter().zip(shared.concat()).map(|(a, b)| a - b);
    let differences: Vec<f32> = differences.collect();
    let count = differences.len() as f32;
    let deviation = (differences.iter().map(|d| d * d).sum::<f32>() / count).sqrt();
    assert!((deviation / 0.01 - 1.0).abs() < 0.05, "{deviation}");
    assert_ne!(noisy[0], noisy[1]);
}

fn sampling(seed: u64) -> Mode {
    Mode::Sampling { seed: Seed::new(seed), dropout: false }
}

/// Noise alone drops nothing, and MC samples alone have no noise.
#[test]
fn dropout_and_noise_at_prediction_are_settings_of_their_own() {
    let device = Device::flex();
    let noisy = trained(&config(&["moe.dropout=0.5", "moe.inference_noise=1"]), &device);
    let mode = noisy.config().prediction_mode(Seed::new(7));
    assert_eq!(mode, sampling(7));
    let plain = trained(&config(&["moe.inference_noise=1"]), &device);
    let images = images(4, 16);
    let [a, b] =
        [&noisy, &plain].map(|model| model.predict(images.clone(), Seed::new(7)).unwrap().logits);
    assert_eq!(values(&a), values(&b), "dropout without MC samples is for training");
    let samples = config(&["moe.dropout=0.5", "mc_samples=2"]);
    let mode = samples.prediction_mode(Seed::new(7));
    assert_eq!(mode, Mode::Sampling { seed: Seed::new(7), dropout: true });
    assert_eq!(config(&[]).prediction_mode(Seed::new(7)), Mode::Inference);
}
