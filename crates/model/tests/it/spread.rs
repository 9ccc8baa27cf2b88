//! A model whose experts are spread over ranks is the same model: outputs, gradients, predictions.

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients, Tensor},
};
use omma_base::Seed;
use omma_model::{
    Mode, ModelConfig, ModelError, VisionTransformer, apply_settings, parameters, preset,
};
use omma_ranks::{World, threads};
use omma_routing::RoutingError;

const SMALL: [&str; 6] = ["resolution=16", "patch=4", "width=16", "depth=4", "heads=2", "mlp=24"];

/// Every router of paper 001, an ensemble whose members have experts of their own, contributions that stay apart, a
/// decision per image, layers of different numbers of experts; with dropout inside experts.
const SYSTEMS: [(&str, &[&str]); 11] = [
    ("vmoe-tiny", &["moe.k=2"]),
    ("vmoe-tiny", &["moe.router=sinkhorn-token-choice"]),
    ("vmoe-tiny", &["moe.router=softmax-expert-choice"]),
    ("vmoe-tiny", &["moe.router=sinkhorn-expert-choice"]),
    ("vmoe-tiny", &["moe.router=sparse-expert-choice"]),
    ("vmoe-tiny", &["moe.router=soft", "moe.slots=3"]),
    ("vmoe-tiny", &["moe.router=soft", "moe.slots=3", "moe.subset=3"]),
    ("e3-tiny", &["moe.members=2"]),
    ("vmoe-tiny", &["moe.multi_pred=true"]),
    ("vmoe-tiny", &["moe.shared_expert=true", "moe.bias=false"]),
    ("vimoe-tiny", &[]),
];

fn config((name, settings): (&str, &[&str])) -> ModelConfig {
    let experts = ["moe.experts=6", "moe.placement=1,3", "moe.hidden=20", "moe.dropout=0.2"];
    let all: Vec<&str> = SMALL.into_iter().chain(experts).chain(settings.iter().copied()).collect();
    apply_settings(&preset(name).unwrap(), &all).unwrap()
}

fn images(rank: usize, device: &Device) -> Tensor<4> {
    use rand::RngExt;
    let mut rng = Seed::new(rank as u64 + 7).rng();
    // Ranks need not have as many.
    let count = 3 + rank;
    let values: Vec<f32> = (0..count * 16 * 16 * 3).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape([count, 16, 16, 3])
}

fn values<const R: usize>(tensor: Tensor<R>) -> Vec<f32> {
    tensor.try_into_vec_as().unwrap()
}

/// Gradients by the names of the parameters.
fn named(model: &VisionTransformer, gradients: &Gradients) -> BTreeMap<String, Vec<f32>> {
    struct Collect<'a>(&'a Gradients, Vec<Vec<f32>>);
    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let zeros = || vec![0.0; value.shape().num_elements()];
            self.1.push(value.grad(self.0).map_or_else(zeros, values));
        }
    }
    let mut all = Collect(gradients, Vec::new());
    model.visit(&mut all);
    parameters(model).into_iter().map(|p| p.name).zip(all.1).collect()
}

/// Logits of a training pass, and all gradients.
fn pass(
    model: &VisionTransformer,
    rank: usize,
    device: &Device,
) -> (Vec<f32>, BTreeMap<String, Vec<f32>>) {
    let mode = Mode::Training(Seed::new(100 + rank as u64));
    let output = model.forward(images(rank, device), &mode).unwrap();
    if let Some(group) = model.expert_group() {
        group.ready().unwrap();
    }
    let logits = output.predictions.logits.clone();
    let loss = logits.clone().powi_scalar(2).sum() + logits.clone().sum();
    let loss = match output.auxiliary_loss() {
        Some(auxiliary) => loss + auxiliary,
        None => loss,
    };
    let gradients = named(model, &loss.backward());
    (values(logits), gradients)
}

fn assert_close(own: &[f32], other: &[f32], what: &str) {
    assert_eq!(own.len(), other.len(), "{what}");
    let scale = other.iter().fold(1e-3_f32, |most, value| most.max(value.abs()));
    for (a, b) in own.iter().zip(other) {
        assert!((a - b).abs() <= 2e-5 * scale, "{what}: {a} {b} of {scale}");
    }
}

fn model(config: &ModelConfig, device: &Device) -> VisionTransformer {
    config.init(Seed::new(3), device).unwrap()
}

#[test]
fn spread_experts_make_the_same_outputs_and_gradients() {
    for system in SYSTEMS {
        let config = config(system);
        for ranks in [2, 3, 4] {
            let found = threads(ranks, |world| {
                let device = Device::flex().autodiff();
                let whole = model(&config, &device);
                // Parameters are drawn when they are first asked for.
                let all = pass(&whole, world.rank(), &device);
                let spread = whole.spread_over(&world).unwrap();
                let slices = spread.expert_slices();
                (all, pass(&spread, world.rank(), &device), slices)
            });
            let (_, (_, one), slices) = &found[0];
            assert_eq!(slices.len(), 2 * 4);
            for ((logits, gradients), (spread_logits, spread), _) in &found {
                assert_close(spread_logits, logits, &format!("{system:?} on {ranks}"));
                for (name, own) in spread.iter().filter(|(name, _)| !slices.contains_key(*name)) {
                    assert_close(own, &gradients[name], &format!("{name}, {system:?} on {ranks}"));
                }
            }
            // What ranks would have summed is where the expert is.
            for name in one.keys().filter(|name| slices.contains_key(*name)) {
                let sum = found.iter().map(|((_, gradients), ..)| &gradients[name]);
                let sum =
                    sum.fold(vec![0.0; found[0].0.1[name].len()], |mut sum: Vec<f32>, next| {
                        sum.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
                        sum
                    });
                let own: Vec<f32> =
                    found.iter().flat_map(|(_, (_, own), _)| own[name].clone()).collect();
                assert_close(&own, &sum, &format!("{name}, {system:?} on {ranks}"));
            }
        }
    }
}

/// Predictions of some ranks, while the others have nothing to predict.
fn predicted(world: &World, config: &ModelConfig, batches: usize) -> Vec<Vec<f32>> {
    let device = Device::flex();
    let model = model(config, &device);
    let predict = |model: &VisionTransformer, batch: usize| {
        values(model.predict(images(batch, &device), Seed::new(1)).unwrap().logits)
    };
    let whole: Vec<_> = (0..batches).map(|batch| predict(&model, batch)).collect();
    let spread = model.spread_over(world).unwrap();
    let own: Vec<_> = (0..batches).map(|batch| predict(&spread, batch)).collect();
    spread.serve_experts().unwrap();
    whole.into_iter().chain(own).collect()
}

#[test]
fn ranks_with_nothing_to_predict_serve_the_others() {
    for system in SYSTEMS {
        let config = config(system);
        let found = threads(3, |world| predicted(&world, &config, [2, 0, 5][world.rank()]));
        for all in found {
            let (whole, own) = all.split_at(all.len() / 2);
            for (whole, own) in whole.iter().zip(own) {
                assert_close(own, whole, &format!("{system:?}"));
            }
        }
    }
}

#[test]
fn a_rank_that_cannot_go_on_leaves_no_other_waiting() {
    let config = config(SYSTEMS[0]);
    let found = threads(3, |world| {
        let device = Device::flex().autodiff();
        let model = model(&config, &device).spread_over(&world).unwrap();
        let rank = world.rank();
        let images = match rank {
            1 => images(rank, &device) * f32::NAN,
            _ => images(rank, &device),
        };
        let error = model.forward(images, &Mode::Training(Seed::new(0))).unwrap_err();
        if rank == 1 {
            model.expert_group().unwrap().fail();
        }
        // All are where they were, and can go on.
        let after = pass(&with_values_of(&config, &world, &device), rank, &device).0;
        (error, after.len())
    });
    assert!(matches!(found[1].0, ModelError::Routing(RoutingError::NonFiniteLogit { .. })));
    assert!([0, 2].into_iter().all(|rank| matches!(found[rank].0, ModelError::Elsewhere)));
}

fn with_values_of(config: &ModelConfig, world: &World, device: &Device) -> VisionTransformer {
    let model = model(config, device);
    // Draws its parameters.
    let _ = model.forward(images(0, device), &Mode::Inference).unwrap();
    model.spread_over(world).unwrap()
}

#[test]
fn more_ranks_than_experts_are_refused() {
    let config = config(SYSTEMS[0]);
    let said = threads(7, |world| {
        model(&config, &Device::flex()).spread_over(&world).unwrap_err().to_string()
    });
    assert!(said.iter().all(|said| said == "6 experts of a layer cannot be spread over 7 ranks"));
    let dense = preset("vit-tiny").unwrap();
    let said = threads(2, |world| {
        model(&dense, &Device::flex()).spread_over(&world).unwrap_err().to_string()
    });
    assert!(said.iter().all(|said| said == "the model has no experts"));
}
