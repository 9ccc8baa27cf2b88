//! One pass over test images: who decides, what is counted, and when it ends.

use std::{cell::Cell, sync::Arc};

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{
    Picture, Split,
    world::{Variant, World},
};
use omma_eval::{
    Binning, EvalError, Images, System, Test, TestProtocol, Watcher, Windows, predict, segment,
};
use omma_model::{VisionTransformer, apply_settings, preset, with_values};

const PROTOCOL: TestProtocol =
    TestProtocol { binning: Binning { kind: omma_eval::BinKind::EqualWidth, bins: 15 }, batch: 8 };

fn images() -> Images {
    Images::new(
        "world",
        Arc::new(World::new(1, Resolution::square(16), 30, Split::Test, Variant::Usual)),
    )
}

/// A small model that has the same logits for every image, those of `bias` for the first classes and 0
/// for the others.
fn constant(kind: &str, bias: &[f32]) -> (String, VisionTransformer) {
    let settings = ["resolution=16", "patch=8", "width=16", "depth=4", "heads=2", "mlp=32"];
    let config = apply_settings(&preset(kind).unwrap(), &settings).unwrap();
    let model = config.init(Seed::new(0), &Device::flex()).unwrap();
    let model = with_values(model, |parameter| {
        let mut values = vec![0.0; parameter.shape.iter().product()];
        if parameter.name == "head.bias" {
            values[..bias.len()].copy_from_slice(bias);
        }
        Ok(parameter.name.starts_with("head.").then_some(values))
    });
    (kind.to_owned(), model.unwrap())
}

fn tested(models: Vec<(String, VisionTransformer)>) -> Test {
    let system = System::new(models, &Device::flex()).unwrap();
    Test::run(&system, &images(), PROTOCOL, &mut ()).unwrap()
}

/// How many of the images are taken for a class.
fn predicted(test: &Test, class: usize) -> u64 {
    (0..10).map(|label| test.confusion.count(label, class)).sum()
}

#[test]
fn ties_go_to_the_lowest_class() {
    let test = tested(vec![constant("vit-tiny", &[])]);
    assert_eq!((predicted(&test, 0), test.record.samples), (30, 30));
    assert!((test.record.summary.nll - 10_f64.ln()).abs() < 1e-6);
    // Of two classes that are equally likely, the first, even though the last comes last.
    let test = tested(vec![constant("vit-tiny", &[0.0, 0.0, 0.0, 2.0, 0.0, 2.0])]);
    assert_eq!(predicted(&test, 3), 30);
}

#[test]
fn the_mean_of_the_members_decides() {
    let leaning = || constant("vit-tiny", &[0.2]);
    let test = tested(vec![leaning(), leaning(), constant("vit-tiny", &[0.0, 9.0])]);
    assert_eq!(predicted(&test, 1), 30, "two members of three have class 0");
    assert_eq!(test.record.members.len(), 3);
    assert!((test.record.diversity.unwrap().disagreement_share - 2.0 / 3.0).abs() < 1e-12);
}

#[test]
fn the_parts_of_a_test_agree() {
    let test = tested(vec![constant("vmoe-tiny", &[0.0, 1.0]), constant("vit-tiny", &[0.0, 1.0])]);
    let right: u64 = (0..10).map(|class| test.confusion.count(class, class)).sum();
    assert!((test.accuracy() - right as f64 / 30.0).abs() < 1e-12);
    // Every image is taken for class 1.
    let error = |class: usize| test.record.class_errors[class];
    assert_eq!((error(1), error(0)), (Some(0.0), Some(1.0)));
    assert_eq!(test.examples.wrong.len(), 12);
    assert!(test.examples.wrong.iter().all(|example| example.label != 1 && example.predicted == 1));
    let ones = &test.examples.by_class[&1];
    assert!(ones.len() == (right as usize).min(8) && ones.iter().all(|example| example.is_right()));
    let [sparse, dense] = test.routing.as_slice() else { panic!("two models") };
    assert!(!sparse.is_empty() && dense.is_empty());
    for layer in sparse {
        assert!((layer.load.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}

/// Stops once a batch is done.
#[derive(Default)]
struct Impatient(Cell<usize>);

impl Watcher for Impatient {
    fn begins(&mut self, _: &str, _: usize) {}

    fn done(&mut self, images: usize) {
        self.0.set(self.0.get() + images);
    }

    fn stopped(&self) -> bool {
        self.0.get() > 0
    }
}

#[test]
fn a_wish_to_stop_is_heard_between_batches() {
    let system = System::new(vec![constant("vit-tiny", &[])], &Device::flex()).unwrap();
    let mut watcher = Impatient::default();
    let stopped = Test::run(&system, &images(), PROTOCOL, &mut watcher);
    assert!(matches!(stopped, Err(EvalError::Interrupted)), "{stopped:?}");
    assert_eq!(watcher.0.get(), PROTOCOL.batch);
}

#[test]
fn classifiers_and_segmenters_refuse_the_task_of_the_other() {
    let system = |config: omma_model::ModelConfig| {
        let model = config.init(Seed::new(0), &Device::flex()).unwrap();
        System::new(vec![("m".to_owned(), model)], &Device::flex()).unwrap()
    };
    let (_, classifier) = constant("vit-tiny", &[]);
    let config = classifier.config().clone();
    let (classifier, segmenter) = (system(config.clone()), system(config.into_segmenter(3)));
    let pictures = [Picture::filled(16, 16, [9; 3])];
    let windows = Windows::default();

    assert_eq!(predict(&classifier, &pictures, 0, &[], 1).unwrap().len(), 1);
    assert_eq!(segment(&segmenter, &pictures, 0, windows, 1).unwrap().len(), 1);
    let error = predict(&segmenter, &pictures, 0, &[], 1).err().unwrap();
    assert!(matches!(&error, EvalError::LabelsPixels { model } if model == "m"), "{error}");
    let error = segment(&classifier, &pictures, 0, windows, 1).err().unwrap();
    assert!(matches!(&error, EvalError::LabelsImages { model } if model == "m"), "{error}");
    let error = Test::run(&segmenter, &images(), PROTOCOL, &mut ()).err().unwrap();
    assert!(matches!(error, EvalError::LabelsPixels { .. }), "{error}");
}
