//! Several ranks that look at the same images: what one process finds.

use std::sync::Arc;

use burn::tensor::Device;
use omma_base::{Resolution, Seed};
use omma_data::{
    DataError, GeneratedDataset, Shared, Split,
    world::{Variant, World},
};
use omma_eval::{
    Binning, Corrupted, FewShotSet, Images, OodPositive, OodProtocol, OodScore, Protocol,
    ShiftProtocol, System, TransferProtocol,
    atlas::{AtlasProtocol, LabelSource, RoutedModel, routes},
    evaluate,
};
use omma_model::{VisionTransformer, apply_settings, preset, with_values};
use omma_ranks::threads;
use serde_json::Value;

const SMALL: [&str; 6] = ["resolution=16", "patch=8", "width=16", "depth=4", "heads=2", "mlp=32"];

/// A small model whose classifier tells images apart.
fn model(kind: &str, settings: &[&str], seed: u64) -> (String, VisionTransformer) {
    let config = apply_settings(&preset(kind).unwrap(), &[&SMALL[..], settings].concat()).unwrap();
    let model = config.init(Seed::new(seed), &Device::flex()).unwrap();
    let model = with_values(model, |parameter| {
        let values = (0..parameter.shape.iter().product()).map(|place: usize| (place as f32).sin());
        Ok((parameter.name == "head.weight").then(|| values.collect()))
    });
    (format!("{kind} {seed}"), model.unwrap())
}

fn world(images: usize, split: Split, variant: Variant) -> Shared {
    Arc::new(World::new(1, Resolution::square(16), images, split, variant))
}

fn protocol(test: Shared) -> Protocol {
    let usual = |images, split| Images::new("world", world(images, split, Variant::Usual));
    Protocol {
        label: "m".to_owned(),
        fingerprint: String::new(),
        test: Images::new("images", test),
        validation: Some(usual(20, Split::Train)),
        shift: Some(ShiftProtocol { samples: 3, corrupted: Corrupted::Made { seed: 0 } }),
        subsets: None,
        few_shot: TransferProtocol {
            sets: vec![FewShotSet { train: usual(60, Split::Train), test: usual(20, Split::Test) }],
            shots: vec![2],
            draws: 1,
            seed: 3,
        },
        ood: OodProtocol {
            sets: vec![Images::new("far", world(11, Split::Test, Variant::FarOod))],
            score: OodScore::MaxProbability,
            positive: OodPositive::InDistribution,
        },
        binning: Binning::default(),
        batch: 8,
        windows: Default::default(),
        predictions: None,
        options: Vec::new(),
    }
}

/// A record without how long it took.
fn record(found: &impl serde::Serialize) -> Value {
    fn without_speed(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("images_per_second");
                fields.remove("peak_rss_bytes");
                fields.values_mut().for_each(without_speed);
            }
            Value::Array(all) => all.iter_mut().for_each(without_speed),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(found).unwrap();
    without_speed(&mut value);
    value
}

#[test]
fn an_evaluation_by_several_ranks_is_that_of_one_process_on_each() {
    let models = vec![model("vmoe-tiny", &["moe.experts=4"], 0), model("e3-tiny", &[], 1)];
    let system = || System::new(models.clone(), &Device::flex()).unwrap();
    // Five batches of eight: the last round of two or three ranks is not full.
    let protocol = protocol(world(37, Split::Test, Variant::Usual));
    let alone = record(&evaluate(&system(), &protocol, &mut ()).unwrap().0);
    for ranks in [2, 3] {
        let found = threads(ranks, |world| {
            let system = system().among(&world);
            let found = evaluate(&system, &protocol, &mut ()).unwrap().0;
            (record(&found), world.take_traffic().bytes)
        });
        for (found, bytes) in found {
            assert_eq!(found, alone, "{ranks} ranks");
            assert!(bytes > 0, "nobody has said anything");
        }
    }
}

#[test]
fn an_atlas_by_several_ranks_is_that_of_one_process_on_each() {
    for (kind, settings) in [
        ("vmoe-tiny", &["moe.experts=5", "moe.placement=every-2"][..]),
        ("vmoe-tiny", &["moe.router=softmax-expert-choice", "moe.experts=4"]),
        ("softmoe-tiny", &["moe.experts=3"]),
        ("e3-tiny", &["moe.experts=6", "moe.members=2"]),
    ] {
        let (name, model) = model(kind, settings, 2);
        let images = Images::new("world", world(37, Split::Test, Variant::Usual));
        let protocol = AtlasProtocol {
            labels: LabelSource::Images,
            data: "world".to_owned(),
            batch: 8,
            permutations: 99,
            seed: 7,
        };
        let atlas = |world: &omma_ranks::World| {
            let device = Device::flex();
            let subject = RoutedModel {
                name: name.clone(),
                path: "runs/m".to_owned(),
                model: &model,
                tokenizer: None,
                device: &device,
                seed: Seed::new(0),
                world: world.clone(),
            };
            record(&routes(&subject, &images, &protocol, &mut ()).unwrap().0)
        };
        let alone = atlas(&omma_ranks::World::alone());
        for found in threads(3, |world| atlas(&world)) {
            assert_eq!(found, alone, "{kind} {settings:?}");
        }
    }
}

/// Images of which one cannot be read: one of many, which a rank by itself would leave out.
fn torn(data: Shared) -> Shared {
    let (classes, len) = (data.classes().to_vec(), data.len());
    let missing = |path: &str| DataError::Io {
        path: path.into(),
        source: std::io::ErrorKind::NotFound.into(),
    };
    Arc::new(GeneratedDataset::new(&classes, len, move |index| match index {
        20 => Err(missing("photo.png")),
        _ => data.get(index),
    }))
}

#[test]
fn an_image_that_one_rank_alone_cannot_read_ends_all_with_its_number() {
    let models = vec![model("vit-tiny", &[], 0)];
    let found = threads(2, |world| {
        let data = self::world(137, Split::Test, Variant::Usual);
        let data: Shared = if world.leads() { data } else { torn(data) };
        let system = System::new(models.clone(), &Device::flex()).unwrap().among(&world);
        let Err(error) = evaluate(&system, &protocol(data), &mut ()) else {
            panic!("an image is missing")
        };
        error.to_string()
    });
    for said in found {
        assert!(said.contains("rank 1") && said.contains("cannot read the same images"), "{said}");
    }
}
