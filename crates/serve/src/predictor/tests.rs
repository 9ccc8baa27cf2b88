//! The same bits alone and in any batch; maps of experts; faults.

use burn::tensor::Device;
use omma_base::Seed;
use omma_model::{apply_settings, preset, with_values};

use super::*;
use crate::metrics::Metrics;

const SMALL: [&str; 6] = ["resolution=16", "patch=4", "width=32", "depth=2", "heads=2", "mlp=64"];
const EXPERTS: [&str; 2] = ["moe.experts=4", "moe.placement=last-1"];

/// - `more`: settings of a small V-MoE; of a dense model, none
fn predictor(more: &[&str]) -> Predictor {
    let (dense, moe) = (more.is_empty(), SMALL.iter().chain(&EXPERTS).chain(more));
    let (name, settings): (_, Vec<&str>) = match dense {
        true => ("vit-tiny", SMALL.to_vec()),
        false => ("vmoe-tiny", moe.copied().collect()),
    };
    let config = apply_settings(&preset(name).unwrap(), &settings).unwrap();
    let device = Device::flex();
    let model = config.init(Seed::new(3), &device).unwrap();
    // A fresh head is undecided.
    let model = with_values(model, |parameter| {
        let count: usize = parameter.shape.iter().product();
        let values = (0..count).map(|place| ((place * 37) % 17) as f32 / 8.0 - 1.0);
        Ok(parameter.name.starts_with("head.").then(|| values.collect()))
    });
    let system = System::new(vec![("one".to_owned(), model.unwrap())], &device).unwrap();
    Predictor::new(system, Metrics::new().of_model("one", Vec::new()))
}

fn ask(image: usize) -> Ask {
    let value = |place: usize| ((place * (31 + image) + 7 * image) % 251) as f32 / 125.0 - 1.0;
    let values = (0..16 * 16 * 3).map(value).collect();
    Ask::Classes { values, labels: None, experts: true }
}

fn answers(predictor: &mut Predictor, images: &[usize]) -> Vec<Classified> {
    let found = predictor.answer(images.iter().map(|image| ask(*image)).collect());
    let classified = |answer| match answer {
        Ok(Answer::Classes(found)) => found,
        other => panic!("no classes: {other:?}"),
    };
    found.into_iter().map(classified).collect()
}

/// Every image alone, and in batches of many sizes, at many places, in both orders.
fn check_bits(settings: &[&str], alone: bool) {
    let mut predictor = predictor(settings);
    assert_eq!(predictor.alone().is_some(), alone, "{settings:?}");
    let images: Vec<usize> = (0..33).collect();
    let bits = |found: &Classified| -> Vec<u32> {
        found.logits.iter().flatten().map(|logit| logit.to_bits()).collect()
    };
    let singly: Vec<Classified> =
        images.iter().map(|image| answers(&mut predictor, &[*image]).remove(0)).collect();
    assert!(singly.windows(2).any(|two| two[0] != two[1]), "answers depend on the image");
    for size in [2, 3, 5, 8, 17, 32, 33] {
        for start in [0, 33 - size] {
            let mut batch = images[start..start + size].to_vec();
            for _ in 0..2 {
                for (image, together) in batch.iter().zip(answers(&mut predictor, &batch)) {
                    let singly = &singly[*image];
                    assert_eq!(
                        bits(singly),
                        bits(&together),
                        "{settings:?}: image {image} of {size}"
                    );
                    assert_eq!(singly.experts, together.experts, "{settings:?}");
                }
                batch.reverse();
            }
        }
    }
}

#[test]
fn a_vmoe_says_the_same_bits_alone_and_in_any_batch() {
    check_bits(&["moe.k=2"], false);
}

#[test]
fn so_does_one_that_is_as_wide_as_a_vit_s() {
    check_bits(
        &["width=384", "heads=6", "mlp=1536", "moe.k=2", "depth=1", "moe.placement=0"],
        false,
    );
}

#[test]
fn so_do_several_members() {
    check_bits(&["moe.members=2"], false);
}

#[test]
fn so_does_a_soft_moe() {
    check_bits(&["moe.router=soft"], false);
}

#[test]
fn so_does_a_dense_model() {
    check_bits(&[], false);
}

#[test]
fn routers_that_look_at_several_images_are_given_one_at_a_time() {
    check_bits(&["moe.router=softmax-expert-choice"], true);
    check_bits(&["moe.inference_capacity_ratio=1"], true);
    check_bits(&["moe.inference_noise=1"], true);
}

#[test]
fn every_patch_has_its_experts_and_they_are_those_that_took_it() {
    let mut predictor = predictor(&["moe.members=2", "moe.k=2"]);
    let found = answers(&mut predictor, &[0, 1]).remove(1);
    let maps = found.experts.unwrap();
    assert_eq!(maps.len(), 2, "a map per member");
    for (member, map) in maps.iter().enumerate() {
        assert_eq!((map.member, map.grid, map.block), (Some(member), (4, 4), 1));
        assert_eq!(map.patches.len(), 16);
        for patch in &map.patches {
            assert_eq!(patch.len(), 2);
            assert!(patch[0].1 >= patch[1].1 && patch.iter().all(|(_, weight)| *weight > 0.0));
            // Experts are cut into subsets, one per member (paper 000).
            assert!(patch.iter().all(|(expert, _)| expert / 2 == member));
        }
    }
}

#[test]
fn what_is_not_a_number_costs_its_own_answer_alone() {
    let mut predictor = predictor(&["moe.k=2"]);
    let mut asks = vec![ask(0), ask(1), ask(2)];
    let Ask::Classes { values, .. } = &mut asks[1] else { unreachable!() };
    values[5] = f32::NAN;
    let found = predictor.answer(asks);
    assert!(found[0].is_ok() && found[1].is_err() && found[2].is_ok(), "{found:?}");
}
