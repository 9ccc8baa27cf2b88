//! A model that is judged among some of its classes.

use std::sync::Arc;

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{
    EvalLoader, GeneratedDataset, Sample, Shared, Split,
    world::{Variant, World},
};
use omma_eval::{Binning, EvalError, Images, System, Test, TestProtocol};
use omma_model::{VisionTransformer, apply_settings, preset, with_values};

/// Places of star, circle and drop among the world's classes.
const SOME: [usize; 3] = [4, 0, 9];
const BATCH: usize = 8;

/// An untrained model, but for its classifier, which would begin with zeros.
fn model(seed: u64) -> (String, VisionTransformer) {
    let settings = ["resolution=16", "patch=8", "width=16", "depth=2", "heads=2", "mlp=32"];
    let config = apply_settings(&preset("vit-tiny").unwrap(), &settings).unwrap();
    let model = config.init(Seed::new(seed), &Device::flex()).unwrap();
    let model = with_values(model, |parameter| {
        let count = parameter.shape.iter().product::<usize>();
        let values = (0..count).map(|place| (place as f32 + 0.3 * seed as f32).sin());
        Ok(parameter.name.starts_with("head.").then(|| values.collect()))
    });
    (format!("seed {seed}"), model.unwrap())
}

fn pair() -> System {
    System::new(vec![model(1), model(2)], &Device::flex()).unwrap()
}

fn world() -> Shared {
    Arc::new(World::new(1, Resolution::square(16), 60, Split::Test, Variant::Usual))
}

/// The world's images of some classes, which have other places here.
fn some() -> Shared {
    let world = world();
    let indices = (0..world.len()).filter(|index| SOME.contains(&world.label(*index)));
    let indices: Vec<usize> = indices.collect();
    let classes = SOME.map(|class| world.classes()[class].clone());
    Arc::new(GeneratedDataset::new(&classes, indices.len(), move |index| {
        let sample = world.get(indices[index])?;
        let label = SOME.iter().position(|class| *class == sample.label).unwrap();
        Ok(Sample { label, ..sample })
    }))
}

/// `[images]` of `[M]` of `[classes]`
fn logits(system: &System, data: &Shared) -> Vec<Vec<Vec<f32>>> {
    let mut all = Vec::new();
    for batch in EvalLoader::new(data.clone(), system.pixels(), BATCH) {
        let mut batch = batch.unwrap();
        let images = batch.len();
        let outputs = system.logits(&mut batch).unwrap();
        all.extend((0..images).map(|image| outputs.of_image(image).map(<[f32]>::to_vec).collect()));
    }
    all
}

#[test]
fn the_logits_are_those_of_the_chosen_classes_to_the_bit() {
    let data = world();
    let whole = logits(&pair(), &data);
    let some = logits(&pair().restricted_to(SOME.to_vec()).unwrap(), &data);
    for (whole, some) in whole.iter().zip(&some) {
        for (whole, some) in whole.iter().zip(some) {
            assert_eq!(*some, SOME.map(|class| whole[class]));
        }
    }
    assert_eq!((whole.len(), some.len()), (60, 60));
    let first = &whole[0][0];
    assert!(
        first[1..].iter().all(|logit| *logit != first[0]),
        "classes can be told by their logits"
    );
}

#[test]
fn scores_are_of_the_softmax_over_the_chosen_classes() {
    let data = some();
    let system = pair().restricted_to(SOME.to_vec()).unwrap();
    let protocol = TestProtocol { binning: Binning::default(), batch: BATCH };
    let found =
        Test::run(&system, &Images::new("some", data.clone()), protocol, &mut ()).unwrap().record;
    let (mut nll, mut wrong) = (0.0, 0.0);
    for (image, members) in logits(&pair(), &data).iter().enumerate() {
        let label = data.label(image);
        let mut mean = [0.0; 3];
        for logits in members {
            let powers = SOME.map(|class| f64::from(logits[class]).exp());
            let sum: f64 = powers.iter().sum();
            mean.iter_mut().zip(powers).for_each(|(mean, power)| *mean += power / sum / 2.0);
        }
        nll -= f64::ln(mean[label]);
        wrong += f64::from(u8::from(mean.iter().any(|other| *other > mean[label])));
    }
    let count = data.len() as f64;
    assert!(count > 10.0 && found.samples == data.len());
    assert!(
        (found.summary.nll - nll / count).abs() < 1e-6,
        "{} {}",
        found.summary.nll,
        nll / count
    );
    assert!((found.summary.error - wrong / count).abs() < 1e-12);
    assert_eq!((found.class_errors.len(), found.members.len()), (3, 2));
}

#[test]
fn classes_that_are_not_there_or_twice_are_refused() {
    for (classes, named) in [(vec![3, 10], 10), (vec![3, 1, 3], 3)] {
        let error = pair().restricted_to(classes).unwrap_err();
        assert!(
            matches!(&error, EvalError::Judged { of: 10, class, .. } if *class == named),
            "{error}"
        );
    }
    // The data still has to have as many classes as it is judged among.
    let system = pair().restricted_to(vec![1, 2]).unwrap();
    let protocol = TestProtocol { binning: Binning::default(), batch: BATCH };
    let images = Images::new("some", some());
    let error = Test::run(&system, &images, protocol, &mut ()).unwrap_err();
    assert!(matches!(error, EvalError::Classes { head: 2, classes: 3, .. }), "{error}");
}
