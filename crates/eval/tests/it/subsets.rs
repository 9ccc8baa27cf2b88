//! Some experts of a Soft MoE (paper 004 §4): against models that are told which experts serve.

use std::sync::Arc;

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{
    Shared, Split,
    world::{Variant, World},
};
use omma_eval::{
    Binning, EvalError, Evaluation, Images, OodPositive, OodProtocol, OodScore, Protocol,
    SubsetRecord, SubsetSize, SubsetsProtocol, System, Test, TestProtocol, compare::Comparison,
    evaluate, report::evaluation_page,
};
use omma_model::{VisionTransformer, apply_settings, preset, systems::reconfigure, with_values};
use rand::RngExt;

const IMAGES: usize = 60;

/// A model with all parameters drawn, so that experts differ in what they say.
fn model(name: &str, settings: &[&str]) -> VisionTransformer {
    let config = apply_settings(&preset(name).unwrap(), settings).unwrap();
    let model = config.init(Seed::new(0), &Device::flex()).unwrap();
    with_values(model, |parameter| {
        let mut rng = Seed::new(5).named(&parameter.name).rng();
        let size = parameter.shape.iter().product();
        Ok(Some((0..size).map(|_| rng.random_range(-0.5..0.5)).collect()))
    })
    .unwrap()
}

fn world(side: usize) -> Shared {
    Arc::new(World::new(1, Resolution::square(side), IMAGES, Split::Test, Variant::Usual))
}

fn system(model: VisionTransformer) -> System {
    System::new(vec![("m".to_owned(), model)], &Device::flex()).unwrap()
}

fn judged(
    models: Vec<VisionTransformer>,
    data: Shared,
    subsets: SubsetsProtocol,
) -> Result<Evaluation, EvalError> {
    let protocol = Protocol {
        label: "m".to_owned(),
        fingerprint: String::new(),
        test: Images::new("images", data),
        validation: None,
        shift: None,
        few_shot: Default::default(),
        subsets: Some(subsets),
        ood: OodProtocol {
            sets: Vec::new(),
            score: OodScore::MaxProbability,
            positive: OodPositive::InDistribution,
        },
        binning: Binning::default(),
        batch: 16,
        windows: Default::default(),
        predictions: None,
        options: Vec::new(),
    };
    let models = models.into_iter().map(|model| ("m".to_owned(), model)).collect();
    let system = System::new(models, &Device::flex()).unwrap();
    Ok(evaluate(&system, &protocol, &mut ())?.0)
}

/// What the same model gets right under other settings.
fn accuracy(model: &VisionTransformer, data: &Shared, settings: &[&str]) -> f64 {
    let model = reconfigure(model.clone(), settings, &Device::flex()).unwrap();
    let asked = TestProtocol { binning: Binning::default(), batch: 16 };
    Test::run(&system(model), &Images::new("images", data.clone()), asked, &mut ())
        .unwrap()
        .accuracy()
}

fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} {expected}");
}

#[test]
fn choices_of_experts_score_what_models_with_these_experts_score() {
    let (model, data) = (model("softlayer-8", &[]), world(28));
    let evaluation = judged(vec![model.clone()], data.clone(), SubsetsProtocol::default()).unwrap();
    let record = evaluation.subsets.as_ref().unwrap();
    let serving: Vec<usize> = record.sizes.iter().map(|size| size.serving).collect();
    assert_eq!((record.experts, record.samples, serving), (8, IMAGES, vec![4, 2, 1]));
    assert_close(record.all, accuracy(&model, &data, &[]));
    for size in &record.sizes {
        let subset = format!("moe.subset={}", size.serving);
        let choice = |choice: &str| accuracy(&model, &data, &[&subset, choice]);
        assert_close(size.best, accuracy(&model, &data, &[&subset]));
        assert_close(size.least, choice("moe.subset_choice=least"));
        assert_eq!(size.random.len(), 10);
        assert!(size.random_deviation() > 0.0, "draws differ: {:?}", size.random);
    }
}

#[test]
fn of_all_subsets_the_label_finds_one_that_serves() {
    let (model, data) = (model("softlayer-4", &[]), world(28));
    let sizes = vec![SubsetSize::Experts(3), SubsetSize::Experts(1)];
    let asked = SubsetsProtocol { sizes, ..SubsetsProtocol::default() };
    let evaluation = judged(vec![model.clone()], data.clone(), asked.clone()).unwrap();
    let [three, one] = &evaluation.subsets.as_ref().unwrap().sizes[..] else { panic!() };
    assert_eq!(three.exhaustive.unwrap().subsets, 4);
    for size in [three, one] {
        let SubsetRecord { best, least, random, exhaustive, .. } = size;
        let all = exhaustive.unwrap();
        let others = random.iter().chain([best, least]);
        assert!(others.clone().all(|other| all.accuracy >= *other), "{size:?}");
        assert!(all.distinct <= all.subsets.min(IMAGES));
    }
    // Right under one of four experts alone, each masked behind the softmax.
    let alone = (0..4).map(|expert| {
        let others: Vec<String> =
            (0..4).filter(|other| *other != expert).map(|other| other.to_string()).collect();
        let pruned = format!("moe.router.pruning.experts=[{}]", others.join(","));
        accuracy(&model, &data, &[&pruned, "moe.router.pruning.mode=predict"])
    });
    let (sum, most) =
        alone.fold((0.0, 0.0_f64), |(sum, most), alone| (sum + alone, most.max(alone)));
    let found = one.exhaustive.unwrap().accuracy;
    assert!(found >= most && found <= sum + 1e-9, "{most} {found} {sum}");
    let few = SubsetsProtocol { exhaustive: 3, ..asked };
    let evaluation = judged(vec![model], data, few).unwrap();
    assert!(evaluation.subsets.unwrap().sizes.iter().all(|size| size.exhaustive.is_none()));
}

#[test]
fn experts_of_classes_are_those_that_serve_their_images_in_every_layer() {
    let settings = [
        "resolution=16",
        "patch=8",
        "width=16",
        "depth=4",
        "heads=2",
        "mlp=32",
        "moe.experts=4",
        "moe.placement=2,3",
    ];
    let model = model("softmoe-tiny", &settings);
    let evaluation = judged(vec![model], world(16), SubsetsProtocol::default()).unwrap();
    let record = evaluation.subsets.as_ref().unwrap();
    let [half, quarter] = &record.sizes[..] else { panic!("of four there is no eighth") };
    for (size, serving) in [(half, 2.0), (quarter, 1.0)] {
        assert!(size.exhaustive.is_none(), "two layers");
        let blocks: Vec<usize> = size.layers.iter().map(|layer| layer.block).collect();
        assert_eq!(blocks, [2, 3]);
        for layer in &size.layers {
            assert!((1..=6).contains(&layer.distinct));
            for class in &layer.classes {
                let sum: f64 = class.iter().sum();
                assert!(sum == 0.0 || (sum - serving).abs() < 1e-9, "{class:?}");
            }
        }
    }
    let page = evaluation_page(&evaluation);
    assert!(page.html.contains("Subsets of experts</h2>"));
    let figures: Vec<&str> = page.figures.iter().map(|(name, _)| name.as_str()).collect();
    assert!(
        ["subsets", "subsets-classes-2", "subsets-classes-3"]
            .iter()
            .all(|one| figures.contains(one))
    );
    let written = serde_json::to_string(&evaluation).unwrap();
    assert_eq!(serde_json::from_str::<Evaluation>(&written).unwrap().subsets, evaluation.subsets);
    let comparison = Comparison::new(&[evaluation], None).unwrap();
    assert_eq!(comparison.subsets.as_ref().unwrap().systems[0].experts, 4);
    assert!(comparison.markdown().contains("deviations above random"));
}

#[test]
fn only_one_soft_moe_has_subsets() {
    let asked = SubsetsProtocol::default;
    for models in [
        vec![model("vmoe-tiny", &[])],
        vec![model("vit-tiny", &[])],
        vec![model("softmoe-tiny", &[]), model("softmoe-tiny", &[])],
    ] {
        let error = judged(models, world(32), asked()).unwrap_err();
        assert!(matches!(error, EvalError::NotSoft { .. }), "{error}");
    }
}
