//! Models whose products are computed in half precision, beside the same in single precision.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Device, Tensor, TensorData},
};
use omma_base::Seed;
use omma_model::{
    Mode, Precision, VisionTransformer, apply_settings, parameter_values, preset, with_values,
};
use rand::RngExt;

const SMALL: &[&str] =
    &["resolution=16", "patch=4", "width=16", "depth=2", "heads=2", "mlp=32", "classes=5"];

/// A model with every parameter drawn, so that a fresh head does not hide what is in front of it.
fn drawn(name: &str, settings: &[&str]) -> VisionTransformer {
    let settings = [SMALL, settings].concat();
    let config = apply_settings(&preset(name).unwrap(), &settings).unwrap();
    let model = config.init(Seed::new(1), &Device::flex().autodiff()).unwrap();
    with_values(model, |parameter| {
        let mut rng = Seed::new(2).named(&parameter.name).rng();
        let size = parameter.shape.iter().product();
        Ok(Some((0..size).map(|_| rng.random_range(-0.2..0.2)).collect()))
    })
    .unwrap()
}

fn images() -> Tensor<4> {
    let mut rng = Seed::new(3).rng();
    let values: Vec<f32> = (0..4 * 16 * 16 * 3).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_data(TensorData::new(values, [4, 16, 16, 3]), &Device::flex().autodiff())
}

/// Logits, and the gradient of every parameter.
fn run(model: &VisionTransformer, precision: Precision) -> Vec<(String, Vec<f32>)> {
    struct Gradients<'a>(&'a burn::tensor::Gradients, Vec<Vec<f32>>);
    impl ModuleVisitor for Gradients<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.0);
            let values = gradient.map(|gradient| {
                assert_eq!(gradient.dtype(), DType::F32);
                gradient.try_into_vec_as().unwrap()
            });
            self.1.push(values.unwrap_or_default());
        }
    }
    let model = model.clone().in_precision(precision);
    let output = model.forward(images(), &Mode::Training(Seed::new(4))).unwrap();
    assert!(output.routings.iter().all(|(_, routing)| {
        routing.plan.as_sparse().is_none_or(|plan| plan.weights().dtype() == DType::F32)
    }));
    let logits = output.predictions.logits.clone();
    assert_eq!((logits.dtype(), output.features.dtype()), (DType::F32, DType::F32));
    let gradients = logits.clone().square().sum().backward();
    let mut all = Gradients(&gradients, Vec::new());
    model.visit(&mut all);
    let names = parameter_values(&model).into_iter().map(|value| value.parameter.name.clone());
    let logits = ("logits".to_owned(), logits.try_into_vec_as().unwrap());
    std::iter::once(logits).chain(names.zip(all.1)).collect()
}

/// Of two rows, the length of their difference relative to that of the second.
fn off(found: &[f32], expected: &[f32]) -> f64 {
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = found.iter().zip(expected).map(|(a, b)| f64::from(a - b));
    let size = length(&mut expected.iter().map(|x| f64::from(*x)));
    length(&mut difference.into_iter()) / size.max(1e-6)
}

#[test]
fn models_in_half_precision_are_near_themselves() {
    let experts = "moe.placement=1";
    for (name, settings) in [
        ("vit-tiny", &["qk_norm=true"][..]),
        // All experts, so that nobody goes elsewhere by a hair's breadth.
        ("vmoe-tiny", &[experts, "moe.experts=4", "moe.k=4", "moe.capacity_ratio=2"]),
        ("softmoe-tiny", &[experts, "moe.experts=4"]),
        ("vit-tiny", &["batch_ensemble.members=2", "batch_ensemble.placement=1"]),
    ] {
        let model = drawn(name, settings);
        let expected = run(&model, Precision::F32);
        for (precision, tolerance) in [(Precision::Bf16, 0.03), (Precision::F16, 0.02)] {
            let found = run(&model, precision);
            let mut rounded = 0;
            for ((what, found), (_, expected)) in found.iter().zip(&expected) {
                assert_eq!(found.len(), expected.len(), "{name}: {what}");
                // Keys' biases have no gradient but rounding.
                if what.ends_with("qkv_bias") {
                    continue;
                }
                let off = off(found, expected);
                assert!(off < tolerance, "{name} in {precision}: {what} is off by {off}");
                rounded += usize::from(off > 1e-5);
            }
            assert!(rounded > 5, "{name} in {precision} is in single precision");
        }
    }
}
